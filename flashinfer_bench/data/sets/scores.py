"""Scores over a whole set: the speed-up of a solution, or of an author's best solutions, over a baseline author.

The speed-up on a workload is the baseline's latency over the solution's, on the same hardware. On both sides, the
lowest latency of a passed verdict counts. Confirmed latencies take precedence. Only workloads that the baseline passed
count. All traces count, not only the latest. A solution with a failed trace scores 0 until that trace is removed. Quick
looks (`--quick`) do not count. A mean over workloads uses the workloads' weights. A mean over definitions uses equal
weights. `report/ranking.py` applies the same rule to the latest verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_bench.data.measurement import CONFIRMED, join_standings, lead_confirmed
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.results import BASELINE, fastest_of, group, list_results
from flashinfer_bench.data.sets.weights import Weighted, differ, weighted_mean, weights_of
from flashinfer_bench.data.solution import Solution

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


@dataclass(frozen=True)
class SpeedupMetrics:
    """The score of a solution or an author against a baseline."""

    avg_speedup: float = 0.0
    """Mean speed-up over the workloads of a solution. For an author: the mean, over definitions, of the best solution's
    speed-up."""
    definitions: int = 0
    """Number of scored definitions."""
    workloads: int = 0
    """Number of workloads that both the solution and the baseline passed, summed over the kinds of hardware."""
    success_rate: float = 0.0
    """Share of the traces that passed."""
    win_rate: float = 0.0
    """Share of the workloads on which the latency is lower than the baseline's."""
    standing: str = field(default="", compare=False)
    """The best standing of the latencies: confirmed, not confirmed, or indicative (CPU).

    First place needs a confirmed latency if any author has one.
    """
    weighted: bool = field(default=False, compare=False)
    """Whether the weights of the workloads differ. The success rate ignores weights."""

    @property
    def confirmed(self) -> bool:
        """Whether any latency has full assurance."""
        return self.standing == CONFIRMED


Ranking = list[tuple[str, SpeedupMetrics]]
"""Authors and their scores, the highest first."""


def score_of(speedups: Weighted, failed: int) -> float:
    """Return the score of a solution: its mean speed-up; 0 if a trace failed, or if no workload can be compared."""
    return weighted_mean(speedups) if speedups and not failed else 0.0


def rank_authors(
    trace_set: TraceSet,
    baseline_author: str = BASELINE,
    op_type: str | None = None,
    definition_name: str | None = None,
) -> Ranking:
    """Return all authors except the baseline author, with scores against the baseline author, the highest first.

    Raises:
        ValueError: the baseline author has no solution, or several, of a definition that counts.
    """
    names = _choose_definitions(trace_set, op_type, definition_name)
    best = _best_scores(trace_set, names, baseline_author, lambda author: author != baseline_author)
    ranking = sorted(
        ((author, _sum_up(scores)) for author, scores in best.items()), key=lambda one: -one[1].avg_speedup
    )
    return lead_confirmed(ranking, lambda _: None, lambda entry: entry[1].standing)


def get_author_score(
    trace_set: TraceSet,
    author: str,
    baseline_author: str = BASELINE,
    op_type: str | None = None,
    definition_name: str | None = None,
) -> SpeedupMetrics:
    """Score an author by the best solution of each definition.

    Raises:
        ValueError: the author has no solution that counts, or the baseline author does not have exactly one solution.
    """
    names = _choose_definitions(trace_set, op_type, definition_name)
    best = _best_scores(trace_set, names, baseline_author, author.__eq__)
    if not best:
        known = {item.author for item in trace_set.all_solutions()}
        raise ValueError(f"author {author!r} has no solution of the chosen definitions{did_you_mean(author, known)}")
    return _sum_up(best[author])


def get_solution_score(trace_set: TraceSet, name: str, baseline_author: str = BASELINE) -> SpeedupMetrics:
    """Score one solution against the baseline author's solution of its definition.

    Raises:
        ValueError: the solution does not exist, or the baseline author does not have exactly one solution.
    """
    solution = trace_set.get_solution(name)
    if solution is None:
        known = [item.name for item in trace_set.all_solutions()]
        raise ValueError(f"no solution {name!r}{did_you_mean(name, known)}")
    return _sum_up(_score(trace_set, solution.definition, [solution], baseline_author))


def _choose_definitions(trace_set: TraceSet, op_type: str | None, definition: str | None) -> list[str]:
    names = trace_set.definitions
    if definition is not None and definition not in names:
        raise ValueError(f"no definition {definition!r}{did_you_mean(definition, names)}")
    return [name for name, found in names.items() if definition in (None, name) and op_type in (None, found.op_type)]


class _Score(NamedTuple):
    """The comparison of one solution with the baseline."""

    mean: float
    passed: int
    failed: int
    speedups: Weighted
    """Speed-up on each workload that solution and baseline passed, with the workload's weight."""
    standing: str
    """The best standing of the solution's latencies."""


def _best_scores(
    trace_set: TraceSet, definitions: Iterable[str], baseline_author: str, is_asked: Callable[[str], bool]
) -> dict[str, list[_Score]]:
    """Return author → the author's best score on each definition."""
    best: dict[str, list[_Score]] = {}
    for name in definitions:
        asked = (item for item in trace_set.solutions.get(name, []) if is_asked(item.author))
        for author, solutions in group(asked, attrgetter("author")).items():
            best.setdefault(author, []).append(max(_score(trace_set, name, solutions, baseline_author)))
    return best


def _score(trace_set: TraceSet, definition: str, solutions: Iterable[Solution], baseline_author: str) -> list[_Score]:
    """Score solutions of a definition."""
    baselines = [item.name for item in trace_set.solutions.get(definition, []) if item.author == baseline_author]
    if len(baselines) != 1:
        has = ", ".join(baselines) or "none"
        raise ValueError(
            f"baseline author {baseline_author!r} needs exactly one solution of {definition}, and has {has}"
        )
    results = list_results(None, trace_set.all_traces(definition), latest_only=False)
    judged = group((item for item in results if not item.reported.run.quick), attrgetter("solution"))
    key = attrgetter("workload", "hardware")
    base, found = fastest_of(judged.get(baselines[0], []), key), []
    known = weights_of(trace_set.workloads.get(definition, []))
    for solution in solutions:
        own = judged.get(solution.name, [])
        mine = fastest_of(own, key)
        shared = [at for at in base if at in mine]
        weights = [known.get(mine[at][1].workload, mine[at][1].weight) for at in shared]
        speedups = [(base[at][0] / mine[at][0], weight) for at, weight in zip(shared, weights, strict=True)]
        passed = sum(item.is_passed for item in own)
        failed = len(own) - passed
        standing = join_standings(mine[at][1].standing for at in shared)
        found.append(_Score(score_of(speedups, failed), passed, failed, speedups, standing))
    return found


def _sum_up(best: Sequence[_Score]) -> SpeedupMetrics:
    scores = [score for score in best if score.passed + score.failed]
    if not scores:
        return SpeedupMetrics()
    speedups = [speedup for score in scores for speedup in score.speedups]
    passed = sum(score.passed for score in scores)
    return SpeedupMetrics(
        avg_speedup=fmean(score.mean for score in scores),
        definitions=len(scores),
        workloads=len(speedups),
        success_rate=passed / (passed + sum(score.failed for score in scores)),
        win_rate=weighted_mean([(speedup > 1, weight) for speedup, weight in speedups]) if speedups else 0.0,
        standing=join_standings(score.standing for score in scores),
        weighted=differ(weight for _, weight in speedups),
    )


class TraceSetSummary(dict[str, Any]):
    """Counts of a set by key, with attributes for common keys, and the ranking of the set's authors."""

    def __init__(self, counts: Mapping[str, Any], rank: Callable[[], Ranking]) -> None:
        super().__init__(counts)
        self._rank = rank
        self.total: int = counts["total"]
        """Latest verdicts."""
        self.passed: int = counts["passed"]
        self.failed: int = counts["failed"]

    @property
    def rankings(self) -> Ranking:
        """Authors with their scores, the highest first. The key "rankings" has the same value.

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
    """Count the content of the set, and its latest traces.

    The counts cover the whole set. The arguments affect only `rankings`, as in `rank_authors`.

    Raises:
        ValueError: the arguments request a ranking that cannot be made. The default ranking is made at its first
            access.
    """
    results = list_results(trace_set, trace_set.all_traces())
    passed = [item for item in results if item.is_passed]
    latencies = [item.latency_ms for item in passed if not item.reported.run.quick and item.latency_ms is not None]
    counts: dict[str, Any] = {
        **trace_set.counts,
        "total": len(results),
        "passed": len(passed),
        "failed": len(results) - len(passed),
        "min_latency_ms": min(latencies, default=None),
        "max_latency_ms": max(latencies, default=None),
        "avg_latency_ms": fmean(latencies) if latencies else None,
    }
    asked = baseline_author, op_type, definition_name
    found = TraceSetSummary(counts, lambda: rank_authors(trace_set, *asked))
    if asked != (BASELINE, None, None):
        _ = found.rankings
    return found
