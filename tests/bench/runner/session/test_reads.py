"""How many of the timed calls that were kept are compared: all of a quick reference's, enough of a slow one's."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Baseline
from flashinfer_bench.bench.evaluators.verdict import Accepted, Rejected
from flashinfer_bench.bench.runner.session import reads as reads_module
from flashinfer_bench.bench.runner.session.reads import ENOUGH_READS, judge_reads
from flashinfer_bench.bench.runner.workers.timed.reader import ReadCall
from flashinfer_bench.data import Correctness, EvaluationStatus

pytestmark = pytest.mark.cpu
TRIALS = 3


def judge(latency_ms, *, reads=8, with_base=True, verdict=None):
    """Judge the reads of three trials with a reference that returns at once; return what was compared, and the rest."""
    compared, called = [], []

    def judge_calls(definition, calls, config, context):
        compared.extend(calls)
        return verdict or Accepted(Correctness())

    def reference(inputs):
        called.append(inputs)
        return [torch.zeros(1)]

    block = SimpleNamespace(definition=None, reference=reference, evaluator=SimpleNamespace(judge_reads=judge_calls))
    job = SimpleNamespace(block=block, config=None, notes={})
    found = [
        [ReadCall([trial, at], [torch.zeros(1)], with_base and at == 0) for at in range(reads)]
        for trial in range(TRIALS)
    ]
    baseline = Baseline([], [[torch.full((1,), trial)] for trial in range(TRIALS)], latency_ms, None)
    return judge_reads(job, found, baseline, None), compared, called, job.notes


def test_all_are_compared_where_the_reference_is_quick():
    rejected, compared, called, notes = judge(0.02)
    assert rejected is None
    assert len(compared) == notes["reads"] == 8 * TRIALS
    assert len(called) == 7 * TRIALS  # what the base gives is known
    assert sorted(int(call.expected[0]) for call in compared if call.inputs[1] == 0) == [0, 1, 2]


@pytest.mark.parametrize(
    ("call_s", "calls"),
    [(0.04, ENOUGH_READS), (0.9, 4), (2.0, 2)],
    ids=["enough", "slow", "very slow"],
)
def test_of_a_slow_reference_enough_are_compared(monkeypatch, call_s, calls):
    ticks = itertools.count(0.0, call_s)
    monkeypatch.setattr(reads_module.time, "monotonic", lambda: next(ticks))
    _, compared, called, _ = judge(None, with_base=False)
    assert len(compared) == len(called) == calls


def test_what_is_wrong_is_told_of_a_timed_call():
    wrong = Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "too far", Correctness())
    rejected, _, _, _ = judge(0.02, verdict=wrong)
    assert rejected.message == "in a call that was timed: too far"


def test_calls_are_judged_in_portions_where_what_is_expected_takes_much_memory(monkeypatch):
    monkeypatch.setattr(reads_module, "MOST_BYTES", 10)  # an expected output takes four
    portions = []

    def note(definition, calls, config, context):
        portions.append(len(calls))
        return Accepted(Correctness())

    block = SimpleNamespace(
        definition=None, reference=lambda _: [torch.zeros(1)], evaluator=SimpleNamespace(judge_reads=note)
    )
    job = SimpleNamespace(block=block, config=None, notes={})
    found = [[ReadCall([at], [torch.zeros(1)], False) for at in range(7)]]
    assert judge_reads(job, found, Baseline([], [[]], 0.02, None), None) is None
    assert portions == [3, 3, 1]
    assert job.notes["reads"] == 7


def test_nothing_is_judged_after_a_portion_that_is_rejected(monkeypatch):
    monkeypatch.setattr(reads_module, "MOST_BYTES", 0)
    rejected = Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "it is wrong", Correctness())
    found, compared, called, notes = judge(0.02, with_base=False, verdict=rejected)
    assert found.message == "in a call that was timed: it is wrong"
    assert len(compared) == len(called) == notes["reads"] == 1
