"""Each routine's reference passes its own check, and a backend that is wrong in one way does not."""

from __future__ import annotations

import sys

import pytest
import torch

from flashinfer_bench.routines.case.generated_entry import generate_entry
from flashinfer_bench.routines.table import ROUTINES, find_routine
from tests.routines.judged import JudgedRoutine, Library
from tests.routines.small import SMALL, VARIANTS

pytestmark = pytest.mark.cpu
KEEPS_A_SMALL_SHARE = [
    ("top_k_renorm_probs", "--batch_size 4 --vocab_size 128256 --top_k 50"),
    ("top_k_renorm_probs", "--batch_size 256 --vocab_size 2000 --top_k 1"),
    ("top_p_renorm_probs", "--batch_size 200 --vocab_size 2000 --top_p 0.5"),
]
MOSTLY_PADDING = [
    ("nvfp4_quantize", "--m 1 --k 2048"),
    ("nvfp4_batched_quantize", "--batch_size 4 --m 1 --k 1024"),
    ("mxfp8_quantize", "--m 1 --k 2048"),
    ("mxfp4_quantize", "--m 3 --k 2048"),
    ("rmsnorm_fp4quant", "--batch_size 1 --hidden_size 2048 --is_sf_swizzled_layout"),
    ("add_rmsnorm_fp4quant", "--batch_size 2 --hidden_size 2048 --is_sf_swizzled_layout"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Threads that wait for each other on a busy machine cost more than such small sizes gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_routine_has_a_small_case():
    assert sorted(SMALL) == sorted(ROUTINES)


@pytest.mark.parametrize(("routine", "flags"), [*SMALL.items(), *VARIANTS, *KEEPS_A_SMALL_SHARE])
def test_the_reference_passes_what_is_wrong_in_one_way_does_not_and_backends_call_the_library(
    routine, flags, tmp_path, monkeypatch
):
    for name in ("flashinfer", "flashinfer.attention", "flashinfer.fused_moe"):
        monkeypatch.setitem(sys.modules, name, Library())
    job = JudgedRoutine(routine, tmp_path, flags)
    entry = find_routine(routine)
    backends = [] if entry.needs_ranks else [name for name in entry.support if name not in job.case.refusals]
    for solution in generate_entry(entry, job.case, backends).solutions.values():
        assert job.calls_of(solution) > 0
        assert "flashinfer_bench" not in solution.sources[0].content
    assert job.status(job.honest) == "PASSED"
    wrong = job.wrong_backends()
    if entry.family == "attention":
        wrong["last head skipped"] = job.changed(lambda out: out[..., -1, :].zero_())
    if entry.family in ("norm", "gemm", "mamba") and job.case.op_type != "lowbit":
        wrong["a row is 3 % too large"] = job.changed(lambda out: out[-1:].mul_(1.03))
    if "MLA" in routine:
        wrong["not rotated"] = lambda q, *rest: job.honest(q.index_fill(-1, torch.arange(64, 80), 0), *rest)
    assert {fault: job.status(run) for fault, run in wrong.items()} == dict.fromkeys(wrong, "INCORRECT_NUMERICAL")


@pytest.mark.parametrize(("routine", "flags"), MOSTLY_PADDING)
def test_scales_are_judged_where_tiles_are_mostly_padding(routine, flags, tmp_path):
    job = JudgedRoutine(routine, tmp_path, flags)
    at = [name.startswith("block_scale") for name in job.case.outputs].index(True)

    def change(scale):
        def run(*inputs):
            outputs = [output.clone() for output in job.honest(*inputs)]
            codes = outputs[at].view(torch.uint8)
            codes.copy_(torch.where((codes > 0) & (codes < 255), scale(codes), codes))
            return outputs

        return job.status(run)

    assert change(lambda codes: codes) == "PASSED"
    assert change(lambda codes: codes * 0) != "PASSED"
    assert change(lambda codes: codes + (1 if routine.startswith("mx") else 8)) != "PASSED"  # twice as much
