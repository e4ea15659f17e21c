"""The engine against itself: the same kernel as two solutions, each in a worker of its own, as any run has them.

The ratio of their times should be 1. By how far it differs, this machine and this engine distort every comparison.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Plan
from flashinfer_bench.bench.spread_file import SpreadFile
from flashinfer_bench.compile.known_good import NAME, PROGRAMS, define_double
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.env import cache_root
from flashinfer_bench.report.verdict import first_reason, reason_of

HIDDEN: Final = 4096
"""Columns of the data, float32."""
ROWS: Final = {"cuda": (64, 2048), "cpu": (1, 4)}
"""Numbers of rows that are timed. On a GPU `add_one` takes about 3 and 20 microseconds with them, and `rms_norm`, which
is several kernels, several times as long."""
TWINS: Final = ("first", "second")
KERNELS: Final = {
    "add_one": "    torch.add(x, 1, out=y)\n",
    "rms_norm": "    y.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))\n",
}


@dataclass(frozen=True)
class TwinTimes:
    """One kernel on one size, timed as two solutions."""

    kernel: str
    rows: int
    latency_ms: float
    """Latency of the first solution."""
    ratio: float
    """The second one's latency over the first one's."""
    spread: float
    """The wider of the two interquartile ranges, as a share of the median: how far readings differ."""


@dataclass(frozen=True)
class Agreement:
    """How far twins differ."""

    twins: tuple[TwinTimes, ...]
    problems: tuple[str, ...]
    """Why some were not timed."""

    @property
    def worst(self) -> float:
        """The largest distance of a ratio from 1: 0.02 for one solution that looks 2 % faster than its twin."""
        return max((max(one.ratio, 1 / one.ratio) - 1 for one in self.twins), default=0.0)

    @property
    def spread(self) -> float:
        """The widest spread."""
        return max((one.spread for one in self.twins), default=0.0)


class Judging(Protocol):
    """The part of a Benchmark that the self-check uses."""

    def plan(self) -> Plan:
        """Return the jobs."""

    def run(self, plan: Plan, *, save_results: bool = True) -> Iterator[Event]:
        """Run them."""


def run_self_check(
    device: Device, *, make_engine: Callable[[TraceSet, BenchmarkConfig], Judging] | None = None
) -> Agreement:
    """Time twins on a device, with the counts that a run has by default; nothing is saved, nor left in a cache."""
    with temporary_folder("doctor") as cache:
        return _time_twins(device, make_engine or partial(Benchmark, cache=cache))


def check_and_learn(device: Device) -> Agreement:
    """Time twins on a device, and keep what they tell of the spread between workers."""
    agreement = run_self_check(device)
    SpreadFile(cache_root(os.environ), device).add([[1.0, one.ratio] for one in agreement.twins])
    return agreement


def _time_twins(device: Device, make_engine: Callable[[TraceSet, BenchmarkConfig], Judging]) -> Agreement:
    trace_set = make_twins(ROWS[device.kind])
    requested = "cpu" if device.kind == "cpu" else device.uuid
    engine = make_engine(trace_set, BenchmarkConfig.default(devices=[requested], profile_baseline=False))
    problems: list[str] = []
    traces: list[Trace] = []
    for event in engine.run(engine.plan(), save_results=False):
        if isinstance(event, JobFinished):
            traces.append(event.trace)
        elif isinstance(event, JobFaulted):
            problems.append(first_reason(event.message))
    failed = [trace.evaluation for trace in traces if trace.evaluation and not trace.is_successful()]
    problems += [f"{evaluation.status.value}: {reason_of(evaluation)}" for evaluation in failed]
    return compare_twins(traces, tuple(dict.fromkeys(problems)))


def try_programs(device: Device) -> dict[str, str | None]:
    """Build, load and call a program of ours in each way in which solutions are compiled.

    The cache is that of runs, so what its folder does not allow shows.

    Returns:
        What was tried → why it does not work; None where it works.
    """
    is_cuda = device.kind == "cuda"  # where the host's code reaches no input
    tried = [one for one in PROGRAMS if (one.language != "cpp" if is_cuda else not one.needs_gpu)]
    programs = {one.solution().name: one for one in tried}
    workload = {"uuid": "doubled", "axes": {"n": HIDDEN}, "inputs": {"x": {"type": "random"}}}
    trace_set = TraceSet(
        definitions={NAME: define_double()},
        solutions={NAME: [one.solution() for one in programs.values()]},
        workloads={NAME: [Trace(definition=NAME, workload=Workload.model_validate(workload), solution=None)]},
    )
    requested = "cpu" if device.kind == "cpu" else device.uuid
    counts = {"warmup_runs": 0, "iterations": 1, "num_trials": 1, "confirm": False}
    engine = Benchmark(trace_set, BenchmarkConfig.default(devices=[requested], profile_baseline=False, **counts))
    found: dict[str, str | None] = {}
    for event in engine.run(engine.plan(), save_results=False):
        if isinstance(event, JobFinished) and event.trace.evaluation is not None:
            failed = not event.trace.is_successful()
            found[programs[event.job.solution.name].what] = reason_of(event.trace.evaluation) if failed else None
        elif isinstance(event, JobFaulted):
            found[programs[event.job.solution.name].what] = event.message
    return found


def compare_twins(traces: list[Trace], problems: tuple[str, ...]) -> Agreement:
    """Compare the twins of which both were timed."""
    timed = {
        (trace.definition, trace.workload.axes["rows"], (trace.solution or "").removeprefix(f"{trace.definition}_")): (
            trace.evaluation.performance.latency_ms,
            read_measurement(trace.evaluation).spread,
        )
        for trace in traces
        if trace.evaluation is not None and trace.evaluation.performance is not None
    }
    pairs = dict.fromkeys((kernel, rows) for kernel, rows, _ in timed)
    found = []
    for kernel, rows in pairs:
        first, second = (timed.get((kernel, rows, twin)) for twin in TWINS)
        if first is not None and second is not None:
            found.append(TwinTimes(kernel, rows, first[0], second[0] / first[0], max(first[1], second[1])))
    return Agreement(tuple(found), problems)


def make_twins(rows: tuple[int, ...]) -> TraceSet:
    """Return a trace set in memory: each kernel as two solutions whose sources differ in a comment."""
    definitions = {kernel: _define(kernel, body) for kernel, body in KERNELS.items()}
    return TraceSet(
        definitions=definitions,
        solutions={kernel: [_solve(kernel, body, twin) for twin in TWINS] for kernel, body in KERNELS.items()},
        workloads={
            kernel: [Trace(definition=kernel, workload=_workload(count), solution=None) for count in rows]
            for kernel in KERNELS
        },
    )


def _define(kernel: str, body: str) -> Definition:
    tensor = {"shape": ["rows", "hidden"], "dtype": "float32"}
    return Definition.model_validate(
        {
            "name": kernel,
            "op_type": "doctor",
            "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": HIDDEN}},
            "inputs": {"x": tensor},
            "outputs": {"y": tensor},
            "reference": f"import torch\n\ndef run(x):\n    y = torch.empty_like(x)\n{body}    return y\n",
        }
    )


def _solve(kernel: str, body: str, twin: str) -> Solution:
    source = f"# the {twin} of two twins\nimport torch\n\ndef run(x, y):\n{body}"
    return Solution.model_validate(
        {
            "name": f"{kernel}_{twin}",
            "definition": kernel,
            "author": "doctor",
            "spec": {
                "language": "python",
                "target_hardware": ["any"],
                "entry_point": "main.py::run",
                "destination_passing_style": True,
            },
            "sources": [{"path": "main.py", "content": source}],
        }
    )


def _workload(rows: int) -> Workload:
    return Workload.model_validate(
        {"uuid": f"rows_{rows}", "axes": {"rows": rows}, "inputs": {"x": {"type": "random"}}}
    )
