"""Scores over a whole set: how much faster a solution, or the best ones of an author, are than a baseline author's.

The speed-up on a workload is the baseline's latency over the solution's, on the same hardware. Of each, the lowest
latency of a trace that passed counts, confirmed ones first, and only workloads that the baseline passed. All traces
count, not only the latest: a solution with any failed trace scores 0, until its traces are moved aside. Quick looks
(`--quick`) count for nothing. `report/ranking.py` makes its scores with the same two functions, of the latest verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from flashinfer_bench.data.measurement import CONFIRMED, join_standings, lead_confirmed, read_measurement
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.best import time_of
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.data.store.trace_list import kept_of

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


@dataclass(frozen=True)
class SpeedupMetrics:
    """How one solution, or one author, did against a baseline."""

    avg_speedup: float = 0.0
    """Mean speed-up over the workloads of a solution; of an author, the mean over definitions of the best solution."""
    definitions: int = 0
    """Definitions that count."""
    workloads: int = 0
    """Workloads that both passed; on several kinds of hardware each counts for itself."""
    success_rate: float = 0.0
    """Share of the traces that passed."""
    win_rate: float = 0.0
    """Share of the workloads on which it was faster than the baseline."""
    standing: str = field(default="", compare=False)
    """The best standing of its latencies; first place needs a confirmed one if any author has one."""

    @property
    def confirmed(self) -> bool:
        """Whether a latency is of full assurance."""
        return self.standing == CONFIRMED


Ranking = list[tuple[str, SpeedupMetrics]]
"""Author and score, the highest first."""


def score_of(speedups: Sequence[float], failed: int) -> float:
    """Return the score of a solution: its mean speed-up; 0 where anything failed, or nothing can be compared."""
    return fmean(speedups) if speedups and not failed else 0.0


def author_score_of(scores: Sequence[float]) -> float:
    """Return the score of an author, by those of the best solution of each definition."""
    return fmean(scores) if scores else 0.0


@dataclass(frozen=True)
class SetFilter:
    """Which definitions count; None: all."""

    op_type: str | None = None
    definition_name: str | None = None

    def choose(self, trace_set: TraceSet) -> list[str]:
        """Return the names of the definitions that count; raise ValueError where there is none of that name."""
        names = trace_set.definitions
        if self.definition_name is not None and self.definition_name not in names:
            raise ValueError(f"no definition {self.definition_name!r}{did_you_mean(self.definition_name, names)}")
        return [
            name
            for name, definition in names.items()
            if self.definition_name in (None, name) and self.op_type in (None, definition.op_type)
        ]


def rank_authors(trace_set: TraceSet, baseline_author: str, chosen: SetFilter) -> Ranking:
    """Return every other author of a solution that counts with their score, the highest first."""
    names = chosen.choose(trace_set)
    authors = dict.fromkeys(item.author for name in names for item in trace_set.solutions.get(name, []))
    authors.pop(baseline_author, None)
    ranking = [(author, score_author(trace_set, author, baseline_author, chosen)) for author in authors]
    ordered = sorted(ranking, key=lambda entry: entry[1].avg_speedup, reverse=True)
    return lead_confirmed(ordered, lambda _: None, lambda entry: entry[1].standing)


def score_author(trace_set: TraceSet, author: str, baseline_author: str, chosen: SetFilter) -> SpeedupMetrics:
    """Score an author: of each definition the best solution.

    Raises:
        ValueError: the author has no solution of a definition that counts, or the baseline author not exactly one.
    """
    best = []
    for name in chosen.choose(trace_set):
        own = [item for item in trace_set.solutions.get(name, []) if item.author == author]
        if own:
            baseline = _baseline_of(trace_set, name, baseline_author)
            scores = [_Score.of(trace_set, item, baseline) for item in own]
            best.append(max(scores, key=lambda score: (score.avg_speedup, score.passed)))
    if not best:
        known = {item.author for group in trace_set.solutions.values() for item in group}
        raise ValueError(f"author {author!r} has no solution of the chosen definitions{did_you_mean(author, known)}")
    return _sum_up([score for score in best if score.passed + score.failed])


def score_solution(trace_set: TraceSet, name: str, baseline_author: str) -> SpeedupMetrics:
    """Score one solution.

    Raises:
        ValueError: there is no such solution, or the baseline author has not exactly one of its definition.
    """
    solution = trace_set.get_solution(name)
    if solution is None:
        known = [item.name for group in trace_set.solutions.values() for item in group]
        raise ValueError(f"no solution {name!r}{did_you_mean(name, known)}")
    baseline = _baseline_of(trace_set, solution.definition, baseline_author)
    score = _Score.of(trace_set, solution, baseline)
    return _sum_up([score] if score.passed + score.failed else [])


@dataclass(frozen=True)
class _Score:
    """One solution against the baseline."""

    speedups: Sequence[float]
    """One for each workload that both passed."""
    passed: int
    failed: int
    standing: str
    """The best of its latencies."""

    @property
    def avg_speedup(self) -> float:
        return score_of(self.speedups, self.failed)

    @classmethod
    def of(cls, trace_set: TraceSet, solution: Solution, baseline: Solution) -> _Score:
        own, theirs = (_traces_of(trace_set, item) for item in (solution, baseline))
        mine, base = _lowest_latencies(own), _lowest_latencies(theirs)
        passed = sum(trace.is_successful() for trace in own)
        speedups = [base[place][1] / mine[place][1] for place in base if place in mine]
        standing = join_standings(mine[place][2] for place in base if place in mine)
        return cls(speedups, passed, len(own) - passed, standing)


def _sum_up(scores: Sequence[_Score]) -> SpeedupMetrics:
    if not scores:
        return SpeedupMetrics()
    traces = sum(score.passed + score.failed for score in scores)
    speedups = [speedup for score in scores for speedup in score.speedups]
    return SpeedupMetrics(
        avg_speedup=author_score_of([score.avg_speedup for score in scores]),
        definitions=len(scores),
        workloads=len(speedups),
        success_rate=sum(score.passed for score in scores) / traces,
        win_rate=sum(speedup > 1 for speedup in speedups) / len(speedups) if speedups else 0.0,
        standing=join_standings(score.standing for score in scores),
    )


def _baseline_of(trace_set: TraceSet, definition: str, author: str) -> Solution:
    found = [item for item in trace_set.solutions.get(definition, []) if item.author == author]
    if len(found) != 1:
        has = ", ".join(item.name for item in found) or "none"
        raise ValueError(f"baseline author {author!r} needs exactly one solution of {definition}, and has {has}")
    return found[0]


def _traces_of(trace_set: TraceSet, solution: Solution) -> list[AnyTrace]:
    return [
        trace
        for trace in kept_of(trace_set.traces.get(solution.definition, []))
        if trace.solution == solution.name and trace.evaluation is not None and not trace.evaluation.is_quick
    ]


def _lowest_latencies(traces: Sequence[AnyTrace]) -> dict[tuple[str, str], tuple[bool, float, str]]:
    """Return for uuid and hardware of each passed workload its lowest latency, by a confirmed trace if there is one.

    A value says whether it is not confirmed, the latency in ms, and its standing.
    """
    lowest: dict[tuple[str, str], tuple[bool, float, str]] = {}
    for trace in traces:
        evaluation, latency = trace.evaluation, time_of(trace)
        if evaluation is not None and latency is not None and trace.is_successful():
            place = (trace.workload.uuid, evaluation.environment.hardware)
            standing = read_measurement(evaluation).standing
            found = (standing != CONFIRMED, latency, standing)
            lowest[place] = min(found, lowest.get(place, found))
    return lowest
