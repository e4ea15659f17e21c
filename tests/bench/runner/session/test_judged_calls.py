"""Judging calls besides the evaluator's own calls: kept timed calls, and calls on inputs of stress cases.

A latency is not confirmed if a slow reference leaves time to compare too few of the calls that it was held against.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Rejected
from flashinfer_bench.bench.runner.session import judged_calls
from flashinfer_bench.bench.runner.session.judged_calls import (
    judge_library_calls,
    judge_reads,
    judge_stress,
    plan_stress,
    sort_reads,
)
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall
from flashinfer_bench.bench.runner.workers.timed.timed_calls import ReadCall
from flashinfer_bench.data import Correctness, EvaluationStatus
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu
TRIALS, ENOUGH = 3, 9
CONFIRMED = {"bound": "chain", "flags": ["noisy"]}


def reads_of(bases=1, readings=6, **counts):
    """Return the reads of three trials: bases and readings of each; the last trial has `counts` of each other mode."""
    modes = [None] * bases + ["reading"] * readings
    found = [
        [ReadCall([trial, at], [torch.zeros(1)], mode is None, mode) for at, mode in enumerate(modes)]
        for trial in range(TRIALS)
    ]
    for mode, count in counts.items():
        found[-1] += [ReadCall([mode, at], [torch.zeros(1)], False, mode) for at in range(count)]
    return found


@pytest.fixture
def judge(monkeypatch):
    """Return a function that judges reads with a reference that takes `call_s`, or `latency_ms` on a GPU.

    It gives the verdict, the calls that were compared, how many of each mode, the record, and the seconds that passed.
    """

    def judged(found, call_s=0.0, *, is_right=lambda call: True, latency_ms=None, needs_expected=True, **record):
        clock, compared = [0.0], []

        def reference(inputs):
            clock[0] += call_s
            return [torch.full((1,), 9)]

        def judge_calls(definition, calls, config, context):
            compared.extend(calls)
            is_wrong = not all(map(is_right, calls))
            wrong = Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "too far", Correctness())
            return wrong if is_wrong else Accepted(Correctness())

        monkeypatch.setattr(judged_calls.time, "monotonic", lambda: clock[0])
        evaluator = SimpleNamespace(judge_reads=judge_calls, needs_expected=needs_expected)
        request = SimpleNamespace(definition=None, reference=reference, evaluator=evaluator)
        job = SimpleNamespace(request=request, config=None, notes={"measurement": CONFIRMED | record})
        expected = [[torch.full((1,), trial)] for trial in range(TRIALS)]
        rejected = judge_reads(job, found, Baseline([], expected, latency_ms, None), None)
        assert job.notes["reads"] == len(compared)
        modes = {id(read.inputs): read.mode for of_trial in found for read in of_trial}
        counted = Counter(modes[id(call.inputs)] for call in compared)
        return SimpleNamespace(
            rejected=rejected, modes=counted, record=job.notes["measurement"], compared=compared, spent_s=clock[0]
        )

    return judged


@pytest.mark.parametrize("needs_expected", [True, False])
def test_all_are_compared_if_the_reference_is_quick_and_it_is_called_if_its_outputs_are_not_known(
    judge, needs_expected
):
    given = reads_of()
    given[0][1].expected = ahead = [torch.zeros(1)]  # computed ahead
    found = judge(given, latency_ms=0.02, needs_expected=needs_expected)
    assert (found.rejected, len(found.compared)) == (None, 7 * TRIALS)
    for call in found.compared:
        is_known = call.inputs[1] == 0 or not needs_expected
        assert call.expected is ahead or call.expected[0] == (call.inputs[0] if is_known else 9)
    wrong = judge(reads_of(), latency_ms=0.02, is_right=lambda call: call.inputs != [2, 6]).rejected
    assert wrong.message == "in a call that was timed, mostly on other inputs: too far"


def is_computed(call):
    """Skip half of the twelve calls against which a latency is checked; samples are right."""
    return call.inputs[0] != "chain" or call.inputs[1] >= 7


@pytest.mark.parametrize(
    ("given", "call_s", "how", "compared", "is_confirmed"),
    [
        ({"bases": 0}, 0.04, {}, {"reading": ENOUGH}, True),
        ({"bases": 0}, 0.0, {"latency_ms": 24.0}, {"reading": ENOUGH}, True),
        ({"bases": 0}, 0.0, {"latency_ms": 8.0}, {"reading": 18}, True),
        # Those come first that the latency was held against.
        ({"chain": 12}, 6.6, {}, {"chain": ENOUGH, "reading": 0}, True),
        ({"batch": 12}, 1.5, {}, {"batch": ENOUGH, "reading": 0}, True),
        ({"chain": 12, "batch": 24}, 3.3, {}, {"chain": ENOUGH, "batch": ENOUGH}, True),
        # Too few can be compared.
        ({"chain": 12, "batch": 24}, 3.4, {}, {}, False),
        ({"chain": 12}, 7.0, {}, {"chain": 8, "reading": 0}, False),
        ({"chain": 12}, 100.0, {}, {"chain": 1, "reading": 0}, False),
        ({"chain": 12}, 100.0, {"why_unconfirmed": "why"}, {"chain": 1}, True),  # it stays as it was
    ],
)
def test_a_slow_reference_compares_enough_calls_or_the_latency_is_not_confirmed(
    judge, given, call_s, how, compared, is_confirmed
):
    found = judge(reads_of(**given), call_s, **how)
    assert found.rejected is None
    assert {mode: found.modes[mode] for mode in compared} == compared
    assert found.spent_s <= max(60.0, call_s)
    before = {name: value for name, value in how.items() if name == "why_unconfirmed"}
    changed = {"flags": ["noisy", "unconfirmed"], "why_unconfirmed": found.record.get("why_unconfirmed")}
    assert found.record == CONFIRMED | before | (changed if not is_confirmed else {})
    if "chain" in given and call_s < 7:
        assert all(judge(reads_of(**given), call_s, is_right=is_computed).rejected for _ in range(20))


def test_the_choice_of_needed_calls_is_random():
    found, chosen = reads_of(chain=12), Counter()
    found[-1].append(ReadCall(["odd"], [torch.zeros(1)], False))
    for _ in range(300):
        needed, others = sort_reads(found)
        assert len(needed) + len(others) == sum(map(len, found))
        chosen.update(read.inputs[1] for _, read in needed)
    assert set(chosen) == set(range(12))
    assert 150 < min(chosen.values()) <= max(chosen.values()) < 280  # 225 each


ZEROS = "left out: nothing but zeros is expected"
IN_PART = "judged where the reference is finite"
SLOW = "left out: the reference or the calls are slow, or large"

SUMS = "def run(x):\n    return x.clamp(min=0).sum(dim=-1)\n"
DOUBLES = "def run(x):\n    return x * 2\n"
LOGARITHMS = "import torch\ndef run(x):\n    return torch.tanh(x / 8) * torch.log(x[:, :1] + 8)\n"
COUNTS = "import torch\ndef run(x):\n    return (x > 8).sum(dim=-1)\n"
FLAGGED = "def run(x):\n    return x * 2, (x > 8).any(dim=-1)\n"
ONES = "import torch\ndef run(x):\n    return torch.ones(len(x), dtype=torch.int64)\n"
ROWS = {"y": "float32[n, 256]"}
OUTPUTS = {
    SUMS: {"y": "float32[n]"},
    **dict.fromkeys((DOUBLES, LOGARITHMS), ROWS),
    FLAGGED: ROWS | {"flag": "bool[n]"},
    **{one: {"y": "int64[n]"} for one in (COUNTS, ONES)},
}


def run(reference):
    space = {}
    exec(reference, space)
    return lambda x: got if isinstance(got := space["run"](x), tuple) else (got,)


def normal(seed, rows=32):
    return torch.randn(rows, 256, generator=torch.Generator().manual_seed(seed))


def open_job(reference, *, rows=32, **settings):
    """Return a job with three trials of usual inputs, its baseline and the evaluator's context."""
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs=OUTPUTS[reference], reference=reference)
    workload = make_workload(axes={"n": rows}, inputs={})
    judging = Judging(definition, workload, **settings)
    request = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=DefaultEvaluator)
    notes, requested = {"measurement": {"flags": ["noisy"]}}, SimpleNamespace(seed=3)
    job = SimpleNamespace(request=request, config=judging.config, notes=notes, workload=workload, requested=requested)
    return job, Baseline([], [request.reference([normal(at, rows)]) for at in range(3)], None, None), judging.context


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


NEGATIVE, SMALL = torch.full((4, 256), -1.0), normal(0, 4) * 20
LOG = run(LOGARITHMS)


@pytest.mark.parametrize(
    ("reference", "solutions", "xs", "reported", "is_rejected"),
    [
        (SUMS, [right], [SMALL], ["judged"], False),
        (SUMS, [right], [NEGATIVE], [ZEROS], False),
        (SUMS, [right, right], [NEGATIVE, SMALL], [ZEROS, "judged"], False),
        (LOGARITHMS, [lambda x: torch.where(x[:, :1] > 30, torch.inf, LOG(x)[0])], None, [IN_PART], False),
        (SUMS, [wrong_sum], [SMALL], ["judged"], True),
        (SUMS, [right, wrong_sum, right], None, ["judged"] * 2, True),
        (LOGARITHMS, [lambda x: x / 8 * torch.log(x[:, :1] + 8)], None, [IN_PART], True),
    ],
)
def test_notes_of_stress_cases_and_rejected_solutions(reference, solutions, xs, reported, is_rejected):
    rejected, notes = judge_calls(reference, *solutions, xs=xs)
    assert isinstance(rejected, Rejected) is is_rejected
    assert notes["regimes"] == {f"r{at}": one for at, one in enumerate(reported)}
    if is_rejected:
        assert ("rows that are not finite are left out" in rejected.message) is (reported == [IN_PART])


@pytest.mark.parametrize(
    ("patience_s", "planned", "reported"),
    [(1e9, "ab", {"a": "judged", "b": "judged"}), (-1.0, "ab", {"a": SLOW, "b": SLOW}), (1e9, "abc", {"c": SLOW})],
    ids=["all", "slow reference", "slow calls"],
)
def test_a_job_with_skipped_calls_is_flagged(monkeypatch, patience_s, planned, reported):
    monkeypatch.setattr(judged_calls, "PATIENCE_S", patience_s)
    rejected, notes = judge_calls(DOUBLES, run(DOUBLES), run(DOUBLES), names="ab", planned=planned)
    assert (rejected, reported.items() <= notes["regimes"].items()) == (None, True)
    assert notes["measurement"]["flags"] == ["noisy", *(["regimes_left_out"] if SLOW in reported.values() else [])]


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


def no_count(x):
    return [torch.zeros(len(x), dtype=torch.int64)]


def no_flag(x):
    return [x * 2, torch.zeros(len(x), dtype=torch.bool)]


@pytest.mark.parametrize(("reference", "wrong", "output"), [(COUNTS, no_count, "y"), (FLAGGED, no_flag, "flag")])
def test_an_output_that_is_constant_on_usual_inputs_and_skipped_is_rejected(reference, wrong, output):
    rejected, notes = judge_constants(reference, wrong)
    assert (rejected.integrity["rule"], rejected.integrity["evidence"]["output"]) == ("regimes", output)
    assert notes["measurement"]["flags"] == ["noisy"]
    assert judge_constants(reference, wrong, regimes_rule=False)[0] is None
    honest, notes = judge_constants(reference, lambda x: run(reference)(x.bfloat16().float()))
    assert (honest, notes["measurement"]["flags"]) == (None, ["noisy"])
    assert notes["regimes"]["one huge value"] == "judged"


def test_an_output_that_is_the_same_on_all_inputs_is_flagged_if_there_were_several():
    wrong, notes = judge_constants(ONES, run(ONES))
    assert (wrong, notes["measurement"]["flags"]) == (None, ["noisy", "constant_output"])
    assert set(notes["regimes"].values()) == {"left out: nothing else than on usual inputs is expected"}
    assert judge_constants(ONES, run(ONES), regimes_rule=False)[1]["measurement"]["flags"][-1] == "constant_output"
    job, baseline, context = open_job(ONES)
    assert judge_stress(job, [], Baseline([], [baseline.outputs[0]] * 3, None, None), context) is None
    assert job.notes["measurement"]["flags"] == ["noisy"]


@pytest.mark.parametrize(
    ("policy", "whose", "flags", "is_refused"),
    [
        ("allow", "all", None, False),
        ("flag", "all", ["library_calls"], False),
        ("refuse", "all", None, True),
        *((policy, whose, None, False) for policy in ("flag", "refuse") for whose in ("some", "none")),
        ("flag", "unknown", None, False),
        ("refuse", "unknown", ["unknown_kernels"], False),
    ],
)
def test_a_right_solution_is_flagged_or_refused_only_if_all_of_its_kernels_are_a_librarys(
    policy, whose, flags, is_refused
):
    record = {"kernels": {"MEMSET": 9, "nvjet_x": 9, "y" * 200: 9}, "library_kernels": whose}
    notes = {"measurement": record}
    verdict = judge_library_calls(notes, policy)
    assert record.get("flags") == flags
    assert (verdict is not None) is (notes.get("library_calls") == "refused") is is_refused
    if is_refused:
        assert verdict.status is EvaluationStatus.RUNTIME_ERROR
        assert verdict.message.startswith("library calls are refused, and all kernels")
        assert verdict.message.endswith(f" are a library's: nvjet_x, {'y' * 80}")
    assert judge_library_calls({}, policy) is None  # a CPU
