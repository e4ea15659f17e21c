"""Each routine's reference passes its own check, and a backend that is wrong in one way does not."""

from __future__ import annotations

import pytest

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.routines.table import ROUTINES
from tests.routines import judged
from tests.routines.judged import JudgedRoutine
from tests.routines.small import SMALL

pytestmark = pytest.mark.cpu


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
