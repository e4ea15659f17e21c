"""Every wrong solution that ships gets its status, in both runners, and leaves its neighbours and the machine alone."""

import json
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.processes import marked

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(240)]

BUNDLED = Path(__file__).parents[2] / "flashinfer-trace"
WRONG = [path.stem for path in (BUNDLED / "wrong" / "solutions" / "wrong").rglob("*.json")]
STATUSES = json.loads((BUNDLED / "wrong" / "expected.json").read_text())
EXPECTED = {name: STATUSES[name] for name in WRONG}
DEFINITIONS = ["rmsnorm_h4096", "fused_add_rmsnorm_h1024", "gemm_n128_k4096"]
PRINTS = "prints_a_gigabyte_rmsnorm_h4096"
TAKES_MEMORY = "memory_list_rmsnorm_h4096"
WORK_LONG = (PRINTS, TAKES_MEMORY)
ENDED = [name for name in WRONG if STATUSES[name]["status"] == "RUNTIME_ERROR" and name not in WORK_LONG]
TIMEOUT_S = 1.0
PATIENCE_S = 60.0
"""How long a slow machine may take to end what has run out of time."""
NEVER_S = 3600.0
"""More than a test may take."""


def choose_workloads(trace_set, most):
    """Return the uuids of the smallest workload of each definition, ``most`` of the one with most wrong solutions."""
    uuids = []
    for name, count in zip(DEFINITIONS, (most, 1, 1), strict=True):
        traces = sorted(trace_set.workloads[name], key=lambda trace: sum(trace.workload.axes.values()))
        uuids += [trace.workload.uuid for trace in traces[:count]]
    return uuids


ON_CPU = [pytest.param(("cpu", runner), id=f"cpu-{runner}") for runner in ("persistent", "isolated")]
ON_GPU = [
    pytest.param(("0", runner), id=f"gpu-{runner}", marks=pytest.mark.gpu) for runner in ("persistent", "isolated")
]


def prepare(where, choose, most, **settings):
    """Return a benchmark over the solutions that ``choose`` takes, honest and wrong together."""
    device, runner = where
    trace_set = TraceSet.merge([TraceSet.from_path(BUNDLED), TraceSet.from_path(BUNDLED / "wrong")])
    solutions = [s for name in DEFINITIONS for s in trace_set.solutions[name] if s.author in ("plain", "wrong")]
    config = BenchmarkConfig.default(
        solutions=[solution.name for solution in solutions if choose(solution.name)],
        workloads=choose_workloads(trace_set, most),
        devices=[device],
        worker_memory_gb=1.0,
        warmup_runs=1,
        iterations=2,
        num_trials=1,
        use_isolated_runner=runner == "isolated",
        **settings,
    )
    return Benchmark(trace_set, config)


@pytest.fixture(scope="module", params=ON_CPU + ON_GPU)
def finished(request):
    """Return the finished jobs of one run over honest and wrong solutions together."""
    benchmark = prepare(request.param, lambda name: name not in WORK_LONG, 2, timeout_seconds=TIMEOUT_S)
    with marked() as alive:
        jobs = [
            event for event in benchmark.run(benchmark.plan(), save_results=False) if isinstance(event, JobFinished)
        ]
        left = alive()
    return {"jobs": jobs, "faults": benchmark.faults, "left": left, "plan": len(benchmark.plan().jobs)}


def test_every_job_has_a_verdict_and_no_process_is_left(finished):
    left_out = [fault.job for fault in finished["faults"] if fault.is_left_out]  # after a call that ran out of time
    assert len(left_out) == len(finished["faults"])
    assert {EXPECTED[job.solution.name]["status"] for job in left_out} <= {"TIMEOUT"}
    assert len(finished["jobs"]) + len(left_out) == finished["plan"]
    assert not finished["left"]


def test_every_wrong_solution_has_its_status(finished):
    found = {}
    for event in finished["jobs"]:
        if event.job.solution.author == "wrong":
            found.setdefault(event.job.solution.name, set()).add(event.trace.evaluation.status.value)
    assert found == {name: {expected["status"]} for name, expected in EXPECTED.items() if name not in WORK_LONG}


def test_messages_say_what_was_wrong(finished):
    for event in finished["jobs"]:
        expected = EXPECTED.get(event.job.solution.name, {}).get("message_contains", "")
        assert expected in event.trace.evaluation.log


def test_honest_neighbours_pass(finished):
    honest = [event for event in finished["jobs"] if event.job.solution.author == "plain"]
    assert honest
    assert {event.trace.evaluation.status.value for event in honest} == {"PASSED"}


def test_a_timeout_is_told_soon_after_the_time_is_over(finished):
    seconds = [event.seconds for event in finished["jobs"] if event.trace.evaluation.status.value == "TIMEOUT"]
    assert seconds
    assert max(seconds) < TIMEOUT_S + PATIENCE_S


@pytest.fixture(scope="module", params=ON_CPU + ON_GPU)
def unhurried(request):
    """Return the evaluations, by solution, of one run whose time never ends.

    A slow machine needs long to print a gigabyte or to fill one, and that is not what is tested.
    """
    benchmark = prepare(request.param, lambda name: name in (*ENDED, *WORK_LONG), 1, timeout_seconds=NEVER_S)
    found = {}
    for event in benchmark.run(benchmark.plan(), save_results=False):
        if isinstance(event, JobFinished):
            found.setdefault(event.job.solution.name, []).append(event.trace.evaluation)
    return found


def test_a_death_is_noticed_without_waiting_for_the_end_of_the_time(unhurried):
    evaluations = [evaluation for name in ENDED for evaluation in unhurried[name]]
    assert len(evaluations) == len(ENDED) > 0
    assert {evaluation.status.value for evaluation in evaluations} == {"RUNTIME_ERROR"}


def test_a_gigabyte_of_output_leaves_a_bounded_log_with_the_cut_marked(unhurried):
    evaluations = unhurried[PRINTS]
    assert {evaluation.status.value for evaluation in evaluations} == {EXPECTED[PRINTS]["status"]}
    assert max(len(evaluation.log) for evaluation in evaluations) < 20_000
    assert any("bytes cut ...]" in evaluation.log for evaluation in evaluations)


def test_a_solution_that_takes_all_memory_is_ended_and_told_why(unhurried):
    evaluations = unhurried[TAKES_MEMORY]
    assert {evaluation.status.value for evaluation in evaluations} == {EXPECTED[TAKES_MEMORY]["status"]}
    assert all("worker_memory_gb" in evaluation.log for evaluation in evaluations)
