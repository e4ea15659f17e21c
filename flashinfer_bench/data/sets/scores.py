"""Scores over a whole set: how much faster a solution, or the best ones of an author, are than a baseline author's.

The speed-up on a workload is the baseline's latency over the solution's, on the same hardware. Of each, the lowest
latency of a trace that passed counts, confirmed ones first, and only workloads that the baseline passed. All traces
count, not only the latest: a solution with any failed trace scores 0, until its traces are moved aside. Quick looks
(`--quick`) count for nothing. `report/ranking.py` makes its scores with the same two functions, of the latest verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flashinfer_bench.data.measurement import CONFIRMED, join_standings, lead_confirmed
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.results import Result, fastest_of, list_results
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.trace_lines import kept_of

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


BASELINE: Final = "baseline"
"""The author whose solutions others are scored against, where no other is named."""


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


def rank_authors(
    trace_set: TraceSet,
    baseline_author: str = BASELINE,
    op_type: str | None = None,
    definition_name: str | None = None,
) -> Ranking:
    """Return the other authors with their scores against the baseline author's solutions, the highest first.

    Raises:
        ValueError: the baseline author has no solution, or several, of a definition that counts.
    """
    asked = baseline_author, op_type, definition_name
    names = _choose_definitions(trace_set, op_type, definition_name)
    authors = dict.fromkeys(item.author for name in names for item in trace_set.solutions.get(name, []))
    authors.pop(baseline_author, None)
    ranking = [(author, get_author_score(trace_set, author, *asked)) for author in authors]
    ordered = sorted(ranking, key=lambda entry: entry[1].avg_speedup, reverse=True)
    return lead_confirmed(ordered, lambda _: None, lambda entry: entry[1].standing)


def get_author_score(
    trace_set: TraceSet,
    author: str,
    baseline_author: str = BASELINE,
    op_type: str | None = None,
    definition_name: str | None = None,
) -> SpeedupMetrics:
    """Score an author by the best solution of each definition.

    Raises:
        ValueError: the author has no solution that counts, or the baseline author not exactly one.
    """
    best = []
    for name in _choose_definitions(trace_set, op_type, definition_name):
        scores = [
            _score(trace_set, item, baseline_author)
            for item in trace_set.solutions.get(name, [])
            if item.author == author
        ]
        best += [max(scores, key=lambda score: (score.avg_speedup, score.passed))] if scores else []
    if not best:
        known = {item.author for group in trace_set.solutions.values() for item in group}
        raise ValueError(f"author {author!r} has no solution of the chosen definitions{did_you_mean(author, known)}")
    return _sum_up(best)


def get_solution_score(trace_set: TraceSet, name: str, baseline_author: str = BASELINE) -> SpeedupMetrics:
    """Score one solution against the baseline author's solution of its definition.

    Raises:
        ValueError: there is no such solution, or the baseline author has not exactly one.
    """
    solution = trace_set.get_solution(name)
    if solution is None:
        known = [item.name for group in trace_set.solutions.values() for item in group]
        raise ValueError(f"no solution {name!r}{did_you_mean(name, known)}")
    return _sum_up([_score(trace_set, solution, baseline_author)])


def _choose_definitions(trace_set: TraceSet, op_type: str | None, definition: str | None) -> list[str]:
    names = trace_set.definitions
    if definition is not None and definition not in names:
        raise ValueError(f"no definition {definition!r}{did_you_mean(definition, names)}")
    return [name for name, found in names.items() if definition in (None, name) and op_type in (None, found.op_type)]


class _Score(NamedTuple):
    """One solution against the baseline."""

    avg_speedup: float
    speedups: Sequence[float]
    """One for each workload that both passed."""
    passed: int
    failed: int
    standing: str
    """The best of its latencies."""


def _score(trace_set: TraceSet, solution: Solution, baseline_author: str) -> _Score:
    baseline = _baseline_of(trace_set, solution.definition, baseline_author)
    own, theirs = (_results_of(trace_set, item) for item in (solution, baseline))
    mine, base = (fastest_of(results, attrgetter("workload", "hardware")) for results in (own, theirs))
    shared = [(base[place][0], *mine[place]) for place in base if place in mine]
    speedups = [reference / latency for reference, latency, _ in shared]
    passed = sum(item.is_passed for item in own)
    standing = join_standings(item.standing for *_, item in shared)
    failed = len(own) - passed
    return _Score(score_of(speedups, failed), speedups, passed, failed, standing)


def _sum_up(best: Sequence[_Score]) -> SpeedupMetrics:
    scores = [score for score in best if score.passed + score.failed]
    if not scores:
        return SpeedupMetrics()
    speedups = [speedup for score in scores for speedup in score.speedups]
    passed = sum(score.passed for score in scores)
    return SpeedupMetrics(
        avg_speedup=author_score_of([score.avg_speedup for score in scores]),
        definitions=len(scores),
        workloads=len(speedups),
        success_rate=passed / (passed + sum(score.failed for score in scores)),
        win_rate=sum(speedup > 1 for speedup in speedups) / len(speedups) if speedups else 0.0,
        standing=join_standings(score.standing for score in scores),
    )


def _baseline_of(trace_set: TraceSet, definition: str, author: str) -> Solution:
    found = [item for item in trace_set.solutions.get(definition, []) if item.author == author]
    if len(found) != 1:
        has = ", ".join(item.name for item in found) or "none"
        raise ValueError(f"baseline author {author!r} needs exactly one solution of {definition}, and has {has}")
    return found[0]


def _results_of(trace_set: TraceSet, solution: Solution) -> list[Result]:
    kept = [one for one in kept_of(trace_set.traces.get(solution.definition, [])) if one.solution == solution.name]
    return [item for item in list_results(None, kept, latest_only=False) if not item.told.run.quick]


class TraceSetSummary(dict[str, Any]):
    """Counts of a set by key, the most wanted ones as attributes too, and the ranking of its authors."""

    def __init__(self, counts: Mapping[str, Any], rank: Callable[[], Ranking]) -> None:
        super().__init__(counts)
        self._rank = rank
        self.total: int = counts["total"]
        """Latest verdicts."""
        self.passed: int = counts["passed"]
        self.failed: int = counts["failed"]

    @property
    def rankings(self) -> Ranking:
        """Authors with their scores, the highest first; also under the key "rankings".

        Raises:
            ValueError: the baseline author has no solution, or several, of a definition that counts.
        """
        return self._rank()

    def __missing__(self, key: str) -> Any:
        if key == "rankings":
            return self.rankings
        raise KeyError(key)


def summarise(
    trace_set: TraceSet,
    baseline_author: str = BASELINE,
    op_type: str | None = None,
    definition_name: str | None = None,
) -> TraceSetSummary:
    """Count what is in the set, and its latest traces by status, definition, solution, author and op type.

    The counts are of the whole set; the arguments choose what `rankings` compares, as in `rank_authors`.

    Raises:
        ValueError: something else than the default ranking is asked for, and it cannot be made. The default one is
            made when it is looked at.
    """
    results = list_results(trace_set, [trace for part in trace_set.traces.values() for trace in kept_of(part)])
    passed = [item for item in results if item.is_passed]
    latencies = [item.latency_ms for item in passed if not item.told.run.quick and item.latency_ms is not None]
    counts = {
        "definitions": len(trace_set.definitions),
        "solutions": sum(map(len, trace_set.solutions.values())),
        "workloads": sum(map(len, trace_set.workloads.values())),
        "traces": sum(map(len, trace_set.traces.values())),
        "total": len(results),
        "passed": len(passed),
        "failed": len(results) - len(passed),
        "min_latency_ms": min(latencies, default=None),
        "max_latency_ms": max(latencies, default=None),
        "avg_latency_ms": sum(latencies) / len(latencies) if latencies else None,
        "by_status": _count(item.status for item in results),
        "by_definition": _count(item.definition for item in results),
        "by_solution": _count(item.solution for item in results),
        "by_author": _count(item.author for item in results),
        "by_op_type": _count(item.op_type or "unknown" for item in results),
    }
    asked = baseline_author, op_type, definition_name
    found = TraceSetSummary(counts, lambda: rank_authors(trace_set, *asked))
    if asked != (BASELINE, None, None):
        _ = found.rankings
    return found


def _count(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
