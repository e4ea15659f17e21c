"""The interface of `Benchmark` that scripts rely on; the other tests of this folder cover the run itself."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import rich
from rich.console import Console

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.benchmark import PlanRun
from flashinfer_bench.bench.events import JobFaulted, JobsAdded, JobStarted, RunStarted
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.progress_bar import progress_bar
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache
from flashinfer_bench.bench.scheduler import Rules
from tests.bench.small_runs import HONEST, QUICKLY, write_set
from tests.cli.fake_engine import CPU, finished, make_jobs
from tests.kit.processes import marked, wait_until_gone


@pytest.mark.parametrize(
    ("given", "baselines"),
    [
        ({}, "use"),
        ({"fresh_baselines": True}, "refresh"),
        ({"keep_samples": True}, "off"),
        ({"profile_baseline": False}, "off"),
        ({"is_sandboxed": False}, "off"),
        ({"kind": "cpu"}, "off"),
    ],
)
def test_times_of_references_are_stored_between_runs_on_a_gpu_with_a_sandbox(tmp_path, monkeypatch, given, baselines):
    settings = {"kind": "cuda", "is_sandboxed": True, **given}
    device, sandbox = Device(settings.pop("kind"), 0, "one", "GPU-1"), SimpleNamespace(user="unchanged")
    sandbox.is_sandboxed = settings.pop("is_sandboxed")
    benchmark = Benchmark(write_set(tmp_path, {}), BenchmarkConfig(devices=["cpu"], **settings))
    monkeypatch.setattr(benchmark.context, "sandbox", sandbox)
    session_config = benchmark.context.greet(device, Rules(), needs_triton=False)
    assert session_config.baselines == baselines
    assert str(BaselineCache(Path(session_config.cache_root)).folder) in session_config.hidden


@pytest.mark.cpu
def test_kept_sessions_serve_the_next_run_and_end_with_the_benchmark_or_when_idle(tmp_path, monkeypatch):
    config, trace_set = BenchmarkConfig.default(**QUICKLY), write_set(tmp_path / "set", {"s": HONEST})
    idle = "flashinfer_bench.bench.benchmark.IDLE_S"
    with marked() as alive:
        with Benchmark(trace_set, config, cache=tmp_path / "cache", keeps_sessions=True) as benchmark:
            benchmark.run_all(save_results=False)
            first = alive()
            benchmark.run_all(save_results=False)
            assert set(first) & set(alive())
            seeds = {trace.evaluation.extra["run"]["seed"] for trace in trace_set.traces["double"]}
            assert len(seeds) == 2
            events = benchmark.run(benchmark.plan(), save_results=False)
            while not isinstance(next(events), JobStarted):
                pass
            events.close()  # a run that was begun and cancelled leaves nothing
            assert wait_until_gone(alive) == []
            for limit_s, stays in ((0.01, False), (60.0, True)):
                monkeypatch.setattr(idle, limit_s)
                benchmark.run_all(save_results=False)
                assert stays or wait_until_gone(alive) == []
            assert alive()
        assert wait_until_gone(alive) == []


def test_a_run_with_several_workers_repeats_no_untimed_workload(tmp_path):
    timed, other = make_jobs(tmp_path / "set")[:2]
    other = replace(other, workload=other.workload.model_copy(update={"timed": False}))
    run = PlanRun(harness := Mock(), [timed, other], 3, is_saved=False)
    run.begin()
    assert harness.submit.call_args.args == (run, (timed, other, timed, timed))
    done = {job.index: finished(job).trace.evaluation for job in (timed, other)}
    assert run.join(timed, done[timed.index]) is None
    assert run.join(other, done[other.index]) == done[other.index]
    assert (run.open, run.latencies()) == (1, [[done[timed.index].performance.latency_ms]])


def test_a_bar_is_drawn_in_notebooks_alone_unless_it_is_asked_for(tmp_path, capsys, monkeypatch):
    jobs, drawn = make_jobs(tmp_path / "set"), StringIO()
    events = [RunStarted((CPU,), 2), JobStarted(jobs[0], CPU), finished(jobs[0]), JobFaulted(jobs[1], "no device")]
    monkeypatch.setattr(rich, "_console", Console(file=drawn, force_terminal=True, width=100))
    for wanted in (True, None):
        with progress_bar(wanted=wanted) as tell:
            for event in (*events, JobsAdded(2)):
                tell(event)
    assert ("50%" in drawn.getvalue(), capsys.readouterr()) == (True, ("", ""))
