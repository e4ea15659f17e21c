"""What the notes of a job say of each stress case: judged, or left out and why."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Baseline, Rejected
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks
from flashinfer_bench.bench.runner.session import judged_calls
from flashinfer_bench.bench.runner.session.judged_calls import judge_stress, plan_stress
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

LARGE = "all values about 20 times as large"
ZEROS = "left out: nothing but zeros is expected"
IN_PART = "judged where the reference is finite"
NOT_FINITE = "left out: the reference is not finite"
SLOW = "left out: the reference or the calls are slow, or large"

SUMS = "def run(x):\n    return x.clamp(min=0).sum(dim=-1)\n"
OVERFLOWS = "def run(x):\n    return (x.clamp(min=0) * 1e36).sum(dim=-1)\n"
DOUBLES = "def run(x):\n    return x * 2\n"
LOGARITHMS = "import torch\ndef run(x):\n    return torch.tanh(x / 8) * torch.log(x[:, :1] + 8)\n"
SOFTMAX = "import torch\ndef run(x):\n    e = torch.exp(4 * x)\n    return e / e.sum(dim=-1, keepdim=True)\n"
HALF = "import torch\ndef run(x):\n    return (x * x * x[:, :1]).half() * 4\n"
COUNTS = "import torch\ndef run(x):\n    return (x > 8).sum(dim=-1)\n"
FLAGGED = "def run(x):\n    return x * 2, (x > 8).any(dim=-1)\n"
ONES = "import torch\ndef run(x):\n    return torch.ones(len(x), dtype=torch.int64)\n"
INDICES = "import torch\ndef run(x):\n    return (x > 8).any(dim=-1), x.argmax(dim=-1)\n"
ROWS = {"y": "float32[n, 256]"}
OUTPUTS = {
    **{one: {"y": "float32[n]"} for one in (SUMS, OVERFLOWS)},
    **dict.fromkeys((DOUBLES, LOGARITHMS, SOFTMAX), ROWS),
    HALF: {"y": "float16[n, 256]"},
    FLAGGED: ROWS | {"flag": "bool[n]"},
    INDICES: {"y": "bool[n]", "at": "int64[n]"},
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


def judge(reference, *solutions, xs=None, names=None, planned=()):
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
        (SUMS, right, NEGATIVE, ZEROS),
        (SUMS, right, NEGATIVE[:4], ZEROS),
        (OVERFLOWS, wrong_sum, None, NOT_FINITE),
        (LOGARITHMS, LOG, None, IN_PART),
        (LOGARITHMS, lambda x: LOG(x)[0].nan_to_num(0.5), None, IN_PART),
        (LOGARITHMS, lambda x: torch.where(x[:, :1] > 30, torch.inf, LOG(x)[0]), None, IN_PART),
        (
            LOGARITHMS,
            lambda x: torch.where(x[:, 5:6] > 0, LOG(x)[0], LOG(x.bfloat16())[0].float()),
            None,
            IN_PART,
        ),
        (SOFTMAX, lambda x: torch.softmax(4 * x, dim=-1), None, NOT_FINITE),
        (HALF, lambda x: run(HALF)(x * 1.03)[0], None, NOT_FINITE),
        (HALF, lambda x: torch.zeros(len(x), 256).half(), None, NOT_FINITE),
    ],
)
def test_what_is_told_of_a_case_that_rejects_nobody(reference, solution, x, told):
    """Nobody is blamed in rows in which the reference is not finite, or overflows sooner than a better solution."""
    rejected, notes = judge(reference, solution, xs=None if x is None else [x])
    assert (rejected, notes["regimes"]) == (None, {"r0": told})


@pytest.mark.parametrize(
    ("reference", "solution", "x", "told"),
    [
        (SUMS, wrong_sum, SMALL, "judged"),
        (LOGARITHMS, lambda x: x / 8 * torch.log(x[:, :1] + 8), None, IN_PART),
    ],
)
def test_who_is_wrong_on_a_case_is_rejected(reference, solution, x, told):
    rejected, notes = judge(reference, solution, xs=None if x is None else [x])
    assert isinstance(rejected, Rejected)
    assert notes["regimes"] == {"r0": told}
    assert ("rows that are not finite are left out" in rejected.message) is (told == IN_PART)


def test_calls_are_looked_at_together_and_judged_alone_where_one_may_be_wrong(monkeypatch):
    alone = []
    judge_one = StressChecks.judge
    monkeypatch.setattr(StressChecks, "judge", lambda self, *given: alone.append(given[0]) or judge_one(self, *given))
    assert judge(SUMS, right, right)[1]["regimes"] == {"r0": "judged", "r1": "judged"}
    assert judge(SUMS, right, right, xs=[NEGATIVE, normal(0)])[1]["regimes"] == {"r0": ZEROS, "r1": "judged"}
    rejected, notes = judge(SUMS, right, wrong_sum, right)
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
    rejected, notes = judge(DOUBLES, run(DOUBLES), run(DOUBLES), names="ab", planned=planned)
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
    INDICES: lambda x: [torch.zeros(len(x), dtype=torch.bool), x.argmax(dim=-1)],
}
OF_A_PART = {
    COUNTS: lambda x: run(COUNTS)(x if (x[:, ::16].abs() > 8).any() else x * 0),
    FLAGGED: lambda x: run(FLAGGED)(x) if (x[::2].abs() > 8).any() else WRONG[FLAGGED](x),
}


@pytest.mark.parametrize("reference", WRONG, ids=["count", "flag beside floats", "flag beside a choice"])
def test_an_output_that_is_constant_on_usual_inputs_and_left_out_is_rejected(reference):
    wrong, notes = judge_constants(reference, WRONG[reference])
    assert isinstance(wrong, Rejected)
    assert wrong.integrity["rule"] == "regimes"
    assert wrong.integrity["evidence"]["output"] == list(OUTPUTS[reference])[-1 if reference == FLAGGED else 0]
    assert notes["measurement"]["flags"] == ["noisy"]
    assert judge_constants(reference, WRONG[reference], regimes_rule=False)[0] is None
    if reference in OF_A_PART:  # who looks at a part to tell whether inputs are strong misses a spike
        assert isinstance(judge_constants(reference, OF_A_PART[reference])[0], Rejected)


@pytest.mark.parametrize("reference", [COUNTS, FLAGGED, INDICES], ids=["count", "flag", "flag beside a choice"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_solutions_are_told_nothing(reference, dtype):
    def rounded(x):
        scale = x.abs().amax(dim=-1, keepdim=True) / 448 if dtype.itemsize == 1 else 1.0
        return run(reference)((x / scale).to(dtype).float() * scale)

    wrong, notes = judge_constants(reference, rounded)
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
