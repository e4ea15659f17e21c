"""The host's loop over places elsewhere, reached as an actor is, but without Ray: what is lost, what joins.

The sessions are pretended, but for the last tests: there the one that a machine starts for itself is started.
"""

import json
import os
import socket
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished, Notice
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.client import SessionLost
from flashinfer_bench.bench.runner.orders import OrderMaker
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.scheduler import Judged, Scheduler
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.places import PlayedPlaces

pytestmark = pytest.mark.cpu
BLOB = {"x": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}}


class Meeting:
    """Sessions judge when this many of them have begun a block."""

    def __init__(self):
        self.wanted, self.there, self.news = 1, set(), threading.Condition()

    def come(self, device):
        with self.news:
            self.there.add(device)
            self.news.notify_all()

    def wait(self):
        with self.news:
            assert self.news.wait_for(lambda: len(self.there) >= self.wanted, 20)


class PlayedSession:
    """A session that judges a job each time that it is listened to, once its meeting is held."""

    meeting = Meeting()
    has_unsent, phase, left_s = False, "solution", float("inf")

    def __init__(self, device, hello):
        self.device, self.is_ready, self.ahead, self.todo = device, False, None, []
        self._ours, self._theirs = socket.socketpair()
        self._theirs.send(b"r")

    def fileno(self):
        return self._ours.fileno()

    def send(self, block):
        self.ahead = block

    def drop(self):
        self.ahead = None

    def begin(self):
        block, self.ahead = self.ahead, None
        self.todo = [job.index for job in block.jobs]
        self._theirs.send(b"j" * len(self.todo))
        self.meeting.come(self.device)

    def wait_forever(self):
        pass

    def check_deadline(self):
        pass

    def messages(self):
        if self._ours.recv(1) == b"r":
            self.is_ready = True
            yield {"ready": {"pid": 1, "libs": {}}}
            return
        self.meeting.wait()
        yield {"phase": {"job": self.todo[0], "name": "solution", "limit_s": 5.0}}
        evaluation = make_evaluation().model_dump(mode="json")
        yield {"verdict": {"job": self.todo.pop(0), "evaluation": evaluation, "seconds": 0.1}}
        if not self.todo:
            yield {"done": True}

    def end(self):
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def hello(tmp_path):
    return Hello(
        device="cuda",
        hardware="a GPU",
        isolated=False,
        timeout_seconds=5.0,
        profile_baseline=False,
        time_budget_s=1.0,
        baseline_budget_s=1.0,
        worker_memory_bytes=None,
        needs_triton=False,
        cache_root=str(tmp_path / "cache"),
    )


@pytest.fixture(autouse=True)
def own_locks(monkeypatch, tmp_path):
    """Locks of pretended GPUs lie in a folder of the test's."""
    place = "flashinfer_bench.bench.runner.device_lock.lock_path"
    monkeypatch.setattr(place, lambda device: tmp_path / "locks" / device.uuid)


@pytest.fixture(autouse=True)
def meeting(monkeypatch):
    """Of this test's sessions."""
    held = Meeting()
    monkeypatch.setattr(PlayedSession, "meeting", held)
    return held


def gpu(number):
    return Device("cuda", 0, "a GPU", f"GPU-{number}", node=f"node-{number}")


def make_jobs(solutions=4, workloads=3):
    config = BenchmarkConfig().resolve_eval_config(make_definition())
    pairs = [(f"s{one}", make_workload(f"w{number}")) for one in range(solutions) for number in range(workloads)]
    return [
        Job(
            index,
            make_definition(),
            workload,
            make_solution(name, source=f"def run(x):\n    return 2 * x  # {name}\n"),
            config,
            {},
        )
        for index, (name, workload) in enumerate(pairs)
    ]


def play(places, hello, jobs, disturb=lambda event, done: None):
    """Run jobs on places; `disturb` is called after each verdict."""
    orders = OrderMaker(places.sources, blob_root_for=lambda _: Path("nowhere"), seed_of=lambda _: 1)
    happenings, done = [], 0
    with closing(Scheduler(places, hello_for=lambda _: hello, orders=orders)) as scheduler:
        scheduler.add(jobs)
        while scheduler.has_open_jobs:
            for one in scheduler.step():
                happenings.append(one)
                if isinstance(one, Judged):
                    done += 1
                    disturb(one, done)
    places.close()
    return happenings


def judged(happenings):
    return Counter(one.job.index for one in happenings if isinstance(one, Judged))


def test_every_place_has_work_and_every_job_one_verdict(hello, meeting):
    meeting.wanted = 2
    jobs = make_jobs()
    happenings = play(PlayedPlaces([gpu(0), gpu(1)], PlayedSession), hello, jobs)
    assert judged(happenings) == Counter(range(len(jobs)))
    assert len({one.device.label for one in happenings if isinstance(one, Judged)}) == 2


def test_the_open_jobs_of_a_lost_place_are_done_once_by_another(hello, meeting):
    meeting.wanted = 2
    jobs = make_jobs()
    places = PlayedPlaces([gpu(0), gpu(1)], PlayedSession)
    lost = []

    def disturb(event, done):
        if done == 2:
            lost.append(event.device)
            places.posts[event.device].lose()

    happenings = play(places, hello, jobs, disturb)
    assert judged(happenings) == Counter(range(len(jobs)))
    told = [one.message for one in happenings if isinstance(one, Notice)]
    assert len(told) == 1
    assert told[0].startswith(f"{lost[0].label}: its node is lost")


def test_a_place_that_comes_later_gets_work(hello, meeting):
    jobs = make_jobs(solutions=8)
    places = PlayedPlaces([gpu(0)], PlayedSession)

    def disturb(event, done):
        if done == 1:
            meeting.wanted = 2
            places.add(gpu(1))

    happenings = play(places, hello, jobs, disturb)
    assert judged(happenings) == Counter(range(len(jobs)))
    assert {one.device.label for one in happenings if isinstance(one, Judged)} == {"node-0/cuda:0", "node-1/cuda:0"}
    assert [one.message for one in happenings if isinstance(one, Notice)] == [
        "node-1/cuda:0 (a GPU) is used from now on"
    ]


def test_where_every_place_is_lost_each_job_has_a_fault_that_says_so(hello):
    jobs = make_jobs(solutions=2, workloads=2)
    places = PlayedPlaces([gpu(0)], PlayedSession)
    happenings = play(places, hello, jobs, lambda event, done: places.posts[event.device].lose())
    faults = [one for one in happenings if not isinstance(one, (Judged, Notice)) and hasattr(one, "message")]
    assert len(judged(happenings)) + len(faults) == len(jobs)
    assert "no device is left to run it: node-0/cuda:0: its node is lost" in faults[-1].message


def test_a_session_that_cannot_start_says_why_and_its_place_is_given_up(hello):
    def start(device, hello):
        raise SessionLost("the session of cuda:0 ended: out of memory")

    happenings = play(PlayedPlaces([gpu(0)], start), hello, make_jobs(1, 1))
    told = [one.message for one in happenings]
    assert sum("out of memory; 1 of its jobs go back" in line for line in told) == 2
    assert "out of memory" in told[-1]


def test_a_session_that_is_ended_while_it_is_being_started_is_ended_there_too(hello):
    places = PlayedPlaces([gpu(0)], PlayedSession)
    post = places.posts[gpu(0)]
    start, may_start = post.start, threading.Event()
    post.start = lambda told: may_start.wait(10) and start(told)
    session = places.open(gpu(0), hello)
    ending = threading.Thread(target=session.end)
    ending.start()
    may_start.set()
    ending.join(10)
    assert post.sessions._is_over
    assert post.sessions._is_idle.is_set()
    places.close()


def test_what_a_place_leaves_is_removed(hello):
    places = PlayedPlaces([gpu(0)], PlayedSession)
    folder = places.posts[gpu(0)].sessions._folder
    assert folder.is_dir()
    play(places, hello, make_jobs(1, 1))
    assert not folder.exists()
    assert not [one for one in threading.enumerate() if "node-0" in one.name or one.name == "sessions"]


def make_stored_set(root):
    """Write a set with a right and a wrong solution, and with a random and a stored input."""
    safetensors = pytest.importorskip("safetensors.torch")
    import torch

    workloads = [make_workload("w0", axes={"n": 64}), make_workload("w1", axes={"n": 8}, inputs=BLOB)]
    write_trace_set(
        root,
        definitions=[make_definition()],
        solutions=[make_solution(), make_solution("wrong", source="def run(x):\n    return x * 3\n")],
        workloads=[make_trace(workload=one, solution=None) for one in workloads],
    )
    (root / "blob").mkdir()
    safetensors.save_file({"x": torch.arange(8.0)}, root / "blob" / "x.safetensors")
    return TraceSet.from_path(root)


def judge_there(monkeypatch, tmp_path, device):
    """Judge a set with sessions as a machine starts them for itself, in a place that is reached from elsewhere."""
    trace_set = make_stored_set(tmp_path / "set")
    counts = {"warmup_runs": 1, "iterations": 5, "num_trials": 1, "profile_baseline": False}
    benchmark = Benchmark(
        trace_set, BenchmarkConfig.default(devices=[device.label], **counts), cache=tmp_path / "cache"
    )
    places = PlayedPlaces([device])
    monkeypatch.setattr(benchmark.context, "_make_farm", lambda: places.sources)
    monkeypatch.setattr(
        "flashinfer_bench.bench.context.Scheduler", lambda _devices, **others: Scheduler(places, **others)
    )
    try:
        events = list(benchmark.run(benchmark.plan(), save_results=False))
    finally:
        places.close()
    verdicts = {
        (one.job.solution.name, one.job.workload.uuid): one.trace for one in events if isinstance(one, JobFinished)
    }
    assert {key: one.evaluation.status.value for key, one in verdicts.items()} == {
        ("double_python", "w0"): "PASSED",
        ("double_python", "w1"): "PASSED",
        ("wrong", "w0"): "INCORRECT_NUMERICAL",
        ("wrong", "w1"): "INCORRECT_NUMERICAL",
    }
    assert benchmark.faults == []
    return verdicts


def test_the_session_of_a_machine_judges_in_a_place_too(monkeypatch, tmp_path):
    verdicts = judge_there(monkeypatch, tmp_path, discover_devices(["cpu"])[0])
    assert json.loads(verdicts["double_python", "w0"].model_dump_json())["evaluation"]["environment"]["hardware"]


@pytest.mark.gpu
def test_the_session_of_a_gpu_judges_in_a_place_too(monkeypatch, tmp_path):
    device = discover_devices(None)[0]
    verdicts = judge_there(monkeypatch, tmp_path, device)
    assert verdicts["double_python", "w0"].evaluation.environment.hardware == device.name
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None or device.uuid not in os.environ["CUDA_VISIBLE_DEVICES"]
