"""The loop over the devices with sessions that only pretend: who gets which jobs, and when."""

import random
import socket
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, Notice
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner import client
from flashinfer_bench.bench.runner.client import SessionLost
from flashinfer_bench.bench.runner.orders import OrderMaker
from flashinfer_bench.bench.scheduler import Judged, Rules, Scheduler
from flashinfer_bench.compile import BuildFarm, Built, find_toolchain
from tests.kit.make import make_definition, make_evaluation, make_solution, make_workload
from tests.kit.native import EXPORT, make_native, pretend_compiler, until_there

pytestmark = pytest.mark.cpu
TOOLCHAIN = find_toolchain()
needs_compiler = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")
LIBRARY = "import flashinfer\ndef run(x):\n    return x\n"


class FakeFarm(SimpleNamespace):
    """Has built everything."""

    open_builds, jobs = 0, 1
    built = staticmethod(lambda solution: Built(solution, None, None, 0.0, False))
    is_ready = staticmethod(lambda _solution: True)
    add = poll = forget = __exit__ = staticmethod(lambda *_: None)
    wakers = staticmethod(list)


class PlayedSession:
    """A session that does the next job of its batch now and then, and sometimes ends; all play from one source."""

    has_unsent, left_s, phase = False, 100.0, "solution"
    chance, loss, all = random.Random(0), 0.0, ClassVar[list]

    def __init__(self, device, hello):
        self._ours, self._theirs = socket.socketpair()
        self.sent, self.todo, self.begun, self.early, self.is_ready = None, [], [], [], False
        self._theirs.send(b".")
        self.all.append(self)

    def fileno(self):
        return self._ours.fileno()

    def send(self, order):
        assert self.sent is None
        self.sent = order
        self.early.append((len(self.todo), self.is_ready, len(order.jobs)))

    def drop(self):
        assert self.sent is not None
        self.sent = None

    def begin(self):
        assert self.is_ready
        assert not self.todo
        self.begun.append(self.sent)
        self.todo, self.sent = [job.index for job in self.sent.jobs], None
        self._theirs.send(b".")

    def messages(self):
        if self.chance.random() < self.loss:
            raise SessionLost("it ended")
        if not self.is_ready:
            self.is_ready = bool(self._ours.recv(1))
            yield {"ready": {}}
            return
        if self.chance.random() < 0.5:
            evaluation = make_evaluation().model_dump(mode="json")
            yield {"verdict": {"job": self.todo.pop(0), "evaluation": evaluation, "seconds": self.chance.random()}}
        if not self.todo:
            self._ours.recv(1)

    def end(self):
        self._ours.close()
        self._theirs.close()

    wait_forever = check_deadline = staticmethod(lambda *_: None)


def make_jobs(solutions, workloads):
    config = BenchmarkConfig().resolve_eval_config(make_definition())
    pairs = [(one, make_workload(f"w{number}")) for one in solutions for number in range(workloads)]
    return [Job(at, make_definition(), workload, one, config, {}) for at, (one, workload) in enumerate(pairs)]


@pytest.fixture
def play(monkeypatch):
    """Run jobs on pretended devices; returns what happened with the builds that were open then, and all sessions."""

    def go(
        jobs, *, devices=1, kind="cuda", loss=0.0, seed=0, rules=None, farm=None, ask=lambda *_: iter(()), until=None
    ):
        monkeypatch.setattr(client, "SessionClient", PlayedSession)
        monkeypatch.setattr(client, "ask_for_device", ask)
        for name, value in {"chance": random.Random(seed), "loss": loss, "all": []}.items():
            monkeypatch.setattr(PlayedSession, name, value)
        farm = farm or FakeFarm()
        orders = OrderMaker(farm, blob_root_for=lambda _: Path("nowhere"), seed_of=lambda _: 1)
        devices = [Device(kind, at, "a device", f"GPU-{at}") for at in range(devices)]
        told = []
        loop = Scheduler(devices, hello_for=lambda _: None, orders=orders, rules=rules or Rules())
        with closing(loop) as scheduler:
            scheduler.add(jobs)
            is_over = False
            while scheduler.has_open_jobs and not is_over:
                told += [(happening, farm.open_builds) for happening in scheduler.step()]
                is_over = until is not None and until([one for one, _ in told if isinstance(one, Judged)])
        return SimpleNamespace(told=told, sessions=PlayedSession.all)

    return go


def kinds(played, *classes):
    return [one for one, _ in played.told if isinstance(one, classes)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("devices", "shape"), [(2, (5, 4)), (4, (3, 8)), (3, (1, 9))])
def test_every_job_is_done_once_whatever_is_lost_and_taken_back(play, devices, shape, seed):
    jobs = make_jobs([make_solution(f"s{at}") for at in range(shape[0])], shape[1])
    played = play(jobs, devices=devices, loss=0.05, seed=seed)
    assert sorted(one.job.index for one in kinds(played, Judged, JobFaulted)) == [job.index for job in jobs]


@pytest.mark.parametrize("seed", range(3))
def test_a_session_has_its_next_batch_early_and_solutions_stay_whole_but_for_the_last(play, seed):
    played = play(make_jobs([make_solution(f"s{at}") for at in range(12)], 3), devices=2, seed=seed)
    assert all(not one.early[0][1] for one in played.sessions)  # it starts still
    assert all(any(todo for todo, _, _ in one.early) for one in played.sessions)
    assert sum(len(order.solutions) for one in played.sessions for order in one.begun) <= 12 + 2
    played = play(make_jobs([make_solution(f"s{at}") for at in range(5)], 12), devices=2, seed=seed)
    assert all(todo == 0 for one in played.sessions for todo, _, jobs in one.early if jobs % 12)


def test_solutions_with_modules_are_announced_once_and_run_last(play):
    texts = dict.fromkeys((1, 3, 4), LIBRARY)
    solutions = [make_solution(f"s{at}", **({"source": texts[at]} if at in texts else {})) for at in range(6)]
    played = play(make_jobs(solutions, 10), rules=Rules(compiles_ahead=True))
    first, *others = played.sessions[0].begun
    assert [*first.solutions] == ["s0", "s2", "s5", "s1", "s3", "s4"]
    assert [(one.solution.name, len(one.workloads)) for one in first.announced] == [("s1", 8), ("s3", 8), ("s4", 8)]
    assert not any(order.announced for order in others)


def test_a_device_that_another_run_has_keeps_nobody_waiting_who_can_use_another(play):
    def ask(device, stack):
        while device.label == "cuda:0":
            yield None

    played = play(make_jobs([make_solution()], 2), devices=2, ask=ask)
    assert {one.device.label for one in kinds(played, Judged)} == {"cuda:1"}


@pytest.fixture
def farm(tmp_path):
    return lambda action="sleep 0.3": BuildFarm(
        tmp_path / "cache", jobs=1, toolchain=pretend_compiler(tmp_path, action=action)
    )


def built_then(played):
    return [(one.job.solution.name, builds) for one, builds in played.told if isinstance(one, Judged)]


@needs_compiler
def test_a_gpu_takes_what_is_built_while_the_rest_is_compiled(play, farm, tmp_path):
    long, short = make_native("long", main=f"// {'x' * 90_000}\n{EXPORT}"), make_native("short")
    waits = [until_there(tmp_path / f"verdict_{count}") for count in (4, 2)]
    action = "if grep -q xxx main.cpp; then {}; else {}; fi".format(*waits)

    def note(judged):
        (tmp_path / f"verdict_{len(judged)}").touch()

    played = play(make_jobs([short, make_solution(), long], 2), farm=farm(action), until=note)
    assert built_then(played) == [("double_python", 2)] * 2 + [("short", 1)] * 2 + [("long", 0)] * 2


@needs_compiler
def test_the_cpu_of_a_run_measures_nothing_while_compilers_run_on_it(play, farm):
    jobs = make_jobs([make_native(), make_solution()], 2)
    played = play(jobs, kind="cpu", farm=farm())
    assert {builds for _, builds in built_then(played)} == {0}
    assert "compiling 1 solution" in kinds(played, Notice)[0].message
    jobs = make_jobs([make_native("other"), make_solution()], 2)
    rules = Rules(retry_device_s=60.0)
    played = play(jobs, kind="cpu", farm=farm("sleep 30"), rules=rules, until=lambda judged: len(judged) == 2)
    assert built_then(played) == [("double_python", 1)] * 2


@needs_compiler
def test_what_does_not_compile_is_judged_and_what_cannot_be_built_here_is_a_fault(play, farm):
    refused = make_native("refused", compile_options={"cflags": ["-o x"]})
    played = play(make_jobs([refused, make_native()], 2), farm=farm("kill -9 $$"))
    assert [one.job.solution.name for one in kinds(played, Judged)] == ["refused"] * 2
    (order,) = played.sessions[0].begun
    assert order.solutions["refused"].build_error.startswith("compile_options.cflags: '-o'")
    faults = kinds(played, JobFaulted)
    assert [fault.job.solution.name for fault in faults] == ["native"] * 2
    assert "a compiler was killed" in faults[0].message
