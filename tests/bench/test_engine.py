"""The promises of the resident engine to its submitters; its sessions are pretended."""

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flashinfer_bench import EngineLimits
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, DataSetError, EngineClosed, QueueFull, TaskCancelled, TaskFailed
from tests.bench.played import PlayedSession, play_engine
from tests.kit.make import make_solution

pytestmark = pytest.mark.cpu
LIMIT_S = 60.0


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


def submit(engine, solution, *workloads, **asked):
    """Submit `name` or `name=text`: solutions of one text are equal; without workloads all are asked for."""
    name, _, text = solution.partition("=")
    made = make_solution(name, source=f"# {text or name}\ndef run(x):\n    return x * 2\n")
    return engine.submit(made, workloads or None, **asked)


def wait_for(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def begin(engine):
    """Have the device busy with a job; return its task."""
    task = submit(engine, "first", "d0", submitter="nobody")
    wait_for(lambda: task.state == "running")
    return task


def reported(traces):
    return [f"{one.solution} {one.workload.uuid}" for one in traces]


def judged(engine, *submitted, **asked):
    """Submit a solution with the gate open; return the names and workloads of its traces."""
    PlayedSession.gate.set()
    return reported(submit(engine, *submitted, **asked).result(LIMIT_S))


def recorded(tmp_path):
    return sorted(reported(TraceSet.from_path(tmp_path / "set").traces.get("double", [])))


def order_of(*tasks):
    """Open the gate, wait for the tasks, and return the solutions in the order in which they were judged."""
    PlayedSession.gate.set()
    for task in tasks:
        task.result(LIMIT_S)
    return list(dict.fromkeys(name for name, _ in PlayedSession.judged))[1:]


def test_a_task_is_pending_then_running_then_has_traces_which_are_saved_if_requested(engine, tmp_path):
    first = begin(engine)
    task, dropped = submit(engine, "mine"), submit(engine, "dropped", save_results=False)
    assert (first.state, task.state, task.traces) == ("running", "pending", [])
    with pytest.raises(TimeoutError):
        task.result(0.01)
    order_of(task, dropped)
    assert reported(task.result()) == ["mine d0", "mine d1"]
    assert (task.state, task.is_done, task.faults, task.cancel()) == ("completed", True, [], False)
    assert recorded(tmp_path) == ["first d0", "mine d0", "mine d1"]


def test_many_threads_submit_and_each_gets_its_own_with_a_seed_of_its_own(engine):
    PlayedSession.gate.set()
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda at: submit(engine, f"s{at}", submitter=str(at)).result(LIMIT_S), range(6))
        results = [*made, submit(engine, "s0").result(LIMIT_S)]  # a solution comes again
    assert [reported(traces) for traces in results] == [[f"s{at % 6} d0", f"s{at % 6} d1"] for at in range(7)]
    assert len({one.evaluation.extra["run"]["seed"] for traces in results for one in traces}) == 14


def test_equal_jobs_are_one_whatever_their_names_and_each_task_gets_a_trace_of_its_name(engine, tmp_path):
    begin(engine)
    tasks = [submit(engine, f"{name}=same", submitter=name) for name in "ab"] + [submit(engine, "a=same", "d1")]
    same = [submit(engine, f"same={text}", "d0", submitter=text) for text in ("right", "wrong")]
    order_of(*tasks, *same)
    assert (PlayedSession.judged.count(("same", "d0")), len(PlayedSession.judged)) == (2, 5)
    assert [reported(task.traces) for task in tasks] == [["a d0", "a d1"], ["b d0", "b d1"], ["a d1"]]
    assert recorded(tmp_path)[:4] == ["a d0", "a d1", "b d0", "b d1"]
    keys = [task.traces[0].evaluation.extra["run"]["fingerprint"]["solution"] for task in same]
    assert keys == [task.solution.digest() for task in same]


def test_the_highest_priority_goes_first_and_lifts_an_equal_job_and_no_flood_starves_others(engine):
    begin(engine)
    low = [submit(engine, f"low{number}", "d0") for number in range(12)]
    other, high = submit(engine, "other", "d0", submitter="another"), submit(engine, "high", "d0", priority=1)
    order = order_of(*low, other, high, submit(engine, "low3", "d0", priority=2))
    assert order[:2] == ["low3", "high"]
    assert order.index("other") <= 5
    assert [one for one in order if one.startswith("low")][1:] == [f"low{at}" for at in range(12) if at != 3]


def test_a_submission_over_the_limit_is_refused_whole(make):
    engine = make(limits=EngineLimits(queue=4, tasks_per_submitter=1))
    begin(engine)
    task = submit(engine, "fits")
    with pytest.raises(QueueFull, match="3 jobs are open, and this task has 2; 4 may be open"):
        submit(engine, "more", submitter="another")
    with pytest.raises(QueueFull, match="submitter '' has 1 open tasks"):
        submit(engine, "another", "d0")
    order_of(task)
    assert judged(engine, "more")


def test_a_cancelled_task_leaves_the_queue_and_shared_jobs_continue(engine, tmp_path):
    tasks = [begin(engine), submit(engine, "alone"), submit(engine, "shared")]
    other = submit(engine, "other=shared")
    for task in tasks:
        assert task.cancel()
        with pytest.raises(TaskCancelled):
            task.result(LIMIT_S)
    assert order_of(other, submit(engine, "first", "d0")) == ["shared"]
    assert reported(other.traces) == ["other d0", "other d1"]
    wait_for(lambda: engine.state().jobs == {"PASSED": 3, "CANCELLED": 3})
    assert (tasks[0].traces, recorded(tmp_path)) == ([], ["first d0", "other d0", "other d1"])


def test_a_lost_session_gives_its_jobs_back_and_the_second_loss_is_a_fault(engine):
    PlayedSession.lost += ["once", "twice", "twice"]
    assert len(judged(engine, "once")) == 2
    task = submit(engine, "twice")
    with pytest.raises(TaskFailed, match="twice, workload d0: the session ended"):
        task.result(LIMIT_S)
    assert (reported(task.traces), [one.job.workload.uuid for one in task.faults]) == (["twice d1"], ["d0"])
    assert engine.state().jobs == {"PASSED": 3, "FAULT": 1}


def test_a_device_that_is_lost_is_tried_again_with_the_next_task(engine):
    PlayedSession.fails_to_start = 2
    with pytest.raises(TaskFailed, match="no device is left to run it"):
        judged(engine, "early")
    wait_for(lambda: engine.state().devices[0].condition == "lost")
    assert not engine.state().devices[0].healthy
    assert judged(engine, "late")
    assert engine.state().devices[0].healthy


def test_an_error_of_the_loop_fails_open_jobs_and_the_engine_continues(engine, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(PlayedSession, "begin", lambda self: 1 / 0)
        with caplog.at_level(logging.CRITICAL), pytest.raises(TaskFailed, match="the engine failed: ZeroDivisionError"):
            judged(engine, "unlucky")
    assert judged(engine, "lucky", "d0") == ["lucky d0"]


def test_devices_are_given_back_after_a_while_without_jobs_and_taken_again(make):
    engine = make(limits=EngineLimits(idle_s=0.0))
    judged(engine, "one")
    wait_for(lambda: engine.state().devices[0].condition == "resting")
    assert [session.has_ended for session in PlayedSession.all] == [True]
    judged(engine, "two")
    assert len(PlayedSession.all) == 2


def test_closing_fails_open_tasks_and_takes_no_more(engine):
    begin(engine)
    task = submit(engine, "open")
    engine.close()
    with pytest.raises(EngineClosed, match="before the task was complete"):
        task.result(LIMIT_S)
    with pytest.raises(EngineClosed):
        submit(engine, "late")
    assert (task.state, task.cancel(), engine.state().is_closed) == ("failed", False, True)


def test_draining_ends_the_open_tasks_first(engine):
    begin(engine)
    task = submit(engine, "open")
    with ThreadPoolExecutor() as pool:
        pool.submit(engine.close, drain=True)
        wait_for(lambda: engine.state().is_closed)
        PlayedSession.gate.set()
    assert (task.state, len(task.result())) == ("completed", 2)


def test_exceptions_of_callbacks_are_logged_and_stop_nothing(engine, caplog):
    events, ended = [], []
    engine.subscribe(lambda _event: 1 / 0)
    end = engine.subscribe(events.append)
    task = submit(engine, "one")
    for callback in (lambda _task: 1 / 0, ended.append):
        task.add_done_callback(callback)
    order_of(task)
    task.add_done_callback(ended.append)
    wait_for(lambda: ended == [task, task])
    end()
    judged(engine, "two")
    assert reported(one.trace for one in events if isinstance(one, JobFinished)) == ["one d0", "one d1"]
    assert "a subscriber of the engine failed" in caplog.text
    assert caplog.text.count("ZeroDivisionError") > 1


def test_asyncio_gets_traces_as_they_come_the_result_and_the_end(engine):
    async def use():
        task = submit(engine, "one")
        asyncio.get_running_loop().call_later(0.01, PlayedSession.gate.set)
        seen = [trace async for trace in task]
        both = await asyncio.gather(task, submit(engine, "two"))
        PlayedSession.gate.clear()
        cancelled = submit(engine, "three")
        asyncio.get_running_loop().call_later(0.01, cancelled.cancel)
        with pytest.raises(TaskCancelled):
            await cancelled
        return reported(seen), [len(traces) for traces in both]

    assert asyncio.run(use()) == (["one d0", "one d1"], [2, 2])


def test_a_recorded_job_is_answered_from_the_record_if_requested(engine):
    judged(engine, "one", "d0")
    assert judged(engine, "one", use_recorded=True) == ["one d0", "one d1"]
    task = submit(engine, "another=one", use_recorded=True)
    assert (task.state, reported(task.result())) == ("completed", ["another d0", "another d1"])
    assert len(PlayedSession.judged) == 2
    judged(engine, "one", "d0")
    assert len(PlayedSession.judged) == 3


def test_a_verdict_that_cannot_be_saved_is_a_fault(engine, tmp_path):
    begin(engine)
    task = submit(engine, "one", "d0")
    (tmp_path / "set" / "traces").write_text("no folder")
    PlayedSession.gate.set()
    with pytest.raises(TaskFailed, match="it has a verdict, which could not be saved"):
        task.result(LIMIT_S)
    with pytest.raises(DataSetError, match="nothing can be appended to"):
        submit(engine, "two", "d0")
    engine.context.trace_set.root = None
    with pytest.raises(DataSetError, match="nowhere to save"):
        submit(engine, "two")


@pytest.mark.parametrize(
    ("wanted", "workloads", "message"),
    [
        ("nobody", None, "the trace set has no solution 'nobody'"),
        (make_solution(definition="doubel"), None, "no definition 'doubel'; did you mean 'double'"),
        (make_solution(), ["o0"], "double has no workload 'o0'"),
        (make_solution(), [], "workloads: none is asked for"),
        (make_solution("one", target_hardware=["NVIDIA H100"]), None, "one cannot run here: target_hardware is"),
    ],
)
def test_an_impossible_submission_is_refused_at_once(engine, wanted, workloads, message):
    with pytest.raises(ConfigError, match=message):
        engine.submit(wanted, workloads)


def test_the_state_tells_devices_queue_and_counts_and_is_json(engine):
    begin(engine)
    submit(engine, "one", submitter="me")
    wait_for(lambda: engine.state().devices[0].job)
    shown = json.loads(engine.state().model_dump_json())
    assert (shown["open_tasks"], shown["queue_size"], shown["jobs"]) == ({"nobody": 1, "me": 1}, 2, {})
    (device,) = shown["devices"]
    job = {"index": 0, "definition": "double", "solution": "first", "workload": "d0"}
    expected = {"label": "cpu", "condition": "working", "healthy": True, "jobs_done": 0, "job": job}
    assert 0 <= time.time() - device["job"].pop("began_at") < 60
    assert expected.items() <= device.items()
