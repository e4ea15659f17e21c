"""Which worker gets a solution, how many are in stock, and which are ended before they meet one."""

from types import SimpleNamespace

import pytest
from flashinfer_bench.bench.runner.workers.spawning import NewWorker, make_order
from flashinfer_bench.bench.runner.workers.stock import (
    MOST_CONTEXTS,
    UNKNOWN_SOLUTION,
    ContextTraits,
)

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.bench.runner.workers import pool as worker_pool
from flashinfer_bench.bench.runner.workers import stock as worker_stock
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles, WorkerPool
from flashinfer_bench.bench.runner.workers.process import WorkerGone
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.timing.driver import CONNECTIONS
from flashinfer_bench.timing.settings import TimingSettings

pytestmark = pytest.mark.cpu
FAST, SLOW, DEAD, COMING, ELSEWHERE = 1600, 1750, -1, -2, -3
ONE, TWO, THREE, FOUR = map(SolutionFiles, ("one", "two", "three", "four"))


class FakeWorker:
    """A worker that starts with a given chain gap, late, on another GPU, or not at all."""

    def __init__(self, chain_gap_ns, solution):
        self.chain_gap_ns = chain_gap_ns
        self.solution = solution
        self.pid = None
        self.is_ready = self.is_ended = self.is_reaped = self.has_ended = False
        self.is_light = True
        self.unbound, self.is_deaf = 0, False
        self.is_on_another_gpu = chain_gap_ns == ELSEWHERE
        self.log = BoundedLog()
        self.overhead = BatchOverhead()
        self.clock = SimpleNamespace(sees_operations=True)

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
        self.overhead = BatchOverhead(request=100.0 * self.chain_gap_ns)

    def unbind(self):
        self.unbound += 1
        return not self.is_deaf

    def begin_end(self):
        self.is_ended = True

    def end(self):
        self.is_ended = self.is_reaped = True


class Limits:
    """Room for so many spares."""

    room = 1

    def starting(self, *, is_first):
        return self.room

    def spares(self, held):
        return self.room


class Enclosure(SimpleNamespace):
    """Knows where solutions keep what they compile."""

    def __init__(self, root):
        super().__init__(root=root)

    def folder(self, digest):
        return self.root / digest

    def drop_key(self, key):
        self.folder(key).rmdir()

    def environment(self, digest):
        return {"folder": str(self.folder(digest))}


@pytest.fixture
def open_pool(monkeypatch, tmp_path):
    """Return a pool that starts workers with the given chain gaps, all of its workers, and those it heard of."""

    def opened(*gaps, room=1, walled=True, device="cpu", has_early_workers=False, clock="auto"):
        made, heard, coming = [], [], iter(gaps)
        folders = tmp_path / "jit"

        def spawn(pool, solution):
            made.append(FakeWorker(next(coming, FAST), solution))
            if solution is UNKNOWN_SOLUTION:
                pool._keys[made[-1]] = f"key-{len(made)}"
                (folders / f"key-{len(made)}").mkdir(parents=True, exist_ok=True)
            return made[-1]

        monkeypatch.setattr(worker_pool.WorkerPool, "_spawn", spawn)
        monkeypatch.setattr(worker_stock.select, "select", lambda waited, *_: [one.fileno() for one in waited])
        limits = Limits()
        limits.room = room
        monkeypatch.setattr(worker_pool, "StockLimits", lambda device, sessions: limits)
        hello = SimpleNamespace(
            device=device,
            gpu_index=1 if device == "cuda" else None,
            has_early_workers=has_early_workers,
            sessions=1,
            timing=SimpleNamespace(clock=clock),
        )
        enclosure = Enclosure(folders) if walled else None
        pool = WorkerPool(None, None, hello, on_ready=heard.append, enclosure=enclosure)
        return pool, made, heard

    return opened


def for_whom(made):
    return [worker.solution.digest for worker in made if not worker.is_ended]


def test_a_worker_of_the_slow_kind_is_replaced_and_ended_for_a_reference(open_pool):
    pool, made, heard = open_pool(SLOW, FAST)
    pool.stock.best_chain_ns = FAST
    assert pool.reference_worker("d") is made[1]
    assert [one.is_ended for one in made] == [True, False]
    assert heard == made[:2]


def test_a_solution_keeps_a_slow_one_until_it_proves_to_matter(open_pool):
    pool, made, _ = open_pool(SLOW, SLOW, FAST)
    pool.stock.best_chain_ns = FAST
    assert pool.worker_for(ONE)[0] is made[0]
    assert pool.context_of(made[0]) == ContextTraits(SLOW - FAST)
    pool.end_slow()
    assert made[0].is_ended
    assert pool.worker_for(ONE)[0] is made[2]
    pool.expect([ONE, TWO])
    assert [one.solution.digest for one in made[3:]] == ["two"]


def test_a_slow_one_that_took_all_tries_is_not_told_to_matter_again(open_pool):
    pool, made, _ = open_pool(*[SLOW] * (MOST_CONTEXTS + 1))
    pool.stock.best_chain_ns = FAST
    pool.worker_for(ONE)
    pool.end_slow()
    worker, _ = pool.worker_for(ONE)
    assert worker is made[MOST_CONTEXTS]
    assert pool.context_of(worker) == pool.context_of(made[0]) == ContextTraits()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_worker_is_awaited_on_a_gpu_until_it_has_started_and_while_nobody_holds_it(open_pool, device):
    pool, made, _ = open_pool(FAST, FAST, device=device)
    assert pool.is_awaited(ONE) is (device == "cuda")
    made_ahead = worker_pool.WorkerPool._made_for(pool, ONE)
    pool.stock._start(made_ahead)
    made[0].is_ready = False
    assert pool.is_awaited(ONE) is (device == "cuda")
    made[0].is_ready = True
    assert not pool.is_awaited(ONE)
    pool.worker_for(ONE)
    assert not pool.is_awaited(ONE)


def test_steps_are_taken_while_that_is_wanted_and_spares_are_looked_after(open_pool, monkeypatch):
    pool, _, _ = open_pool()
    taken, looked = [], []
    monkeypatch.setattr(worker_pool.WorkerPool, "tend_spares", lambda _pool: looked.append(len(taken)))
    steps = [lambda number=number: taken.append(number) for number in range(3)]
    pool.work_while(steps, lambda: len(taken) < 2)
    assert (taken, len(steps), looked) == ([0, 1], 1, [0, 1, 2])
    pool.work_while(steps)
    assert (taken, steps) == ([0, 1, 2], [])


def test_where_all_are_alike_or_nothing_is_known_the_first_is_taken(open_pool):
    for gap in (SLOW, 0):
        pool, made, _ = open_pool(gap, gap)
        assert pool.worker_for(ONE)[0] is made[0]


def test_a_spare_that_was_heard_already_is_not_waited_for(open_pool, monkeypatch):
    pool, _, _ = open_pool(FAST, device="cuda")
    pool.expect([ONE])
    monkeypatch.setattr(worker_stock.select, "select", lambda *_: pytest.fail("its words were read before"))
    pool.settle()
    assert not pool.stock.is_starting
    assert not pool.is_starting()


@pytest.mark.parametrize(
    ("device", "clock", "own", "is_narrow"),
    [
        ("cuda", "auto", None, True),
        ("cpu", "auto", None, False),
        ("cuda", "cuda_events", None, False),
        ("cuda", "auto", "4", False),
    ],
    ids=["a GPU", "a CPU", "streams are not seen", "the user says how many"],
)
def test_a_context_has_one_connection_until_a_call_wants_more(open_pool, monkeypatch, device, clock, own, is_narrow):
    monkeypatch.delenv(CONNECTIONS, raising=False)
    if own is not None:
        monkeypatch.setenv(CONNECTIONS, own)
    pool, made, _ = open_pool(FAST, FAST, device=device, clock=clock)
    pool.worker_for(ONE)
    assert pool.context_of(made[0]).is_narrow == is_narrow
    pool.end_slow()
    worker, _ = pool.worker_for(ONE)
    assert worker is made[1]
    assert not pool.context_of(worker).is_narrow


def test_where_no_clock_sees_streams_the_next_context_has_all_connections(open_pool):
    pool, made, _ = open_pool(FAST, FAST, FAST, room=2, device="cuda")
    spawn = pool.stock._spawn

    def spawn_blind(solution):
        worker = spawn(solution)
        worker.clock.sees_operations = False
        return worker

    pool.stock._spawn = spawn_blind
    pool.expect([ONE, TWO])
    for solution, made_narrow in ((ONE, True), (TWO, True), (THREE, False)):  # that of TWO was made already
        worker, _ = pool.worker_for(solution)
        assert pool.context_of(worker).is_narrow is made_narrow
    assert len(made) == 3


def test_a_context_that_earlier_sessions_had_and_this_one_cannot_have_is_forgotten(open_pool):
    pool, made, _ = open_pool(*[SLOW] * (MOST_CONTEXTS + 1))
    pool.stock.best_chain_ns = FAST
    fast = SolutionFiles("fast", wants_fast=True)
    worker, _ = pool.worker_for(fast)
    assert worker is made[MOST_CONTEXTS - 1]
    assert pool.stock.best_chain_ns == pool.stock.seen_chain_ns == SLOW
    assert pool.stock.excess_ns(SLOW) == 0


def test_a_spare_that_turns_out_to_be_slow_is_replaced_before_it_is_taken(open_pool):
    pool, made, _ = open_pool(SLOW, FAST)
    fast = SolutionFiles("fast", wants_fast=True)
    pool.expect([fast])
    pool.stock.tend()
    assert made[0].is_ready
    pool.stock.see(FAST)
    worker, _ = pool.worker_for(fast)
    assert worker is made[1]
    assert made[0].is_ended


def test_an_early_worker_that_python_gets_is_narrow_and_may_be_slow(open_pool):
    pool, _, _ = open_pool(SLOW, FAST, device="cuda", has_early_workers=True)
    pool.stock.best_chain_ns = FAST
    python = SolutionFiles("py", is_text=True, wants_fast=True)
    worker, _ = pool.worker_for(python)
    assert worker.solution is UNKNOWN_SOLUTION
    assert pool.context_of(worker) == ContextTraits(SLOW - FAST, is_narrow=True)
    pool.end_slow()
    worker, _ = pool.worker_for(python)
    assert (worker.solution, pool.context_of(worker)) == (python, ContextTraits())


@pytest.mark.parametrize(("is_narrow", "told"), [(True, "1"), (False, None)])
def test_a_narrow_context_is_asked_for_by_the_environment(tmp_path, is_narrow, told):
    gpu = {"device": "cuda", "gpu_uuid": "GPU-1", "gpu_index": 0, "sessions": 1}
    hello = SimpleNamespace(cache_root=str(tmp_path), worker_memory_bytes=1 << 30, timing=TimingSettings(), **gpu)
    new = NewWorker("key", None, tmp_path / "home", tmp_path / "given", is_narrow=is_narrow)
    assert make_order(hello, new, None)["environment"].get(CONNECTIONS) == told


def test_without_walls_all_workers_are_alike_and_fast(open_pool):
    pool, made, _ = open_pool(SLOW, FAST, walled=False)
    pool.stock.best_chain_ns = FAST
    assert pool.worker_for(ONE)[0] is made[1]


def test_a_worker_that_does_not_start_is_a_fault_with_what_it_said(open_pool):
    pool, _, _ = open_pool(SLOW, DEAD)
    pool.stock.best_chain_ns = FAST
    with pytest.raises(DeviceFault, match="no room for a context"):
        pool.reference_worker("d")


def test_a_spare_that_does_not_start_is_dropped_and_tried_again_when_wanted(open_pool):
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
    assert pool._gpu_index == 1
    assert pool.worker_for(ONE)[0] is made[1]
    assert made[0].is_ended
    assert pool._gpu_index is None
    assert heard == [made[1]]


def test_spares_are_started_side_by_side_and_refilled_when_one_is_taken(open_pool):
    pool, made, _ = open_pool(*[COMING] * 9, room=3)
    pool.expect([ONE, TWO, THREE, FOUR])
    assert for_whom(made) == ["one", "two", "three"]
    assert pool.worker_for(ONE)[0] is made[0]
    assert for_whom(made[3:]) == ["four"]


def test_no_more_spares_are_made_than_there_are_jobs_for(open_pool):
    pool, made, _ = open_pool(room=8)
    pool.expect([ONE, ONE])
    pool.worker_for(ONE)
    pool.discard()
    pool.expect([ONE])
    pool.worker_for(ONE)
    pool.expect([])
    assert len(made) == 2


def test_with_walls_spares_are_for_the_solutions_that_come_next(open_pool):
    pool, made, _ = open_pool(room=2)
    pool.expect([ONE, TWO, THREE])
    assert pool.worker_for(ONE)[0] is made[0]
    pool.expect([ONE, FOUR])  # its other jobs; "two" and "three" are not wanted any more
    assert for_whom(made) == ["one", "four"]
    assert pool.worker_for(FOUR)[0] is made[3]


def test_a_new_solution_takes_a_worker_that_was_made_before_anybody_sent_it(open_pool, tmp_path):
    pool, made, _ = open_pool(room=2, has_early_workers=True)
    assert pool.expect_unknown()
    assert not pool.expect_unknown()
    new, compiled = (SolutionFiles(name, is_text=name == "new") for name in ("new", "compiled"))
    pool.expect([new])
    assert pool.worker_for(new) == (made[0], True)
    assert pool.is_early
    assert pool.solution_environment("new") == {"folder": str(tmp_path / "jit" / "key-1")}
    pool.expect([new, compiled])
    pool.worker_for(compiled)
    assert (pool.is_early, for_whom(made)) == (False, ["compiled"])
    assert pool.solution_environment("compiled") == {"folder": str(tmp_path / "jit" / "compiled")}


def test_what_it_compiled_there_is_removed_and_the_next_time_it_has_a_folder_of_its_own(open_pool, tmp_path):
    pool, made, _ = open_pool(room=2, has_early_workers=True)
    new, known = (SolutionFiles(name, is_text=True) for name in ("new", "known"))
    (tmp_path / "jit" / "known").mkdir(parents=True)
    for solution in (new, known, new):
        pool.expect_unknown()
        pool.expect([solution])
        pool.worker_for(solution)
    assert [worker.solution.digest for worker in made if worker.solution is not UNKNOWN_SOLUTION] == ["known", "new"]
    pool.discard()
    pool.finish_ending()
    assert sorted(path.name for path in (tmp_path / "jit").iterdir()) == ["key-2", "known"]


def test_an_early_worker_stays_while_there_is_room_and_serves_one_solution(open_pool):
    pool, made, _ = open_pool(room=1, has_early_workers=True)
    pool.expect_unknown()
    pool.expect([ONE])
    assert for_whom(made) == ["one"]
    pool, made, _ = open_pool(room=2, has_early_workers=True)
    pool.expect_unknown()
    pool.expect([ONE])
    assert for_whom(made) == ["unknown", "one"]
    first, second = (SolutionFiles(name, is_text=True) for name in ("first", "second"))
    assert pool.worker_for(first)[0] is made[0]
    assert pool.worker_for(second)[0] is not made[0]
    assert made[0].is_ended


def test_the_worker_of_a_reference_rests_on_a_gpu_while_solutions_run(open_pool):
    pool, _, _ = open_pool(device="cuda")
    kept = pool.reference_worker("gemm")
    for _ in range(2):
        pool.rest_reference()
        pool.rest_reference()  # it rests already
        assert pool.reference_worker("gemm") is kept
    assert kept.unbound == 2
    assert not kept.is_ended
    assert pool.reference_worker("rmsnorm") is not kept
    assert kept.is_ended


@pytest.mark.parametrize("given", [{"device": "cpu"}, {"device": "cuda", "walled": False}, {"device": "cuda"}])
def test_it_is_ended_where_it_may_not_or_does_not_rest(open_pool, given):
    pool, _, _ = open_pool(**given)
    worker = pool.reference_worker("gemm")
    worker.is_deaf = True
    pool.rest_reference()
    assert worker.is_ended
    assert pool.reference_worker("gemm") is not worker


def test_one_that_has_died_while_it_rested_is_replaced(open_pool):
    pool, _, _ = open_pool(device="cuda")
    worker = pool.reference_worker("gemm")
    pool.rest_reference()
    worker.has_ended = True
    assert pool.reference_worker("gemm") is not worker


def test_without_walls_any_spare_will_do_and_none_serves_two_solutions(open_pool):
    pool, made, _ = open_pool(room=2, walled=False)
    pool.expect_any()
    assert len(made) == 2
    first, second = pool.worker_for(ONE)[0], pool.worker_for(TWO)[0]
    assert [first, second] == made[:2]
    assert first.is_ended


def test_a_measurement_waits_on_a_cpu_for_what_starts_and_ends_and_on_a_gpu_for_what_ends(open_pool):
    for device, is_up in (("cpu", True), ("cuda", False)):
        pool, made, _ = open_pool(FAST, FAST, COMING, COMING, room=2, device=device)
        pool.expect([ONE, TWO, THREE, FOUR])
        pool.worker_for(ONE)
        pool.worker_for(TWO)
        assert [made[0].is_ended, made[0].is_reaped] == [True, False]  # nothing has waited for its end
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


def test_spares_that_the_device_has_no_memory_for_are_ended(open_pool):
    pool, made, _ = open_pool(room=4, device="cuda")
    pool.expect([ONE, TWO, THREE, FOUR])
    pool.stock._limits.room = 1
    pool.make_room()
    assert [worker.is_reaped for worker in made] == [False, True, True, True]


@pytest.mark.parametrize("is_light", [True, False])
def test_a_worker_whose_work_is_done_is_let_go_unless_its_end_has_to_be_waited_for(open_pool, is_light):
    pool, made, _ = open_pool(device="cuda")
    pool.worker_for(ONE)[0].is_light = is_light
    pool.let_go()
    assert (made[0].is_ended, made[0].is_reaped) == (is_light, False)
    pool.let_go()  # there may be none
    assert pool.worker_for(TWO) == (made[1], True)
    assert made[0].is_reaped is not is_light  # a heavy one was waited for; a light one has until the measurement
    pool.quiesce()
    assert made[0].is_reaped
