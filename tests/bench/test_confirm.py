"""Winners are judged again at full assurance: which, when, and what a run tells of it. The table of cases."""

import threading

import pytest

from flashinfer_bench import BenchmarkConfig
from flashinfer_bench.bench import Benchmark
from flashinfer_bench.bench.confirm import MOST_CONFIRMED, Standing, Winners, next_to_confirm
from flashinfer_bench.bench.events import JobFaulted, JobFinished, JobsAdded
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data import TraceSet
from tests.bench.played import PlayedSession, play
from tests.bench.small_runs import QUICKLY, write_set
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload

pytestmark = pytest.mark.cpu
DEFINITION, HERE = make_definition(), "test device"


def stands(name, latency, *, confirmed=False, half=0.01):
    return Standing(name, latency, latency * (1 - half), latency * (1 + half), confirmed)


@pytest.mark.parametrize(
    ("standings", "tried", "chosen"),
    [
        ([], [], None),
        ([stands("a", 2.0), stands("b", 1.0)], [], "b"),
        ([stands("a", 2.0), stands("b", 1.0, confirmed=True)], ["b"], None),
        # A confirmed time lies behind the next one's by more than both intervals, or within them.
        ([stands("a", 1.00), stands("b", 1.50, confirmed=True)], ["b"], "a"),
        ([stands("a", 1.00), stands("b", 1.01, confirmed=True)], ["b"], None),
        ([stands("a", 1.00), stands("b", 1.03, confirmed=True)], ["b"], "a"),
        # One that could not be confirmed makes way for the next one.
        ([stands("a", 1.0), stands("b", 2.0)], ["a"], "b"),
        ([stands(str(at), 1.0 + at) for at in range(9)], [str(at) for at in range(MOST_CONFIRMED)], None),
        # An earlier run has confirmed the best.
        ([stands("a", 1.0, confirmed=True), stands("b", 2.0)], [], None),
    ],
)
def test_the_fastest_without_a_confirmation_is_next_if_confirmed_times_lie_behind_it(standings, tried, chosen):
    assert next_to_confirm(standings, tried) == chosen


def make_job(index, name, workload="w"):
    marks = {"solution": name}
    return Job(
        index,
        DEFINITION,
        make_workload(workload),
        make_solution(name),
        BenchmarkConfig().resolve_eval_config(DEFINITION),
        marks,
    )


def verdict(latency, assurance="standard", status="PASSED", hardware=HERE):
    record = {"assurance": assurance, "interval95_ms": [0.99 * latency, 1.01 * latency]}
    environment = {"hardware": hardware, "libs": {}}
    return make_evaluation(status, latency_ms=latency, environment=environment, extra={"measurement": record})


def trace_of(name, evaluation, workload="w"):
    return make_trace(workload=make_workload(workload), solution=name, evaluation=evaluation)


def settle(winners, results, confirmed):
    """Give jobs their results in order; return which solutions are confirmed, in which order.

    Args:
        winners: of the run.
        results: solution → evaluation, or None for a fault.
        confirmed: the same of confirmations.
    """
    todo, order = winners.begin(), []
    while todo:
        job = todo.pop(0)
        is_full = job.assurance == "full"
        order += [job.solution.name] * is_full
        assert (job.fingerprint.get("assurance") == "full") is is_full
        found = (confirmed if is_full else results)[job.solution.name]
        todo += winners.note(job, JobFaulted(job, "lost") if found is None else trace_of(job.solution.name, found))
    return order


@pytest.mark.parametrize(
    ("results", "confirmed", "order"),
    [
        # A single solution is judged at full assurance at once.
        ({}, {"a": verdict(1.0, "full")}, ["a"]),
        ({"a": verdict(1.0), "b": verdict(1.0)}, {"a": verdict(1.0, "full")}, ["a"]),
        ({"a": verdict(2.0), "b": verdict(1.0)}, {"b": verdict(1.0, "full")}, ["b"]),
        # Wrong at full: that verdict stands, and the next one is tried. So it is after a fault.
        (
            {"a": verdict(2.0), "b": verdict(1.0)},
            {"b": verdict(1.0, status="INCORRECT_NUMERICAL"), "a": verdict(2.0, "full")},
            ["b", "a"],
        ),
        (
            {"a": verdict(2.0), "b": verdict(1.0)},
            {"b": verdict(1.0, status="TIMEOUT"), "a": verdict(2.0, "full")},
            ["b", "a"],
        ),
        ({"a": verdict(2.0), "b": verdict(1.0)}, {"b": None, "a": verdict(2.0, "full")}, ["b", "a"]),
        # Slower at full than the next one.
        ({"a": verdict(2.0), "b": verdict(1.0)}, {"b": verdict(3.0, "full"), "a": verdict(2.0, "full")}, ["b", "a"]),
        ({str(at): verdict(1.0) for at in range(16)}, {"0": verdict(1.0, "full")}, ["0"]),
        (
            {str(at): verdict(1.0) for at in range(16)},
            {str(at): verdict(2.0, "full") for at in range(16)},
            ["0", "1", "2"],
        ),
        # Times that no clock outside the worker bounds are not confirmed.
        ({"a": make_evaluation(), "b": make_evaluation()}, {}, []),
        ({"a": verdict(1.0, status="RUNTIME_ERROR"), "b": None}, {}, []),
    ],
    ids=["one", "equal", "two", "wrong", "late", "fault", "slower", "sixteen", "at most three", "cpu", "none"],
)
def test_what_is_confirmed_by_what_the_jobs_come_to(results, confirmed, order):
    names = list(results) or ["a"]
    assert settle(Winners([make_job(at, name) for at, name in enumerate(names)]), results, confirmed) == order


@pytest.mark.parametrize(
    ("recorded", "order"),
    [
        (verdict(0.5, "full"), []),
        (verdict(0.5), []),
        (verdict(0.5, "full", hardware="another"), ["a"]),
        (verdict(3.0, "full"), ["a"]),
        (make_evaluation(latency_ms=0.5), []),
    ],
    ids=["confirmed", "not confirmed", "elsewhere", "slower", "of the relative"],
)
def test_what_is_not_the_best_known_on_this_hardware_is_not_confirmed(recorded, order):
    jobs = [make_job(0, "a"), make_job(1, "b")]
    winners = Winners(jobs, recorded=[trace_of("c", recorded)])
    assert settle(winners, {"a": verdict(1.0), "b": verdict(2.0)}, {"a": verdict(1.0, "full")}) == order


def test_a_resumed_run_goes_on_with_what_is_left_to_confirm():
    done = [make_job(0, "a"), make_job(1, "b")]
    recorded = [trace_of("a", verdict(1.0)), trace_of("b", verdict(2.0))]
    assert settle(Winners([], done, recorded), {}, {"a": verdict(1.0, "full")}) == ["a"]
    recorded.append(trace_of("a", verdict(1.0, "full")))
    assert settle(Winners([], done, recorded), {}, {}) == []


def run(monkeypatch, tmp_path, evaluate, **settings):
    """Run two solutions on two workloads of a pretended GPU; return the events, the result and all jobs that it got."""
    opened = threading.Event()
    opened.set()
    play(monkeypatch, gate=opened, evaluate=staticmethod(evaluate))
    sources = {"a": "def run(x):\n    return x * 2\n", "b": "def run(x):\n    return x + x\n"}
    trace_set = write_set(tmp_path / "set", sources, sizes=(8, 9))
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(**{**QUICKLY, **settings}), cache=tmp_path / "cache")
    benchmark.context.machine = Machine([Device("cuda", 0, HERE, "GPU-0")], benchmark.machine.languages)
    events = []
    result = benchmark.run_all(on_event=events.append)
    return events, result, [job for session in PlayedSession.all for block in session.begun for job in block.jobs]


def by_level(job, name):
    latency = {"a": 1.0, "b": 2.0}[name]
    record = {"assurance": job.assurance or "standard", "interval95_ms": [0.99 * latency, 1.01 * latency]}
    return {"latency_ms": latency, "extra": {"measurement": record}}


def test_a_run_confirms_the_best_of_each_workload_and_returns_one_trace_a_job(monkeypatch, tmp_path):
    events, result, jobs = run(monkeypatch, tmp_path, by_level)
    levels = [(one.solution.split("@")[0], one.workload["uuid"], one.assurance) for one in jobs]
    assert sorted(levels[:4]) == [(name, uuid, None) for name in "ab" for uuid in ("w0", "w1")]
    assert sorted(levels[4:]) == [("a", "w0", "full"), ("a", "w1", "full")]
    assert len({one.seed for one in jobs}) == 6  # inputs of their own
    assert sum(event.jobs for event in events if isinstance(event, JobsAdded)) == 2
    told = {
        (trace.solution, trace.workload.uuid): trace.evaluation.extra["measurement"]["assurance"]
        for trace in traces_of(result)
    }
    assert told == {(name, uuid): "full" if name == "a" else "standard" for name in "ab" for uuid in ("w0", "w1")}
    assert len(traces_of(TraceSet.from_path(tmp_path / "set"))) == 6  # the file has both lines


def traces_of(trace_set):
    return [trace for traces in trace_set.traces.values() for trace in traces]


@pytest.mark.parametrize("settings", [{"confirm": False}, {"assurance": "full"}, {"quick": True}], ids=str)
def test_nothing_is_confirmed_where_that_was_not_asked_for(monkeypatch, tmp_path, settings):
    events, _, jobs = run(monkeypatch, tmp_path, by_level, **settings)
    assert len([event for event in events if isinstance(event, JobFinished)]) == len(jobs) == 4


def test_a_winner_that_is_wrong_at_full_assurance_loses_its_place(monkeypatch, tmp_path):
    def judge(job, name):
        fails = name == "a" and job.assurance == "full"
        return {**by_level(job, name), "status": "INCORRECT_NUMERICAL"} if fails else by_level(job, name)

    _, result, _ = run(monkeypatch, tmp_path, judge)
    found = {(trace.solution, trace.workload.uuid): trace.evaluation.status.value for trace in traces_of(result)}
    assert found == {
        ("a", "w0"): "INCORRECT_NUMERICAL",
        ("a", "w1"): "INCORRECT_NUMERICAL",
        ("b", "w0"): "PASSED",
        ("b", "w1"): "PASSED",
    }
    assert result.get_best_trace("double").solution == "b"
