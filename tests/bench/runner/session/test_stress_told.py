"""What the notes of a job say of each stress case: judged, or left out and why."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Baseline, Rejected
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks
from flashinfer_bench.bench.runner.session import stress
from flashinfer_bench.bench.runner.session.stress import judge_stress, plan_stress
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

LARGE = "all values about 20 times as large"

SUMS = "def run(x):\n    return x.clamp(min=0).sum(dim=-1)\n"


def judge(solution, x):
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs={"y": "float32[n]"}, reference=SUMS)
    judging = Judging(definition, make_workload(axes={"n": len(x)}, inputs={}))
    block = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=judging.evaluator)
    job = SimpleNamespace(block=block, config=judging.config, notes={})
    baseline = Baseline([], [[torch.ones(len(x))]], None, None)
    wrong = judge_stress(job, [StressCall(LARGE, [x], [solution(x)])], baseline, judging.context)
    return wrong, job.notes["regimes"][LARGE]


def right(x):
    return x.bfloat16().clamp(min=0).sum(dim=-1, dtype=torch.float32)


def test_a_small_output_is_judged_and_said_to_be():
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0)) * 20
    assert judge(right, x) == (None, "judged")
    wrong, told = judge(lambda x: torch.ones(4), x)
    assert isinstance(wrong, Rejected)
    assert told == "judged"


def test_zeros_are_not_said_to_be_judged():
    assert judge(right, torch.full((4, 256), -1.0)) == (None, "left out: nothing but zeros is expected")
    assert judge(right, torch.full((32, 256), -1.0)) == (None, "left out: nothing but zeros is expected")


def judge_all(*solutions, of=SUMS, xs=None):
    """Judge calls of stress cases, one of each solution; return what is wrong, and what is told of each."""
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs={"y": "float32[n]"}, reference=of)
    xs = xs or [torch.randn(64, 256, generator=torch.Generator().manual_seed(at)) for at in range(len(solutions))]
    judging = Judging(definition, make_workload(axes={"n": 64}, inputs={}))
    block = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=judging.evaluator)
    job = SimpleNamespace(block=block, config=judging.config, notes={})
    baseline = Baseline([], [[torch.ones(64)]], None, None)
    calls = [StressCall(f"r{at}", [x], [one(x)]) for at, (one, x) in enumerate(zip(solutions, xs, strict=True))]
    wrong = judge_stress(job, calls, baseline, judging.context)
    return wrong, job.notes["regimes"]


def test_calls_are_looked_at_together_and_judged_alone_where_one_may_be_wrong(monkeypatch):
    alone = []
    judge_one = StressChecks.judge
    monkeypatch.setattr(StressChecks, "judge", lambda self, *given: alone.append(given[0]) or judge_one(self, *given))
    assert judge_all(right, right, right) == (None, {"r0": "judged", "r1": "judged", "r2": "judged"})
    wrong, told = judge_all(right, lambda x: torch.ones(64), right)
    assert isinstance(wrong, Rejected)
    assert "r1" in told
    assert alone[-1] == "r1"
    assert sorted(alone) == list(told)


def test_of_calls_that_are_looked_at_together_each_is_told_by_itself():
    xs = [torch.full((64, 256), -1.0), torch.randn(64, 256, generator=torch.Generator().manual_seed(0))]
    _, told = judge_all(right, right, xs=xs)
    assert told == {"r0": "left out: nothing but zeros is expected", "r1": "judged"}
    overflows = "def run(x):\n    return (x.clamp(min=0) * 1e38).sum(dim=-1)\n"
    wrong, told = judge_all(lambda x: torch.ones(64), of=overflows, xs=xs[1:])
    assert (wrong, told) == (None, {"r0": "left out: the reference is not finite"})


LOGARITHMS = "import torch\ndef run(x):\n    return torch.tanh(x / 8) * torch.log(x[:, :1] + 8)\n"


def judge_rows(solution, reference=LOGARITHMS, dtype="float32"):
    """Judge a call of which some rows have no logarithm, so are nan."""
    definition = make_definition(inputs={"x": "float32[n, 64]"}, outputs={"y": f"{dtype}[n, 64]"}, reference=reference)
    judging = Judging(definition, make_workload(axes={"n": 64}, inputs={}))
    usual, x = (torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    x *= 20
    block = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=judging.evaluator)
    job = SimpleNamespace(block=block, config=judging.config, notes={})
    baseline = Baseline([], [block.reference([usual])], None, None)
    wrong = judge_stress(job, [StressCall(LARGE, [x], [solution(x)])], baseline, judging.context)
    return wrong, job.notes["regimes"][LARGE]


def test_where_a_reference_is_finite_in_some_rows_these_are_judged():
    of = run(LOGARITHMS)
    assert judge_rows(lambda x: of(x)[0]) == (None, "judged where the reference is finite")
    wrong, told = judge_rows(lambda x: x / 8 * torch.log(x[:, :1] + 8))
    assert isinstance(wrong, Rejected)
    assert "rows that are not finite are left out" in wrong.message
    assert told == "judged where the reference is finite"


def test_who_is_right_in_rows_in_which_a_reference_is_not_finite_or_overflows_sooner_is_not_blamed():
    of = run(LOGARITHMS)
    for honest in (
        lambda x: of(x)[0].nan_to_num(0.5),
        lambda x: torch.where(x[:, :1] > 30, torch.inf, of(x)[0]),
        lambda x: torch.where(x[:, 5:6] > 0, of(x)[0], of(x.bfloat16())[0].float()),
    ):
        assert judge_rows(honest) == (None, "judged where the reference is finite")


SOFTMAX = "import torch\ndef run(x):\n    e = torch.exp(4 * x)\n    return e / e.sum(dim=-1, keepdim=True)\n"
LEFT_OUT = None, "left out: the reference is not finite"
HALF = "import torch\ndef run(x):\n    return (x * x * x[:, :1]).half() * 4\n"


def test_a_better_softmax_than_the_references_is_not_blamed_for_what_that_divides_by_infinity():
    assert judge_rows(lambda x: torch.softmax(4 * x, dim=-1), SOFTMAX) == LEFT_OUT


def test_an_output_that_overflows_is_left_out_whole():
    """Kernels of low precision overflow near the limit elsewhere than the reference."""
    for solution in (lambda x: run(HALF)(x * 1.03)[0], lambda x: torch.zeros(64, 64).half()):
        assert judge_rows(solution, HALF, "float16") == LEFT_OUT


def test_what_is_wrong_is_told_though_the_reference_has_no_memory_for_later_calls():
    calls = []

    def short(inputs):
        calls.append(inputs)
        if len(calls) > 1:
            raise WorkloadFault("no memory")
        return [right(inputs[0])]

    x = torch.randn(64, 256)
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs={"y": "float32[n]"}, reference=SUMS)
    judging = Judging(definition, make_workload(axes={"n": 64}, inputs={}))
    block = SimpleNamespace(definition=definition, reference=short, evaluator=judging.evaluator)
    job, baseline = (
        SimpleNamespace(block=block, config=judging.config, notes={}),
        Baseline([], [[torch.ones(64)]], None, None),
    )

    def judge_two(first):
        calls.clear()
        found = [
            StressCall(LARGE, [x], [first]),
            StressCall("another", [x], [first]),
        ]
        return judge_stress(job, found, baseline, judging.context)

    assert isinstance(judge_two(torch.ones(64)), Rejected)
    with pytest.raises(WorkloadFault):
        judge_two(right(x))


COUNTS = "import torch\ndef run(x):\n    return (x > 8).sum(dim=-1)\n"
FLAGGED = "def run(x):\n    return x * 2, (x > 8).any(dim=-1)\n"
ONES = "import torch\ndef run(x):\n    return torch.ones(len(x), dtype=torch.int64)\n"
INDICES = "import torch\ndef run(x):\n    return (x > 8).any(dim=-1), x.argmax(dim=-1)\n"


@pytest.mark.parametrize("slow", [False, True])
def test_a_job_of_which_calls_were_left_out_since_the_reference_is_slow_is_flagged(slow, monkeypatch):
    monkeypatch.setattr(stress, "PATIENCE_S", -1.0 if slow else 1e9)
    job, baseline, context = open_job(DOUBLES)
    x = torch.randn(32, 256)
    names = ["a", "b", "c"]
    assert judge_stress(job, [StressCall(name, [x], [x * 2]) for name in names], baseline, context, names) is None
    assert job.notes["measurement"]["flags"] == ["noisy", *(["regimes_left_out"] if slow else [])]
    told = "left out: the reference or the calls are slow, or large" if slow else "judged"
    assert job.notes["regimes"] == dict.fromkeys(names, told)


def test_cases_that_slow_calls_never_had_are_told_and_flagged():
    job, baseline, context = open_job(DOUBLES)
    x = torch.randn(32, 256)
    assert (
        judge_stress(
            job,
            [StressCall(LARGE, [x], [x * 2])],
            baseline,
            context,
            [LARGE, "offset"],
        )
        is None
    )
    assert job.notes["regimes"] == {
        LARGE: "judged",
        "offset": "left out: the reference or the calls are slow, or large",
    }
    assert job.notes["measurement"]["flags"] == ["noisy", "regimes_left_out"]


DOUBLES = "def run(x):\n    return x * 2\n"
KINDS = {
    DOUBLES: {"y": "float32[n, 256]"},
    COUNTS: {"y": "int64[n]"},
    FLAGGED: {"y": "float32[n, 256]", "flag": "bool[n]"},
    ONES: {"y": "int64[n]"},
    INDICES: {"y": "bool[n]", "at": "int64[n]"},
}


def open_job(reference, evaluator=DefaultEvaluator, **settings):
    """Return a job with three trials of usual inputs, its baseline and the evaluator's context."""
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs=KINDS[reference], reference=reference)
    workload = make_workload(axes={"n": 32}, inputs={})
    judging = Judging(definition, workload, **settings)
    block = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=evaluator)
    notes = {"measurement": {"flags": ["noisy"]}}
    order = SimpleNamespace(seed=3)
    job = SimpleNamespace(block=block, config=judging.config, notes=notes, workload=workload, order=order)
    xs = [torch.randn(32, 256, generator=torch.Generator().manual_seed(at)) for at in range(3)]
    return job, Baseline([], [block.reference([x]) for x in xs], None, None), judging.context


def judge_constants(reference, solution, **settings):
    """Judge the calls of a job on inputs of its stress cases."""
    job, baseline, context = open_job(reference, **settings)
    planned = plan_stress(job, baseline)
    calls = []
    for at, name in enumerate(planned.calls if planned is not None else ()):
        x = torch.randn(32, 256, generator=torch.Generator().manual_seed(at))
        planned.change(name, at, [x])
        calls.append(StressCall(name, [x], [one.clone() for one in solution(x)]))
    return judge_stress(job, calls, baseline, context), job.notes


def run(reference):
    space = {}
    exec(reference, space)
    return lambda x: got if isinstance(got := space["run"](x), tuple) else (got,)


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
    assert wrong.integrity["evidence"]["output"] == list(KINDS[reference])[-1 if reference == FLAGGED else 0]
    assert notes["measurement"]["flags"] == ["noisy"]
    assert judge_constants(reference, WRONG[reference], regimes_rule=False)[0] is None


@pytest.mark.parametrize("reference", OF_A_PART, ids=["count", "flag"])
def test_who_looks_at_a_part_to_tell_whether_inputs_are_strong_misses_a_spike(reference):
    assert isinstance(judge_constants(reference, OF_A_PART[reference])[0], Rejected)


@pytest.mark.parametrize("reference", [COUNTS, FLAGGED, INDICES], ids=["count", "flag", "flag beside a choice"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_solutions_are_told_nothing(reference, dtype):
    def rounded(x):
        scale = x.abs().amax(dim=-1, keepdim=True) / 448 if dtype.itemsize == 1 else 1.0
        return run(reference)((x / scale).to(dtype).float() * scale)

    wrong, notes = judge_constants(reference, rounded)
    assert wrong is None
    assert notes["measurement"]["flags"] == ["noisy"]
    assert notes["regimes"]["one huge value"] == "judged"


def test_an_output_that_is_the_same_on_all_inputs_is_flagged():
    wrong, notes = judge_constants(ONES, run(ONES))
    assert wrong is None
    assert notes["measurement"]["flags"] == ["noisy", "constant_output"]
    assert set(notes["regimes"].values()) == {"left out: nothing else than on usual inputs is expected"}
    assert judge_constants(ONES, run(ONES), regimes_rule=False)[1]["measurement"]["flags"][-1] == "constant_output"


def test_one_set_of_inputs_says_of_no_output_that_it_is_constant():
    job, baseline, context = open_job(ONES)
    one = Baseline([], [baseline.outputs[0]] * 3, None, None)
    assert judge_stress(job, [], one, context) is None
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
