"""Winners are judged again at full assurance: the choice by a run or an engine, and the messages to users."""

import contextlib
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from flashinfer_bench import BenchmarkConfig
from flashinfer_bench.bench import Benchmark
from flashinfer_bench.bench.confirm import Winners
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.cli.outcome import RunOutcome, render_outcome
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError
from tests.bench.played import PlayedSession, on_devices, play, play_engine, write_two
from tests.bench.small_runs import HONEST, QUICKLY, write_set
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload

pytestmark = pytest.mark.cpu
DEFINITION, HERE, LIMIT_S = make_definition(), "test device", 60.0
STATUS = {"wrong": "INCORRECT_NUMERICAL", "late": "TIMEOUT", "error": "RUNTIME_ERROR"}
BROKEN = {"rule": "regimes", "evidence": {"output": "y", "error_norm": 1.0, "limit": 0.1}}


def fields(latency=1.0, level="standard", *, status="PASSED", hardware=HERE, integrity=None, **record):
    """Return fields of an evaluation, as sessions give them; a time of a GPU has bounds."""
    record |= {"assurance": level, "interval95_ms": [0.99 * latency, 1.01 * latency]}
    extra = {"measurement": record} | ({"integrity": integrity} if integrity is not None else {})
    return {
        "status": status,
        "latency_ms": latency,
        "environment": {"hardware": hardware, "libs": {}},
        "extra": extra,
    }


def judged(word, level="standard", **more):
    """Read `2.0`, `4.5<4.0` (raised from the reported value), a word of STATUS, `unbounded`, or `fault` (None)."""
    if word in ("fault", "unbounded"):
        return None if word == "fault" else make_evaluation()
    if word in STATUS:
        return make_evaluation(**fields(1.0, level, status=STATUS[word], **more))
    latency, _, claimed = word.partition("<")
    return make_evaluation(
        **fields(float(latency), level, **more, **({"claimed_ms": float(claimed)} if claimed else {}))
    )


def verdicts(text, level):
    """Read `a 2.0, b wrong`: solution → evaluation."""
    return {name: judged(word, level) for name, word in (one.split() for one in text.split(",") if one)}


def make_jobs(names, workloads=("w",)):
    config = BenchmarkConfig().resolve_eval_config(DEFINITION)
    pairs = [(name, uuid) for name in names for uuid in workloads]
    return [
        Job(at, DEFINITION, make_workload(uuid), make_solution(name), config, {"solution": name})
        for at, (name, uuid) in enumerate(pairs)
    ]


def trace_of(name, evaluation, workload="w"):
    return make_trace(workload=make_workload(workload), solution=name, evaluation=evaluation)


def settle(winners, evaluate):
    """Give jobs their results in order; return the solutions that are judged at full assurance, in this order."""
    todo, order = winners.begin(), []
    while todo:
        job = todo.pop(0)
        is_full = job.assurance == "full"
        order += [job.solution.name] * is_full
        assert (job.fingerprint.get("assurance") == "full") is is_full
        found, uuid = evaluate(job), job.workload.uuid
        device, name = Device("cpu", 0, HERE, "cpu"), job.solution.name
        lost = JobFaulted(job, "lost")
        todo += winners.note(lost if found is None else JobFinished(job, trace_of(name, found, uuid), device, 0.0))
    return order


def by_tables(results, confirmed):
    tables = {None: verdicts(results, "standard"), "full": verdicts(confirmed, "full")}
    return lambda job: tables[job.assurance][job.solution.name]


SIXTEEN = [f"s{at}" for at in range(16)]


@pytest.mark.parametrize(
    ("results", "confirmed", "order"),
    [
        ("", "a 1", "a"),  # a single solution is judged at full assurance at once
        ("a 1, b 1", "a 1", "a"),
        ("a 2, b 1", "b 1", "b"),
        # A solution that is wrong, late or lost at full assurance makes way for the next one.
        *(("a 2, b 1", f"b {end}, a 2", "b a") for end in ("wrong", "late", "fault", "3")),
        # A confirmed time lies within both intervals of the next one's, or behind it.
        ("a 1, b 0.99", "b 1.01", "b"),
        ("a 1, b 0.99", "b 1.03, a 1", "b a"),
        (", ".join(f"{name} 1" for name in SIXTEEN), "s0 1", "s0"),
        (", ".join(f"{name} 1" for name in SIXTEEN), ", ".join(f"{name} 2" for name in SIXTEEN), "s0 s1 s2"),
        # Those that are wrong, or whose time was raised, do not count among the three.
        ("a 1, b 2, c 3, d 4, e 5", "a late, b late, c late, d 4.5<4.0, e 5", "a b c d e"),
        # A time that no clock outside the worker bounds is not confirmed.
        ("a unbounded, b unbounded", "", ""),
        ("a error, b fault", "", ""),
    ],
)
def test_the_confirmed_solutions_by_the_results_of_the_jobs(results, confirmed, order):
    names = [one.split()[0] for one in results.split(",") if one] or ["a"]
    assert settle(Winners(make_jobs(names)), by_tables(results, confirmed)) == order.split()


@pytest.mark.parametrize(
    ("recorded", "order"),
    [
        (judged("0.5", "full"), []),
        (judged("0.5"), []),
        (judged("0.5", "full", hardware="another"), ["a"]),
        (judged("3", "full"), ["a"]),
        (make_evaluation(latency_ms=0.5), []),
    ],
    ids=["confirmed", "not confirmed", "elsewhere", "slower", "of the relative"],
)
def test_only_the_best_known_on_this_hardware_is_confirmed(recorded, order):
    known = [trace_of("c", recorded)]
    found = by_tables("a 1, b 2", "a 1")
    assert settle(Winners(make_jobs("ab"), recorded=known), found) == order
    elsewhere = {("double", "w")}  # another run confirms it
    assert settle(Winners(make_jobs("ab"), recorded=known, elsewhere=elsewhere), found) == []


def test_a_resumed_run_continues_with_the_open_confirmations():
    done, found = make_jobs("ab"), by_tables("", "a 1")
    recorded = [trace_of("a", judged("1")), trace_of("b", judged("2"))]
    assert settle(Winners([], done, recorded, hardware=[HERE]), found) == ["a"]
    recorded.append(trace_of("a", judged("1", "full")))
    for hardware in (HERE, "another"):  # a winner of other hardware is confirmed there
        assert settle(Winners([], done, recorded, hardware=[hardware]), found) == []


ONCE_CONFIRMED = [("w0", None), ("w1", "full")]


@pytest.mark.parametrize(
    ("where", "integrity", "is_voided"),
    [
        (ONCE_CONFIRMED, BROKEN, True),
        ([("w0", None), ("w1", None)], BROKEN, False),  # an honest mistake of some shapes
        ([("w1", "full")], BROKEN, False),  # once
        (ONCE_CONFIRMED, None, False),  # by the tolerance
        (ONCE_CONFIRMED, {"rule": "power", "evidence": {"limit": 0.1}}, False),
        (ONCE_CONFIRMED, {"rule": "norm", "evidence": {"error_norm": 0.11, "limit": 0.1}}, False),
        (ONCE_CONFIRMED, {"rule": "my own", "evidence": 1}, False),
        (ONCE_CONFIRMED, "mine", False),
    ],
)
def test_a_solution_that_breaks_a_rule_twice_loses_its_passes_unless_by_chance(where, integrity, is_voided):
    def evaluate(job):
        level, is_a = job.assurance, job.solution.name == "a"
        if is_a and (job.workload.uuid, level) in where:
            return make_evaluation(**fields(1.0, level or "standard", status=STATUS["wrong"], integrity=integrity))
        return make_evaluation(**fields(1.0 if is_a else 2.0, level or "standard"))

    winners = Winners(make_jobs("ab", ("w0", "w1", "w2", "w3")))
    settle(winners, evaluate)
    lines = {one.workload.uuid: one.evaluation.extra["integrity"] for one in (event.trace for event in winners.voided)}
    expected = {**BROKEN, "voided_by": ["w0", "w1"]}
    assert lines == ({"w2": expected, "w3": expected} if is_voided else {})


LATENCY = {"a": 1.0, "b": 2.0}
GPU, CPU = Device("cuda", 0, HERE, "GPU-0"), Device("cpu", 0, HERE, "cpu")


def by_level(job, name):
    found = fields(LATENCY[name], job.assurance or "standard")
    del found["environment"]  # it is the device's
    return found


def at_full(**found):
    """Judge as `by_level` does, except the confirmations of `a`: other fields, or None (the session ends)."""

    def evaluate(job, name):
        if name != "a" or job.assurance is None:
            return by_level(job, name)
        return {**by_level(job, name), **found} if found else None

    return evaluate


def traces_of(trace_set):
    return [trace for traces in trace_set.traces.values() for trace in traces]


def level_of(trace):
    evaluation = trace.evaluation
    return evaluation.extra["measurement"]["assurance"] if trace.is_successful() else evaluation.status.value


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run `a` and `b` on pretended GPUs, by the same set each time.

    Returns: `reported`: (solution, workload) → "standard", "full" or the status that counts; `confirmed`: (solution,
    workload) → confirmations that sessions got; `ended`: events; `file`: the traces on disk; `outcome` as `run` has it.
    """

    def go(evaluate=by_level, *, devices=(GPU,), resume=False, stops_after=99, sizes=(8, 9), **settings):
        opened = threading.Event()
        opened.set()
        play(monkeypatch, gate=opened, evaluate=staticmethod(evaluate))
        root = tmp_path / "set"
        trace_set = (
            TraceSet.from_path(root) if root.exists() else write_set(root, dict.fromkeys("ab", HONEST), sizes=sizes)
        )
        done = SimpleNamespace(ended=[], root=root)
        config = BenchmarkConfig.default(**{**QUICKLY, **settings})
        with Benchmark(trace_set, config, cache=tmp_path / "cache") as benchmark:
            on_devices(benchmark.context, *devices)
            benchmark.machine = benchmark.context.machine
            plan = benchmark.plan(resume=resume)
            done.outcome = RunOutcome(plan, benchmark.find_resumed(plan))

            def note(event):
                done.outcome.observe(event)
                done.ended += [event] * isinstance(event, (JobFinished, JobFaulted))
                if sum(isinstance(one, JobFinished) for one in done.ended) >= stops_after:
                    raise KeyboardInterrupt

            with contextlib.suppress(KeyboardInterrupt):
                result = benchmark.run_all(resume=resume, on_event=note)
                assert sorted(map(repr, traces_of(result))) == sorted(map(repr, done.outcome.traces))
        done.reported = {(one.solution, one.workload.uuid): level_of(one) for one in done.outcome.traces}
        jobs = [job for session in PlayedSession.all for request in session.begun for job in request.jobs]
        done.seeds = [job.seed for job in jobs]
        done.confirmed = Counter((one.solution.split("@")[0], one.workload["uuid"]) for one in jobs if one.assurance)
        done.file = traces_of(TraceSet.from_path(root))
        return done

    return go


def levels(a, b):
    return {(name, uuid): level for name, level in (("a", a), ("b", b)) for uuid in ("w0", "w1")}


@pytest.mark.parametrize(
    ("asked", "is_confirmed"),
    [
        ({}, True),
        ({"confirm": False}, False),
        ({"assurance": "full"}, False),
        ({"quick": True}, False),
        ({"devices": (CPU,)}, False),
    ],
)
def test_a_run_on_a_gpu_confirms_the_best_of_each_workload_and_has_one_trace_a_job(run, asked, is_confirmed):
    done = run(**asked)
    assert done.confirmed == ({("a", "w0"): 1, ("a", "w1"): 1} if is_confirmed else {})
    assert len(done.reported) == 4
    assert len(set(done.seeds)) == len(done.ended) == len(done.file) == 4 + 2 * is_confirmed  # inputs of their own
    assert not is_confirmed or done.reported == levels("full", "standard")


@pytest.mark.parametrize(
    ("found", "a", "unconfirmed"),
    [
        ({"status": "INCORRECT_NUMERICAL"}, "INCORRECT_NUMERICAL", 0),  # this verdict stands
        ({}, "standard", 2),  # a lost session confirms nothing
    ],
)
def test_a_winner_that_is_not_confirmed_makes_way_for_the_next(run, found, a, unconfirmed):
    done = run(at_full(**found))
    said, lost = render_outcome(done.outcome), done.outcome.lost()
    assert done.reported == levels(a, "full")
    assert (len(lost["not_confirmed"]), lost["faults"], done.outcome.left) == (unconfirmed, [], 0)
    assert (done.outcome.exit_code(require_passed=False), "Not confirmed" in said) == (0, bool(unconfirmed))
    assert "the best is confirmed at full assurance on 2 of 2 workloads" in said


@pytest.mark.parametrize("finished", [2, 5])
def test_a_stopped_run_is_resumed_with_only_its_open_jobs(run, finished):
    assert len(run(stops_after=finished).file) == finished
    second = run(resume=True)
    assert (len(second.ended), second.reported) == (6 - finished, levels("full", "standard"))
    third = run(resume=True)
    assert (third.ended, third.reported) == ([], second.reported)


def test_winners_are_confirmed_on_the_hardware_that_they_won_on(run):
    done = run(devices=[GPU, Device("cuda", 1, "another GPU", "GPU-1")], sizes=(8, 9, 10, 11))
    best, confirmed = {}, {}
    for event in done.ended:
        place, name = (event.job.workload.uuid, event.device.name), event.job.solution.name
        if event.job.assurance is None:
            best[place] = min(best.get(place, "z"), name)
        else:
            confirmed[place] = name
    assert confirmed == best


def test_lines_that_take_verdicts_back_are_in_the_file(run):
    def evaluate(job, name):
        found = by_level(job, name)
        is_broken = name == "a" and (job.workload["uuid"], job.assurance) in ONCE_CONFIRMED
        extra = {"extra": {**found["extra"], "integrity": BROKEN}, "status": STATUS["wrong"]}
        return found | (extra if is_broken else {})

    done = run(evaluate, sizes=(8, 9, 10, 11))
    lines = [one for one in done.file if "voided_by" in one.evaluation.extra.get("integrity", {})]
    assert {one.workload.uuid for one in lines} == {"w2", "w3"}
    assert all(one.evaluation.extra["run"]["fingerprint"]["solution"] for one in lines)
    assert {(name, level) for (name, _), level in done.reported.items()} == {("a", STATUS["wrong"]), ("b", "full")}
    assert TraceSet.from_path(done.root).get_best_trace("double").solution == "b"
    assert run(resume=True).ended == []


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Make an engine whose sessions read a solution's name: `a1` takes 1 ms, `a1-wrong` is wrong at full assurance."""

    def judge(job, name):
        latency, _, end = name[1:].partition("-")
        return fields(
            float(latency), job.assurance or "standard", status=STATUS[end] if end and job.assurance else "PASSED"
        )

    with contextlib.ExitStack() as opened:

        def make(recorded=None, *, devices=(GPU,), **settings):
            if recorded is not None:
                trace = make_trace(workload=make_workload("d0"), solution="known", evaluation=recorded)
                write_two(tmp_path / "set", {"traces/me/test/double.jsonl": trace.to_json() + "\n"})
            made = opened.enter_context(play_engine(monkeypatch, tmp_path, **settings))
            monkeypatch.setattr(PlayedSession, "evaluate", staticmethod(judge))
            PlayedSession.gate.set()
            on_devices(made.context, *devices)
            return made

        yield make


def submit(engine, name, **asked):
    solution = make_solution(name, source=f"# {name[1:]}\n{HONEST}", target_hardware=["any"])
    return engine.submit(solution, ["d0"], **asked)


def outcome(task):
    (trace,) = task.result(LIMIT_S)
    return level_of(trace)


def judged_levels():
    return [job.assurance for session in PlayedSession.all for request in session.begun for job in request.jobs]


WRONG = STATUS["wrong"]


@pytest.mark.parametrize(
    ("recorded", "name", "asked", "reported", "at"),
    [
        (None, "a1", {}, "full", [None, "full"]),
        (judged("2"), "a1", {}, "full", [None, "full"]),
        (judged("0.5"), "a1", {}, "standard", [None]),
        (judged("1.01", "full"), "a1", {}, "standard", [None]),  # within both intervals
        (judged("1.05", "full"), "a1", {}, "full", [None, "full"]),
        (judged("0.5", hardware="another"), "a1", {}, "full", [None, "full"]),
        (judged("error"), "a1", {}, "full", [None, "full"]),
        (None, "a1-wrong", {}, WRONG, [None, "full"]),
        (None, "a1", {"confirm": "never"}, "standard", [None]),
        (judged("0.5"), "a1", {"confirm": "always"}, "full", ["full"]),
    ],
)
def test_an_engine_judges_again_a_solution_that_would_be_the_best_known(
    engine, tmp_path, recorded, name, asked, reported, at
):
    made = engine(recorded)
    assert (outcome(submit(made, name, **asked)), judged_levels()) == (reported, at)
    assert len(TraceSet.from_path(tmp_path / "set").traces["double"]) == len(at) + (recorded is not None)
    with pytest.raises(ConfigError, match="confirm must be one of if_best, always, never"):
        submit(made, "a1", confirm="maybe")


def test_earlier_verdicts_of_an_engine_count_and_answer_unless_full_assurance_is_requested(engine):
    made = engine()
    for name, reported in (("a4", "full"), ("a3", "full"), ("a5", "standard"), ("a1-wrong", WRONG)):
        assert outcome(submit(made, name, save_results=False)) == reported
    assert outcome(submit(made, "a2")) == "full"  # the faster one was found wrong
    assert outcome(submit(made, "a1", confirm="never")) == "standard"
    assert outcome(submit(made, "c1.5")) == "standard"  # an unconfirmed result is known, too
    before = len(judged_levels())
    for confirm, reported in (("if_best", "standard"), ("always", "full"), ("if_best", "full")):
        assert outcome(submit(made, "a1", use_recorded=True, confirm=confirm)) == reported
    assert len(judged_levels()) == before + 1
