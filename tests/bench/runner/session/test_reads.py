"""How many of the timed calls that were kept are compared: all of a quick reference's, enough of a slow one's.

Of a slow one's those come first that the latency was held against; where too few of them can be compared, it is not
confirmed.
"""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Baseline
from flashinfer_bench.bench.evaluators.verdict import Accepted, Rejected
from flashinfer_bench.bench.runner.session import reads as reads_module
from flashinfer_bench.bench.runner.session.reads import ENOUGH_READS, MOST_S, TOO_SLOW, judge_reads, sort_reads
from flashinfer_bench.bench.runner.workers.timed.reader import ReadCall
from flashinfer_bench.data import Correctness, EvaluationStatus

pytestmark = pytest.mark.cpu
TRIALS = 3


def judge(latency_ms, *, reads=8, with_base=True, verdict=None, needs_expected=True):
    """Judge the reads of three trials with a reference that returns at once; return what was compared, and the rest."""
    compared, called = [], []

    def judge_calls(definition, calls, config, context):
        compared.extend(calls)
        return verdict or Accepted(Correctness())

    def reference(inputs):
        called.append(inputs)
        return [torch.zeros(1)]

    evaluator = SimpleNamespace(judge_reads=judge_calls, needs_expected=needs_expected)
    block = SimpleNamespace(definition=None, reference=reference, evaluator=evaluator)
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


def test_the_reference_is_not_called_for_an_evaluator_that_looks_at_the_form_only():
    rejected, compared, called, notes = judge(5000.0, needs_expected=False)
    assert (rejected, called) == (None, [])
    assert len(compared) == notes["reads"] == 8 * TRIALS
    assert all(int(call.expected[0]) == call.inputs[0] for call in compared)


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


@pytest.mark.parametrize(("latency_ms", "calls"), [(24.0, ENOUGH_READS), (8.0, 8 * TRIALS)])
def test_what_a_gpu_has_still_to_do_counts_as_time_of_the_reference(latency_ms, calls):
    _, compared, called, _ = judge(latency_ms, with_base=False)
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
        definition=None,
        reference=lambda _: [torch.zeros(1)],
        evaluator=SimpleNamespace(judge_reads=note, needs_expected=True),
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


def reads_of(**counts):
    """Return the reads of three trials: some readings of each, and at the last one what `counts` has of each way."""
    found = [
        [ReadCall([trial, at], [torch.zeros(1)], at == 0, "reading" if at else None) for at in range(7)]
        for trial in range(TRIALS)
    ]
    for way, count in counts.items():
        found[-1] += [ReadCall([way, at], [torch.zeros(1)], False, way) for at in range(count)]
    return found


def judge_slow(monkeypatch, call_s, found, *, is_right=lambda call: True):
    """Judge reads with a reference that takes so long; return the verdict, what was compared, the record, the time."""
    clock, compared = [0.0], []

    def reference(inputs):
        clock[0] += call_s
        return [torch.zeros(1)]

    def judge_calls(definition, calls, config, context):
        compared.extend(calls)
        if all(map(is_right, calls)):
            return Accepted(Correctness())
        return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "too far", Correctness())

    monkeypatch.setattr(reads_module.time, "monotonic", lambda: clock[0])
    block = SimpleNamespace(
        definition=None, reference=reference, evaluator=SimpleNamespace(judge_reads=judge_calls, needs_expected=True)
    )
    job = SimpleNamespace(block=block, config=None, notes={"measurement": {"bound": "chain", "flags": ["noisy"]}})
    rejected = judge_reads(job, found, Baseline([], [[torch.zeros(1)]] * TRIALS, None, None), None)
    ways = {id(read.inputs): read.way for of_trial in found for read in of_trial}
    return rejected, Counter(ways[id(call.inputs)] for call in compared), job.notes["measurement"], clock[0]


CONFIRMED = {"bound": "chain", "flags": ["noisy"]}
WITHDRAWN = {"bound": "chain", "why_unconfirmed": TOO_SLOW, "flags": ["noisy", "unconfirmed"]}


@pytest.mark.parametrize("way", ["chain", "batch"])
@pytest.mark.parametrize("call_s", [0.05, 1.5, 6.6])
def test_of_a_slow_reference_the_calls_come_first_that_the_latency_was_held_against(monkeypatch, way, call_s):
    rejected, compared, record, spent_s = judge_slow(monkeypatch, call_s, reads_of(**{way: 12}))
    assert rejected is None
    assert compared[way] >= ENOUGH_READS
    assert record == CONFIRMED
    assert spent_s <= MOST_S
    others = compared.total() - compared[None] - ENOUGH_READS
    assert others == (TRIALS if call_s < 1 else 0)


@pytest.mark.parametrize("way", ["chain", "batch"])
def test_who_leaves_out_half_of_the_calls_that_his_latency_was_held_against_is_found(monkeypatch, way):
    def is_computed(call):
        return call.inputs[0] != way or call.inputs[1] >= 7  # of twelve; readings are right

    for _ in range(20):
        rejected, *_ = judge_slow(monkeypatch, 1.5, reads_of(**{way: 12}), is_right=is_computed)
        assert rejected.message == "in a call that was timed: too far"


@pytest.mark.parametrize(("call_s", "relayed", "spent_s"), [(7.0, 8, 56.0), (25.0, 2, 50.0), (100.0, 1, 100.0)])
def test_where_too_few_can_be_compared_a_latency_is_not_confirmed(monkeypatch, call_s, relayed, spent_s):
    rejected, compared, record, found_s = judge_slow(monkeypatch, call_s, reads_of(chain=12))
    assert rejected is None
    assert (compared["chain"], compared["reading"], compared[None]) == (relayed, 0, TRIALS)
    assert record == WITHDRAWN
    assert found_s == pytest.approx(spent_s)


def test_what_was_not_confirmed_stays_so_for_its_own_reason(monkeypatch):
    notes = {"measurement": {"bound": "batch", "why_unconfirmed": "why", "flags": ["unconfirmed"]}}
    reads_module.withdraw_confirmation(notes)
    reads_module.withdraw_confirmation({})  # an evaluator of someone else's notes nothing
    assert notes == {"measurement": {"bound": "batch", "why_unconfirmed": "why", "flags": ["unconfirmed"]}}


def test_of_a_relay_and_a_burst_enough_of_each_are_needed(monkeypatch):
    _, compared, record, _ = judge_slow(monkeypatch, 3.3, reads_of(chain=12, batch=24))
    assert (compared["chain"], compared["batch"], record) == (ENOUGH_READS, ENOUGH_READS, CONFIRMED)
    assert judge_slow(monkeypatch, 3.4, reads_of(chain=12, batch=24))[2] == WITHDRAWN


def test_where_requests_settled_the_latency_readings_are_needed(monkeypatch):
    _, compared, record, _ = judge_slow(monkeypatch, 1.5, reads_of())
    assert (compared["reading"], record) == (ENOUGH_READS, CONFIRMED)


def test_of_few_calls_all_are_needed(monkeypatch):
    """As many as there was memory for, or as a burst has."""
    _, compared, record, _ = judge_slow(monkeypatch, 1.5, reads_of(batch=2))
    assert (compared["batch"], record) == (2, CONFIRMED)


def test_which_calls_are_needed_nobody_can_tell():
    found = reads_of(chain=12)
    found[-1].append(ReadCall(["odd"], [torch.zeros(1)], False))
    chosen = Counter()
    for _ in range(300):
        needed, others = sort_reads(found)
        assert len(needed) + len(others) == sum(map(len, found))
        chosen.update(read.inputs[1] for _, read in needed)
    assert set(chosen) == set(range(12))
    assert 150 < min(chosen.values()) <= max(chosen.values()) < 280  # 225 each
