"""What a solution cannot do: see what others left, disturb the reference, claim a time in which it did not work."""

import re

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.runner.workers.kernel_task import READS
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

DEVICES = [pytest.param("cpu"), pytest.param("0", marks=pytest.mark.gpu)]
pytestmark = [pytest.mark.cpu, pytest.mark.slow]

LEAVES_AND_LOOKS = """
import torch
seen = False
def run(x):
    global seen
    arena = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
    far = arena[arena.numel() // 2 :]
    if not seen and far.any():
        raise RuntimeError("another has left something here")
    seen = True
    far.fill_(1)
    return x * 2
"""
TELLS_WHEN_IT_IS_THERE = """
import os, time
def tell():
    print(f"there {os.getpid()} {time.monotonic():017.6f}", flush=True)
tell()
def run(x):
    tell()
    return x * 2
"""
REFERENCE = """
import time
from pathlib import Path
def run(x):
    with Path({path!r}).open("a") as log:
        log.write(f"{{len(x)}} {{time.monotonic()}}\\n")
    return x * 2
"""


def run(root, solutions, *, device="cpu", reference=None, **settings):
    """Run solutions (name → source) of one definition with two workloads; return the evaluations by solution."""
    parts = {"reference": reference} if reference else {}
    write_trace_set(
        root,
        definitions=[make_definition(**parts)],
        solutions=[make_solution(name, source=source) for name, source in solutions.items()],
        workloads=[make_trace(workload=make_workload(f"w{n}", axes={"n": n}), solution=None) for n in (8, 9)],
    )
    counts = {"warmup_runs": 2, "iterations": 10, "num_trials": 1}
    benchmark = Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(devices=[device], **counts, **settings))
    events = [event for event in benchmark.run(benchmark.plan(), save_results=False) if isinstance(event, JobFinished)]
    return [event.trace for event in events]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_a_worker_sees_nothing_that_another_left_in_shared_memory(tmp_path, device, isolated):
    solutions = {name: f"# {name}{LEAVES_AND_LOOKS}" for name in "abc"}
    traces = run(tmp_path, solutions, device=device, use_isolated_runner=isolated)
    assert [trace.evaluation.log for trace in traces if trace.evaluation.status.value != "PASSED"] == []
    assert len(traces) == 6


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_baselines_are_timed_while_no_solution_is_loaded(tmp_path, isolated):
    log = tmp_path / "calls"
    solutions = {name: f"# {name}{TELLS_WHEN_IT_IS_THERE}" for name in "ab"}
    reference = REFERENCE.format(path=str(log))
    # The reference writes its log, which the walls of its worker would refuse.
    traces = run(tmp_path, solutions, reference=reference, use_isolated_runner=isolated, sandbox="off")
    there = {}
    for pid, at in re.findall(r"^there (\d+) (\d{10}\.\d{6})$", "\n".join(one.evaluation.log for one in traces), re.M):
        there.setdefault(pid, []).append(float(at))
    assert len(there) >= 2
    spans = [(min(times), max(times)) for times in there.values()]
    calls = [line.split() for line in log.read_text().splitlines()]
    for n in ("8", "9"):
        beside = [any(start < float(at) < end for start, end in spans) for size, at in calls if size == n]
        assert beside.count(False) >= 12
        # Of two solutions what is expected of their inputs, of calls that are compared, of odd ones and other regimes.
        assert beside.count(True) <= 2 * (READS["cpu"] + 41)


WORKS = """
import time
def work(x):
    end = time.process_time() + 0.005
    while time.process_time() < end:
        pass
    return x * 2
"""
STOPS_WORKING = """
calls = 0
def run(x, y):
    global calls
    calls += 1
    if calls < 3:
        y.copy_(work(x))
"""
REMEMBERS = """
known = {}
def run(x):
    key = tuple(x.tolist())
    if key not in known:
        known[key] = work(x)
    return known[key]
"""
HAS_A_CLOCK_OF_ITS_OWN = """
import flashinfer_bench.timing.clocks as wall
ticks = 0
def tick():
    global ticks
    ticks += 100
    return ticks
wall.perf_counter_ns = tick
run = work
"""


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """Return one evaluation of each solution that works, or makes believe that it does."""
    sources = {
        "honest": "run = work",
        "stops_working": STOPS_WORKING,
        "remembers": REMEMBERS,
        "remembers_by_address": REMEMBERS.replace("tuple(x.tolist())", "x.data_ptr()"),
        "has_a_clock": HAS_A_CLOCK_OF_ITS_OWN,
    }
    traces = run(tmp_path_factory.mktemp("set"), {name: WORKS + source for name, source in sources.items()})
    return {trace.solution: trace.evaluation for trace in reversed(traces)}


@pytest.mark.parametrize(
    ("solution", "status", "said"),
    [
        ("honest", "PASSED", ""),
        ("stops_working", "INCORRECT_NUMERICAL", "in a call that was timed: output 'y'"),
        ("remembers", "PASSED", ""),  # it has no call twice
        ("remembers_by_address", "INCORRECT_NUMERICAL", "in a call that was timed: output 'y'"),
        ("has_a_clock", "PASSED", ""),  # a latency on a CPU is what the worker says
    ],
)
def test_what_a_solution_does_while_it_is_timed_is_judged(worked, solution, status, said):
    assert worked[solution].status.value == status
    assert said in worked[solution].log


def test_what_is_remembered_saves_no_time(worked):
    for solution in ("honest", "remembers"):
        assert worked[solution].performance.latency_ms >= 5.0


OVERWRITES = """
import glob
import os
own = os.path.dirname(os.path.abspath(__file__))
for path in glob.glob(f"{own}/../../../*/*/files/main.py"):
    if os.path.dirname(os.path.realpath(path)) != own:
        os.chmod(path, 0o644)
        with open(path, "w") as file:
            file.write("def run(x):\\n    return x\\n")
def run(x):
    return x * 2
"""


def test_a_solution_that_overwrites_the_files_of_others_changes_none_of_their_verdicts(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    traces = run(tmp_path, {name: f"# {name}{OVERWRITES}" for name in "ab"})
    assert [trace.evaluation.status.value for trace in traces] == ["PASSED"] * 4
