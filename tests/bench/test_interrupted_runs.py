"""A run killed at any stage loses no finished job, breaks no line, and can be resumed."""

import json
import subprocess
import sys
from itertools import islice

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.bench.small_runs import HONEST, QUICKLY, write_set
from tests.kit.make import DOUBLE_INTO
from tests.kit.processes import marked, wait_until_gone

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(300)]

WORKLOADS = 8
STAGES = (0, 2, 3, 11)
"""The host is killed after this number of events. Without any it is still importing; then the session starts; then the
first job starts; then that job has its verdict. The first four kills meet a set without traces, or with a first one.
"""
RUN = """
import sys
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
config = BenchmarkConfig.default(devices=["cpu"], warmup_runs=1, iterations=2, num_trials=1)
benchmark = Benchmark(TraceSet.from_path(sys.argv[1]), config)
for event in benchmark.run(benchmark.plan(resume=True)):
    is_finished = isinstance(event, JobFinished)
    print(*(event.job.solution.name, event.job.workload.uuid) if is_finished else (), flush=True)
"""
"""Prints a line for every event: the names of a job with a verdict, else an empty line."""


@pytest.fixture
def root(tmp_path):
    """A set of one definition, two solutions and many small workloads."""
    solutions = {"double_python": HONEST, "double_into": DOUBLE_INTO}
    write_set(tmp_path, solutions, sizes=range(8, 8 + WORKLOADS))
    return tmp_path


def recorded(root):
    """Return (solution, uuid) of every recorded job; a line that is not whole fails here."""
    lines = [line for path in root.glob("traces/**/*.jsonl") for line in path.read_text().splitlines()]
    return [(trace["solution"], trace["workload"]["uuid"]) for trace in map(json.loads, lines)]


def open_benchmark(root):
    return Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(**QUICKLY))


def test_killing_the_host_at_any_stage_loses_nothing(root):
    jobs = {(name, f"w{index}") for name in ("double_python", "double_into") for index in range(WORKLOADS)}
    for stage in STAGES:
        with marked() as alive:
            with subprocess.Popen([sys.executable, "-c", RUN, root], stdout=subprocess.PIPE, text=True) as host:
                said = list(islice(host.stdout, stage))
                host.kill()
                said += host.stdout.readlines()
            finished = {tuple(line.split()) for line in said if line.strip()}
            assert not wait_until_gone(alive)
        assert finished <= set(recorded(root))
        assert len(recorded(root)) == len(set(recorded(root)))
    open_benchmark(root).run_all(resume=True)
    assert sorted(recorded(root)) == sorted(jobs)


def test_closing_the_iterator_stops_every_process_and_keeps_finished_jobs(root):
    benchmark = open_benchmark(root)
    with marked() as alive:
        events = benchmark.run(benchmark.plan())
        finished = [event for event in (next(events) for _ in range(12)) if isinstance(event, JobFinished)]
        events.close()
        assert not wait_until_gone(alive)
    assert len(recorded(root)) == len(finished) > 0
