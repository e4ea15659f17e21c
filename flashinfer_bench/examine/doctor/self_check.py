"""Runs of the engine that check it and this machine.

*Twins* are one kernel as two solutions, each in a worker of its own. The ratio of their times should be 1; by how far
it differs, this machine and this engine distort every comparison. *Programs* of ours show in which ways solutions can
be compiled, loaded and called.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.spread_file import SpreadFile
from flashinfer_bench.compile.known_good import NAME, PROGRAMS, define_double
from flashinfer_bench.data import Evaluation, EvaluationStatus, Solution, Trace, TraceSet, Workload
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.env import cache_root
from flashinfer_bench.report.verdict import first_reason, reason_of

SIZES: Final = {"cuda": (1 << 18, 1 << 23), "cpu": (1 << 12, 1 << 14)}
"""Numbers of elements that are timed: a short and a longer call."""
TWINS: Final = ("first", "second")
KERNELS: Final = {"one_kernel": "x * 2", "several_kernels": "x * 0.5 * 0.5 * 0.5 * 16"}
"""Name → what a twin returns. Each doubles its input, exactly."""


@dataclass(frozen=True)
class TwinTimes:
    """One kernel on one size, timed as two solutions."""

    kernel: str
    size: int
    latency_ms: float
    """Latency of the first solution."""
    ratio: float
    """The second one's latency over the first one's."""
    spread: float
    """The wider of the two interquartile ranges, as a share of the median."""


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


def time_twins(device: Device) -> Agreement:
    """Time twins as a run does; they stay in no cache, but what they tell of the spread between workers is kept."""
    with temporary_folder("doctor") as cache:
        found = compare_twins(_judge(device, make_twins(), SIZES[device.kind], cache))
    SpreadFile(cache_root(os.environ), device).add([[1.0, one.ratio] for one in found.twins])
    return found


def try_programs(device: Device) -> dict[str, str | None]:
    """Build, load and call a program of ours in each way in which solutions are compiled.

    The cache is that of runs: if something is wrong with its folder, that shows.

    Returns:
        What was tried → why it does not work; None if it works.
    """
    is_cuda = device.kind == "cuda"  # there the host's code reaches no input
    tried = [one for one in PROGRAMS if (one.language != "cpp" if is_cuda else not one.needs_gpu)]
    whats = {one.solution().name: one.what for one in tried}
    solutions = [one.solution() for one in tried]
    judged = _judge(device, solutions, SIZES["cpu"][:1], None, warmup_runs=0, iterations=1, num_trials=1)
    return {whats[job.solution.name]: _find_problem(found) for job, found in judged}


def _judge(
    device: Device, solutions: list[Solution], sizes: Sequence[int], cache: Path | None, **settings: Any
) -> Iterator[tuple[Job, Evaluation | str]]:
    """Run solutions that double; yield each job with its evaluation, or with the reason why it has none."""
    described = [{"uuid": f"size_{size}", "axes": {"n": size}, "inputs": {"x": {"type": "random"}}} for size in sizes]
    lines = [Trace(definition=NAME, workload=Workload.model_validate(one), solution=None) for one in described]
    trace_set = TraceSet(definitions={NAME: define_double()}, solutions={NAME: solutions}, workloads={NAME: lines})
    named = "cpu" if device.kind == "cpu" else device.uuid
    config = BenchmarkConfig.default(devices=[named], profile_baseline=False, confirm=False, **settings)
    engine = Benchmark(trace_set, config, cache=cache)
    for event in engine.run(engine.plan(), save_results=False):
        if isinstance(event, JobFinished) and event.trace.evaluation is not None:
            yield event.job, event.trace.evaluation
        elif isinstance(event, JobFaulted):
            yield event.job, event.message


def _find_problem(found: Evaluation | str) -> str | None:
    if isinstance(found, str):
        return found
    return None if found.status is EvaluationStatus.PASSED else reason_of(found) or found.status.value


def compare_twins(judged: Iterable[tuple[Job, Evaluation | str]]) -> Agreement:
    """Compare the twins of which both were timed."""
    timed: dict[tuple[str, int], list[tuple[float, float]]] = {}
    problems = []
    for job, found in judged:
        if (problem := _find_problem(found)) is not None:
            status = "" if isinstance(found, str) else f"{found.status.value}: "
            problems.append(f"{status}{first_reason(problem)}")
        elif isinstance(found, Evaluation) and found.performance is not None:
            place = (job.solution.name.rpartition("_")[0], job.workload.axes["n"])
            timed.setdefault(place, []).append((found.performance.latency_ms, read_measurement(found).spread))
    twins = [
        TwinTimes(*place, pair[0][0], pair[1][0] / pair[0][0], max(spread for _, spread in pair))
        for place, pair in timed.items()
        if len(pair) == len(TWINS)
    ]
    return Agreement(tuple(twins), tuple(dict.fromkeys(problems)))


def make_twins() -> list[Solution]:
    """Return each kernel as two solutions whose sources differ in a comment."""
    spec = {"language": "python", "target_hardware": ["any"], "entry_point": "main.py::run"}
    return [
        Solution.model_validate(
            {
                "name": f"{kernel}_{twin}",
                "definition": NAME,
                "author": "doctor",
                "spec": {**spec, "destination_passing_style": False},
                "sources": [{"path": "main.py", "content": f"# {twin} twin\ndef run(x):\n    return {body}\n"}],
            }
        )
        for kernel, body in KERNELS.items()
        for twin in TWINS
    ]
