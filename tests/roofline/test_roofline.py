"""Costs of definitions against counts by hand; the roofline: which limit binds, what was reached, what cannot be."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from flashinfer_bench.roofline.cost import Cost
from flashinfer_bench.roofline.definitions import find_cost
from flashinfer_bench.roofline.measured import MeasuredPeaks, find_peaks_file, read_peaks
from flashinfer_bench.roofline.peaks import Peak, describe_time, find_peak
from flashinfer_bench.roofline.workloads import cost_of_workload, read_integers
from tests.kit.make import make_definition, make_workload

H200 = "NVIDIA H200"
"""4.8 TB/s, 989 TFLOP/s in fp16, an L2 of 50 MiB."""


def test_bytes_or_arithmetic_bind_and_a_share_is_reached():
    for flops, bound, floor_ms in ((1e9, "memory", 1.0), (9.89e12, "compute", 10.0)):
        found = describe_time(Cost(flops, 4.8e9, "fp16"), H200, 20.0)
        assert (found["bound"], found["floor_ms"], found["share"]) == (bound, pytest.approx(floor_ms), floor_ms / 20)
    record = describe_time(Cost(0, 4.8e9), H200, 2.0)
    expected = {"flops": 0, "bytes": 4.8e9, "unit": "fp32", "tb_per_sec": 2.4, "peak": "H200 SXM (vendor)"}
    assert {key: record[key] for key in expected} == expected
    assert "share" not in describe_time(Cost(0, 4.8e9), "unheard of", 2.0)
    assert describe_time(Cost(0, 1), H200, 0.0) is None


def test_what_is_too_fast_is_told_by_the_limit_that_it_breaks_and_caches_are_faster_than_memory():
    for moved, bound in ((1000, "compute"), (4e9, "memory")):
        found = describe_time(Cost(1e4, moved, "fp16"), H200, 1e-12)
        assert found["bound"] == "memory"
        assert re.search(f"faster than the device allows.*bound by {bound}", found["too_fast"])
    assert "too_fast" not in describe_time(Cost(0, 1000), H200, 1e-9)


MEASURED = {
    "version": 1,
    "device": "NVIDIA H200",
    "date": "2026-11-30T09:00:00+00:00",
    "versions": {"torch": "2.11", "triton": None},
    "tb_per_sec": {"copy": 2.0, "triad": 2.4},
    "tflops": {"fp16": 494.5},
    "gpu": {"copy": {"sm_mhz": [1980, 1980]}},
}


def test_a_measured_peak_is_the_ceiling_of_its_units_and_refuses_no_time():
    measured = msgspec.convert(MEASURED, MeasuredPeaks).peak
    record = describe_time(Cost(0, 4.8e9, "fp16"), H200, 1.5, measured)
    assert (record["peak"], record["floor_ms"]) == ("H200 (measured 2026-11-30)", pytest.approx(2.0))
    assert (record["share"], "too_fast" in record) == (pytest.approx(2 / 1.5), False)
    assert "too_fast" in describe_time(Cost(0, 4.8e9, "fp16"), H200, 0.5, measured)
    assert describe_time(Cost(9.89e12, 1, "fp16"), H200, 30.0, measured)["floor_ms"] == pytest.approx(20.0)
    assert describe_time(Cost(0, 4.8e9, "fp8"), H200, 2.0, measured)["peak"] == "H200 SXM (vendor)"
    unlisted = describe_time(Cost(0, 4.8e9, "fp16"), "unheard of", 1e-9, measured)
    assert (unlisted["floor_ms"], "too_fast" in unlisted) == (pytest.approx(2.0), False)


@pytest.mark.parametrize(
    "text",
    [None, "", "[" * 9999, json.dumps({**MEASURED, "version": 2}), json.dumps({**MEASURED, "tflops": {"fp16": 0}})],
    ids=["missing", "empty", "deep", "other version", "zero"],
)
def test_a_file_of_peaks_that_cannot_be_used_counts_as_missing(tmp_path, text):
    file = find_peaks_file(tmp_path, "GPU-1")
    file.parent.mkdir()
    file.write_text(json.dumps(MEASURED))
    assert read_peaks(file) == msgspec.convert(MEASURED, MeasuredPeaks)
    file.unlink() if text is None else file.write_text(text)
    assert read_peaks(file) is None


NAMES = {
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA GH200 480GB": "GH200 96GB",
    "NVIDIA A100-SXM4-80GB": "A100 80GB SXM",
    "NVIDIA A100-PCIE-40GB": "A100 40GB",
    "NVIDIA H20": "H20",
    "AMD EPYC": None,
}


def test_devices_are_found_by_their_names_and_lacking_units_run_on_the_next_wider_one():
    peaks = {name: find_peak(name) for name in NAMES}
    assert {name: peak and peak.name for name, peak in peaks.items()} == NAMES
    assert peaks["NVIDIA A100-SXM4-80GB"].operations("fp4") == 312
    assert Peak("test", {"fp32": 10.0}, 2.0).operations("tf32") == 10.0


DTYPES = {"bf16": "bfloat16", "f32": "float32", "fp8": "float8_e4m3fn"}


def define(op_type, axes, tensors, name="x", tags=()):
    """Make a definition whose tensors are written as "x: f32[n] -> y: f32[n]"."""
    for short, dtype in DTYPES.items():
        tensors = tensors.replace(f" {short}[", f" {dtype}[")
    inputs, outputs = (dict(one.split(": ") for one in side.split("; ")) for side in tensors.split(" -> "))
    parts = {"op_type": op_type, "axes": axes, "tags": list(tags), "reference": "def run(*a):\n    return a\n"}
    return make_definition(name, inputs=inputs, outputs=outputs, **parts)


MNK = {"m": 4, "n": 6, "k": 64, "packed_k": 8, "blocks": 2}
BV = {"b": 2, "v": 10}
MOE = {"seq_len": 3, "num_experts": 8, "hidden_size": 16, "intermediate_size": 32}
ROPE = {"num_tokens": 3, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 8, "max_seq_len": 16, "r": 4}
PAGED_AXES = {"batch_size": 2, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 8, "page_size": 4, "num_pages": 100}
MLA_AXES = {"batch_size": 1, "num_qo_heads": 2, "head_dim_ckv": 16, "head_dim_kpe": 4, "page_size": 1, "num_pages": 9}
QK = "q: bf16[num_tokens, num_qo_heads, head_dim]; k: bf16[num_tokens, num_kv_heads, head_dim]"
Q_OUT = "q_out: bf16[num_tokens, num_qo_heads, head_dim]"
PAGED = (
    "q: bf16[batch_size, num_qo_heads, head_dim]; k_cache: bf16[num_pages, page_size, num_kv_heads, head_dim]; "
    "v_cache: bf16[num_pages, page_size, num_kv_heads, head_dim]; kv_indptr: int32[3]; kv_indices: int32[3]; "
    "kv_last_page_len: int32[batch_size] -> o: bf16[batch_size, num_qo_heads, head_dim]"
)
MLA = (
    "q_nope: bf16[batch_size, num_qo_heads, head_dim_ckv]; ckv_cache: bf16[num_pages, page_size, head_dim_ckv]; "
    "kpe_cache: bf16[num_pages, page_size, head_dim_kpe]; kv_indptr: int32[2]; kv_indices: int32[7] -> o: bf16[1]"
)
SAMPLES = "x: f32[b, v] -> y: f32[b, v]"
COSTS = {
    "gemm": ("gemm", MNK, "A: bf16[m, k]; B: bf16[n, k] -> C: f32[m, n]", 3072, 1376, "fp16"),
    "scaled": (
        *("lowbit", MNK, "A: fp8[m, k]; A_scale: f32[m, blocks]; B: fp8[n, k] -> C: bf16[m, n]"),
        *(3072, 256 + 32 + 384 + 48, "fp8"),
    ),
    "w4a8": ("lowbit", MNK, "x: fp8[m, k]; weights: int32[n, packed_k]; s: bf16[n, blocks] -> y: bf16[m, n]", 3072),
    "quantize": ("lowbit", MNK, "x: bf16[m, k] -> v: fp8[m, k]; s: uint8[m, blocks]", None),
    "scales only": ("lowbit", MNK, "x: fp8[m, k]; scales: f32[m, n] -> y: bf16[m, n]", None),
    "transposed": ("lowbit", MNK, "a: fp8[k, m]; b: fp8[k, n] -> y: bf16[m, n]", None),
    "norm": ("rmsnorm", MNK, "x: bf16[m, n]; w: bf16[n] -> y: bf16[m, n]", 5 * 24, 108, "fp32"),
    "residual": ("rmsnorm", MNK, "x: bf16[m, n]; residual: bf16[m, n] -> y: bf16[m, n]", 6 * 24),
    "rope in part": ("rope", ROPE, f"{QK} -> {Q_OUT}", None),
    "rope by angles": ("rope", ROPE, f"{QK}; cos_sin_cache: f32[max_seq_len, r] -> {Q_OUT}", 3 * 3 * 6 * 4),
    "softmax": ("sampling", BV, SAMPLES, 5 * 20),
    "top_k_renorm": ("sampling", BV, SAMPLES, 0),
    "top_p_sampling": ("sampling", BV, "x: f32[b, v] -> y: int64[b]", 0, 96),
    "temperature": ("sampling", BV, SAMPLES, None),
    "moe_topk2_e8": (
        *("moe", {**MOE, "num_local_experts": 4}),
        "x: fp8[seq_len, hidden_size]; gemm1_weights: fp8[num_local_experts, 64, 16] -> y: bf16[seq_len, hidden_size]",
        *(6 * (3 * 2 * 4 / 8) * 16 * 32, 48 + 4 * 64 * 16 * (1 - 0.75**3) + 96, "fp8"),
    ),
    "moe with an axis": ("moe", {**MOE, "top_k": 1}, "x: bf16[3, 16] -> y: bf16[3, 16]", 6 * 3 * 16 * 32),
    "unknown": ("something", BV, "x: f32[b] -> y: f32[b]", None),
    "decode": ("gqa_paged", PAGED_AXES, PAGED, 2 * 9 * 4 * 16, 256 + 2 * 9 * 2 * 8 * 2 + 32, "fp16"),
    "lengths unknown": ("gqa_paged", PAGED_AXES, PAGED, None),
    "mla": ("mla_paged", MLA_AXES, MLA, 2 * 7 * 2 * 36, 64 + 2 * 7 * 20 + 8 + 28 + 2, "fp16"),
}
VALUES = {"decode": {"kv_indptr": [0, 1, 3], "kv_last_page_len": [3, 2]}, "mla": {"kv_indptr": [0, 7]}}
"""3 and 6 tokens; 7."""


@pytest.mark.parametrize("case", COSTS)
def test_a_definition_costs_what_is_counted_by_hand(case):
    op_type, axes, tensors, flops, *others = COSTS[case]
    found = find_cost(define(op_type, axes, tensors, name=case.replace(" ", "_")), axes, VALUES.get(case))
    assert (found and found.flops) == flops
    assert found is None or [found.bytes, found.unit][: len(others)] == [
        pytest.approx(other) if isinstance(other, float) else other for other in others
    ]


AXES = {"total_q": 5, "total_kv": 7, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 8, "len_indptr": 3}
RAGGED = (
    "q: bf16[total_q, num_qo_heads, head_dim]; k: bf16[total_kv, num_kv_heads, head_dim]; "
    "v: bf16[total_kv, num_kv_heads, head_dim]; qo_indptr: int32[len_indptr]; kv_indptr: int32[len_indptr] -> "
    "output: bf16[total_q, num_qo_heads, head_dim]"
)
OFFSETS = {"qo_indptr": [0, 3, 5], "kv_indptr": [0, 4, 7]}  # 3 of 4 and 2 of 3
ALL, SEEN = 3 * 4 + 2 * 3, (2 + 3 + 4) + (2 + 3)


def flops_of(name, tags=(), axes=AXES, **offsets):
    found = find_cost(define("gqa_ragged", AXES, RAGGED, name, tags), axes, {**OFFSETS, **offsets})
    return found and found.flops / (2 * 2 * 16)


def test_prefill_is_causal_if_its_definition_says_so():
    assert flops_of("gqa_ragged_prefill_causal_h2") == SEEN
    assert flops_of("gqa_ragged_prefill_h2", ("stage:prefill", "mask:causal")) == SEEN
    assert flops_of("prefill_causal", ["non-causal"]) == SEEN  # the name counts more
    assert flops_of("gqa_ragged_prefill_non_causal_h2") == ALL
    assert flops_of("acausal_h2", ("stage:prefill",)) is None
    assert flops_of("prefill", axes={**AXES, "total_q": 2}, qo_indptr=[0, 1, 2]) == 7  # the mask hides nothing
    long = {**AXES, "total_q": 9}
    assert flops_of("prefill_causal", axes=long, qo_indptr=[0, 9, 9], kv_indptr=[0, 2, 7]) == 1 + 2  # 7 see nothing


@pytest.mark.parametrize("offsets", [[0, 3, 6], [0, 5], [3, 0, 5], [0, 6, 5]])
def test_offsets_that_contradict_the_queries_tell_no_cost(offsets):
    assert flops_of("prefill_causal", qo_indptr=offsets) is None


def test_lengths_are_read_from_the_blob_and_a_stated_cost_is_believed(tmp_path):
    blob = tmp_path / "a.safetensors"
    save_file({"p": np.array([0, 4, 9], dtype=np.int32), "f": np.zeros(2, dtype=np.float32)}, blob)
    assert (read_integers(blob, "p"), read_integers(blob, "f")) == ((0, 4, 9), None)
    tensors = "q: bf16[2, 2, 8]; k: bf16[9, 2, 8]; kv_indptr: int32[3] -> o: bf16[4]"
    definition = define("gqa_ragged", {"num_qo_heads": 2, "head_dim": 8}, tensors)
    stored = {"kv_indptr": {"type": "safetensors", "path": "a.safetensors", "tensor_key": "p"}}
    assert cost_of_workload(definition, make_workload(axes={}, inputs=stored), tmp_path).flops == 2 * 9 * 2 * 16
    stated = make_workload(axes={}, inputs=stored, cost={"flops": 5.0, "bytes": 7.0, "unit": "fp8"})
    assert cost_of_workload(definition, stated, tmp_path) == Cost(5.0, 7.0, "fp8")
