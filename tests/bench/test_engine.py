"""What the resident engine promises those who submit to it; its sessions only pretend."""

import asyncio
import json
import logging
import os
import threading
import time

import pytest

from flashinfer_bench import EngineLimits, EngineState
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, DataSetError, EngineClosed, QueueFull, TaskCancelled, TaskFailed
from tests.bench.played import PlayedSession, play_engine
from tests.kit.make import make_solution

pytestmark = pytest.mark.cpu
LIMIT_S = 60.0


def solution(name, text=None, definition="double"):
    """A solution whose text is its name's own, unless it is given."""
    source = f"# {name if text is None else text}\ndef run(x):\n    return x * 2\n"
    return make_solution(name, definition=definition, source=source)


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make an engine; it is closed at the end, and its thread is gone."""
    made = []

    def go(**settings):
        made.append(play_engine(monkeypatch, tmp_path, **settings))
        return made[-1]

    yield go
    for engine in made:
        PlayedSession.gate.set()
        engine.close()
        assert not engine._thread.is_alive()
        assert all(session.has_ended for session in PlayedSession.all)


@pytest.fixture
def engine(make):
    return make()


def wait_for(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def begin(engine):
    """Have the device busy with a job; return its task."""
    task = engine.submit(solution("first"), ["d0"], submitter="nobody")
    wait_for(lambda: task.state == "running")
    return task


def order_of(tasks):
    """Open the gate, wait for the tasks, and return the solutions in the order in which they were judged."""
    PlayedSession.gate.set()
    for task in tasks:
        task.result(LIMIT_S)
    return list(dict.fromkeys(name for name, _ in PlayedSession.judged))[1:]


def test_a_task_goes_from_pending_over_running_to_its_traces(engine):
    first = begin(engine)
    task = engine.submit(solution("mine"))
    assert (first.state, task.state, task.traces) == ("running", "pending", [])
    with pytest.raises(TimeoutError):
        task.result(0.01)
    PlayedSession.gate.set()
    assert [(one.solution, one.workload.uuid) for one in task.result(LIMIT_S)] == [("mine", "d0"), ("mine", "d1")]
    assert (task.state, task.is_done, task.faults, task.cancel()) == ("completed", True, [], False)


def test_many_threads_submit_and_each_gets_its_own(engine):
    PlayedSession.gate.set()
    results = {}

    def submit(number):
        results[number] = engine.submit(solution(f"s{number}"), submitter=str(number)).result(LIMIT_S)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert {number: {one.solution for one in traces} for number, traces in results.items()} == {
        number: {f"s{number}"} for number in range(8)
    }
    assert len(PlayedSession.judged) == len(set(PlayedSession.judged)) == 16


def test_traces_are_saved_before_they_are_told_unless_nobody_wants_that(engine, tmp_path):
    PlayedSession.gate.set()
    engine.submit(solution("kept")).result(LIMIT_S)
    engine.submit(solution("dropped"), save_results=False).result(LIMIT_S)
    saved = TraceSet.from_path(tmp_path / "set").traces["double"]
    assert [(one.solution, one.workload.uuid) for one in saved] == [("kept", "d0"), ("kept", "d1")]


def test_every_job_has_a_seed_of_its_own_also_when_a_solution_comes_again(engine):
    PlayedSession.gate.set()
    traces = [trace for _ in range(2) for trace in engine.submit(solution("again")).result(LIMIT_S)]
    assert len({trace.evaluation.extra["run"]["seed"] for trace in traces}) == 4


def test_equal_jobs_of_several_tasks_are_one_and_each_gets_a_trace_of_its_name(engine, tmp_path):
    begin(engine)
    tasks = [engine.submit(solution(name, "the same"), submitter=name) for name in ("a", "b")]
    tasks.append(engine.submit(solution("a", "the same"), ["d1"]))
    order_of(tasks)
    assert len(PlayedSession.judged) == 3
    assert [[one.solution for one in task.traces] for task in tasks] == [["a", "a"], ["b", "b"], ["a"]]
    saved = TraceSet.from_path(tmp_path / "set").traces["double"]
    assert sorted((one.solution, one.workload.uuid) for one in saved if one.solution != "first") == [
        ("a", "d0"), ("a", "d1"), ("b", "d0"), ("b", "d1")
    ]  # fmt: skip


def test_two_solutions_of_one_name_are_two(engine):
    begin(engine)
    tasks = [engine.submit(solution("twin", text), ["d0"], submitter=text) for text in ("right", "wrong")]
    order_of(tasks)
    assert PlayedSession.judged.count(("twin", "d0")) == 2
    marks = [task.traces[0].evaluation.extra["run"]["fingerprint"]["solution"] for task in tasks]
    assert marks == [task.solution.digest() for task in tasks]
    assert len(set(marks)) == 2


def test_the_highest_priority_goes_first_and_also_lifts_an_equal_job(engine):
    begin(engine)
    low = [engine.submit(solution(f"low{number}"), ["d0"]) for number in range(4)]
    high = engine.submit(solution("high"), ["d0"], priority=1)
    lifted = engine.submit(solution("low3"), ["d0"], priority=2)
    assert order_of([*low, high, lifted]) == ["low3", "high", "low0", "low1", "low2"]


def test_a_flood_of_one_submitter_starves_no_other(engine):
    begin(engine)
    flood = [engine.submit(solution(f"flood{number}"), ["d0"], submitter="flood") for number in range(12)]
    others = [engine.submit(solution(f"other{number}"), ["d0"], submitter=str(number)) for number in range(3)]
    order = order_of([*flood, *others])
    assert max(order.index(f"other{number}") for number in range(3)) <= 4


def test_what_is_too_much_is_refused_whole(make):
    engine = make(limits=EngineLimits(queue=3, tasks_per_submitter=1))
    begin(engine)
    task = engine.submit(solution("fits"))
    with pytest.raises(QueueFull, match="3 jobs are open, and this task has 2; 3 may be open"):
        engine.submit(solution("more"), submitter="another")
    shared = engine.submit(solution("same", "fits"), submitter="another")
    with pytest.raises(QueueFull, match="submitter 'another' has 1 open tasks"):
        engine.submit(solution("same", "fits"), submitter="another")
    order_of([task, shared])
    assert engine.submit(solution("more")).result(LIMIT_S)


def test_a_cancelled_task_leaves_the_queue_and_what_others_share_goes_on(engine):
    begin(engine)
    alone, shared = engine.submit(solution("alone")), engine.submit(solution("shared"))
    other = engine.submit(solution("other", "shared"))
    assert alone.cancel()
    assert shared.cancel()
    for task in (alone, shared):
        with pytest.raises(TaskCancelled):
            task.result(LIMIT_S)
    assert order_of([other]) == ["shared"]
    assert {one.solution for one in other.traces} == {"other"}
    assert engine.state().jobs == {"PASSED": 3, "CANCELLED": 2}


def test_the_verdict_of_a_job_that_was_cancelled_while_it_ran_is_dropped(engine, tmp_path):
    running = begin(engine)
    assert running.cancel()
    again = engine.submit(solution("first"), ["d0"])
    PlayedSession.gate.set()
    assert len(again.result(LIMIT_S)) == 1
    assert running.traces == []
    assert len(TraceSet.from_path(tmp_path / "set").traces["double"]) == 1


def test_a_lost_session_gives_its_jobs_back_and_the_second_loss_is_a_fault(engine):
    PlayedSession.gate.set()
    PlayedSession.lost += ["once", "twice", "twice"]
    assert len(engine.submit(solution("once")).result(LIMIT_S)) == 2
    task = engine.submit(solution("twice"))
    with pytest.raises(TaskFailed, match="twice, workload d0: the session ended"):
        task.result(LIMIT_S)
    assert [one.workload.uuid for one in task.traces] == ["d1"]
    assert [one.job.workload.uuid for one in task.faults] == ["d0"]
    assert engine.state().jobs == {"PASSED": 3, "FAULT": 1}


def test_a_device_that_is_lost_is_tried_again_with_the_next_task(engine):
    PlayedSession.gate.set()
    PlayedSession.fails_to_start = 2
    with pytest.raises(TaskFailed, match="no device is left to run it"):
        engine.submit(solution("early")).result(LIMIT_S)
    wait_for(lambda: not engine.state().devices[0].healthy)
    assert engine.state().devices[0].condition == "lost"
    assert engine.submit(solution("late")).result(LIMIT_S)
    assert engine.state().devices[0].healthy


def test_an_error_of_the_loop_fails_what_is_open_and_the_engine_goes_on(engine, monkeypatch, caplog):
    PlayedSession.gate.set()
    monkeypatch.setattr(PlayedSession, "begin", lambda self: 1 / 0)
    with caplog.at_level(logging.CRITICAL), pytest.raises(TaskFailed, match="the engine failed: ZeroDivisionError"):
        engine.submit(solution("unlucky")).result(LIMIT_S)
    monkeypatch.undo()


def test_devices_are_given_back_after_a_while_without_jobs_and_taken_again(make):
    engine = make(limits=EngineLimits(idle_s=0.0))
    PlayedSession.gate.set()
    engine.submit(solution("one")).result(LIMIT_S)
    wait_for(lambda: engine.state().devices[0].condition == "resting")
    assert [session.has_ended for session in PlayedSession.all] == [True]
    engine.submit(solution("two")).result(LIMIT_S)
    assert len(PlayedSession.all) == 2


def test_closing_fails_open_tasks_and_takes_no_more(engine):
    begin(engine)
    task = engine.submit(solution("open"))
    engine.close()
    with pytest.raises(EngineClosed, match="before the task was complete"):
        task.result(LIMIT_S)
    with pytest.raises(EngineClosed):
        engine.submit(solution("late"))
    assert task.state == "failed"
    assert engine.state().is_closed
    reused = os.pipe()  # may have the numbers of the engine's own
    task.cancel()
    os.set_blocking(reused[0], False)
    with pytest.raises(BlockingIOError):
        os.read(reused[0], 1)
    for end in reused:
        os.close(end)


def test_draining_ends_the_open_tasks_first(engine):
    begin(engine)
    task = engine.submit(solution("open"))
    closing = threading.Thread(target=engine.close, kwargs={"drain": True})
    closing.start()
    wait_for(lambda: engine.state().is_closed)
    PlayedSession.gate.set()
    closing.join(LIMIT_S)
    assert (task.state, len(task.result())) == ("completed", 2)


def test_what_callbacks_raise_is_logged_and_stops_nothing(engine, caplog):
    PlayedSession.gate.set()
    told, ended = [], []
    engine.subscribe(lambda _event: 1 / 0)
    end = engine.subscribe(told.append)
    task = engine.submit(solution("one"))
    task.add_done_callback(lambda _task: 1 / 0)
    task.add_done_callback(ended.append)
    task.result(LIMIT_S)
    task.add_done_callback(ended.append)
    wait_for(lambda: len(ended) == 2)
    assert [one.trace.workload.uuid for one in told if isinstance(one, JobFinished)] == ["d0", "d1"]
    end()
    count = len(told)
    engine.submit(solution("two")).result(LIMIT_S)
    assert (len(told), ended) == (count, [task, task])
    assert "a subscriber of the engine failed" in caplog.text


def test_asyncio_gets_traces_as_they_come_and_the_result(engine):
    async def use():
        task = engine.submit(solution("one"))
        asyncio.get_running_loop().call_later(0.01, PlayedSession.gate.set)
        seen = [trace.workload.uuid async for trace in task]
        both = await asyncio.gather(task, engine.submit(solution("two")))
        return seen, [len(traces) for traces in both]

    assert asyncio.run(use()) == (["d0", "d1"], [2, 2])


def test_asyncio_is_told_of_a_cancelled_task(engine):
    begin(engine)

    async def use():
        task = engine.submit(solution("one"))
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await task

    with pytest.raises(TaskCancelled):
        asyncio.run(use())


def test_a_recorded_job_is_answered_from_the_record_where_that_is_wanted(engine):
    PlayedSession.gate.set()
    (trace,) = engine.submit(solution("one"), ["d0"]).result(LIMIT_S)
    task = engine.submit(solution("one"), use_recorded=True)
    assert [one.workload.uuid for one in task.result(LIMIT_S)] == ["d0", "d1"]
    assert engine.submit(solution("one"), use_recorded=True).state == "completed"
    (renamed,) = engine.submit(solution("another", "one"), ["d0"], use_recorded=True).result(LIMIT_S)
    assert (renamed.solution, renamed.evaluation) == ("another", trace.evaluation)
    assert len(PlayedSession.judged) == 2
    engine.submit(solution("one"), ["d0"]).result(LIMIT_S)
    assert len(PlayedSession.judged) == 3


def test_a_verdict_that_cannot_be_saved_is_a_fault(engine, tmp_path):
    task = engine.submit(solution("one"), ["d0"])
    (tmp_path / "set" / "traces").write_text("no folder")
    PlayedSession.gate.set()
    with pytest.raises(TaskFailed, match="it has a verdict, which could not be saved"):
        task.result(LIMIT_S)
    with pytest.raises(DataSetError, match="nothing can be appended to"):
        engine.submit(solution("two"), ["d0"])


@pytest.mark.parametrize(
    ("wanted", "workloads", "message"),
    [
        ("nobody", None, "the trace set has no solution 'nobody'"),
        (solution("one", definition="doubel"), None, "no definition 'doubel'; did you mean 'double'"),
        (solution("one"), ["d7"], "double has no workload 'd7'"),
        (solution("one"), ["o0"], "double has no workload 'o0'"),
        (solution("one"), [], "workloads: none is asked for"),
        (make_solution("one", target_hardware=["NVIDIA H100"]), None, "one cannot run here: target_hardware is"),
    ],
)
def test_what_cannot_be_is_said_at_once(engine, wanted, workloads, message):
    with pytest.raises(ConfigError, match=message):
        engine.submit(wanted, workloads)


def test_a_set_without_a_folder_has_nowhere_to_save(engine):
    engine.context.trace_set.root = None
    with pytest.raises(DataSetError, match="nowhere to save"):
        engine.submit(solution("one"))


def test_the_state_tells_devices_queue_and_counts_and_is_json(engine):
    begin(engine)
    engine.submit(solution("one"), submitter="me")
    wait_for(lambda: engine.state().devices[0].job)
    state = engine.state()
    assert EngineState.model_validate_json(state.model_dump_json()) == state
    told = json.loads(state.model_dump_json())
    assert told["open_tasks"] == {"nobody": 1, "me": 1}
    assert (told["queue_size"], told["jobs"]) == (2, {})
    assert {"label": "cpu", "condition": "working", "healthy": True, "jobs_done": 0}.items() <= told["devices"][
        0
    ].items()
    assert told["devices"][0]["job"] == {"index": 0, "definition": "double", "solution": "first", "workload": "d0"}
