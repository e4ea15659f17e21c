"""If the judge runs out of memory, it frees all of it and tries once more; then the job is a fault."""

import pytest

from tests.bench.small_runs import HONEST, judge, write_set

pytestmark = pytest.mark.cpu

SCARCE = """
import torch
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

LEFT = {"double": 1, "large": 9}

class Scarce(DefaultEvaluator):
    '''It wants more memory than there is: once of one solution, always of the other.'''
    @classmethod
    def can_evaluate(cls, definition):
        return True

    @classmethod
    def check_correctness(cls, definition, solution, *args, **kwargs):
        if LEFT[definition.name] > 0:
            LEFT[definition.name] -= 1
            raise torch.OutOfMemoryError("80 GB")
        return super().check_correctness(definition, solution, *args, **kwargs)
"""


def test_it_is_tried_once_more(tmp_path, monkeypatch):
    (tmp_path / "scarce.py").write_text(SCARCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    trace_set = write_set(tmp_path, {"a": HONEST}, {"double": HONEST, "large": HONEST})
    run = judge(trace_set, evaluator_modules=["scarce:Scarce"])
    assert [evaluation.status.value for evaluation in run.done.values()] == ["PASSED"]
    (fault,) = run.faults
    assert fault.job.definition.name == "large"
    assert "needs more memory than this device has left" in fault.message
