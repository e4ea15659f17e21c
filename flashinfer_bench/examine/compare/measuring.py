"""Measures two sides in turn on one device: A B B A …, each block in a worker of its own, until each ratio is decided.

The loop over the devices (`bench/scheduler.py`) does the work: every block is a job, judged and timed as a run would,
in one trial. This module decides which jobs come next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, Literal

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.engine import SolutionJobs
from flashinfer_bench.bench.events import JobFaulted, Notice
from flashinfer_bench.bench.job_queue import Lane
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.scheduler import Judged, Rules, Scheduler
from flashinfer_bench.data import Evaluation, TraceSet
from flashinfer_bench.data.measurement import tell as tell_record
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.examine.compare.ratios import LOOKS, ratio_of_pairs
from flashinfer_bench.examine.compare.result import Comparison, Row, describe_difference
from flashinfer_bench.examine.compare.sides import Pairing, choose_workloads
from flashinfer_bench.report.comparable import find_difference, marks_of
from flashinfer_bench.report.decision import UNKNOWN
from flashinfer_bench.report.intervals import latency_of
from flashinfer_bench.report.verdict import first_reason, reason_of

TURN_S: Final = 0.2
"""The loop looks at the clock at least this often, in seconds, so a budget is exceeded by no more."""
TRIALS: Final = 1
"""Trials of a block, if nobody says another number: workers differ by more than trials of one worker do, so more
workers decide sooner than more trials."""
SPENT: Final = "the budget was spent before a pair was complete"
Side = Literal["A", "B"]
SIDES: Final[tuple[Side, Side]] = ("A", "B")


@dataclass
class PairSeries:
    """The blocks of one pairing on one workload."""

    pairing: Pairing
    jobs: dict[Side, Job]
    blocks: list[dict[Side, Evaluation]] = field(default_factory=list)
    """Of each pair the evaluations of its blocks."""
    stopped: str = ""
    """Why no more is measured: a side did not pass or has no verdict."""

    @property
    def pairs(self) -> list[dict[Side, Evaluation]]:
        """The complete pairs, in order."""
        return [pair for pair in self.blocks if len(pair) == len(SIDES)]

    @property
    def logs(self) -> list[float]:
        """Of each complete pair the logarithm of B over A."""
        return [math.log(_latency(pair["B"]) / _latency(pair["A"])) for pair in self.pairs]

    def is_open(self, threshold: float) -> bool:
        """Say whether more pairs are wanted."""
        logs = self.logs
        if self.stopped or len(logs) >= LOOKS[-1]:
            return False
        return len(logs) < LOOKS[0] or ratio_of_pairs(logs).decide(threshold) == UNKNOWN

    def plan(self) -> Iterator[tuple[int, Side]]:
        """Yield the blocks up to the next look: the number of a pair, and a side."""
        self.blocks = self.pairs
        done = len(self.blocks)
        for pair in range(done, next(look for look in LOOKS if look > done)):
            self.blocks.append({})
            yield from ((pair, side) for side in (SIDES if pair % 2 == 0 else SIDES[::-1]))

    def hear(self, pair: int, side: Side, found: Evaluation | str) -> None:
        """Take the evaluation of a block, or why it has none."""
        if isinstance(found, str):
            self.stopped = self.stopped or f"{side} has no verdict: {found}"
        elif found.performance is None:
            why = f"{side} did not pass: {found.status.value}: {reason_of(found)}".rstrip(": ")
            self.stopped = self.stopped or why
        else:
            self.blocks[pair][side] = found

    def row(self) -> Row:
        """Return what was found."""
        job = self.jobs["A"]
        pairs = self.pairs
        label = self.pairing.label
        axes = dict(job.workload.axes)
        row = Row(job.definition.name, job.workload.uuid, axes, label, problem=self.stopped)
        if self.stopped or not pairs:
            return row if self.stopped else replace(row, problem=SPENT, is_unmeasured=True)
        marks = [marks_of(tell_record(one), one.environment.hardware) for one in (pairs[0]["A"], pairs[0]["B"])]
        difference = find_difference(*marks)
        if difference is not None:
            return replace(row, problem=describe_difference(row.workload, difference))
        times = tuple((_latency(pair["A"]), _latency(pair["B"])) for pair in pairs)
        first_ms, second_ms = map(fmean, zip(*times, strict=True))
        ratio = ratio_of_pairs(self.logs)
        return replace(row, first_ms=first_ms, second_ms=second_ms, pairs_ms=times, ratio=ratio)


def _latency(evaluation: Evaluation) -> float:
    return latency_of(evaluation) or 0.0


def measure(
    trace_set: TraceSet,
    pairings: Sequence[Pairing],
    config: BenchmarkConfig,
    *,
    threshold: float = 0.02,
    budget_s: float = 60.0,
    workloads: Sequence[str] | None = None,
    tell: Callable[[str], object] = lambda _line: None,
) -> Comparison:
    """Measure all pairings.

    Args:
        trace_set: has the definitions and workloads; solutions need not be in it.
        pairings: at least one.
        config: how blocks are judged and timed. The first of its devices is used.
        threshold: the smallest difference of interest, as a share.
        budget_s: seconds from the first block on. A series that is not decided by then stays undecided.
        workloads: uuids or beginnings of them; None for all.
        tell: gets the progress, a line at a time.

    Raises:
        ConfigError: a solution cannot run here.
        DataSetError: there is no such workload.
    """
    device = discover_devices(config.devices)[0]
    context = HarnessContext(trace_set, for_blocks(config, device), None)
    series = _make_series(context, pairings, workloads)
    needs_triton = any(job.solution.spec.language.value == "triton" for one in series for job in one.jobs.values())
    rules = Rules(one_worker_a_job=True)
    seeds = JobSeeds(context.config.seed)
    with closing(context.make_scheduler(seeds, rules, needs_triton=needs_triton)) as scheduler:
        seconds = _run(scheduler, series, threshold, budget_s, tell)
    by_side = [[_latency(pair[side]) for pair in one.blocks if side in pair] for one in series for side in SIDES]
    context.learn_spread(by_side)
    return Comparison(tuple(one.row() for one in series), threshold, "measured", device.name, seconds)


def for_blocks(config: BenchmarkConfig, device: Device) -> BenchmarkConfig:
    """Return a configuration as blocks on a device have it: what the user says of trials and readings holds."""
    named = "cpu" if device.kind == "cpu" else device.uuid
    return config.with_defaults("compare", num_trials=TRIALS).with_overrides(
        devices=[named], profile_baseline=False, assurance="full"
    )


def _make_series(
    context: HarnessContext, pairings: Sequence[Pairing], workloads: Sequence[str] | None
) -> list[PairSeries]:
    made = SolutionJobs(context)
    lines = context.trace_set.workloads
    known = {
        one.first.definition: [line.workload.uuid for line in lines.get(one.first.definition, [])] for one in pairings
    }
    wanted = choose_workloads(workloads, {uuid for uuids in known.values() for uuid in uuids})
    found = []
    for pairing in pairings:
        first = pairing.first
        second = pairing.second
        if first.definition != second.definition:
            raise ConfigError(
                f"{first.name} is of {first.definition}, {second.name} of {second.definition}: they do different things"
            )
        own = None if workloads is None else [uuid for uuid in known[first.definition] if uuid in wanted]
        if own == []:
            continue  # the wanted workloads are of other definitions
        jobs = zip(made.make_jobs(first, own), made.make_jobs(second, own), strict=True)
        found += [PairSeries(pairing, {"A": a, "B": b}) for a, b in jobs]
    return found


def _run(
    scheduler: Scheduler,
    series: Sequence[PairSeries],
    threshold: float,
    budget_s: float,
    tell: Callable[[str], object],
) -> float:
    """Measure until all is decided or the budget is spent; return the seconds from the first block on."""
    meant: list[tuple[PairSeries, int, Side]] = []
    """By the index of a job: its series, the number of its pair, and its side."""
    began = math.inf
    seconds = 0.0
    while still := [one for one in series if one.is_open(threshold)]:
        blocks = [[(one, *block) for block in one.plan()] for one in still]
        longest = max(map(len, blocks))
        # The workloads take turns, a pair each.
        turns = [block for at in range(0, longest, 2) for planned in blocks for block in planned[at : at + 2]]
        jobs = [replace(one.jobs[side], index=len(meant) + at) for at, (one, _, side) in enumerate(turns)]
        meant += turns
        scheduler.add(jobs, Lane(in_order=True))
        while scheduler.has_open_jobs:
            for happening in scheduler.step(limit_s=TURN_S):
                if isinstance(happening, Notice):
                    tell(happening.message)
                if not isinstance(happening, (Judged, JobFaulted)):
                    continue
                one, pair, side = meant[happening.job.index]
                if isinstance(happening, Judged):
                    began = min(began, time.monotonic() - happening.seconds)
                    one.hear(pair, side, happening.evaluation)
                else:
                    one.hear(pair, side, first_reason(happening.message))
                if one.stopped:
                    scheduler.remove([index for index, (other, _, _) in enumerate(meant) if other is one])
            seconds = max(0.0, time.monotonic() - began)
            if seconds > budget_s:
                return seconds
        pairs = sum(len(one.pairs) for one in series)
        open_series = sum(one.is_open(threshold) for one in series)
        told = f"{pairs} pair{'' if pairs == 1 else 's'} of blocks in {seconds:.0f} s"
        tell(f"{told}; {open_series} of {len(series)} not decided yet")
    return seconds
