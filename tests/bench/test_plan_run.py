"""Several workers for each job: their order, and one evaluation of them all."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.benchmark import PlanRun, join_workers
from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.data.measurement import read_measurement
from tests.cli.fake_engine import make_jobs
from tests.kit import make_evaluation


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(tmp_path / "set")


def timed(latency_ms, **record):
    return make_evaluation(latency_ms=latency_ms, extra={"measurement": {"interval95_ms": [0, 9], **record}})


class Noted(SimpleNamespace):
    """What a run asks of its harness."""

    def submit(self, _run, jobs):
        self.jobs = [job.index for job in jobs]

    def withdraw(self, _run, job):
        self.withdrawn = job.index


def test_a_job_is_told_once_all_its_workers_passed_and_workers_are_interleaved(jobs):
    run = PlanRun(harness := Noted(), jobs, 3, is_saved=False)
    run.begin()
    assert harness.jobs == [job.index for job in jobs] * 3
    assert run.lane.in_order
    assert [run.note_start(jobs[0]) for _ in range(3)] == [True, False, False]
    told = [run.join(jobs[0], timed(ms)) for ms in (1.0, 1.1, 1.2)]
    assert told[:2] == [None, None]
    record = read_measurement(told[2])
    assert told[2].performance.latency_ms == pytest.approx(1.1)
    workers_ms = told[2].extra["measurement"]["workers_ms"]
    assert (record.interval, workers_ms) == ("workers", [1.0, 1.1, 1.2])
    assert record.bounds[0] < 1.0 < 1.2 < record.bounds[1]
    assert (run.latencies(), run.open) == ([[1.0, 1.1, 1.2]], len(jobs) - 1)


def test_one_worker_without_a_pass_decides_and_is_told_once(jobs):
    run = PlanRun(Noted(), jobs, 2, is_saved=False)
    wrong, fault = make_evaluation("INCORRECT_NUMERICAL"), JobFaulted(jobs[1], "gone")
    assert [run.join(jobs[0], wrong), run.join(jobs[0], timed(1.0))] == [wrong, None]
    assert [run.join(jobs[1], fault), run.join(jobs[1], fault)] == [fault, None]
    run.note(jobs[0], None)
    assert run._harness.withdrawn == jobs[0].index


def test_flags_of_all_workers_are_kept_but_noisy():
    joined = join_workers([timed(1.0, flags=["throttled", "noisy"]), timed(1.0, flags=["noisy"])])
    assert read_measurement(joined).flags == ["throttled"]
