"""Compares authors with a baseline: score, win rate, fast_p, share of the roofline. Also makes rows by author, op type
or hardware.

The ratio of a workload is its speed-up over the baseline, on the same hardware. The baseline is the reference, or the
fastest passing solution of `TraceSet.baseline_author`. A slow baseline inflates every ratio, so the rank does not use
the baseline. The rank compares each latency with the fastest latency on the workload. If a workload has confirmed
latencies, the fastest of these counts. First place needs a confirmed latency if any author has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any, Final, Literal

from flashinfer_bench.data.measurement import CONFIRMED, join_standings, lead_confirmed
from flashinfer_bench.data.sets.results import Result, group, lowest_of
from flashinfer_bench.data.sets.scores import score_of
from flashinfer_bench.data.sets.weights import differ, weighted_mean
from flashinfer_bench.report.intervals import MeanRatio, mean_of, mean_speedup
from flashinfer_bench.report.summary import basis_of

GroupKey = Literal["author", "op_type", "hardware"]
GROUP_KEYS: Final[tuple[GroupKey, ...]] = ("author", "op_type", "hardware")
FAST_P: Final = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""The values of p. fast_p is the share of workloads with a passing verdict and a ratio above p."""
_Times = Mapping[tuple[str, str, str], float]
"""(definition, workload, hardware) → latency."""
_Weights = Mapping[str, float]
"""Definition → sum of the workloads' weights."""
_workload = attrgetter("definition", "workload", "hardware")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The common columns of authors and groups. Ratios of groups are speed-ups over the reference."""

    definitions: int
    passed: int
    speedup: MeanRatio | None
    """Geometric mean of the ratios of passed workloads with a baseline latency."""
    fast_p: tuple[float, ...]
    """For each p of `FAST_P`: share of the judged workloads with a passing verdict and a ratio above p."""
    roofline_share: float | None
    """Geometric mean of the shares of the roofline, over passed workloads whose share is known."""
    weighted: bool = False
    """Whether workloads have different weights, so that means are weighted."""


@dataclass(frozen=True, kw_only=True)
class AuthorRow(Figures):
    """One author on one kind of hardware, from the best solution of each definition."""

    author: str
    hardware: str
    score: float | None
    """Mean over definitions of the mean ratio of the author's best solution. A solution with a failed workload counts
    0, as in `TraceSet.rank_authors`. None if the baseline has no time."""
    workloads: int
    """Number of judged workloads of the best solutions."""
    compared: int
    """Number of passed workloads with a baseline latency."""
    win_rate: float | None
    """Share of the compared workloads with a ratio above 1."""
    fastest_share: float | None
    """The set's lowest latency divided by the author's latency: the mean over workloads, then over definitions. The
    value of an author who is the fastest everywhere is 1. A workload that only other authors passed counts 0. None if
    no author is ranked, or if the results of this author are all unranked passes."""
    standing: str
    """The best standing of the author's results."""
    confirmed: bool
    sol_score: float | None
    """Speed-of-light score: the mean over workloads of the best solution, then over definitions. Definitions without a
    verdict count 0. None if no floor is known."""
    sol_basis: tuple[str, ...]
    """Baseline and peak of each score."""


@dataclass(frozen=True, kw_only=True)
class GroupRow(Figures):
    """All results of one op type or kind of hardware."""

    group: str
    solutions: int
    judged: int


@dataclass(frozen=True)
class WinnersRow:
    """The workloads whose best solutions belong to one author, op type or kind of hardware."""

    group: str
    workloads: int
    """Number of workloads whose best solution is in this group."""
    of: int
    """Number of workloads that any solution passed."""
    speedup: float | None
    """Geometric mean of the speed-ups over the reference."""
    speedup_interval95: tuple[float, float] | None
    """The 95 % interval of `speedup`."""
    weight_share: float
    """Sum of the weights of this row's workloads, divided by the sum over all workloads that any solution passed."""
    weighted: bool
    """Whether workloads have different weights."""
    standing: str
    """The best standing of the row's best solutions."""
    confirmed: bool


def rank_by_author(results: Iterable[Result], without: str | None = None) -> list[AuthorRow]:
    """Return a row for each author and kind of hardware, ordered by hardware, then by `fastest_share`, descending.

    Args:
        results: the results that count, one per job, with their baseline.
        without: the author of the baseline, who has no row.
    """
    kept = [item for item in results if not item.reported.run.quick]
    weighted = differ({_workload(item): item.weight for item in kept}.values())
    rows = []
    for items in group(kept, attrgetter("hardware")).values():
        fastest = lowest_of(items)
        passed = _sum_weights(item for item in items if _workload(item) in fastest)
        scored = _sum_weights(item for item in items if item.sol_baseline)
        for author, own in group(items, attrgetter("author")).items():
            if author != without:
                rows.append(_author_row(own, fastest, passed, scored, weighted=weighted))
    rows.sort(key=lambda row: (row.hardware, -(row.fastest_share or 0.0), -(row.score or 0.0), row.author))
    return lead_confirmed(rows, attrgetter("hardware"), attrgetter("standing"))


def group_by(results: Iterable[Result], key: GroupKey) -> list[GroupRow]:
    """Return a row for each op type or kind of hardware, ordered by name."""
    given = list(results)
    weighted = differ(item.weight for item in given)
    return [
        GroupRow(
            group=name,
            solutions=len({(item.definition, item.solution) for item in items}),
            judged=len(items),
            weighted=weighted,
            **_figures(items),
        )
        for name, items in sorted(group(given, attrgetter(key)).items())
    ]


def count_winners(contests: Sequence[Sequence[Result]], key: GroupKey) -> list[WinnersRow]:
    """Return a row for each author, op type or kind of hardware, ordered by `weight_share`, descending.

    Args:
        contests: the results of each workload, the best first.
        key: the property that rows are grouped by.
    """
    best = [ranked[0] for ranked in contests]
    found, total, weighted = [], sum(item.weight for item in best), differ(item.weight for item in best)
    for name, items in group(best, attrgetter(key)).items():
        mean = mean_speedup(item for item in items if item.measurement.meaningful)
        share = sum(item.weight for item in items) / total
        standing = join_standings(item.measurement.standing for item in items)
        confirmed = standing == CONFIRMED
        value, interval = mean and mean.value, mean and mean.interval
        found.append(WinnersRow(name, len(items), len(best), value, interval, share, weighted, standing, confirmed))
    return sorted(found, key=lambda row: (-row.weight_share, row.group))


def roofline_share_of(results: Iterable[Result]) -> float | None:
    """Return the geometric mean of the known shares of the roofline, for ranked results."""
    mean = mean_of((item.reported.roofline.share, item.weight, None) for item in results if item.is_ranked)
    return mean and mean.value


def _figures(items: Sequence[Result]) -> dict[str, Any]:
    """Return the common columns of authors and groups."""
    counted = [item for item in items if item.trace.workload.timed or not item.is_passed]
    ratios, total = _ratios(items), sum(item.weight for item in counted) or 1.0
    return {
        "definitions": len({item.definition for item in items}),
        "passed": sum(item.is_passed for item in items),
        "speedup": mean_speedup(item for item in items if item.is_ranked),
        "fast_p": tuple(sum(weight for ratio, weight in ratios if ratio > p) / total for p in FAST_P),
        "roofline_share": roofline_share_of(items),
    }


def _ratios(results: Iterable[Result]) -> list[tuple[float, float]]:
    """Return the ratio and the weight of each ranked result with a baseline."""
    return [(item.speedup, item.weight) for item in results if item.is_ranked and item.speedup]


def _author_row(
    items: Sequence[Result], fastest: _Times, passed: _Weights, scored: _Weights, *, weighted: bool
) -> AuthorRow:
    """Return the row of an author's results on one kind of hardware.

    Args:
        items: the author's results.
        fastest: the fastest latency of each workload.
        passed: the weights of the workloads with a fastest latency.
        scored: the weights of the workloads with a floor.
        weighted: whether the workloads of the ranking have different weights.
    """
    best, scores, shares, sol_scores = [], [], 0.0, 0.0
    for name, own in group(items, attrgetter("definition")).items():
        solutions = group(own, attrgetter("solution")).values()
        sums = [sum((item.sol_score or 0.0) * item.weight for item in one) for one in solutions]
        sol_scores += max(sums) / scored.get(name, 1.0)
        shares += max(_fastest_share(one, fastest) for one in solutions) / passed.get(name, 1.0)
        chosen = max(solutions, key=_merit)
        best += chosen
        scores.append(_score(chosen))
    ratios = _ratios(best)
    known = [score for score in scores if score is not None]
    standing = join_standings(item.standing for item in items)
    is_compared = bool(passed) and any(item.is_ranked or not item.is_passed for item in items)
    return AuthorRow(
        author=items[0].author,
        hardware=items[0].hardware,
        score=fmean(known) if known else None,
        workloads=len(best),
        compared=len(ratios),
        win_rate=weighted_mean([(ratio > 1, weight) for ratio, weight in ratios]) if ratios else None,
        fastest_share=shares / len(passed) if is_compared else None,
        standing=standing,
        confirmed=standing == CONFIRMED,
        sol_score=sol_scores / len(scored) if scored else None,
        sol_basis=basis_of(items),
        weighted=weighted,
        **_figures(best),
    )


def _sum_weights(results: Iterable[Result]) -> _Weights:
    """Return definition → sum of the weights of its workloads."""
    sums: dict[str, float] = {}
    for (definition, *_), weight in {_workload(item): item.weight for item in results}.items():
        sums[definition] = sums.get(definition, 0.0) + weight
    return sums


def _fastest_share(own: Sequence[Result], fastest: _Times) -> float:
    """Return the weighted sum of fastest latency / own latency over the workloads. A failed workload counts 0."""
    ranked = ((item, item.latency_ms) for item in own if item.is_ranked and item.latency_ms)
    return sum(item.weight * min(1.0, fastest[_workload(item)] / latency) for item, latency in ranked)


def _score(own: Sequence[Result]) -> float | None:
    """Return the score of a solution; None without a ratio and without a failed workload."""
    ratios, failed = _ratios(own), sum(not item.is_passed for item in own)
    return score_of(ratios, failed) if ratios or failed else None


def _merit(own: Sequence[Result]) -> tuple[float, int, float]:
    latency = mean_of((item.latency_ms, item.weight, None) for item in own)
    return _score(own) or 0.0, sum(item.is_passed for item in own), -latency.value if latency is not None else 0.0
