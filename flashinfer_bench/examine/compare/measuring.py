"""Measures two sides interleaved on one device: A B B A …, each block in its own worker, until each ratio is decided.

The scheduler (`bench/scheduler.py`) does the work. Every block is a job, judged and timed as in a run, in one trial.
This module decides which jobs come next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from statistics import fmean
from typing import Final

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.engine import SolutionJobs
from flashinfer_bench.bench.events import JobFaulted, Notice
from flashinfer_bench.bench.job_queue import QueueClass
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.scheduler import Judged, Rules, Scheduler
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.measurement import ReportedTrace, read_reported
from flashinfer_bench.examine.compare.result import (
    INTERIM_LEVELS,
    MOST_PAIRS,
    UNSTEADY,
    UNSTEADY_SHARE,
    Comparison,
    Ratio,
    Row,
    describe_difference,
    describe_times,
    ratio_of_pairs,
)
from flashinfer_bench.examine.compare.sides import Pairing, choose_workloads
from flashinfer_bench.report.comparable import comparison_keys, find_difference
from flashinfer_bench.report.decision import UNKNOWN
from flashinfer_bench.report.intervals import latency_of
from flashinfer_bench.report.verdict import first_reason, reason_of
from flashinfer_bench.timing.measurement import WALL

TICK_S: Final = 0.2
"""Seconds between two checks of the budget. No budget is exceeded by more than this."""
TRIALS: Final = 1
"""Default number of trials of a block. Workers differ more than the trials of one worker do. So more workers decide
sooner than more trials."""
SPENT: Final = "the budget was spent before a pair was complete"


@dataclass
class PairSeries:
    """The blocks of one pairing on one workload."""

    label: str
    """The names of the solutions, if there are several pairings."""
    jobs: tuple[Job, Job]
    """The job of A and the job of B."""
    blocks: tuple[dict[int, float], dict[int, float]] = field(default_factory=lambda: ({}, {}))
    """For A and for B: number of a pair → latency in ms."""
    keys: list[dict[str, str]] = field(default_factory=lambda: [{}, {}])
    """For A and for B: the conditions of the latest time. Times are compared only if A and B have equal conditions."""
    reported: tuple[list[ReportedTrace], list[ReportedTrace]] = field(default_factory=lambda: ([], []))
    """For A and for B: the reported fields of each block's trace."""
    stopped: str = ""
    """Why measuring has stopped: a side did not pass, or has no verdict."""

    def times(self) -> list[tuple[float, float]]:
        """Return the latencies of A and B in each complete pair, in order."""
        first, second = self.blocks
        return [(first[pair], second[pair]) for pair in sorted(first.keys() & second.keys())]

    def ratio(self) -> Ratio:
        """Return B over A. At least one pair must be complete."""
        blocks = [block.measurement for side in self.reported for block in side]
        disturbed = sum(one.method == WALL and not UNSTEADY.isdisjoint(one.flags) for one in blocks)
        is_steady = disturbed <= UNSTEADY_SHARE * len(blocks)
        return ratio_of_pairs([math.log(b / a) for a, b in self.times()], is_steady=is_steady)

    def is_open(self, threshold: float) -> bool:
        """Return whether more pairs are needed."""
        done = len(self.times())
        is_decided = done >= min(INTERIM_LEVELS) and self.ratio().decide(threshold) != UNKNOWN
        return not self.stopped and not is_decided and done < MOST_PAIRS

    def plan(self) -> list[tuple[int, int]]:
        """Return the blocks up to the next analysis, each as the numbers of its pair and its side."""
        done = len(self.times())
        pairs = range(done, next(count for count in INTERIM_LEVELS if count > done))
        return [(pair, side) for pair in pairs for side in ((0, 1) if pair % 2 == 0 else (1, 0))]

    def record(self, pair: int, side: int, found: Judged | JobFaulted) -> None:
        """Record the evaluation of a block, or the reason why it has none."""
        if isinstance(found, JobFaulted):
            problem = f"has no verdict: {first_reason(found.message)}"
        elif latency_ms := latency_of(found.evaluation):
            self.blocks[side][pair] = latency_ms
            reported = read_reported(found.evaluation)
            self.reported[side].append(reported)
            self.keys[side] = comparison_keys(reported, found.device.name)
            return
        else:
            problem = f"did not pass: {found.evaluation.status.value}: {reason_of(found.evaluation)}".rstrip(": ")
        self.stopped = self.stopped or f"{'AB'[side]} {problem}"

    def row(self) -> Row:
        """Return the result."""
        job = self.jobs[0]
        row = Row(job.definition.name, job.workload.uuid, dict(job.workload.axes), self.label)
        times = self.times()
        if self.stopped or not times:
            return replace(row, problem=self.stopped or SPENT, is_unmeasured=not self.stopped)
        difference = find_difference(*self.keys)
        if difference is not None:
            return replace(row, problem=describe_difference(row.workload, difference))
        first_ms, second_ms = map(fmean, zip(*times, strict=True))
        return replace(row, a_ms=first_ms, b_ms=second_ms, pairs_ms=times, ratio=self.ratio())


def measure(
    trace_set: TraceSet,
    pairings: Sequence[Pairing],
    config: BenchmarkConfig,
    *,
    threshold: float = 0.02,
    budget_s: float = 60.0,
    workloads: Sequence[str] | None = None,
    progress: Callable[[str], object] = lambda _line: None,
) -> Comparison:
    """Measure all pairings.

    Args:
        trace_set: has the definitions and workloads; solutions need not be in it.
        pairings: at least one.
        config: the settings of blocks. The first of its devices is used.
        threshold: the smallest difference of interest, as a share.
        budget_s: seconds from the start of the first block. A series that is not decided by then stays undecided.
        workloads: uuids or their beginnings; None for all.
        progress: receives each line of progress.

    Raises:
        ConfigError: a solution cannot run here.
        DataSetError: no workload has a given uuid.
    """
    device = discover_devices(config.devices)[0]
    context = HarnessContext(trace_set, for_blocks(config, device), None)
    series = _make_series(context, pairings, workloads)
    needs_triton = any(job.solution.spec.language.value == "triton" for one in series for job in one.jobs)
    seeds = JobSeeds(context.config.seed)
    rules = Rules(one_worker_a_job=True)
    with closing(context.make_scheduler(seeds, rules, needs_triton=needs_triton)) as scheduler:
        seconds = _run(scheduler, series, threshold, budget_s, progress)
    context.learn_spread([list(found.values()) for one in series for found in one.blocks])
    times = describe_times(*([record for one in series for record in one.reported[side]] for side in (0, 1)))
    return Comparison([one.row() for one in series], threshold, "measured", device.name, seconds, *times)


def for_blocks(config: BenchmarkConfig, device: Device) -> BenchmarkConfig:
    """Return the configuration of blocks on a device. Numbers of trials and samples that the user set are kept."""
    named = "cpu" if device.kind == "cpu" else device.uuid
    return config.with_defaults("compare", num_trials=TRIALS).with_overrides(
        devices=[named], profile_baseline=False, assurance="full"
    )


def _make_series(
    context: HarnessContext, pairings: Sequence[Pairing], workloads: Sequence[str] | None
) -> list[PairSeries]:
    made = SolutionJobs(context)
    lines = context.trace_set.workloads
    known = [(pairing, line.workload) for pairing in pairings for line in lines.get(pairing.first.definition, [])]
    chosen = choose_workloads(workloads, known, itemgetter(1))
    found = []
    for pairing in pairings:
        first, second, label = pairing
        own = None if workloads is None else [workload.uuid for one, workload in chosen if one is pairing]
        if own != []:  # empty if all requested workloads are of other definitions
            pairs = zip(made.make_jobs(first, own), made.make_jobs(second, own), strict=True)
            found += [PairSeries(label, pair) for pair in pairs]
    return found


def _run(
    scheduler: Scheduler,
    series: Sequence[PairSeries],
    threshold: float,
    budget_s: float,
    progress: Callable[[str], object],
) -> float:
    """Measure until all series are decided or the budget is spent; return the seconds since the first block began."""
    requested: list[tuple[PairSeries, int, int]] = []
    """At the index of each job: the job's series, pair number, and side (0 for A, 1 for B)."""
    began = math.inf
    seconds = 0.0
    while still := [one for one in series if one.is_open(threshold)]:
        blocks = [[(one, *block) for block in one.plan()] for one in still]
        longest = max(map(len, blocks))
        # The pairs of different workloads are interleaved.
        interleaved = [block for at in range(0, longest, 2) for planned in blocks for block in planned[at : at + 2]]
        jobs = [replace(one.jobs[side], index=len(requested) + at) for at, (one, _, side) in enumerate(interleaved)]
        requested += interleaved
        scheduler.add(jobs, QueueClass(in_order=True))
        while scheduler.has_open_jobs:
            for happening in scheduler.step(limit_s=TICK_S):
                if isinstance(happening, Notice):
                    progress(happening.message)
                if not isinstance(happening, (Judged, JobFaulted)):
                    continue
                if isinstance(happening, Judged):
                    began = min(began, time.monotonic() - happening.seconds)
                one, pair, side = requested[happening.job.index]
                one.record(pair, side, happening)
                if one.stopped:
                    scheduler.remove([index for index, (other, _, _) in enumerate(requested) if other is one])
            seconds = max(0.0, time.monotonic() - began)
            if seconds > budget_s:
                return seconds
        left = sum(one.is_open(threshold) for one in series)
        progress(
            f"{sum(len(one.times()) for one in series)} pairs of blocks in {seconds:.0f} s; {left} not decided yet"
        )
    return seconds
