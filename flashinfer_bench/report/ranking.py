"""Authors against a baseline: score, win rate, fast_p, share of the roofline; and rows by author, op type, hardware.

The ratio of a workload is the baseline's latency over the author's, on the same hardware. The baseline is the
reference, or the fastest passing solution of another author. A slow baseline inflates every ratio, so authors are
ranked by a figure that needs none: the share of the fastest latency that any solution of the set reached. The
fastest is a confirmed one if there is one, and first place needs a confirmed latency if any author has one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import geometric_mean
from typing import Final, Literal

from flashinfer_bench.data.measurement import CONFIRMED, join_standings, lead_confirmed
from flashinfer_bench.data.sets.scores import author_score_of, score_of
from flashinfer_bench.report.results import MeanRatio, Result, mean_of

GroupKey = Literal["author", "op_type", "hardware"]
GROUP_KEYS: Final[tuple[GroupKey, ...]] = ("author", "op_type", "hardware")
FAST_P: Final = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""The p of fast_p: the share of workloads that were passed with a ratio above p."""
_Place = tuple[str, str, str]
"""Definition, workload and hardware."""


@dataclass(frozen=True)
class AuthorRow:
    """One author on one kind of hardware."""

    author: str
    hardware: str
    score: float | None
    """Mean over definitions of the mean ratio of the author's best solution, which counts 0 if it failed a workload, as
    `TraceSet.rank_authors` has it; None where the baseline has no time for any."""
    definitions: int
    workloads: int
    """Workloads that the best solutions were judged on."""
    passed: int
    compared: int
    """Passed workloads that the baseline has a time for."""
    speedup: MeanRatio | None
    """Geometric mean of those ratios."""
    win_rate: float | None
    """Share of the compared workloads with a ratio above 1."""
    fast_p: tuple[float, ...]
    """For each p of `FAST_P` the share of all workloads that were passed with a ratio above p."""
    roofline_share: float | None
    """Geometric mean of the shares of the roofline, over passed workloads that have one."""
    fastest_share: float | None
    """Mean over all definitions, of the mean over workloads, of the set's lowest latency over the author's: 1 is the
    fastest everywhere. What somebody passed and the author did not, counts 0. None where nobody passed anything."""
    standing: str
    """The best standing of its results."""
    confirmed: bool


@dataclass(frozen=True)
class GroupRow:
    """All results of one author, op type or kind of hardware."""

    group: str
    definitions: int
    solutions: int
    passed: int
    judged: int
    speedup: MeanRatio | None
    """Geometric mean of the speed-ups over the reference, of the passed workloads."""
    fast_p: tuple[float, ...]
    """For each p of `FAST_P` the share of the judged workloads that were passed with a speed-up above p."""
    roofline_share: float | None


def rank_by_author(results: Sequence[Result], baseline_author: str | None = None) -> list[AuthorRow]:
    """Return a row for each author and kind of hardware, by hardware, then the highest share of the fastest first.

    Args:
        results: those that count; one a job.
        baseline_author: whose fastest passing solution is the baseline of each workload; None for the reference.

    Raises:
        ValueError: the baseline author has no result.
    """
    kept = [item for item in results if not item.told.run.quick]
    if baseline_author is not None and all(item.author != baseline_author for item in kept):
        known = ", ".join(sorted({item.author for item in kept})) or "none"
        raise ValueError(f"baseline author {baseline_author!r} has no verdict to compare with; authors: {known}")
    baseline = None if baseline_author is None else _lowest(item for item in kept if item.author == baseline_author)
    groups: defaultdict[str, defaultdict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for item in kept:
        groups[item.hardware][item.author].append(item)
    rows = []
    for authors in groups.values():
        fastest = _Fastest.of(item for items in authors.values() for item in items)
        rows += [_author_row(items, baseline, fastest) for name, items in authors.items() if name != baseline_author]
    rows.sort(key=lambda row: (row.hardware, -(row.fastest_share or 0.0), -(row.score or 0.0), row.author))
    return lead_confirmed(rows, attrgetter("hardware"), attrgetter("standing"))


def group_by(results: Iterable[Result], key: GroupKey) -> list[GroupRow]:
    """Return a row for each author, op type or kind of hardware, in the order of names."""
    groups: defaultdict[str, list[Result]] = defaultdict(list)
    for item in results:
        groups[getattr(item, key)].append(item)
    return [_group_row(name, items) for name, items in sorted(groups.items())]


def share_of(shares: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the shares that are known."""
    known = [share for share in shares if share is not None and share > 0]
    return geometric_mean(known) if known else None


def fast_shares(ratios: Sequence[float], of: int) -> tuple[float, ...]:
    """Return for each p the share of `of` workloads whose ratio is above p."""
    return tuple(sum(ratio > p for ratio in ratios) / of if of else 0.0 for p in FAST_P)


def _lowest(results: Iterable[Result]) -> dict[_Place, float]:
    """Return the lowest latency of each place, a confirmed one if there is one."""
    lowest: dict[_Place, tuple[bool, float]] = {}
    for item in results:
        if item.is_ranked and item.latency_ms is not None:
            place, found = _place(item), (item.standing != CONFIRMED, item.latency_ms)
            lowest[place] = min(found, lowest.get(place, found))
    return {place: latency for place, (_, latency) in lowest.items()}


def _place(item: Result) -> _Place:
    return (item.definition, item.workload, item.hardware)


def _ratio(item: Result, baseline: Mapping[_Place, float] | None) -> float | None:
    """Return baseline / latency; None where one is missing, or the time means nothing."""
    if not item.is_ranked or item.latency_ms is None:
        return None
    against = item.reference_ms if baseline is None else baseline.get(_place(item))
    return against / item.latency_ms if against else None


@dataclass(frozen=True)
class _Fastest:
    """What the fastest solutions of one kind of hardware reached, whoever wrote them."""

    latencies: Mapping[_Place, float]
    workloads: Mapping[str, int]
    """Of each definition that somebody passed a workload of, how many somebody passed."""

    @classmethod
    def of(cls, results: Iterable[Result]) -> _Fastest:
        latencies = _lowest(results)
        return cls(latencies, Counter(definition for definition, _, _ in latencies))

    def share_of(self, own: Sequence[Result]) -> float:
        """Return the mean share of a solution over the workloads of its definition; what it did not pass counts 0."""
        ranked = [(_place(item), item.latency_ms) for item in own if item.is_ranked and item.latency_ms]
        shares = [min(1.0, self.latencies[place] / latency) for place, latency in ranked]
        return sum(shares) / self.workloads[own[0].definition] if shares else 0.0

    def share_of_author(self, shares: Sequence[float]) -> float | None:
        """Return the mean over all definitions that anybody passed; those that the author did not, count 0."""
        return sum(shares) / len(self.workloads) if self.workloads else None


def _author_row(items: Sequence[Result], baseline: Mapping[_Place, float] | None, fastest: _Fastest) -> AuthorRow:
    by_definition: defaultdict[str, defaultdict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        by_definition[item.definition][item.solution].append(item)
    best = [max(group.values(), key=lambda own: _merit(own, baseline)) for group in by_definition.values()]
    flat = [item for own in best for item in own]
    compared = [(ratio, _half(item, baseline)) for item in flat if (ratio := _ratio(item, baseline)) is not None]
    ratios = [ratio for ratio, _ in compared]
    scores = [score for own in best if (score := _score(own, baseline)) is not None]
    standing = join_standings(item.standing for item in items)
    return AuthorRow(
        author=items[0].author,
        hardware=items[0].hardware,
        score=author_score_of(scores) if scores else None,
        definitions=len(best),
        workloads=len(flat),
        passed=sum(item.is_passed for item in flat),
        compared=len(ratios),
        speedup=mean_of(ratios, [half for _, half in compared]),
        win_rate=sum(ratio > 1 for ratio in ratios) / len(ratios) if ratios else None,
        fast_p=fast_shares(ratios, len(flat)),
        roofline_share=share_of(item.share for item in flat if item.is_ranked),
        fastest_share=fastest.share_of_author(
            [max(map(fastest.share_of, group.values())) for group in by_definition.values()]
        ),
        standing=standing,
        confirmed=standing == CONFIRMED,
    )


def _score(own: Sequence[Result], baseline: Mapping[_Place, float] | None) -> float | None:
    """Return the score of a solution; None where nothing failed and the baseline has no time for any workload."""
    ratios = [ratio for item in own if (ratio := _ratio(item, baseline)) is not None]
    failed = sum(not item.is_passed for item in own)
    return score_of(ratios, failed) if ratios or failed else None


def _half(item: Result, baseline: Mapping[_Place, float] | None) -> float | None:
    """Return half the interval of a ratio, as a logarithm; the lowest of several baselines has none."""
    return item.speedup_log_half if baseline is None else None


def _merit(own: Sequence[Result], baseline: Mapping[_Place, float] | None) -> tuple[float, int, float]:
    passed = sum(item.is_passed for item in own)
    latencies = [item.latency_ms for item in own if item.latency_ms is not None]
    return (_score(own, baseline) or 0.0, passed, -geometric_mean(latencies) if latencies else 0.0)


def _group_row(name: str, items: Sequence[Result]) -> GroupRow:
    compared = [item for item in items if item.is_ranked and item.speedup is not None]
    ratios = [item.speedup or 0.0 for item in compared]
    return GroupRow(
        group=name,
        definitions=len({item.definition for item in items}),
        solutions=len({(item.definition, item.solution) for item in items}),
        passed=sum(item.is_passed for item in items),
        judged=len(items),
        speedup=mean_of(ratios, [item.speedup_log_half for item in compared]),
        fast_p=fast_shares(ratios, len(items)),
        roofline_share=share_of(item.share for item in items if item.is_ranked),
    )
