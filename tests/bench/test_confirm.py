"""Winners are judged again at full assurance: which, when, and what a run tells of it. The table of cases."""

import contextlib
import math
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from flashinfer_bench import BenchmarkConfig
from flashinfer_bench.bench import Benchmark
from flashinfer_bench.bench.confirm import MOST_CONFIRMED, Standing, Winners, next_to_confirm
from flashinfer_bench.bench.events import JobFaulted, JobFinished, JobsAdded
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.cli.outcome import RunOutcome, render_outcome
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


def verdict(latency, assurance="standard", status="PASSED", hardware=HERE, **more):
    record = {"assurance": assurance, "interval95_ms": [0.99 * latency, 1.01 * latency], **more}
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
        # Those that are wrong, or whose time was raised, do not count.
        (
            {str(at): verdict(1.0 + at) for at in range(5)},
            {str(at): verdict(9.0, status="TIMEOUT") for at in range(3)}
            | {"3": verdict(4.5, "full", claimed_ms=4.0), "4": verdict(5.0, "full")},
            ["0", "1", "2", "3", "4"],
        ),
        # Times that no clock outside the worker bounds are not confirmed.
        ({"a": make_evaluation(), "b": make_evaluation()}, {}, []),
        ({"a": verdict(1.0, status="RUNTIME_ERROR"), "b": None}, {}, []),
    ],
    ids=[
        "one",
        "equal",
        "two",
        "wrong",
        "late",
        "fault",
        "slower",
        "sixteen",
        "at most three",
        "four fail",
        "cpu",
        "none",
    ],
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
    assert settle(Winners([], done, recorded, hardware=[HERE]), {}, {"a": verdict(1.0, "full")}) == ["a"]
    recorded.append(trace_of("a", verdict(1.0, "full")))
    for hardware in (HERE, "another"):  # what won elsewhere is confirmed there
        assert settle(Winners([], done, recorded, hardware=[hardware]), {}, {}) == []


SOURCES = {"a": "def run(x):\n    return x * 2\n", "b": "def run(x):\n    return x + x\n"}
GPU = Device("cuda", 0, HERE, "GPU-0")
LATENCY = {"a": 1.0, "b": 2.0}


def by_level(job, name):
    record = {"assurance": job.assurance or "standard"}
    record["interval95_ms"] = [0.99 * LATENCY[name], 1.01 * LATENCY[name]]
    return {"latency_ms": LATENCY[name], "extra": {"measurement": record}}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run `a` and `b` on pretended GPUs, by the same set each time.

    Returns: `told` (solution, workload) → "standard", "full" or the status of what counts; `judged`: solution,
    workload and "full" of each confirmation that a session got; `file`: the traces on disk; `outcome`: as `run` has it.
    """

    def go(evaluate=by_level, *, devices=(GPU,), resume=False, stops_after=math.inf, sizes=(8, 9), **settings):
        opened = threading.Event()
        opened.set()
        play(monkeypatch, gate=opened, evaluate=staticmethod(evaluate))
        root = tmp_path / "set"
        trace_set = TraceSet.from_path(root) if root.exists() else write_set(root, SOURCES, sizes=sizes)
        config = BenchmarkConfig.default(**{**QUICKLY, **settings})
        done = SimpleNamespace(events=[], traces=[], root=root)
        with Benchmark(trace_set, config, cache=tmp_path / "cache") as benchmark:
            benchmark.machine = benchmark.context.machine = Machine(devices, benchmark.machine.languages)
            plan = benchmark.plan(resume=resume)
            done.outcome = RunOutcome(plan, benchmark.find_resumed(plan))

            def note(event):
                done.events.append(event)
                done.outcome.observe(event)
                if sum(isinstance(one, JobFinished) for one in done.events) >= stops_after:
                    raise KeyboardInterrupt

            with contextlib.suppress(KeyboardInterrupt):
                result = benchmark.run_all(resume=resume, on_event=note)
                assert sorted(map(repr, traces_of(result))) == sorted(map(repr, done.outcome.traces))
        done.traces = done.outcome.traces
        done.told = {(one.solution, one.workload.uuid): level_of(one) for one in done.traces}
        jobs = [job for session in PlayedSession.all for block in session.begun for job in block.jobs]
        done.judged = Counter((one.solution.split("@")[0], one.workload["uuid"]) for one in jobs if one.assurance)
        done.file = traces_of(TraceSet.from_path(root))
        return done

    return go


def level_of(trace):
    evaluation = trace.evaluation
    return evaluation.extra["measurement"]["assurance"] if trace.is_successful() else evaluation.status.value


def ended(events):
    return [event for event in events if isinstance(event, (JobFinished, JobFaulted))]


def at_full(name, **found):
    """Judge as `by_level` does, but for the confirmations of a solution: its fields, or None (the session ends)."""

    def evaluate(job, solution):
        if solution != name or job.assurance is None:
            return by_level(job, solution)
        return {**by_level(job, solution), **found} if found else None

    return evaluate


def test_a_run_confirms_the_best_of_each_workload_and_has_one_trace_a_job(run):
    done = run()
    assert done.told == {
        **dict.fromkeys([("a", "w0"), ("a", "w1")], "full"),
        ("b", "w0"): "standard",
        ("b", "w1"): "standard",
    }
    assert done.judged == {("a", "w0"): 1, ("a", "w1"): 1}
    seeds = [job.seed for session in PlayedSession.all for block in session.begun for job in block.jobs]
    assert len(set(seeds)) == len(seeds) == 6  # inputs of their own
    assert sum(event.jobs for event in done.events if isinstance(event, JobsAdded)) == 2
    assert len(done.file) == 6  # the file has both lines


def traces_of(trace_set):
    return [trace for traces in trace_set.traces.values() for trace in traces]


CPU = {"devices": (Device("cpu", 0, HERE, "cpu"),)}


@pytest.mark.parametrize("asked", [{"confirm": False}, {"assurance": "full"}, {"quick": True}, CPU], ids=str)
def test_nothing_is_confirmed_where_that_was_not_asked_for(run, asked):
    done = run(**asked)
    assert (len(ended(done.events)), done.judged) == (4, {})


A_FULL, B_FULL = {("a", "w0"): "full", ("a", "w1"): "full"}, {("b", "w0"): "full", ("b", "w1"): "full"}
A_CHEAP = dict.fromkeys(A_FULL, "standard")


@pytest.mark.parametrize(
    ("found", "a", "unconfirmed"),
    [
        # What finds it wrong stands as its verdict: a wrong output, an end of its worker, a call that hangs.
        ({"status": "INCORRECT_NUMERICAL"}, "INCORRECT_NUMERICAL", 0),
        ({"status": "RUNTIME_ERROR", "log": "ended by signal 9 twice"}, "RUNTIME_ERROR", 0),
        ({"status": "TIMEOUT"}, "TIMEOUT", 0),
        # A fault of ours confirms nothing: the verdict before stands, and the next one is tried.
        ({"fault": {"message": "out of memory"}}, "standard", 2),
        ({}, "standard", 2),
    ],
    ids=["wrong", "killed", "late", "fault", "session lost"],
)
def test_a_winner_that_is_not_confirmed_makes_way_for_the_next(run, found, a, unconfirmed):
    done = run(at_full("a", **found))
    assert done.told == {**B_FULL, **dict.fromkeys(A_FULL, a)}
    assert (len(done.outcome.unconfirmed), done.outcome.faults, done.outcome.left) == (unconfirmed, [], 0)
    assert done.outcome.exit_code(require_passed=False) == 0
    assert ("Not confirmed" in render_outcome(done.outcome)) is bool(unconfirmed)
    assert "the best is confirmed at full assurance on 2 of 2 workloads" in render_outcome(done.outcome)
    assert "-" not in _last_line(render_outcome(done.outcome))


def _last_line(text):
    return text.strip().splitlines()[-1]


def test_a_solution_whose_confirmation_hangs_has_its_other_ones_left_out(run):
    def evaluate(job, name):
        if name == "b" or job.assurance is None:
            return by_level(job, name)
        late = {**by_level(job, name), "status": "TIMEOUT", "ran_out": "call"}
        return late if job.workload["uuid"] == "w0" else {"fault": {"message": "left out", "is_left_out": True}}

    done = run(evaluate)
    assert sorted(done.told[name] for name in A_FULL) == ["TIMEOUT", "standard"]
    assert [fault.is_left_out for fault in done.outcome.unconfirmed] == [True]
    assert B_FULL.items() <= done.told.items()
    assert done.outcome.exit_code(require_passed=False) == 0


def test_a_solution_that_hangs_elsewhere_is_confirmed_where_it_wins_and_not_tried_again(run):
    def evaluate(job, name):
        late = name == "a" and job.workload["uuid"] == "w0"
        return {**by_level(job, name), "status": "TIMEOUT", "ran_out": "call"} if late else by_level(job, name)

    done = run(evaluate, sizes=(8, 9, 10))
    assert done.judged.keys() >= {("b", "w0")}
    assert done.told["a", "w0"] == "TIMEOUT"
    assert all(level == "full" for (name, uuid), level in done.told.items() if name == "a" and uuid != "w0")


@pytest.mark.parametrize("finished", [2, 4, 5])
def test_a_stopped_run_is_resumed_with_what_is_left_and_only_that(run, finished):
    first = run(stops_after=finished)
    assert len(first.file) == finished
    second = run(resume=True)
    assert len(ended(second.events)) == 6 - finished
    assert second.told == {**B_CHEAP, **A_FULL}
    third = run(resume=True)
    assert (third.events, third.told) == ([], second.told)


B_CHEAP = dict.fromkeys(B_FULL, "standard")


def test_a_run_leaves_confirmations_to_another_one_of_the_same_set(run):
    first = run(stops_after=4)
    with Benchmark(TraceSet.from_path(first.root), BenchmarkConfig.default(**QUICKLY)) as other:
        other.machine = other.context.machine = Machine([GPU], other.machine.languages)
        other.reserve(other.plan(resume=True))
        assert run(resume=True).events == []
    assert len(ended(run(resume=True).events)) == 2


TWO = [("one GPU", "one GPU"), ("one GPU", "another GPU")]


@pytest.mark.parametrize("names", TWO, ids=["equal", "different"])
def test_winners_are_confirmed_on_the_hardware_that_they_won_on_by_all_devices(run, names):
    done = run(devices=[Device("cuda", at, name, f"GPU-{at}") for at, name in enumerate(names)], sizes=(8, 9, 10, 11))
    best = {}
    for event in done.events:
        if isinstance(event, JobFinished) and event.job.assurance is None:
            place = event.job.workload.uuid, event.device.name
            best[place] = min(best.get(place, "z"), event.job.solution.name)
    confirmed = [event for event in done.events if isinstance(event, JobFinished) and event.job.assurance]
    assert {(one.job.workload.uuid, one.device.name): one.job.solution.name for one in confirmed} == best
    assert len(confirmed) == len(best)
    assert {one.device.index for one in confirmed} == {0, 1}


@pytest.mark.parametrize(("others", "told"), [([], 2), ([Device("cuda", 1, "another", "GPU-1")], 0)])
def test_confirmations_of_a_device_that_is_lost_are_faults_and_the_run_ends(run, others, told):
    def evaluate(job, name):
        if job.assurance is None:
            return by_level(job, name)
        PlayedSession.fails_to_start = 2
        return None

    done = run(evaluate, devices=[GPU, *others])
    assert done.told.keys() == {*A_FULL, *B_FULL}
    assert "full" not in done.told.values()
    assert {fault.message.partition(":")[0] for fault in done.outcome.unconfirmed} >= {"no device is left to run it"}
    assert done.outcome.exit_code(require_passed=True) == 0


BROKEN = {"rule": "regimes", "evidence": {"output": "y", "error_norm": 1.0, "limit": 0.1}}


def breaks(*where, integrity=BROKEN):
    """Judge as `by_level` does; `a` breaks a rule where it is said: (workload, assurance)."""

    def evaluate(job, name):
        found = by_level(job, name)
        if name == "a" and (job.workload["uuid"], job.assurance) in where:
            found |= {"status": "INCORRECT_NUMERICAL", "extra": {**found["extra"], "integrity": integrity}}
        return found

    return evaluate


def test_what_breaks_a_rule_twice_loses_what_it_passed(run):
    done = run(breaks(("w0", None), ("w1", "full")), sizes=(8, 9, 10, 11))
    lines = [trace for trace in done.file if "voided_by" in trace.evaluation.extra.get("integrity", {})]
    assert {trace.workload.uuid for trace in lines} == {"w2", "w3"}
    for trace in lines:
        assert trace.evaluation.extra["integrity"] == {**BROKEN, "voided_by": ["w0", "w1"]}
        assert trace.evaluation.extra["run"]["fingerprint"]["solution"]
    assert {done.told["a", f"w{at}"] for at in range(4)} == {"INCORRECT_NUMERICAL"}
    assert {done.told["b", f"w{at}"] for at in range(4)} == {"full"}
    assert TraceSet.from_path(done.root).get_best_trace("double").solution == "b"
    assert sum(getattr(event, "jobs", 0) for event in done.events) == len(ended(done.events))
    assert run(resume=True).events == []


@pytest.mark.parametrize(
    ("where", "integrity"),
    [
        ([("w0", None), ("w1", None)], BROKEN),  # an honest mistake of some shapes
        ([("w1", "full")], BROKEN),  # once
        ([("w0", None), ("w1", "full")], None),
        ([("w0", None), ("w1", "full")], {"rule": "power", "evidence": {"limit": 0.1}}),
        ([("w0", None), ("w1", "full")], {"rule": "norm", "evidence": {"error_norm": 0.11, "limit": 0.1}}),
        ([("w0", None), ("w1", "full")], {"rule": "my own", "evidence": 1}),
        ([("w0", None), ("w1", "full")], "mine"),
    ],
    ids=["two workloads", "once", "tolerance", "draws", "close", "of a plug-in", "of another form"],
)
def test_what_chance_or_an_honest_mistake_may_do_takes_nothing_back(run, where, integrity):
    done = run(breaks(*where, integrity=integrity), sizes=(8, 9, 10))
    assert done.told["a", "w2"] == "full"
