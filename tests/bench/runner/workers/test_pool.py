"""Which worker gets a solution, how many workers are kept warm, and which workers end unused."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.bench.runner.workers import pool as worker_pool
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles, WorkerPool, reference_files
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerGone
from flashinfer_bench.errors import DeviceFault

pytestmark = pytest.mark.cpu
FAST, GAPS = 1600, {"fast": 1600, "slow": 1750}
FILES = {name: SolutionFiles(name, wants_fast=name == "python") for name in ("one", "two", "three", "four", "python")}


class FakeWorker:
    """A worker that starts with a given chain gap, late, on another GPU, or not at all."""

    def __init__(self, kind, name):
        self.kind, self.name = kind, name
        self.ready = SimpleNamespace(chain_gap_ns=GAPS.get(kind, 0))
        self.pid = None
        self.is_ready = self.is_ended = self.is_reaped = self.has_ended = self.is_deaf = False
        self.is_on_another_gpu = kind == "elsewhere"
        self.log, self.overhead = BoundedLog(), BatchOverhead()

    def __str__(self):
        return self.name + ("=" if self.is_reaped else "-" if self.is_ended else "" if self.is_ready else "?")

    def poll(self, deadline):
        if self.kind == "dead":
            self.log.add(b"no room for a context")
            raise WorkerGone(None)
        self.is_ready = self.kind != "coming"
        return self.is_ready

    def fileno(self):
        """It starts when the pool waits for it."""
        self.kind = "fast" if self.kind == "coming" else self.kind

    def time_empty_bursts(self, touch_device, least):
        assert self.is_ready

    def does(self, method):
        return not self.is_deaf

    def begin_end(self):
        self.is_ended = True

    def end(self):
        self.is_ended = self.is_reaped = True


def open_pool(device, index=None, on_ready=lambda _: None, is_sandboxed=False, is_resident=False):
    session_config = SimpleNamespace(
        device=device, gpu_index=index, sessions=1, is_sandboxed=is_sandboxed, expects_new=is_resident
    )
    compiled = SimpleNamespace(folder=lambda digest: SimpleNamespace(exists=lambda: digest == "two"))
    return WorkerPool(None, None, session_config, compiled, on_ready=on_ready)


@pytest.fixture
def play(monkeypatch):
    """Return a function that has a pool do what a script says, with workers that start as the given kinds.

    It returns all workers: `?` is not ready yet, `-` is asked to end, `=` is known to have ended.
    """

    def played(script, kinds="", *, room=1, device="cpu", sandboxed=True, best=0, sees_streams=False, **session_config):
        made, heard, rooms, coming = [], [], [room], iter(kinds.split())

        def spawn(_pool, files, *, is_narrow):
            name = "reference" if files.is_reference else files.digest
            made.append(FakeWorker(next(coming, "fast"), name + "'" * is_narrow))
            return made[-1]

        monkeypatch.setattr(WorkerPool, "_spawn", spawn)
        monkeypatch.setattr(WorkerPool, "_most_warm", lambda _: rooms[-1])
        monkeypatch.setattr(WorkerPool, "_most_starting", lambda _, room: room)
        monkeypatch.setattr(worker_pool.select, "select", lambda waited, *_: [one.fileno() for one in waited])
        pool = open_pool(device, index=1, on_ready=heard.append, is_sandboxed=sandboxed, **session_config)
        pool.see_context(best)
        pool.sees_streams = sees_streams
        for method, *words in map(str.split, script.split(",")):
            if method in ("expect", "adopt"):
                adopts = {"adopts": FILES[words[0]]} if method == "adopt" else {}
                pool.expect([FILES[word] for word in words], **adopts)
            elif method == "take":
                pool.worker_for(FILES.get(words[0]) or reference_files(words[0]))
            elif method in ("is_deaf", "has_ended"):
                setattr(made[int(words[0])], method, True)
            elif method == "room":
                rooms.append(int(words[0]))
            else:
                getattr(pool, method)(*map(int, words))
        assert set(heard) == {one for one in made if one.is_ready and one.kind != "elsewhere"}
        return " ".join(map(str, made))

    return played


GPU = {"device": "cuda"}
RESIDENT, NARROW = GPU | {"is_resident": True, "room": 3}, GPU | {"sees_streams": True}


@pytest.mark.parametrize(
    ("kinds", "given", "script", "workers"),
    [
        # a context that is slower than the best so far is replaced, a few times, if it is to be fast
        ("slow slow slow slow slow", {"best": FAST}, "take python", "python- python- python- python"),
        ("slow slow fast", {"best": FAST}, "take one, end_slow, take one, expect one two", "one- one- one two?"),
        ("slow fast", {}, "expect python, is_starting, see_context 1600, take python", "python- python"),
        # warm workers are for what comes next, side by side, and refilled when one is taken
        ("coming coming coming coming", {"room": 3}, "expect one two three four, take one", "one two? three? four?"),
        # one that does not start is no warm one, and none is started ahead until another has started
        ("fast dead fast", {"room": 2}, "expect one two three, take one, expect two three", "one two-"),
        ("elsewhere fast", GPU, "take one", "one- one"),
        # a resident engine has workers for solutions that nobody has sent yet; what is compiled for one is kept
        ("", RESIDENT, "expect one, take one, adopt three, take three", "one- new new new"),
        ("", RESIDENT, "expect one, take one, adopt two, take two", "one- new new two"),
        # a context has one connection, if it need not be fast, and streams are seen
        ("", NARROW | {"room": 2}, "expect one python", "one'? python?"),
        ("", NARROW, "take one, end_slow, take one", "one'- one"),
        # the worker of a reference rests on a GPU while solutions run
        ("", GPU, "take a, unbind_reference, unbind_reference, take a", "reference"),
        ("", GPU | {"sandboxed": False}, "take a, unbind_reference, take a", "reference- reference"),
        ("", GPU, "take a, is_deaf 0, unbind_reference, take a", "reference- reference"),
        # ends are not waited for, but before a measurement, and where they could disturb the next worker
        (
            "fast fast coming",
            {"room": 2} | GPU,
            "expect one two three, take one, take two, await_quiet",
            "one= two three?",
        ),
        ("", {}, "take one, take two, discard, has_ended 1, expect", "one- two="),
        ("", {"room": 4} | GPU, "expect one two three, room 1, tend", "one two- three-"),
        ("", GPU, "take one, take two, await_readers", "one= two"),
    ],
)
def test_which_workers_start_and_end(play, kinds, given, script, workers):
    assert play(script, kinds, **given) == workers


def test_an_awaited_worker_that_does_not_start_is_a_fault_with_its_output(play):
    with pytest.raises(DeviceFault, match="no room for a context"):
        play("take d", "slow dead", best=FAST)


@pytest.mark.parametrize(
    ("device", "cores", "gib", "free_gib", "starting", "most"),
    [("cuda", 2, 141, 140, 1, 8), ("cuda", 64, 141, 10, 4, 3), ("cpu", 8, 6, 6, 1, 1)],
)
def test_warm_workers_are_bounded_by_cores_and_memory(monkeypatch, device, cores, gib, free_gib, starting, most):
    monkeypatch.setattr(worker_pool, "recently_free_bytes", lambda _device: free_gib << 30)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(worker_pool, "total_bytes", lambda _device: gib << 30)
    monkeypatch.setattr(worker_pool, "usable_cores", lambda: cores)
    pool = open_pool(device)
    pool._has_started = True
    assert (pool._most_starting(pool._most_warm()), pool._most_warm()) == (starting, most)
