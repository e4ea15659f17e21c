"""What is judged beside the evaluator's own calls: timed calls that were kept, and calls on inputs of stress cases.

Of a slow reference's timed calls those come first that the latency was held against; if too few of them can be
compared, it is not confirmed. The notes say of each stress case: judged, or left out and why.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Rejected
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks
from flashinfer_bench.bench.runner.session import judged_calls
from flashinfer_bench.bench.runner.session.judged_calls import (
    ENOUGH_READS,
    MOST_S,
    TOO_SLOW,
    judge_reads,
    judge_stress,
    plan_stress,
    sort_reads,
)
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall
from flashinfer_bench.bench.runner.workers.timed.timed_calls import ReadCall
from flashinfer_bench.data import Correctness, EvaluationStatus
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

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

        monkeypatch.setattr(judged_calls.time, "monotonic", lambda: clock[0])
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
    given = reads_of()
    given[0][1].expected = ahead = [torch.zeros(1)]  # computed ahead
    found = judge(given, latency_ms=0.02, needs_expected=needs_expected)
    assert found.rejected is None
    assert len(found.compared) == found.count == 7 * TRIALS
    assert len(found.called) == (6 * TRIALS - 1) * needs_expected
    for call in found.compared:
        is_known = call.inputs[1] == 0 or not needs_expected
        assert call.expected is ahead or call.expected[0] == (call.inputs[0] if is_known else 9)


@pytest.mark.parametrize(
    ("call_s", "latency_ms", "calls"),
    [(0.04, None, ENOUGH_READS), (0.0, 24.0, ENOUGH_READS), (0.0, 8.0, 6 * TRIALS)],
    ids=["enough", "slow on a GPU", "quick enough"],
)
def test_of_a_slow_reference_enough_are_compared(judge, call_s, latency_ms, calls):
    found = judge(reads_of(bases=0), call_s, latency_ms=latency_ms)
    assert len(found.compared) == len(found.called) == calls


def test_calls_are_judged_in_portions_if_expected_outputs_take_much_memory(judge, monkeypatch):
    assert len(judge(reads_of(bases=0), latency_ms=0.02).portions) == 1
    monkeypatch.setattr(judged_calls, "MOST_BYTES", 10)  # an expected output takes four, or eight
    found = judge(reads_of(bases=0), latency_ms=0.02)
    assert len(found.portions) > 1
    assert sum(map(len, found.portions)) == found.count == 18
    wrong = judge(reads_of(bases=0), latency_ms=0.02, is_right=lambda call: False)
    assert wrong.rejected.message == "in a call that was timed: too far"
    assert len(wrong.portions) == 1  # nothing is judged after it


@pytest.mark.parametrize(("way", "call_s"), [("chain", 0.05), ("batch", 1.5), ("chain", 6.6)])
def test_of_a_slow_reference_the_calls_come_first_that_the_latency_was_held_against(judge, way, call_s):
    found = judge(reads_of(**{way: 12}), call_s)
    assert (found.rejected, found.record) == (None, CONFIRMED)
    assert found.ways[way] >= ENOUGH_READS
    assert found.spent_s <= MOST_S
    assert found.ways.total() - found.ways[None] == ENOUGH_READS


def test_a_solution_that_leaves_out_half_of_the_calls_that_its_latency_was_held_against_is_found(judge):
    def is_computed(call):
        return call.inputs[0] != "chain" or call.inputs[1] >= 7  # of twelve; readings are right

    for _ in range(20):
        assert judge(reads_of(chain=12), 1.5, is_right=is_computed).rejected is not None


@pytest.mark.parametrize(("call_s", "chained", "spent_s"), [(7.0, 8, 56.0), (100.0, 1, 100.0)])
def test_if_too_few_can_be_compared_a_latency_is_not_confirmed(judge, call_s, chained, spent_s):
    found = judge(reads_of(chain=12), call_s)
    assert (found.rejected, found.record) == (None, WITHDRAWN)
    assert (found.ways["chain"], found.ways["reading"], found.ways[None]) == (chained, 0, TRIALS)
    assert found.spent_s == pytest.approx(spent_s)


def test_what_was_confirmed_or_not_stays_so(judge):
    reason = {"why_unconfirmed": "why"}
    assert judge(reads_of(chain=12), 100.0, **reason).record == CONFIRMED | reason
    found = judge(reads_of(chain=12, batch=24), 3.3)
    assert (found.record, found.ways["chain"], found.ways["batch"]) == (CONFIRMED, ENOUGH_READS, ENOUGH_READS)
    assert judge(reads_of(chain=12, batch=24), 3.4).record == WITHDRAWN
    assert judge(reads_of(), 1.5).ways["reading"] == ENOUGH_READS  # samples settled it


def test_which_calls_are_needed_nobody_can_tell():
    found, chosen = reads_of(chain=12), Counter()
    found[-1].append(ReadCall(["odd"], [torch.zeros(1)], False))
    for _ in range(300):
        needed, others = sort_reads(found)
        assert len(needed) + len(others) == sum(map(len, found))
        chosen.update(read.inputs[1] for _, read in needed)
    assert set(chosen) == set(range(12))
    assert 150 < min(chosen.values()) <= max(chosen.values()) < 280  # 225 each


LARGE = "all values about 20 times as large"
ZEROS = "left out: nothing but zeros is expected"
IN_PART = "judged where the reference is finite"
NOT_FINITE = "left out: the reference is not finite"
SLOW = "left out: the reference or the calls are slow, or large"

SUMS = "def run(x):\n    return x.clamp(min=0).sum(dim=-1)\n"
OVERFLOWS = "def run(x):\n    return (x.clamp(min=0) * 1e36).sum(dim=-1)\n"
DOUBLES = "def run(x):\n    return x * 2\n"
LOGARITHMS = "import torch\ndef run(x):\n    return torch.tanh(x / 8) * torch.log(x[:, :1] + 8)\n"
HALF = "import torch\ndef run(x):\n    return (x * x * x[:, :1]).half() * 4\n"
COUNTS = "import torch\ndef run(x):\n    return (x > 8).sum(dim=-1)\n"
FLAGGED = "def run(x):\n    return x * 2, (x > 8).any(dim=-1)\n"
ONES = "import torch\ndef run(x):\n    return torch.ones(len(x), dtype=torch.int64)\n"
ROWS = {"y": "float32[n, 256]"}
OUTPUTS = {
    **{one: {"y": "float32[n]"} for one in (SUMS, OVERFLOWS)},
    **dict.fromkeys((DOUBLES, LOGARITHMS), ROWS),
    HALF: {"y": "float16[n, 256]"},
    FLAGGED: ROWS | {"flag": "bool[n]"},
    **{one: {"y": "int64[n]"} for one in (COUNTS, ONES)},
}


def run(reference):
    space = {}
    exec(reference, space)
    return lambda x: got if isinstance(got := space["run"](x), tuple) else (got,)


def normal(seed, rows=32):
    return torch.randn(rows, 256, generator=torch.Generator().manual_seed(seed))


def open_job(reference, *, rows=32, evaluator=DefaultEvaluator, **settings):
    """Return a job with three trials of usual inputs, its baseline and the evaluator's context."""
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs=OUTPUTS[reference], reference=reference)
    workload = make_workload(axes={"n": rows}, inputs={})
    judging = Judging(definition, workload, **settings)
    block = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=evaluator)
    notes, order = {"measurement": {"flags": ["noisy"]}}, SimpleNamespace(seed=3)
    job = SimpleNamespace(block=block, config=judging.config, notes=notes, workload=workload, order=order)
    return job, Baseline([], [block.reference([normal(at, rows)]) for at in range(3)], None, None), judging.context


def judge_calls(reference, *solutions, xs=None, names=None, planned=()):
    """Judge a call of a stress case for each solution; return what is wrong, and the job's notes."""
    xs = [normal(at) * 20 for at in range(len(solutions))] if xs is None else xs
    job, baseline, context = open_job(reference, rows=len(xs[0]))
    names = names or [f"r{at}" for at in range(len(solutions))]
    given = zip(names, solutions, xs, strict=True)
    calls = [StressCall(name, [x], [*got] if isinstance(got := one(x), tuple) else [got]) for name, one, x in given]
    return judge_stress(job, calls, baseline, context, planned), job.notes


def right(x):
    return x.bfloat16().clamp(min=0).sum(dim=-1, dtype=torch.float32)


def wrong_sum(x):
    return torch.ones(len(x))


NEGATIVE, SMALL = torch.full((32, 256), -1.0), normal(0, 4) * 20
LOG = run(LOGARITHMS)


@pytest.mark.parametrize(
    ("reference", "solution", "x", "told"),
    [
        (SUMS, right, SMALL, "judged"),
        (SUMS, right, NEGATIVE[:4], ZEROS),
        (OVERFLOWS, wrong_sum, None, NOT_FINITE),
        (LOGARITHMS, lambda x: torch.where(x[:, :1] > 30, torch.inf, LOG(x)[0]), None, IN_PART),
        (HALF, lambda x: torch.zeros(len(x), 256).half(), None, NOT_FINITE),
    ],
)
def test_what_is_told_of_a_case_that_rejects_nobody(reference, solution, x, told):
    """Nobody is blamed in rows in which the reference is not finite, or overflows sooner than a better solution."""
    rejected, notes = judge_calls(reference, solution, xs=None if x is None else [x])
    assert (rejected, notes["regimes"]) == (None, {"r0": told})


@pytest.mark.parametrize(
    ("reference", "solution", "x", "told"),
    [
        (SUMS, wrong_sum, SMALL, "judged"),
        (LOGARITHMS, lambda x: x / 8 * torch.log(x[:, :1] + 8), None, IN_PART),
    ],
)
def test_who_is_wrong_on_a_case_is_rejected(reference, solution, x, told):
    rejected, notes = judge_calls(reference, solution, xs=None if x is None else [x])
    assert isinstance(rejected, Rejected)
    assert notes["regimes"] == {"r0": told}
    assert ("rows that are not finite are left out" in rejected.message) is (told == IN_PART)


def test_calls_are_looked_at_together_and_judged_alone_where_one_may_be_wrong(monkeypatch):
    alone = []
    judge_one = StressChecks.judge
    monkeypatch.setattr(StressChecks, "judge", lambda self, *given: alone.append(given[0]) or judge_one(self, *given))
    assert judge_calls(SUMS, right, right)[1]["regimes"] == {"r0": "judged", "r1": "judged"}
    assert judge_calls(SUMS, right, right, xs=[NEGATIVE, normal(0)])[1]["regimes"] == {"r0": ZEROS, "r1": "judged"}
    rejected, notes = judge_calls(SUMS, right, wrong_sum, right)
    assert isinstance(rejected, Rejected)
    assert alone[-1] == "r1"
    assert sorted(alone) == list(notes["regimes"])


def test_what_is_wrong_is_told_though_the_reference_has_no_memory_for_later_calls():
    job, baseline, context = open_job(SUMS)
    reference, x = job.block.reference, normal(0)

    def judge_two(first):
        calls = []

        def short(inputs):
            calls.append(inputs)
            if len(calls) > 1:
                raise WorkloadFault("no memory")
            return reference(inputs)

        job.block.reference = short
        found = [StressCall(name, [x], [first]) for name in (LARGE, "another")]
        return judge_stress(job, found, baseline, context)

    assert isinstance(judge_two(wrong_sum(x)), Rejected)
    with pytest.raises(WorkloadFault):
        judge_two(right(x))


@pytest.mark.parametrize(
    ("patience_s", "planned", "told"),
    [
        (1e9, "ab", {"a": "judged", "b": "judged"}),
        (-1.0, "ab", {"a": SLOW, "b": SLOW}),
        (1e9, "abc", {"a": "judged", "b": "judged", "c": SLOW}),
    ],
    ids=["all", "slow reference", "slow calls"],
)
def test_a_job_of_which_calls_were_left_out_is_flagged(monkeypatch, patience_s, planned, told):
    monkeypatch.setattr(judged_calls, "PATIENCE_S", patience_s)
    rejected, notes = judge_calls(DOUBLES, run(DOUBLES), run(DOUBLES), names="ab", planned=planned)
    assert (rejected, notes["regimes"]) == (None, told)
    assert notes["measurement"]["flags"] == ["noisy", *(["regimes_left_out"] if SLOW in told.values() else [])]


def judge_constants(reference, solution, **settings):
    """Judge the calls of a job on inputs of its stress cases."""
    job, baseline, context = open_job(reference, **settings)
    planned = plan_stress(job, baseline)
    calls = []
    for at, name in enumerate(planned.calls if planned is not None else ()):
        x = normal(at)
        planned.change(name, at, [x])
        calls.append(StressCall(name, [x], [one.clone() for one in solution(x)]))
    return judge_stress(job, calls, baseline, context), job.notes


WRONG = {
    COUNTS: lambda x: [torch.zeros(len(x), dtype=torch.int64)],
    FLAGGED: lambda x: [x * 2, torch.zeros(len(x), dtype=torch.bool)],
}


@pytest.mark.parametrize("reference", WRONG, ids=["count", "flag beside floats"])
def test_an_output_that_is_constant_on_usual_inputs_and_left_out_is_rejected(reference):
    wrong, notes = judge_constants(reference, WRONG[reference])
    assert isinstance(wrong, Rejected)
    assert wrong.integrity["rule"] == "regimes"
    assert wrong.integrity["evidence"]["output"] == list(OUTPUTS[reference])[-1]
    assert notes["measurement"]["flags"] == ["noisy"]
    assert judge_constants(reference, WRONG[reference], regimes_rule=False)[0] is None


@pytest.mark.parametrize("reference", [COUNTS, FLAGGED], ids=["count", "flag"])
def test_honest_solutions_are_told_nothing(reference):
    wrong, notes = judge_constants(reference, lambda x: run(reference)(x.bfloat16().float()))
    assert (wrong, notes["measurement"]["flags"]) == (None, ["noisy"])
    assert notes["regimes"]["one huge value"] == "judged"


def test_an_output_that_is_the_same_on_all_inputs_is_flagged_if_there_were_several():
    wrong, notes = judge_constants(ONES, run(ONES))
    assert (wrong, notes["measurement"]["flags"]) == (None, ["noisy", "constant_output"])
    assert set(notes["regimes"].values()) == {"left out: nothing else than on usual inputs is expected"}
    assert judge_constants(ONES, run(ONES), regimes_rule=False)[1]["measurement"]["flags"][-1] == "constant_output"
    job, baseline, context = open_job(ONES)
    assert judge_stress(job, [], Baseline([], [baseline.outputs[0]] * 3, None, None), context) is None
    assert job.notes["measurement"]["flags"] == ["noisy"]


class Choosing(DefaultEvaluator):
    """Compares outputs in its own way."""

    @classmethod
    def judge_trial(cls, definition, trial, cfg):
        return DefaultEvaluator.judge_trial(definition, trial, cfg)


def test_an_evaluator_with_a_comparison_of_its_own_has_no_strong_inputs():
    job, baseline, _ = open_job(COUNTS, evaluator=Choosing)
    assert plan_stress(job, baseline) is None
    assert job.notes["why_no_regimes"] == "none of its outputs is a float"
