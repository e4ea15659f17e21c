"""Which worker gets a solution, how many are kept warm, and which are ended before they meet one."""

import base64
import select
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.bench.runner.workers import pool as worker_pool
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles, WorkerPool
from flashinfer_bench.bench.runner.workers.process import WorkerGone
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.timing.settings import TimingSettings
from flashinfer_bench.worker.fork_server import READY
from tests.kit.workers import ROOT

pytestmark = pytest.mark.cpu
FAST, SLOW, DEAD, COMING, ELSEWHERE = 1600, 1750, -1, -2, -3
ONE, TWO, THREE, FOUR = map(SolutionFiles, ("one", "two", "three", "four"))
PYTHON = SolutionFiles("python", wants_fast=True)


class FakeWorker:
    """A worker that starts with a given chain gap, late, on another GPU, or not at all."""

    def __init__(self, chain_gap_ns, files):
        self.chain_gap_ns, self.files = chain_gap_ns, files
        self.pid = self.given = None
        self.is_ready = self.is_ended = self.is_reaped = self.has_ended = self.is_deaf = False
        self.is_light, self.unbound = True, 0
        self.is_on_another_gpu = chain_gap_ns == ELSEWHERE
        self.log, self.overhead = BoundedLog(), BatchOverhead()

    def look(self, deadline):
        if self.chain_gap_ns == DEAD:
            self.log.add(b"no room for a context")
            raise WorkerGone(None)
        self.is_ready = self.chain_gap_ns != COMING
        return self.is_ready

    def fileno(self):
        """Somebody waits for this one: it comes up."""
        self.chain_gap_ns = FAST if self.chain_gap_ns == COMING else self.chain_gap_ns

    def time_empty_bursts(self, touch_device):
        assert self.is_ready

    def unbind(self):
        self.unbound += 1
        return not self.is_deaf

    def begin_end(self):
        self.is_ended = True

    def end(self):
        self.is_ended = self.is_reaped = True


@pytest.fixture
def open_pool(monkeypatch):
    """Return a pool that starts workers with the given chain gaps, all of its workers, and those it heard of."""

    def opened(*gaps, room=1, device="cpu", sandboxed=True, best=0):
        made, heard, coming = [], [], iter(gaps)

        def spawn(pool, files):
            made.append(FakeWorker(next(coming, FAST), files))
            return made[-1]

        monkeypatch.setattr(WorkerPool, "_spawn", spawn)
        monkeypatch.setattr(WorkerPool, "_most_warm", lambda pool: pool.room)
        monkeypatch.setattr(WorkerPool, "_most_starting", lambda pool: pool.room)
        monkeypatch.setattr(worker_pool.select, "select", lambda waited, *_: [one.fileno() for one in waited])
        hello = SimpleNamespace(device=device, gpu_index=1 if device == "cuda" else None, sessions=1)
        pool = WorkerPool(None, None, hello, on_ready=heard.append, policies=object() if sandboxed else None)
        pool.room = room
        pool.see_context(best)
        return pool, made, heard

    return opened


def for_whom(made):
    return [worker.files.digest for worker in made if not worker.is_ended]


# Contexts that are slow.


def test_a_slow_worker_is_replaced_and_ended_for_a_reference_and_for_what_may_launch_several_operations(open_pool):
    for ask in (lambda pool: pool.reference_worker("d"), lambda pool: pool.worker_for(PYTHON)[0]):
        pool, made, heard = open_pool(SLOW, FAST, best=FAST)
        assert ask(pool) is made[1]
        assert [one.is_ended for one in made] == [True, False]
        assert heard == made[:2]


def test_a_solution_keeps_a_slow_one_until_it_proves_to_matter(open_pool):
    pool, made, _ = open_pool(SLOW, SLOW, FAST, best=FAST)
    assert pool.worker_for(ONE)[0] is made[0]
    assert pool.excess_of(made[0]) == SLOW - FAST
    pool.end_slow()
    assert made[0].is_ended
    assert pool.worker_for(ONE)[0] is made[2]
    assert pool.excess_of(made[2]) == 0
    pool.expect([ONE, TWO])
    assert for_whom(made[3:]) == ["two"]


def test_a_slow_one_that_took_all_tries_is_taken_and_does_not_matter_again(open_pool):
    pool, made, _ = open_pool(*[SLOW] * 9, best=FAST)
    pool.worker_for(ONE)
    pool.end_slow()
    worker, _ = pool.worker_for(ONE)
    assert worker is made[4]
    assert pool.excess_of(worker) == pool.excess_of(made[0]) == 0


def test_one_that_turns_out_to_be_slow_is_replaced_before_it_is_taken(open_pool):
    pool, made, _ = open_pool(SLOW, FAST)
    pool.expect([PYTHON])
    assert not pool.is_starting()
    pool.see_context(FAST)
    assert pool.worker_for(PYTHON)[0] is made[1]
    assert made[0].is_ended


def test_where_all_are_alike_or_nothing_is_known_the_first_is_taken(open_pool):
    for gap in (SLOW, 0):
        pool, made, _ = open_pool(gap, gap)
        assert pool.worker_for(PYTHON)[0] is made[0]


# Warm workers.


def test_workers_are_started_side_by_side_for_what_comes_next_and_refilled_when_one_is_taken(open_pool):
    pool, made, _ = open_pool(*[COMING] * 9, room=3)
    pool.expect([ONE, TWO, THREE, FOUR])
    assert for_whom(made) == ["one", "two", "three"]
    assert pool.worker_for(ONE) == (made[0], True)
    assert for_whom(made[3:]) == ["four"]
    assert pool.worker_for(ONE) == (made[0], False)
    pool.expect([ONE, FOUR])  # its other jobs; "two" and "three" are not wanted any more
    assert for_whom(made) == ["one", "four"]
    assert pool.worker_for(FOUR)[0] is made[3]
    assert made[0].is_ended


def test_no_more_are_made_than_there_are_jobs_for(open_pool):
    pool, made, _ = open_pool(room=8)
    pool.expect([ONE, ONE])
    pool.worker_for(ONE)
    pool.discard()
    pool.expect([ONE])
    pool.worker_for(ONE)
    pool.expect([])
    assert len(made) == 2


def test_a_worker_that_does_not_start_is_a_fault_with_what_it_said_where_somebody_waits_for_it(open_pool):
    pool, _, _ = open_pool(SLOW, DEAD, best=FAST)
    with pytest.raises(DeviceFault, match="no room for a context"):
        pool.reference_worker("d")
    pool, made, _ = open_pool(FAST, DEAD, FAST, room=2)
    pool.expect([ONE, TWO, THREE])
    assert pool.worker_for(ONE)[0] is made[0]
    pool.expect([TWO, THREE])
    assert made[1].is_ended
    assert len(made) == 2  # nothing is started ahead while starting fails
    assert pool.worker_for(TWO)[0] is made[2]
    assert for_whom(made[3:]) == ["three"]


def test_a_worker_on_another_gpu_is_replaced_by_one_that_goes_by_the_uuid(open_pool):
    pool, made, heard = open_pool(ELSEWHERE, FAST, device="cuda")
    assert pool.worker_for(ONE)[0] is made[1]
    assert (made[0].is_ended, pool._gpu_index, heard) == (True, None, [made[1]])


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_worker_is_awaited_on_a_gpu_until_it_has_started(open_pool, device):
    pool, _, _ = open_pool(COMING, device=device)
    assert pool.is_awaited(ONE) is (device == "cuda")
    pool.expect([ONE])
    assert pool.is_awaited(ONE) is (device == "cuda")
    assert pool.settle()
    assert not pool.settle()
    assert not pool.is_awaited(ONE)
    pool.worker_for(ONE)
    assert not pool.is_awaited(ONE)


@pytest.mark.parametrize(
    ("free", "total", "most"), [(140, 141, 8), (30, 40, 3), (2, 141, 1), (0, 24, 1)], ids=lambda one: str(one)
)
def test_idle_contexts_hold_a_bounded_share_of_a_gpu(monkeypatch, free, total, most):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(worker_pool, "recently_free_bytes", lambda _gpu: free << 30)
    monkeypatch.setattr(worker_pool, "total_bytes", lambda _gpu: total << 30)
    assert bare_pool("cuda")._most_warm() == most


@pytest.mark.parametrize(
    ("cores", "sessions", "first", "later"), [(2, 1, 1, 1), (8, 1, 2, 2), (64, 1, 2, 4), (64, 2, 1, 2), (128, 8, 1, 1)]
)
def test_few_contexts_are_made_at_once_and_fewer_until_the_first_is_there(monkeypatch, cores, sessions, first, later):
    monkeypatch.setattr(worker_pool, "usable_cores", lambda: cores)
    pool = bare_pool("cuda", sessions)
    assert pool._most_starting() == first
    pool._has_started = True
    assert pool._most_starting() == later


@pytest.mark.parametrize(("cores", "memory", "most"), [(1, 64, 1), (2, 64, 2), (64, 64, 4), (8, 6, 1)])
def test_warm_workers_of_a_cpu_are_bounded_by_cores_and_memory(monkeypatch, cores, memory, most):
    monkeypatch.setattr(worker_pool, "usable_cores", lambda: cores)
    monkeypatch.setattr(worker_pool, "usable_memory", lambda: memory << 30)
    assert bare_pool("cpu")._most_warm() == bare_pool("cpu")._most_starting() == most


def bare_pool(device, sessions=1):
    hello = SimpleNamespace(device=device, gpu_index=None, sessions=sessions)
    return WorkerPool(None, None, hello, on_ready=lambda _: None)


# A reference's worker.


def test_the_worker_of_a_reference_rests_on_a_gpu_while_solutions_run(open_pool):
    pool, _, _ = open_pool(device="cuda")
    kept = pool.reference_worker("gemm")
    for _ in range(2):
        pool.rest_reference()
        pool.rest_reference()  # it rests already
        assert pool.reference_worker("gemm") is kept
    assert (kept.unbound, kept.is_ended) == (2, False)
    assert pool.reference_worker("rmsnorm") is not kept
    assert kept.is_ended


@pytest.mark.parametrize("how", ["on a CPU", "without a sandbox", "is deaf", "has died"])
def test_it_is_ended_where_it_may_not_or_does_not_rest(open_pool, how):
    pool, _, _ = open_pool(device="cpu" if how == "on a CPU" else "cuda", sandboxed=how != "without a sandbox")
    worker = pool.reference_worker("gemm")
    worker.is_deaf = how == "is deaf"
    pool.rest_reference()
    worker.has_ended = how == "has died"
    assert worker.is_ended is (how != "has died")
    assert pool.reference_worker("gemm") is not worker


# Ends.


@pytest.mark.parametrize(("device", "is_up"), [("cpu", True), ("cuda", False)])
def test_a_measurement_waits_for_what_ends_and_on_a_cpu_for_what_starts(open_pool, device, is_up):
    pool, made, _ = open_pool(FAST, FAST, COMING, COMING, room=2, device=device)
    pool.expect([ONE, TWO, THREE, FOUR])
    pool.worker_for(ONE)
    pool.worker_for(TWO)
    assert [made[0].is_ended, made[0].is_reaped] == [True, False]  # nothing has waited for its end
    assert pool.has_readers is (device == "cuda")
    pool.quiesce()
    assert made[0].is_reaped
    assert [worker.is_ready for worker in made[2:]] == [is_up] * 2


def test_workers_that_have_ended_are_cleaned_up_behind_without_waiting_for_others(open_pool):
    pool, made, _ = open_pool()
    pool.worker_for(ONE)
    pool.worker_for(TWO)
    pool.discard()
    made[1].has_ended = True
    pool.expect([])
    assert [worker.is_reaped for worker in made[:2]] == [False, True]


def test_a_worker_that_has_started_others_is_gone_before_the_next_is_loaded(open_pool):
    pool, made, _ = open_pool()
    pool.worker_for(ONE)[0].is_light = False
    pool.worker_for(TWO)
    assert made[0].is_reaped


@pytest.mark.parametrize("is_light", [True, False])
def test_a_worker_whose_work_is_done_is_let_go_unless_its_end_has_to_be_waited_for(open_pool, is_light):
    pool, made, _ = open_pool(device="cuda")
    pool.worker_for(ONE)[0].is_light = is_light
    pool.let_go()
    assert (made[0].is_ended, made[0].is_reaped) == (is_light, False)
    pool.let_go()  # there may be none
    assert pool.worker_for(TWO) == (made[1], True)
    assert made[0].is_reaped is not is_light
    pool.quiesce()
    assert made[0].is_reaped


def test_workers_that_the_device_has_no_memory_for_are_ended(open_pool):
    pool, made, _ = open_pool(room=4, device="cuda")
    pool.expect([ONE, TWO, THREE, FOUR])
    pool.room = 1
    pool.make_room()
    assert [worker.is_reaped for worker in made] == [False, True, True, True]


@pytest.mark.parametrize("sandboxed", [True, False])
def test_without_a_sandbox_an_import_waits_for_the_worker_before(open_pool, sandboxed):
    pool, made, _ = open_pool(sandboxed=sandboxed)
    pool.worker_for(ONE)
    pool.worker_for(TWO)
    pool.await_writers()
    assert made[0].is_reaped is not sandboxed


# Orders, and workers that precompile.


@pytest.mark.parametrize("precompiles", [True, False])
def test_the_code_of_kernels_goes_to_workers_that_time(tmp_path, precompiles):
    fields = {"device": "cuda", "gpu_uuid": "GPU-1", "gpu_index": 3, "sessions": 1, "worker_memory_bytes": 1 << 30}
    hello = SimpleNamespace(cache_root=str(tmp_path), timing=TimingSettings(), **fields)
    pool = WorkerPool(None, None, hello, on_ready=lambda _: None)
    pool.timing_image = b"code"
    order = pool._make_order(ONE, tmp_path, tmp_path, ("an artifact", {}) if precompiles else None)
    assert base64.b64decode(order["timing"]["image"]) == (b"" if precompiles else b"code")
    assert order["environment"]["CUDA_VISIBLE_DEVICES"] == ("" if precompiles else "3")


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_nothing_is_precompiled_before_the_server_says_that_it_is_ready(ends):
    pool = bare_pool("cuda")
    assert not pool.may_precompile()  # there is none
    pool.precompiling, theirs = ends
    assert not pool.may_precompile()
    theirs.sendall(READY)
    assert pool.may_precompile()
    assert pool.may_precompile()


@pytest.mark.parametrize("sent", [b"", b"an order that nobody reads"])
def test_a_server_that_is_gone_before_it_is_ready_is_given_up(ends, sent):
    pool = bare_pool("cuda")
    pool.precompiling, theirs = ends
    pool.precompiling.sendall(sent)
    theirs.close()
    assert not pool.may_precompile()
    assert pool.precompiling is None


SERVER = """
import socket, sys, time
import torch
from flashinfer_bench.worker import fork_server
fork_server.prepare_stand_in = lambda: (time.sleep(0.5), print("prepared", flush=True))
preparation = fork_server.Preparation(is_for_gpu=True, precompiles={precompiles})
fork_server.run_fork_server(socket.socket(fileno=int(sys.argv[1])), None, preparation)
"""


@pytest.mark.parametrize("precompiles", [True, False])
def test_a_server_says_that_it_is_ready_where_its_workers_precompile(precompiles):
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    command = [sys.executable, "-c", SERVER.format(precompiles=precompiles), str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stdout=subprocess.PIPE) as process:
        theirs.close()
        if precompiles:
            assert ours.recv(8) == READY
            assert select.select([process.stdout], [], [], 0)[0]
            assert process.stdout.readline() == b"prepared\n"
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(8) == b""
        process.wait(60)
