"""References against what the library's kernels calculate, written down again from its sources."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.routines.case.materials import make_material
from flashinfer_bench.routines.table import find_routine
from tests.routines.judged import JudgedRoutine, load, make_case

pytestmark = pytest.mark.cpu

EXPERTS = "--num_tokens 4 --hidden_size 128 --intermediate_size 128 --num_experts 4"


def test_a_norm_multiplies_block_scales_by_the_global_one_and_uses_the_range_of_e4m3(tmp_path):
    job = JudgedRoutine("rmsnorm_fp4quant", tmp_path, "--batch_size 32 --hidden_size 1024 --use_global_scale")
    x, weight, factor = job.inputs
    scales, plain = (job.honest(x, weight, one)[1].float() for one in (factor, factor**0))
    assert torch.allclose(scales, plain * factor, rtol=0.13)  # both are rounded to e4m3
    assert 16 < float(scales.median()) < float(scales.max()) <= 448


@pytest.mark.parametrize("more", ["", "--quantized_input"])
def test_the_activation_scales_of_nvfp4_experts_are_scalars_as_the_library_asks(more, monkeypatch, tmp_path):
    seen = []
    moe = SimpleNamespace(cutlass_fused_moe=lambda *given, **_: seen.extend(given[6]))
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(fused_moe=moe, ActivationType=int))
    job = JudgedRoutine("cutlass_fused_moe", tmp_path, f"{EXPERTS} --top_k 2 --cutlass_variant nvfp4 {more}")
    material = make_material(find_routine("cutlass_fused_moe"), job.case, ["cutlass"])
    load(material.solutions["cutlass"])["run"](*job.inputs, torch.empty(4, 128, dtype=torch.bfloat16))
    assert [scale.ndim for scale in seen] == [0, 3, 1, 0, 3, 1]


@pytest.mark.parametrize(("method", "uses"), [("deepseek_v3", True), ("llama4", False), ("renormalize", False)])
def test_only_deepseeks_routing_adds_the_bias_and_reads_its_bytes(method, uses, tmp_path):
    flags = f"{EXPERTS} --top_k 1 --routing_method {method}"
    job = JudgedRoutine("trtllm_fp8_per_tensor_scale_moe", tmp_path, f"{flags} --use_routing_bias")
    logits, bias, *rest = job.inputs
    strong = torch.arange(len(bias), dtype=torch.float32) * 100
    assert torch.equal(job.honest(logits, bias, *rest)[0], job.honest(logits, strong, *rest)[0]) != uses
    assert (job.case.cost.bytes > make_case("trtllm_fp8_per_tensor_scale_moe", flags).cost.bytes) == uses
