"""An engine judges again, at full assurance, what would be the best known. Its sessions only pretend to have a GPU."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flashinfer_bench import EngineLimits
from flashinfer_bench.bench.confirm import MOST_KNOWN, BestKnown
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, EngineClosed, QueueFull, TaskCancelled
from tests.bench.played import PlayedSession, on_gpu, play_engine, write_two
from tests.kit.make import make_evaluation, make_solution, make_trace, make_workload

pytestmark = pytest.mark.cpu
LIMIT_S, HERE = 60.0, "test device"


def fields(latency, level="standard", *, status="PASSED", hardware=HERE):
    """Return fields of an evaluation, as sessions give them."""
    record = {"assurance": level, "interval95_ms": [0.99 * latency, 1.01 * latency]}
    environment = {"hardware": hardware, "libs": {}}
    return {
        "status": status,
        "latency_ms": latency,
        "environment": environment,
        "extra": {"measurement": record},
    }


def judge(job, name):
    """A solution's name tells its latency, in ms, and what full assurance makes of it: `a1`, `b2-wrong`."""
    latency, _, full = name[1:].partition("-")
    is_full = job.assurance == "full"
    status = "INCORRECT_NUMERICAL" if is_full and full == "wrong" else "PASSED"
    return fields(float(latency), "full" if is_full else "standard", status=status)


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make an engine with a GPU, and recorded traces; the gate is open."""
    made = []

    def go(recorded=(), *, gpu=True, **settings):
        for name, evaluation in recorded:
            root = tmp_path / "set"
            write_two(root)
            trace = make_trace(workload=make_workload("d0"), solution=name, evaluation=evaluation)
            path = root / "traces/me/test/double.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(trace.to_json() + "\n")
        engine = play_engine(monkeypatch, tmp_path, **settings)
        monkeypatch.setattr(PlayedSession, "evaluate", staticmethod(judge))
        PlayedSession.gate.set()
        if gpu:
            on_gpu(engine.context)
        made.append(engine)
        return engine

    yield go
    PlayedSession.gate.set()
    for engine in made:
        engine.close()


def submit(engine, name, **asked):
    made = make_solution(name, source=f"# {name[1:]}\ndef run(x):\n    return x * 2\n", target_hardware=["cuda"])
    return engine.submit(made, ["d0"], **asked)


def verdict(task):
    """Return status and level of the only verdict of a task."""
    (trace,) = task.result(LIMIT_S)
    return trace.evaluation.status.value, trace.evaluation.extra["measurement"]["assurance"]


def judged():
    """Return the level of each job that was begun."""
    return [job.assurance for session in PlayedSession.all for block in session.begun for job in block.jobs]


def wait_for(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


STANDARD, FULL, WRONG = ("PASSED", "standard"), ("PASSED", "full"), ("INCORRECT_NUMERICAL", "full")


@pytest.mark.parametrize(
    ("recorded", "name", "asked", "expected", "levels"),
    [
        (None, "a1", {}, FULL, [None, "full"]),
        (fields(2.0), "a1", {}, FULL, [None, "full"]),
        (fields(0.5), "a1", {}, STANDARD, [None]),
        (fields(1.0), "a1", {}, STANDARD, [None]),
        (fields(1.01, "full"), "a1", {}, STANDARD, [None]),  # within both intervals
        (fields(1.05, "full"), "a1", {}, FULL, [None, "full"]),
        (fields(0.5, hardware="another"), "a1", {}, FULL, [None, "full"]),
        (fields(0.5, status="RUNTIME_ERROR"), "a1", {}, FULL, [None, "full"]),
        (None, "a1-wrong", {}, WRONG, [None, "full"]),
        (None, "a1", {"confirm": "never"}, STANDARD, [None]),
        (fields(0.5), "a1", {"confirm": "always"}, FULL, ["full"]),
        (None, "a1-wrong", {"confirm": "always"}, WRONG, ["full"]),
    ],
)
def test_what_would_be_the_best_known_is_judged_again(make, tmp_path, recorded, name, asked, expected, levels):
    engine = make([] if recorded is None else [("known", make_evaluation(**recorded))])
    assert verdict(submit(engine, name, **asked)) == expected
    assert judged() == levels
    found = TraceSet.from_path(tmp_path / "set").traces["double"]
    assert len(found) == len(levels) + (recorded is not None)  # the file has both lines


@pytest.mark.parametrize(
    ("gpu", "settings", "level"),
    [(False, {}, None), (True, {"confirm": False}, None), (True, {"quick": True}, None)],
    ids=["cpu", "no confirm", "quick"],
)
@pytest.mark.parametrize("asked", ["if_best", "always"])
def test_nothing_is_confirmed_where_the_engine_does_without(make, gpu, settings, level, asked):
    engine = make(gpu=gpu, **settings)
    task = engine.submit(make_solution("a1", source="def run(x):\n    return x * 2\n"), ["d0"], confirm=asked)
    task.result(LIMIT_S)
    assert judged() == [level]


def test_what_came_before_counts_as_known_also_where_it_is_not_saved(make):
    engine = make()
    for name, expected in (("a4", FULL), ("a3", FULL), ("a5", STANDARD), ("a1-wrong", WRONG)):
        assert verdict(submit(engine, name, save_results=False)) == expected
    assert verdict(submit(engine, "a2")) == FULL  # the faster one was found wrong
    assert verdict(submit(engine, "a1", confirm="never")) == STANDARD
    assert verdict(submit(engine, "c1.5")) == STANDARD  # also what is not confirmed is known


def test_a_fault_in_the_confirmation_leaves_the_verdict_as_it_was(make):
    engine = make()

    def lose(event):
        if isinstance(event, JobFinished):
            PlayedSession.lost += ["a1", "a1"]

    engine.subscribe(lose)
    task = submit(engine, "a1")
    assert verdict(task) == STANDARD
    assert (task.state, task.faults) == ("completed", [])
    assert engine.state().jobs == {"PASSED": 1, "FAULT": 1}


def test_two_submitters_share_the_job_and_its_confirmation(make):
    engine = make()
    PlayedSession.gate.clear()
    tasks = [submit(engine, name, submitter=name) for name in ("a1", "b1")]
    plain = submit(engine, "c1", confirm="never")
    PlayedSession.gate.set()
    assert [verdict(task) for task in (*tasks, plain)] == [FULL, FULL, STANDARD]
    assert judged() == [None, "full"]


def stop_at_the_confirmation(engine):
    """Submit a solution, and have its confirmation wait; return the task."""
    engine.subscribe(lambda event: PlayedSession.gate.clear() if isinstance(event, JobFinished) else None)
    task = submit(engine, "a1")
    wait_for(lambda: judged() == [None, "full"])
    return task


def test_a_task_whose_confirmation_runs_is_open_counts_and_can_be_cancelled(make):
    engine = make(limits=EngineLimits(queue=1))
    task = stop_at_the_confirmation(engine)
    assert (task.state, task.traces, engine.state().open_tasks) == ("running", [], {"": 1})
    with pytest.raises(QueueFull):
        submit(engine, "a2")
    assert task.cancel()
    with pytest.raises(TaskCancelled):
        task.result(LIMIT_S)
    PlayedSession.gate.set()
    wait_for(lambda: engine.state().jobs == {"PASSED": 1, "CANCELLED": 1})


@pytest.mark.parametrize("drain", [True, False])
def test_closing_while_a_confirmation_runs(make, drain):
    engine = make()
    task = stop_at_the_confirmation(engine)
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(engine.close, drain=drain)
        wait_for(lambda: engine.state().is_closed)
        if drain:
            PlayedSession.gate.set()
        closing.result(LIMIT_S)
    if drain:
        assert verdict(task) == FULL
    else:
        with pytest.raises(EngineClosed):
            task.result(LIMIT_S)


def test_a_recorded_verdict_answers_unless_full_assurance_is_asked_for(make):
    engine = make()
    assert verdict(submit(engine, "a1", confirm="never")) == STANDARD
    assert verdict(submit(engine, "a1", use_recorded=True)) == STANDARD
    assert verdict(submit(engine, "a1", use_recorded=True, confirm="always")) == FULL
    assert verdict(submit(engine, "a1", use_recorded=True)) == FULL
    assert judged() == [None, "full"]


def test_another_word_is_refused(make):
    with pytest.raises(ConfigError, match="confirm must be one of if_best, always, never"):
        submit(make(), "a1", confirm="maybe")


def test_of_a_workload_the_fastest_are_known():
    best = BestKnown()
    for at in range(3 * MOST_KNOWN):
        assert best.note(make_trace(evaluation=make_evaluation(**fields(100.0 - at))), str(at))
    (known,) = best._fastest.values()
    assert sorted(map(int, known)) == list(range(2 * MOST_KNOWN, 3 * MOST_KNOWN))
