"""Each routine's reference passes its own check, and a backend that is wrong in one way does not."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.routines.table import ROUTINES
from tests.routines import judged
from tests.routines.judged import JudgedRoutine
from tests.routines.small import SMALL, VARIANTS

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Threads that wait for each other on a busy machine cost more than such small sizes gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Judged routines by name, each prepared once."""
    known = {}

    def prepare(routine: str) -> JudgedRoutine:
        if routine not in known:
            known[routine] = JudgedRoutine(routine, tmp_path_factory.mktemp("set"))
        return known[routine]

    return prepare


def test_every_routine_has_a_small_case():
    assert sorted(SMALL) == sorted(ROUTINES)


@pytest.mark.parametrize("routine", ROUTINES)
def test_the_reference_passes(routine, prepared):
    job = prepared(routine)
    verdict = job.check(job.honest)
    assert isinstance(verdict, Accepted), verdict


@pytest.mark.parametrize("fault", judged.WRONG)
@pytest.mark.parametrize("routine", ROUTINES)
def test_a_wrong_backend_fails(routine, fault, prepared):
    job = prepared(routine)
    verdict = job.check(judged.WRONG[fault](job))
    assert isinstance(verdict, Rejected)
    assert verdict.status.value == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize("routine", ROUTINES)
def test_a_nan_fails(routine, prepared):
    job = prepared(routine)
    if not any(map(judged.is_plain_float, job.baseline.outputs[0])):
        pytest.skip("its outputs have no NaN")
    assert isinstance(job.check(judged.nan(job)), Rejected)


@pytest.mark.parametrize(("routine", "flags"), VARIANTS)
def test_other_flags_judge_as_well(routine, flags, tmp_path):
    job = JudgedRoutine(routine, tmp_path, flags)
    verdict = job.check(job.honest)
    assert isinstance(verdict, Accepted), verdict
    assert isinstance(job.check(judged.zero(job)), Rejected)
    assert isinstance(job.check(judged.skip_row(job)), Rejected)


@pytest.mark.parametrize("routine", [name for name, item in ROUTINES.items() if item.family == "attention"])
def test_a_skipped_head_fails(routine, prepared):
    job = prepared(routine)

    def run(*inputs):
        out = job.honest(*inputs)[0].clone()
        out[..., -1, :] = 0
        return [out]

    assert isinstance(job.check(run), Rejected)


def test_mla_without_the_rotated_part_fails(prepared):
    job = prepared("BatchMLAPagedAttentionWrapper")

    def run(q, kv_cache, *rest):
        q = q.clone()
        q[..., 64:] = 0
        return job.honest(q, kv_cache, *rest)

    assert isinstance(job.check(run), Rejected)


@pytest.mark.parametrize(
    ("routine", "flags"),
    [
        ("top_k_renorm_probs", "--batch_size 8 --vocab_size 128256 --top_k 50"),
        ("top_k_renorm_probs", "--batch_size 256 --vocab_size 2000 --top_k 1"),
        ("top_p_renorm_probs", "--batch_size 600 --vocab_size 2000 --top_p 0.5"),
    ],
)
def test_filters_that_keep_a_small_share_are_judged_by_what_they_keep(routine, flags, tmp_path):
    job = JudgedRoutine(routine, tmp_path, flags)
    assert isinstance(job.check(job.honest), Accepted)
    for fault, make in judged.WRONG.items():
        assert isinstance(job.check(make(job)), Rejected), fault


@pytest.mark.parametrize(
    ("routine", "flags"),
    [
        ("nvfp4_quantize", "--m 1 --k 2048"),
        ("nvfp4_batched_quantize", "--batch_size 4 --m 1 --k 1024"),
        ("mxfp8_quantize", "--m 1 --k 2048"),
        ("mxfp4_quantize", "--m 3 --k 2048"),
        ("rmsnorm_fp4quant", "--batch_size 1 --hidden_size 2048 --is_sf_swizzled_layout"),
        ("add_rmsnorm_fp4quant", "--batch_size 2 --hidden_size 2048 --is_sf_swizzled_layout"),
    ],
)
def test_scales_are_judged_where_tiles_are_mostly_padding(routine, flags, tmp_path):
    job = JudgedRoutine(routine, tmp_path, flags)
    scales = list(job.case.outputs).index("block_scale" if "norm" in routine else "block_scales")

    def change(scale):
        def run(*inputs):
            outputs = [output.clone() for output in job.honest(*inputs)]
            codes = outputs[scales].view(torch.uint8)
            codes.copy_(torch.where((codes > 0) & (codes < 255), scale(codes), codes))
            return outputs

        return job.check(run)

    assert isinstance(job.check(job.honest), Accepted)
    assert isinstance(change(lambda codes: codes * 0), Rejected)
    assert isinstance(change(lambda codes: codes + (1 if routine.startswith("mx") else 8)), Rejected)  # twice as much
