"""How solutions and references are measured: by the settings of a run, what bounds each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.config_sources import AUTO
from flashinfer_bench.bench.evaluators.evaluator import Baseline
from flashinfer_bench.bench.runner.protocol import BlockSolution, Hello
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.kernel_task import READS, MeasurePlan, WorkAhead
from flashinfer_bench.timing.settings import USUAL

INTERPRETED: Final = {
    "meaningful": False,
    "reason": "Triton's interpreter ran the kernels on a CPU; the time says nothing about them",
}
KEPT_LIKE_READS: Final = ("cpu",)
"""Kinds of devices where as many calls of each trial are kept as of a solution, though nobody compares them: on a CPU
the session's copies move calls of 20 us by 2 to 5 %. A GPU's caches are flushed before each call."""
AUTO_MOST: Final = 50
AUTO_FEWEST: Final = 20
"""Readings of a trial where `iterations` is "auto": so many at the most, and at the least."""
AHEAD_MS: Final = 0.5
"""What slower references give is not made ahead: a worker that is done should not wait for it."""
REFERENCE_PRECISION: Final = 0.01
"""Share of its time to which a reference is known at the least, since all speed-ups of its workload stand on it."""


def plan_solution(hello: Hello, job: JobContext, solution: BlockSolution) -> MeasurePlan:
    """Return how a job's solution is measured."""
    config = job.config
    if solution.language == "triton" and hello.device == "cpu":
        return MeasurePlan(0, 1, 0.0, trials=1, facts=INTERPRETED)  # its time says nothing: one call will do
    iterations, fewest = count_iterations(config)
    elements = next((math.prod(output.shape) for output in job.output_specs()), 0)
    wanted = job.block.evaluator.count_reads(elements)
    reads = max(READS[hello.device], wanted)
    timing = hello.timing
    return MeasurePlan(
        config.warmup_runs,
        iterations,
        hello.time_budget_s,
        config.precision,
        timing=timing,
        reads=reads,
        fewest=fewest,
        makes_up=wanted > 0,
    )


def count_iterations(config: ResolvedEvalConfig) -> tuple[int, int | None]:
    """Return how many readings a trial has at the most, and after how many it may stop; None where it has all."""
    if config.iterations == AUTO:
        return AUTO_MOST, AUTO_FEWEST
    return config.iterations, None


def plan_reference(hello: Hello, config: ResolvedEvalConfig) -> MeasurePlan:
    """Return how a reference is measured."""
    iterations, fewest = count_iterations(config)
    return MeasurePlan(
        config.warmup_runs,
        iterations,
        hello.baseline_budget_s,
        fewest=fewest,
        precision=min(config.precision, REFERENCE_PRECISION),
        timing=replace(hello.timing, assurance=USUAL.assurance),  # its time is the same at each, and so is a kept one
        reads=READS[hello.device] if hello.device in KEPT_LIKE_READS else 0,
        stops_early=True,
    )


def plan_ahead(job: JobContext, baseline: Baseline) -> WorkAhead | None:
    """Return what makes what is expected of timed calls before they are judged; None where that may take long."""
    is_quick = baseline.mean_latency_ms is not None and baseline.mean_latency_ms < AHEAD_MS
    return job.block.reference.start_ahead() if is_quick and job.block.evaluator.needs_expected else None
