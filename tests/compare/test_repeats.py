"""Several workers for each job: the order of the copies, and one evaluation of them all."""

import pytest

from flashinfer_bench.bench.workshop.given_order import GivenOrder
from flashinfer_bench.bench.workshop.repeats import Repeats, join_workers
from flashinfer_bench.data.measurement import read_measurement
from tests.cli.fake_engine import make_jobs
from tests.kit import make_evaluation


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(tmp_path / "set")


def timed(latency_ms, **record):
    return make_evaluation(latency_ms=latency_ms, extra={"measurement": {"interval95_ms": [0, 9], **record}})


def test_workers_of_different_solutions_take_turns(jobs):
    copies = Repeats(jobs, 2).copies()
    assert [copy.index for copy in copies] == list(range(2 * len(jobs)))
    assert [copy.solution.name for copy in copies] == [job.solution.name for job in jobs] * 2


def test_a_job_is_told_once_all_its_workers_passed(jobs):
    repeats = Repeats(jobs, 3)
    copies = [copy for copy in repeats.copies() if repeats.original(copy) is jobs[0]]
    told = [repeats.hear(copy, timed(ms)) for copy, ms in zip(copies, (1.0, 1.1, 1.2), strict=True)]
    assert told[:2] == [None, None]
    record = read_measurement(told[2])
    assert told[2].performance.latency_ms == pytest.approx(1.1)
    assert (record.interval, record.workers_ms) == ("workers", [1.0, 1.1, 1.2])
    assert record.bounds[0] < 1.0 < 1.2 < record.bounds[1]
    assert repeats.groups() == [[1.0, 1.1, 1.2]]


def test_one_worker_that_fails_decides(jobs):
    repeats = Repeats(jobs, 2)
    first, second = (copy for copy in repeats.copies() if repeats.original(copy) is jobs[0])
    wrong = make_evaluation("INCORRECT_NUMERICAL")
    assert repeats.hear(first, wrong) is wrong
    assert repeats.hear(second, timed(1.0)) is None
    assert repeats.left_of(first) == [first.index, second.index]


def test_a_fault_is_told_once(jobs):
    repeats = Repeats(jobs, 2)
    assert [repeats.fault(copy) for copy in repeats.copies() if repeats.original(copy) is jobs[0]] == [True, False]


def test_flags_of_all_workers_are_kept_but_noisy():
    joined = join_workers([timed(1.0, flags=["throttled", "noisy"]), timed(1.0, flags=["noisy"])])
    assert read_measurement(joined).flags == ["throttled"]


def test_jobs_are_dealt_out_in_the_order_given(jobs):
    order = GivenOrder()
    order.add([jobs[1], jobs[0]])
    assert order.remaining == 2
    block = order.take(1, lambda _solution: True)
    assert block.jobs == (jobs[1], jobs[0])
    order.give_back(block.jobs[1:])
    assert order.remove([jobs[0].index]) == [jobs[0]]
    assert order.take(1) is None


def test_a_job_whose_solution_is_not_built_holds_up_those_behind_it(jobs):
    order = GivenOrder()
    order.add(jobs[:2])
    assert not order.has_ready(lambda _solution: False)
    assert order.take(1, lambda _solution: False) is None
    assert order.remaining == 2
