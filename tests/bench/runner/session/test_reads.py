"""How many of the timed calls that were kept are compared: all of a quick reference's, enough of a slow one's.

Of a slow one's those come first that the latency was held against; if too few of them can be compared, it is not
confirmed.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Rejected
from flashinfer_bench.bench.runner.session import reads as reads_module
from flashinfer_bench.bench.runner.session.reads import ENOUGH_READS, MOST_S, TOO_SLOW, judge_reads, sort_reads
from flashinfer_bench.bench.runner.workers.timed.timed_calls import ReadCall
from flashinfer_bench.data import Correctness, EvaluationStatus

pytestmark = pytest.mark.cpu
TRIALS = 3
CONFIRMED = {"bound": "chain", "flags": ["noisy"]}
WITHDRAWN = {**CONFIRMED, "why_unconfirmed": TOO_SLOW, "flags": ["noisy", "unconfirmed"]}


def reads_of(bases=1, readings=6, **counts):
    """Return the reads of three trials: bases and readings of each, and at the last one so many of each other way."""
    ways = [None] * bases + ["reading"] * readings
    found = [
        [ReadCall([trial, at], [torch.zeros(1)], way is None, way) for at, way in enumerate(ways)]
        for trial in range(TRIALS)
    ]
    for way, count in counts.items():
        found[-1] += [ReadCall([way, at], [torch.zeros(1)], False, way) for at in range(count)]
    return found


@pytest.fixture
def judge(monkeypatch):
    """Return a function that judges reads with a reference that takes `call_s`; on a GPU it takes `latency_ms` there.

    It gives the verdict, how many calls of each way were compared, the notes, the calls in portions and the time.
    """

    def judged(found, call_s=0.0, *, is_right=lambda call: True, latency_ms=None, needs_expected=True, **record):
        clock, portions, called = [0.0], [], []

        def reference(inputs):
            clock[0] += call_s
            called.append(inputs)
            return [torch.full((1,), 9)]

        def judge_calls(definition, calls, config, context):
            portions.append(calls)
            if all(map(is_right, calls)):
                return Accepted(Correctness())
            return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "too far", Correctness())

        monkeypatch.setattr(reads_module.time, "monotonic", lambda: clock[0])
        evaluator = SimpleNamespace(judge_reads=judge_calls, needs_expected=needs_expected)
        block = SimpleNamespace(definition=None, reference=reference, evaluator=evaluator)
        job = SimpleNamespace(block=block, config=None, notes={"measurement": CONFIRMED | record})
        expected = [[torch.full((1,), trial)] for trial in range(TRIALS)]
        rejected = judge_reads(job, found, Baseline([], expected, latency_ms, None), None)
        ways = {id(read.inputs): read.way for of_trial in found for read in of_trial}
        compared = [call for calls in portions for call in calls]
        return SimpleNamespace(
            rejected=rejected,
            ways=Counter(ways[id(call.inputs)] for call in compared),
            record=job.notes["measurement"],
            count=job.notes["reads"],
            compared=compared,
            portions=portions,
            called=called,
            spent_s=clock[0],
        )

    return judged


@pytest.mark.parametrize("needs_expected", [True, False])
def test_all_are_compared_if_the_reference_is_quick_and_it_is_called_if_its_outputs_are_not_known(
    judge, needs_expected
):
    found = judge(reads_of(), latency_ms=0.02, needs_expected=needs_expected)
    assert found.rejected is None
    assert len(found.compared) == found.count == 7 * TRIALS
    assert len(found.called) == 6 * TRIALS * needs_expected
    for call in found.compared:
        is_known = call.inputs[1] == 0 or not needs_expected
        assert call.expected[0] == (call.inputs[0] if is_known else 9)


@pytest.mark.parametrize(
    ("call_s", "latency_ms", "calls"),
    [(0.04, None, ENOUGH_READS), (0.9, None, ENOUGH_READS), (0.0, 24.0, ENOUGH_READS), (0.0, 8.0, 6 * TRIALS)],
    ids=["enough", "slow", "slow on a GPU", "quick enough"],
)
def test_of_a_slow_reference_enough_are_compared(judge, call_s, latency_ms, calls):
    found = judge(reads_of(bases=0), call_s, latency_ms=latency_ms)
    assert len(found.compared) == len(found.called) == calls


@pytest.mark.parametrize(("most_bytes", "portions"), [(10, [3, 3, 3, 3, 3, 3]), (1 << 30, [18])])
def test_calls_are_judged_in_portions_if_expected_outputs_take_much_memory(judge, monkeypatch, most_bytes, portions):
    monkeypatch.setattr(reads_module, "MOST_BYTES", most_bytes)  # an expected output takes four, or eight
    found = judge(reads_of(bases=0), latency_ms=0.02)
    assert sum(map(len, found.portions)) == found.count == 18
    assert (len(found.portions) == 1) is (len(portions) == 1)
    wrong = judge(reads_of(bases=0), latency_ms=0.02, is_right=lambda call: False)
    assert wrong.rejected.message == "in a call that was timed: too far"
    assert len(wrong.portions) == 1  # nothing is judged after it


@pytest.mark.parametrize("way", ["chain", "batch"])
@pytest.mark.parametrize("call_s", [0.05, 1.5, 6.6])
def test_of_a_slow_reference_the_calls_come_first_that_the_latency_was_held_against(judge, way, call_s):
    found = judge(reads_of(**{way: 12}), call_s)
    assert (found.rejected, found.record) == (None, CONFIRMED)
    assert found.ways[way] >= ENOUGH_READS
    assert found.spent_s <= MOST_S
    assert found.ways.total() - found.ways[None] == ENOUGH_READS


@pytest.mark.parametrize("way", ["chain", "batch"])
def test_a_solution_that_leaves_out_half_of_the_calls_that_its_latency_was_held_against_is_found(judge, way):
    def is_computed(call):
        return call.inputs[0] != way or call.inputs[1] >= 7  # of twelve; readings are right

    for _ in range(20):
        assert judge(reads_of(**{way: 12}), 1.5, is_right=is_computed).rejected is not None


@pytest.mark.parametrize(("call_s", "chained", "spent_s"), [(7.0, 8, 56.0), (25.0, 2, 50.0), (100.0, 1, 100.0)])
def test_if_too_few_can_be_compared_a_latency_is_not_confirmed(judge, call_s, chained, spent_s):
    found = judge(reads_of(chain=12), call_s)
    assert (found.rejected, found.record) == (None, WITHDRAWN)
    assert (found.ways["chain"], found.ways["reading"], found.ways[None]) == (chained, 0, TRIALS)
    assert found.spent_s == pytest.approx(spent_s)


@pytest.mark.parametrize(
    ("call_s", "counts", "record", "expected"),
    [
        (100.0, {"chain": 12}, {"why_unconfirmed": "why"}, {"chain": 1}),
        (100.0, {"chain": 12}, {"bound": "none"}, {"chain": 1}),
        (3.3, {"chain": 12, "batch": 24}, {}, {"chain": ENOUGH_READS, "batch": ENOUGH_READS}),
        (1.5, {}, {}, {"reading": ENOUGH_READS}),
        (1.5, {"batch": 2}, {}, {"batch": 2}),
    ],
    ids=["for its own reason", "on a CPU", "enough of both", "samples settled it", "as many as there was memory for"],
)
def test_what_was_confirmed_or_not_stays_so(judge, call_s, counts, record, expected):
    found = judge(reads_of(**counts), call_s, **record)
    assert found.record == CONFIRMED | record
    assert {way: found.ways[way] for way in expected} == expected
    assert judge(reads_of(chain=12, batch=24), 3.4).record == WITHDRAWN


def test_which_calls_are_needed_nobody_can_tell():
    found, chosen = reads_of(chain=12), Counter()
    found[-1].append(ReadCall(["odd"], [torch.zeros(1)], False))
    for _ in range(300):
        needed, others = sort_reads(found)
        assert len(needed) + len(others) == sum(map(len, found))
        chosen.update(read.inputs[1] for _, read in needed)
    assert set(chosen) == set(range(12))
    assert 150 < min(chosen.values()) <= max(chosen.values()) < 280  # 225 each


def test_what_was_computed_ahead_is_not_computed_again(judge):
    found = reads_of(readings=2)
    found[0][1].expected = ahead = [torch.zeros(1)]
    judged = judge(found)
    assert len(judged.called) == 2 * TRIALS - 1
    assert any(call.expected is ahead for call in judged.compared)
