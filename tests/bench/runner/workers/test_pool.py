"""Which worker gets a place: one whose context feeds the GPU slowly is replaced before it meets a solution."""

import pytest

from flashinfer_bench.bench.runner.workers import pool as worker_pool
from flashinfer_bench.bench.runner.workers.bounded_log import BoundedLog
from flashinfer_bench.bench.runner.workers.pool import MOST_CONTEXTS, SolutionFiles, WorkerPool
from flashinfer_bench.bench.runner.workers.process import WorkerGone
from flashinfer_bench.errors import DeviceFault

pytestmark = pytest.mark.cpu
FAST, SLOW, DEAD = 1600, 1750, -1


class FakeWorker:
    """A worker that starts with a given chain gap, or not at all."""

    def __init__(self, chain_gap_ns):
        self.chain_gap_ns = chain_gap_ns
        self.is_ready = self.is_ended = False
        self.log = BoundedLog()

    def wait_ready(self):
        if self.chain_gap_ns == DEAD:
            self.log.add(b"no room for a context")
            raise WorkerGone(None)
        self.is_ready = True

    def time_empty_bursts(self, touch_device):
        assert self.is_ready

    def begin_end(self):
        self.is_ended = True

    end = begin_end


@pytest.fixture
def open_pool(monkeypatch):
    """Return a pool that starts workers with the given chain gaps, all of its workers, and those it heard of."""

    def opened(*gaps):
        made, heard, coming = [], [], iter(gaps)

        def spawn(_pool, _solution):
            made.append(FakeWorker(next(coming)))
            return made[-1]

        monkeypatch.setattr(worker_pool.WorkerPool, "_spawn", spawn)
        return WorkerPool(None, None, None, on_ready=heard.append), made, heard

    return opened


def test_a_worker_of_the_slow_kind_is_replaced_and_ended(open_pool):
    pool, made, heard = open_pool(SLOW, FAST, FAST)
    pool.best_chain_ns = FAST
    worker, is_fresh = pool.worker_for(SolutionFiles("a solution"))
    assert (worker, is_fresh) == (made[1], True)
    assert [one.is_ended for one in made] == [True, False, False]
    assert heard == made[:2]


def test_where_all_are_alike_or_nothing_is_known_the_first_is_taken(open_pool):
    for gap in (SLOW, 0):
        pool, made, _ = open_pool(gap, gap)
        assert pool.worker_for(SolutionFiles("a solution"))[0] is made[0]


def test_after_a_few_tries_a_slow_one_will_do(open_pool):
    pool, made, _ = open_pool(*[SLOW] * (MOST_CONTEXTS + 1))
    pool.best_chain_ns = FAST
    assert pool.worker_for(SolutionFiles("a solution"))[0] is made[MOST_CONTEXTS - 1]


def test_the_spare_is_settled_while_nothing_is_measured(open_pool):
    pool, made, _ = open_pool(FAST, SLOW, FAST, FAST)
    first, _ = pool.worker_for(SolutionFiles("one"))
    pool.quiesce()
    assert made[1].is_ended
    assert pool.worker_for(SolutionFiles("two"))[0] is made[2]
    assert first.is_ended


def test_a_worker_that_does_not_start_is_a_fault_with_what_it_said(open_pool):
    pool, _, _ = open_pool(SLOW, DEAD)
    pool.best_chain_ns = FAST
    with pytest.raises(DeviceFault, match="no room for a context"):
        pool.worker_for(SolutionFiles("a solution"))


def test_a_spare_that_does_not_start_is_dropped_and_tried_again_when_wanted(open_pool):
    pool, made, _ = open_pool(FAST, DEAD, FAST, FAST)
    pool.worker_for(SolutionFiles("one"))
    pool.quiesce()
    assert pool.worker_for(SolutionFiles("two"))[0] is made[2]


def test_with_walls_the_spare_is_for_the_solution_that_comes_next(open_pool):
    pool, made, _ = open_pool(FAST, FAST, FAST)
    pool._enclosure = object()
    one, two, three = map(SolutionFiles, ("one", "two", "three"))
    pool.expect([one, two])
    assert pool.worker_for(one)[0] is made[0]
    assert len(made) == 2  # the second is for "two"
    pool.expect([one, three])  # "two" is not wanted any more
    assert [worker.is_ended for worker in made] == [False, True, False]
    assert pool.worker_for(three)[0] is made[2]
