"""Which worker gets a solution, how many are kept warm, and which are ended before they meet one."""

import socket
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.bench.runner.workers import pool as worker_pool
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles, WorkerPool, gaps_matter, reference_files
from flashinfer_bench.bench.runner.workers.process import WorkerGone
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.worker.fork_server import READY

pytestmark = pytest.mark.cpu
FAST, GAPS = 1600, {"fast": 1600, "slow": 1750, "unknown": 0, "dead": -1, "coming": -2, "elsewhere": -3}
FILES = {name: SolutionFiles(name, wants_fast=name == "python") for name in ("one", "two", "three", "four", "python")}


class FakeWorker:
    """A worker that starts with a given chain gap, late, on another GPU, or not at all."""

    def __init__(self, kind, name):
        self.kind, self.name = kind, name
        self.ready = SimpleNamespace(chain_gap_ns=max(0, GAPS[kind]))
        self.pid = self.given = None
        self.is_ready = self.is_ended = self.is_reaped = self.has_ended = self.is_deaf = False
        self.is_on_another_gpu = kind == "elsewhere"
        self.log, self.overhead = BoundedLog(), BatchOverhead()

    def __str__(self):
        return self.name + ("=" if self.is_reaped else "-" if self.is_ended else "" if self.is_ready else "?")

    def look(self, deadline):
        if self.kind == "dead":
            self.log.add(b"no room for a context")
            raise WorkerGone(None)
        self.is_ready = self.kind != "coming"
        return self.is_ready

    def fileno(self):
        """Somebody waits for this one: it comes up."""
        self.kind = "fast" if self.kind == "coming" else self.kind

    def time_empty_bursts(self, touch_device, least):
        assert self.is_ready

    def does(self, verb):
        return not self.is_deaf

    def begin_end(self):
        self.is_ended = True

    def end(self):
        self.is_ended = self.is_reaped = True


class Bench:
    """A pool whose workers start as the given kinds, and what a script did with it."""

    def __init__(
        self, monkeypatch, kinds="", *, room=1, device="cpu", sandboxed=True, best=0, sees_streams=False, **hello
    ):
        self.made, self.heard, self.room, coming = [], [], room, iter(kinds.split())

        def spawn(_pool, files, *, is_narrow):
            name = "reference" if files.is_reference else files.digest
            self.made.append(FakeWorker(next(coming, "fast"), name + "'" * is_narrow))
            return self.made[-1]

        monkeypatch.setattr(WorkerPool, "_spawn", spawn)
        monkeypatch.setattr(WorkerPool, "_most_warm", lambda _: self.room)
        monkeypatch.setattr(WorkerPool, "_most_starting", lambda _, room: room)
        monkeypatch.setattr(worker_pool.select, "select", lambda waited, *_: [one.fileno() for one in waited])
        self.pool = open_pool(device, index=1, on_ready=self.heard.append, has_walls=sandboxed, **hello)
        self.pool.see_context(best)
        self.pool.sees_streams = sees_streams

    def run(self, script):
        """Do what the script says; return all workers: `?` is not up yet, `-` told to end, `=` known to be gone."""
        for verb, *words in map(str.split, script.split(",")):
            if verb == "expect":
                self.pool.expect([FILES[word] for word in words])
            elif verb == "adopt":
                self.pool.expect([FILES[word] for word in words], adopts=FILES[words[0]])
            elif verb in ("take", "reference_worker"):
                self.pool.worker_for(FILES.get(words[0]) or reference_files(words[0]))
            elif verb in ("deaf", "gone"):
                fields = {"deaf": ("is_deaf", True), "gone": ("has_ended", True)}
                setattr(self.made[int(words[0])], *fields[verb])
            elif verb == "room":
                self.room = int(words[0])
            else:
                getattr(self.pool, verb)(*(int(word) if word.isdigit() else word for word in words))
        return " ".join(map(str, self.made))


def open_pool(device, sessions=1, index=None, on_ready=lambda _: None, has_walls=False, is_resident=False):
    hello = SimpleNamespace(
        device=device, gpu_index=index, sessions=sessions, has_walls=has_walls, expects_new=is_resident
    )
    compiled = SimpleNamespace(folder=lambda digest: SimpleNamespace(exists=lambda: digest == "two"))
    return WorkerPool(None, None, hello, compiled, on_ready=on_ready)


GPU, OPEN = {"device": "cuda"}, {"sandboxed": False}
RESIDENT, NARROW = GPU | {"is_resident": True}, GPU | {"sees_streams": True}
SCRIPTS = [
    # a context that is slower than the best so far is replaced, a few times, if it is to be fast
    ("slow fast", {"best": FAST}, "take python", "python- python"),
    ("slow slow fast", {"best": FAST}, "take one, end_slow, take one, expect one two", "one- one- one two?"),
    ("slow slow slow slow slow", {"best": FAST}, "take python", "python- python- python- python"),
    ("slow fast", {}, "expect python, is_starting, see_context 1600, take python", "python- python"),
    # warm workers are for what comes next, side by side, and refilled when one is taken
    ("coming coming coming coming", {"room": 3}, "expect one two three four, take one", "one two? three? four?"),
    # one that does not start is no warm one, and none is started ahead until another has started
    ("fast dead fast", {"room": 2}, "expect one two three, take one, expect two three", "one two-"),
    ("elsewhere fast", GPU, "take one", "one- one"),
    # a resident engine has workers for solutions that nobody has sent yet; what is compiled for one is kept
    ("", RESIDENT | {"room": 3}, "expect one, take one, adopt three, take three", "one- new new new"),
    ("", RESIDENT | {"room": 3}, "expect one, take one, adopt two, take two", "one- new new two"),
    # a context has one connection, if it need not be fast, and streams are seen
    ("", NARROW | {"room": 2}, "expect one python", "one'? python?"),
    ("", NARROW, "take one, end_slow, take one", "one'- one"),
    # the worker of a reference rests on a GPU while solutions run
    ("", GPU, "reference_worker a, rest_reference, rest_reference, reference_worker a", "reference"),
    ("", GPU | OPEN, "reference_worker a, rest_reference, reference_worker a", "reference- reference"),
    ("", GPU, "reference_worker a, deaf 0, rest_reference, reference_worker a", "reference- reference"),
    # ends are not waited for, but before a measurement, and where they could disturb the next worker
    ("fast fast coming", {"room": 2} | GPU, "expect one two three, take one, take two, quiesce", "one= two three?"),
    ("", {}, "take one, take two, discard, gone 1, expect", "one- two="),
    ("", {"room": 4} | GPU, "expect one two three, room 1, tend", "one two- three-"),
    ("", GPU, "take one, take two, await_readers", "one= two"),
]


@pytest.mark.parametrize(("kinds", "given", "script", "workers"), SCRIPTS)
def test_what_is_started_and_ended(monkeypatch, kinds, given, script, workers):
    bench = Bench(monkeypatch, kinds, **given)
    assert bench.run(script) == workers
    assert set(bench.heard) == {one for one in bench.made if one.is_ready and one.kind != "elsewhere"}


def test_a_worker_that_somebody_waits_for_and_does_not_start_is_a_fault_with_what_it_said(monkeypatch):
    with pytest.raises(DeviceFault, match="no room for a context"):
        Bench(monkeypatch, "slow dead", best=FAST).run("reference_worker d")


@pytest.mark.parametrize(
    ("device", "cores", "sessions", "gib", "free_gib", "starting", "most"),
    [
        ("cuda", 2, 1, 141, 140, 1, 8),
        ("cuda", 64, 1, 141, 10, 4, 3),
        ("cpu", 8, 1, 6, 6, 1, 1),
    ],
)
def test_warm_workers_are_bounded_by_cores_and_memory(
    monkeypatch, device, cores, sessions, gib, free_gib, starting, most
):
    monkeypatch.setattr(worker_pool, "recently_free_bytes", lambda _device: free_gib << 30)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(worker_pool, "total_bytes", lambda _device: gib << 30)
    monkeypatch.setattr(worker_pool, "usable_cores", lambda: cores)
    pool = open_pool(device, sessions)
    pool._has_started = True
    assert (pool._most_starting(pool._most_warm()), pool._most_warm()) == (starting, most)


@pytest.mark.parametrize(("said", "closes", "ready"), [(b"", False, False), (READY, False, True), (b"", True, False)])
def test_nothing_is_precompiled_before_the_server_says_that_it_is_ready(said, closes, ready):
    pool = open_pool("cuda")
    assert not pool.may_precompile()  # there is none
    pool.precompiling, theirs = socket.socketpair()
    with pool.precompiling, theirs:
        pool.precompiling.sendall(b"an order that nobody reads")
        theirs.sendall(said)
        if closes:
            theirs.close()
        assert [pool.may_precompile(), pool.may_precompile()] == [ready] * 2
        assert (pool.precompiling is None) is closes


@pytest.mark.parametrize(("operations", "excess_ns", "matters"), [(40, 180, True), (1, 180, False), (40, 0, False)])
def test_a_slow_context_matters_to_calls_of_several_operations(operations, excess_ns, matters):
    assert gaps_matter(excess_ns, operations, 100_000) is matters


@pytest.mark.parametrize(
    ("given", "gap_ns", "operations", "uses_streams", "slows"),
    [
        ({"sees_streams": True}, FAST, 2, True, True),
        ({"sees_streams": True}, FAST, 2, False, False),
        ({}, FAST, 2, True, False),
        ({"best": FAST}, GAPS["slow"], 40, False, True),
    ],
)
def test_a_context_slows_calls_with_long_gaps_and_those_of_several_streams(
    monkeypatch, given, gap_ns, operations, uses_streams, slows
):
    bench = Bench(monkeypatch, **GPU, **given)
    bench.run("take one")
    (worker,) = bench.made
    worker.ready.chain_gap_ns = gap_ns
    assert bench.pool.is_slowed(worker, operations, 100_000, uses_streams) is slows
    bench.run("end_slow, take one")
    assert not bench.pool.is_slowed(bench.made[-1], operations, 100_000, uses_streams)
