"""Blocks that are sent ahead: every job is done once, whatever is lost or taken back, and no device idles meanwhile."""

import random
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner import fleet as fleet_module
from flashinfer_bench.bench.runner.client import SessionLost
from flashinfer_bench.bench.runner.fleet import NEARLY_DONE, Fleet, FleetRules, Judged
from flashinfer_bench.bench.runner.host import announcing
from flashinfer_bench.bench.runner.orders import OrderMaker
from flashinfer_bench.compile import Built
from tests.kit.make import make_definition, make_evaluation, make_solution, make_workload

pytestmark = pytest.mark.cpu


class FakeFarm:
    """Has built everything."""

    open_builds, jobs, is_held = 0, 1, False

    def add(self, solutions):
        pass

    def poll(self):
        pass

    def wakers(self):
        return []

    def is_ready(self, solution):
        return True

    def built(self, solution):
        return Built(solution, None, None, 0.0, False)

    def __exit__(self, *exc_info):
        pass


class PlayedClient:
    """A session that does the next job of its block now and then, and sometimes ends; all play from one source."""

    has_unsent, left_s, phase = False, 100.0, "solution"
    chance, loss = random.Random(0), 0.0
    all: ClassVar[list] = []
    fleet, workloads_each, left_at_parts = None, 0, ()

    def __init__(self, device, hello):
        self._ours, self._theirs = socket.socketpair()
        self.device, self.sent, self.todo, self.begun = device, None, [], []
        self.sent_early, self.is_ready, self.sent_at_start = 0, False, False
        self.announced, self.announced_with = [], []
        self._theirs.send(b".")
        self.all.append(self)

    def fileno(self):
        return self._ours.fileno()

    def send(self, block):
        assert self.sent is None
        self.sent = block
        self.announced += block.announced
        self.announced_with += [{one.name for one in block.solutions.values()}] if block.announced else []
        self.sent_early += bool(self.todo)
        if self.todo and len(block.jobs) < len(block.solutions) * self.workloads_each:
            self.left_at_parts.append(len(self.todo))
        self.sent_at_start |= not self.is_ready

    def drop(self):
        assert self.sent is not None
        self.sent = None

    def begin(self):
        assert self.is_ready
        assert not self.todo
        self.begun.append({job.solution for job in self.sent.jobs})
        self.todo, self.sent = [job.index for job in self.sent.jobs], None
        self._theirs.send(b".")

    def wait_forever(self):
        assert not any(station.ahead for station in self.fleet._stations)

    def check_deadline(self):
        pass

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


def play(monkeypatch, shape, *, devices=1, loss=0.0, seed=0, rules=None, sources=None):
    """Run jobs (solutions, workloads) on devices; return what happened, and all sessions.

    A solution has a text of its own where `sources` has one.
    """
    monkeypatch.setattr(fleet_module, "SessionClient", PlayedClient)
    monkeypatch.setattr(fleet_module, "ask_for_device", lambda *_: [])
    solutions, workloads = shape
    for name, value in {
        "chance": random.Random(seed),
        "loss": loss,
        "all": [],
        "workloads_each": workloads,
        "left_at_parts": [],
    }.items():
        monkeypatch.setattr(PlayedClient, name, value)
    config = BenchmarkConfig().resolve_eval_config(make_definition())
    pairs = [(f"s{one}", make_workload(f"w{number}")) for one in range(solutions) for number in range(workloads)]
    texts = {name: {"source": text} for name, text in (sources or {}).items()}
    jobs = [
        Job(index, make_definition(), workload, make_solution(name, **texts.get(name, {})), config, {})
        for index, (name, workload) in enumerate(pairs)
    ]
    orders = OrderMaker(FakeFarm(), blob_root_for=lambda _: Path("nowhere"), seed_of=lambda _: 1)
    stations = [Device("cuda", number, "a device", f"GPU-{number}") for number in range(devices)]
    with Fleet(stations, hello_for=lambda _: None, orders=orders, rules=rules) as fleet:
        monkeypatch.setattr(PlayedClient, "fleet", fleet)
        happenings = [one for one in fleet.run(jobs) if isinstance(one, (Judged, JobFaulted))]
    return SimpleNamespace(happenings=happenings, sessions=PlayedClient.all, jobs=jobs)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("devices", "shape"), [(2, (5, 4)), (4, (3, 8)), (3, (1, 9))])
def test_every_job_is_done_once_whatever_is_lost_and_taken_back(monkeypatch, devices, shape, seed):
    played = play(monkeypatch, shape, devices=devices, loss=0.05, seed=seed)
    assert sorted(one.job.index for one in played.happenings) == [job.index for job in played.jobs]


def test_a_session_has_its_next_block_before_the_last_one_ends_and_solutions_stay_whole(monkeypatch):
    played = play(monkeypatch, (12, 3), devices=2)
    assert all(session.sent_at_start and session.sent_early for session in played.sessions)
    begun = [name for session in played.sessions for block in session.begun for name in block]
    assert len(begun) <= 12 + 2  # the last ones may be split, so that both end at the same time
    assert not [one for one in played.happenings if isinstance(one, JobFaulted)]


@pytest.mark.parametrize("seed", range(4))
def test_a_session_that_is_nearly_done_has_a_part_of_a_solution_before_it_would_idle(monkeypatch, seed):
    played = play(monkeypatch, (5, 12), devices=2, seed=seed)
    assert PlayedClient.left_at_parts[0] <= NEARLY_DONE  # the rest of that solution is no part any more
    assert sorted(one.job.index for one in played.happenings) == [job.index for job in played.jobs]


def test_solutions_with_modules_are_announced_once_before_all_others_have_run_and_run_last(monkeypatch):
    library = "import flashinfer\ndef run(x):\n    return x\n"
    huge = library + "#" * announcing.LONGEST_TEXT
    rules = FleetRules(compiles_ahead=True)
    played = play(monkeypatch, (6, 10), rules=rules, sources={"s1": library, "s3": huge, "s4": library})
    (session,) = played.sessions
    assert [(one.solution.name, len(one.workloads)) for one in session.announced] == [
        ("s1", announcing.MOST_WORKLOADS),
        ("s4", announcing.MOST_WORKLOADS),
    ]
    assert session.announced_with == [{"s0", "s2", "s5"}]
    assert session.begun[0] == {"s0", "s2", "s5"}
    assert len(played.happenings) == 60
