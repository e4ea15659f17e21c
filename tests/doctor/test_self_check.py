"""The engine against itself."""

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Machine, discover_devices
from flashinfer_bench.bench.planning.plan import make_plan
from flashinfer_bench.examine.doctor.self_check import compare_twins, make_twins, run_self_check
from tests.doctor.visits import CPU
from tests.kit import make_trace, make_workload


def timed(solution, rows, latency_ms, *, spread=0.01):
    record = {"median_ms": 1.0, "q25_ms": 1.0, "q75_ms": 1.0 + spread}
    workload = make_workload(f"rows_{rows}", axes={"rows": rows})
    return make_trace(
        definition="k", solution=solution, workload=workload, latency_ms=latency_ms, extra={"measurement": record}
    )


def test_twins_are_compared_on_each_size():
    traces = [timed("k_first", 1, 1.0), timed("k_first", 2, 2.0), timed("k_second", 1, 1.1, spread=0.3)]
    found = compare_twins([*traces, timed("k_second", 2, 1.9)], ())
    assert [(one.rows, round(one.ratio, 3)) for one in found.twins] == [(1, 1.1), (2, 0.95)]
    assert (found.worst, found.spread) == (pytest.approx(0.1), pytest.approx(0.3))


def test_a_twin_without_its_other_half_is_not_compared():
    assert compare_twins([timed("k_first", 1, 1.0)], ("boom",)).twins == ()


def test_twins_are_two_solutions_to_the_engine():
    plan = make_plan(make_twins((1, 4)), BenchmarkConfig(), Machine((CPU,), {"python": None}))
    assert len(plan.jobs) == 8
    for kernel in ("add_one", "rms_norm"):
        digests = {job.solution.digest() for job in plan.jobs if job.definition.name == kernel}
        assert len(digests) == 2  # so each gets a worker of its own


class Engine:
    """Finishes every job, the last of them without a verdict."""

    def __init__(self, trace_set, config):
        self.trace_set, self.config = trace_set, config

    def plan(self):
        return make_plan(self.trace_set, self.config, Machine((CPU,), {"python": None}))

    def run(self, plan, *, save_results=True):
        assert not save_results
        assert not self.config.profile_baseline
        for job in plan.jobs[:-1]:
            names = {"definition": job.definition.name, "solution": job.solution.name}
            yield JobFinished(job, make_trace(workload=job.workload, **names), CPU, 0.1)
        yield JobFaulted(plan.jobs[-1], "the device is lost\nas it is")


def test_a_job_without_a_verdict_is_a_problem_and_the_others_are_compared():
    found = run_self_check(CPU, make_engine=Engine)
    assert (len(found.twins), found.worst, found.problems) == (3, 0.0, ("the device is lost",))


@pytest.mark.cpu
@pytest.mark.timeout(180)
def test_the_engine_passes_both_twins_and_leaves_none_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    found = run_self_check(discover_devices(["cpu"])[0])
    assert found.problems == ()
    assert [(one.kernel, one.rows) for one in found.twins] == [
        ("add_one", 1),
        ("add_one", 4),
        ("rms_norm", 1),
        ("rms_norm", 4),
    ]
    assert all(one.ratio > 0 for one in found.twins)
    assert not (tmp_path / "cache").exists()
