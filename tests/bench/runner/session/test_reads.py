"""How many of the timed calls that were kept are compared: all of a quick reference's, enough of a slow one's."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Baseline
from flashinfer_bench.bench.evaluators.verdict import Accepted, Rejected
from flashinfer_bench.bench.runner.session.reads import ENOUGH_READS, LONG_S, judge_reads
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
    ("latency_ms", "calls"),
    [(24.0, int(LONG_S / 0.024) + 1), (50.0, ENOUGH_READS), (900.0, 4), (2000.0, 2)],
    ids=["long together", "enough", "slow", "very slow"],
)
def test_a_slow_reference_on_a_gpu_counts_by_its_own_time_though_it_returns_at_once(latency_ms, calls):
    _, compared, called, _ = judge(latency_ms, with_base=False)
    assert len(compared) == len(called) == calls


def test_a_reference_that_was_not_timed_counts_by_the_time_until_it_returns():
    _, compared, _, _ = judge(None, with_base=False)
    assert len(compared) == 8 * TRIALS


def test_what_is_wrong_is_told_of_a_timed_call():
    wrong = Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "too far", Correctness())
    rejected, _, _, _ = judge(0.02, verdict=wrong)
    assert rejected.message == "in a call that was timed: too far"
