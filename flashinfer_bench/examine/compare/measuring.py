"""Measures two sides in turn on one device: A B B A …, each block in a worker of its own, until each ratio is decided.

The loop over the devices (`bench/scheduler.py`) does the work: every block is a job, judged and timed as a
run would, in one trial. Which jobs come next is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, Final

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.engine import SolutionJobs
from flashinfer_bench.bench.events import JobFaulted, Notice
from flashinfer_bench.bench.job_queue import Lane
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.scheduler import Happening, Judged, Rules, Scheduler
from flashinfer_bench.data import Evaluation, Solution, TraceSet
from flashinfer_bench.data.sets.told import tell
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.examine.compare.chosen import choose_workloads
from flashinfer_bench.examine.compare.comparison import ComparedSides, NoComparison, Row, Side
from flashinfer_bench.examine.compare.ratios import LOOKS, decide, ratio_of_pairs
from flashinfer_bench.report.comparable import find_difference, marks_of
from flashinfer_bench.report.decision import UNKNOWN
from flashinfer_bench.report.verdict import first_reason, reason_of

TURN_S: Final = 0.2
"""The loop looks at the clock at least this often, in seconds, so a budget is exceeded by no more."""
TRIALS: Final = 1
"""Trials of a block, where nobody says another number: workers differ by more than trials of one worker do, so more
workers decide sooner than more trials."""
SPENT: Final = "the budget was spent before a pair was complete"
SIDES: Final[tuple[Side, Side]] = ("A", "B")


@dataclass(frozen=True)
class Pairing:
    """Two solutions of one definition."""

    first: Solution
    """A."""
    second: Solution
    """B."""
    label: str = ""
    """What tells it from the other pairings; empty where there is one."""


@dataclass(frozen=True)
class Measuring:
    """How long, and how finely."""

    threshold: float = 0.02
    """The smallest difference of interest, as a share."""
    budget_s: float = 60.0
    """Seconds from the first block on. What is not decided then, "cannot be told yet"."""
    workloads: tuple[str, ...] | None = None
    """Uuids or beginnings of them; None for all."""


@dataclass
class PairSeries:
    """The blocks of one pairing on one workload."""

    pairing: Pairing
    jobs: dict[Side, Job]
    blocks: list[dict[Side, Evaluation]] = field(default_factory=list)
    """Of each pair what its blocks came to."""
    stopped: str = ""
    """Why no more is measured, where a side did not pass or has no verdict."""

    @property
    def logs(self) -> list[float]:
        """Of each complete pair, in order, the logarithm of B over A."""
        pairs = [pair for pair in self.blocks if len(pair) == len(SIDES)]
        return [log(_latency(pair["B"]) / _latency(pair["A"])) for pair in pairs]

    def is_open(self, threshold: float) -> bool:
        """Say whether more pairs are wanted."""
        logs = self.logs
        if self.stopped or len(logs) >= LOOKS[-1]:
            return False
        return len(logs) < LOOKS[0] or decide(ratio_of_pairs(logs), threshold) == UNKNOWN

    def hear(self, pair: int, side: Side, evaluation: Evaluation) -> None:
        """Take what a block came to."""
        if evaluation.performance is None or evaluation.performance.latency_ms <= 0:
            status = evaluation.status.value
            self.stopped = self.stopped or f"{side} did not pass: {status}: {reason_of(evaluation)}".rstrip(": ")
            return
        self.blocks[pair][side] = evaluation


def measure(
    trace_set: TraceSet,
    pairings: Sequence[Pairing],
    config: BenchmarkConfig,
    wanted: Measuring,
    *,
    tell: Callable[[str], object] = lambda _line: None,
) -> ComparedSides:
    """Measure all pairings, and say what came of it.

    Args:
        trace_set: has the definitions and workloads; solutions need not be in it.
        pairings: at least one.
        config: how blocks are judged and timed. The first of its devices is used.
        wanted: how long, and how finely.
        tell: told of the progress, a line at a time.

    Raises:
        ConfigError: a solution cannot run here.
        DataSetError: there is no such workload.
    """
    device = discover_devices(config.devices)[0]
    once = for_blocks(config, device)
    context = HarnessContext(trace_set, once, None)
    series = _make_series(context, pairings, wanted.workloads, trace_set)
    needs_triton = any(job.solution.spec.language.value == "triton" for one in series for job in one.jobs.values())
    seeds = JobSeeds(once.seed)
    rules = Rules(one_worker_a_job=True)
    with closing(context.make_scheduler(seeds, rules, needs_triton=needs_triton)) as scheduler:
        seconds = _Turns(scheduler, series, wanted, tell).run()
    context.learn_spread([latencies for one in series for latencies in latencies_by_side(one)])
    return ComparedSides(
        rows=tuple(_row(one) for one in series),
        threshold=wanted.threshold,
        how="measured",
        hardware=device.name,
        seconds=seconds,
    )


def for_blocks(config: BenchmarkConfig, device: Device) -> BenchmarkConfig:
    """Return a configuration as blocks on a device have it: what the user says of trials and readings holds."""
    named = "cpu" if device.kind == "cpu" else device.uuid
    return config.with_defaults("compare", num_trials=TRIALS).with_overrides(
        devices=[named], profile_baseline=False, assurance="full"
    )


def _make_series(
    context: HarnessContext, pairings: Sequence[Pairing], workloads: tuple[str, ...] | None, trace_set: TraceSet
) -> list[PairSeries]:
    made = SolutionJobs(context)
    known = {
        one.first.definition: {each.workload.uuid for each in trace_set.workloads.get(one.first.definition, [])}
        for one in pairings
    }
    wanted = None if workloads is None else choose_workloads(workloads, set().union(*known.values()))
    found = []
    for pairing in pairings:
        if pairing.first.definition != pairing.second.definition:
            raise ConfigError(
                f"{pairing.first.name} is of {pairing.first.definition}, {pairing.second.name} of "
                f"{pairing.second.definition}: they do different things"
            )
        own = None if wanted is None else sorted(wanted & known[pairing.first.definition])
        if own == []:
            continue  # the wanted workloads are of other definitions
        first, second = (made.make_jobs(one, own) for one in (pairing.first, pairing.second))
        found += [PairSeries(pairing, {"A": a, "B": b}) for a, b in zip(first, second, strict=True)]
    return found


class _Turns:
    """Gives the loop the blocks that come next, and hears what they came to."""

    def __init__(
        self, scheduler: Scheduler, series: list[PairSeries], wanted: Measuring, tell: Callable[[str], object]
    ) -> None:
        self._scheduler = scheduler
        self._series = series
        self._wanted = wanted
        self._tell = tell
        self._meant: dict[int, tuple[PairSeries, int, Side]] = {}
        self._began: float | None = None

    def run(self) -> float:
        """Measure until all is decided or the budget is spent; return the seconds from the first verdict on."""
        while jobs := self._next_round():
            self._scheduler.add(jobs, Lane(in_order=True))
            while self._scheduler.has_open_jobs:
                for happening in self._scheduler.step(limit_s=TURN_S):
                    self._hear(happening)
                if self._is_spent:
                    return self._seconds
            self._tell(self._describe())
        return self._seconds

    @property
    def _seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    @property
    def _is_spent(self) -> bool:
        return self._seconds > self._wanted.budget_s

    def _next_round(self) -> list[Job]:
        """Return the blocks up to the next look, those of several workloads in turn."""
        parts = [self._pairs_of(one) for one in self._series if one.is_open(self._wanted.threshold)]
        jobs = []
        while any(parts):
            for part in parts:
                jobs += [part.pop(0), part.pop(0)] if part else []
        return jobs

    def _pairs_of(self, series: PairSeries) -> list[Job]:
        done = len(series.logs)
        series.blocks = [pair for pair in series.blocks if len(pair) == len(SIDES)]
        wanted = next(look for look in LOOKS if look > done)
        jobs = []
        for pair in range(done, wanted):
            series.blocks.append({})
            for side in SIDES if pair % 2 == 0 else SIDES[::-1]:
                index = len(self._meant)
                self._meant[index] = (series, pair, side)
                jobs.append(replace(series.jobs[side], index=index))
        return jobs

    def _hear(self, happening: Happening) -> None:
        if isinstance(happening, Judged):
            self._began = self._began or time.monotonic() - happening.seconds
            series, pair, side = self._meant[happening.job.index]
            series.hear(pair, side, happening.evaluation)
            self._drop_stopped(series)
        elif isinstance(happening, JobFaulted):
            series, _, side = self._meant[happening.job.index]
            series.stopped = series.stopped or f"{side} has no verdict: {first_reason(happening.message)}"
            self._drop_stopped(series)
        elif isinstance(happening, Notice):
            self._tell(happening.message)

    def _drop_stopped(self, series: PairSeries) -> None:
        if series.stopped:
            self._scheduler.remove([index for index, (one, _, _) in self._meant.items() if one is series])

    def _describe(self) -> str:
        still = sum(one.is_open(self._wanted.threshold) for one in self._series)
        pairs = sum(len(one.logs) for one in self._series)
        told = f"{pairs} pair{'' if pairs == 1 else 's'} of blocks in {self._seconds:.0f} s"
        return f"{told}; {still} of {len(self._series)} not decided yet"


def _row(series: PairSeries) -> Row:
    logs = series.logs
    job = series.jobs["A"]
    row = Row(
        definition=job.definition.name,
        workload=job.workload.uuid,
        axes=dict(job.workload.axes),
        label=series.pairing.label,
        problem=series.stopped,
    )
    if series.stopped or not logs:
        return row if series.stopped else replace(row, problem=SPENT, is_unmeasured=True)
    pairs = [pair for pair in series.blocks if len(pair) == len(SIDES)]
    difference = find_difference(*(_marks(pairs[0][side]) for side in SIDES))
    if difference is not None:
        return replace(row, problem=str(NoComparison(job.workload.uuid, difference)))
    means: dict[Side, float] = {side: sum(_latency(pair[side]) for pair in pairs) / len(pairs) for side in SIDES}
    return replace(
        row,
        first_ms=means["A"],
        second_ms=means["B"],
        pairs_ms=tuple((_latency(pair["A"]), _latency(pair["B"])) for pair in pairs),
        ratio=ratio_of_pairs(logs),
    )


def latencies_by_side(series: PairSeries) -> Iterator[list[float]]:
    """Yield the latencies of each side's workers."""
    for side in SIDES:
        yield [_latency(pair[side]) for pair in series.blocks if side in pair]


def _marks(evaluation: Evaluation) -> dict[str, str]:
    return marks_of(tell(evaluation), evaluation.environment.hardware)


def _latency(evaluation: Evaluation) -> float:
    performance: Any = evaluation.performance
    return float(performance.latency_ms)
