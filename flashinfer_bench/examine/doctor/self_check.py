"""Runs of the engine that check it and this machine.

*Twins* are one kernel as two solutions. The ratio of their times should be 1; by how far it differs, this machine and
this engine distort every comparison. *Programs* of ours show how solutions can be compiled, loaded and called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.compile.known_good import NAME, PROGRAMS, define_double
from flashinfer_bench.data import Solution, Trace, TraceSet, Workload
from flashinfer_bench.examine.compare.measuring import measure
from flashinfer_bench.examine.compare.result import Comparison
from flashinfer_bench.examine.compare.sides import Pairing
from flashinfer_bench.report.verdict import reason_of

TWINS_S: Final = 20.0
"""Seconds for timing twins, at most."""
THRESHOLDS: Final = {"cuda": 0.02, "cpu": 0.1}
"""Twins are timed until they are known to differ by less than this share, or by more."""
SIZES: Final = {"cuda": (1 << 18, 1 << 23), "cpu": (1 << 12, 1 << 14)}
"""Numbers of elements that are timed: a short and a longer call."""
KERNELS: Final = {"one_kernel": "x * 2", "several_kernels": "x * 0.5 * 0.5 * 0.5 * 16"}
"""Name → what a twin returns. Each doubles its input, exactly."""


def time_twins(device: Device) -> Comparison:
    """Compare twins as `compare` does, and keep what they tell of the spread between workers."""
    made = make_twins()
    pairings = [Pairing(a, b, a.author) for a, b in zip(made[::2], made[1::2], strict=True)]
    config = BenchmarkConfig.default(devices=["cpu" if device.kind == "cpu" else device.uuid])
    trace_set = _make_set(made, SIZES[device.kind])
    return measure(trace_set, pairings, config, threshold=THRESHOLDS[device.kind], budget_s=TWINS_S)


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
    named = "cpu" if device.kind == "cpu" else device.uuid
    counts = {"warmup_runs": 0, "iterations": 1, "num_trials": 1}
    config = BenchmarkConfig.default(devices=[named], profile_baseline=False, confirm=False, **counts)
    engine = Benchmark(_make_set(solutions, SIZES["cpu"][:1]), config)
    found: dict[str, str | None] = {}
    for event in engine.run(engine.plan(), save_results=False):
        if isinstance(event, JobFinished) and event.trace.evaluation is not None:
            failed = not event.trace.is_successful()
            found[whats[event.job.solution.name]] = reason_of(event.trace.evaluation) if failed else None
        elif isinstance(event, JobFaulted):
            found[whats[event.job.solution.name]] = event.message
    return found


def _make_set(solutions: list[Solution], sizes: Sequence[int]) -> TraceSet:
    """Return a set in memory of solutions that double."""
    described = [{"uuid": f"size_{size}", "axes": {"n": size}, "inputs": {"x": {"type": "random"}}} for size in sizes]
    lines = [Trace(definition=NAME, workload=Workload.model_validate(one), solution=None) for one in described]
    return TraceSet(definitions={NAME: define_double()}, solutions={NAME: solutions}, workloads={NAME: lines})


def make_twins() -> list[Solution]:
    """Return each kernel as two solutions in a row, whose sources differ in a comment."""
    spec = {"language": "python", "target_hardware": ["any"], "entry_point": "main.py::run"}
    return [
        Solution.model_validate(
            {
                "name": f"{kernel}_{twin}",
                "definition": NAME,
                "author": kernel,
                "spec": {**spec, "destination_passing_style": False},
                "sources": [{"path": "main.py", "content": f"# {twin} twin\ndef run(x):\n    return {body}\n"}],
            }
        )
        for kernel, body in KERNELS.items()
        for twin in ("first", "second")
    ]
