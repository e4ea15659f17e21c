"""The best solutions of workloads, counted by author, op type or kind of hardware."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Final

from flashinfer_bench.data.measurement import CONFIRMED
from flashinfer_bench.report.best import BestRow
from flashinfer_bench.report.ranking import GroupKey
from flashinfer_bench.report.results import UNKNOWN_AUTHOR

MOST_LEADERS: Final = 3
"""A row names this many authors."""


@dataclass(frozen=True)
class WinnersRow:
    """The best solutions of one author's, one op type's or one kind of hardware's workloads."""

    group: str
    workloads: int
    """Workloads whose best solution is of this group."""
    of: int
    """All workloads that any solution passed."""
    speedup: float | None
    """Geometric mean of their speed-ups over the reference."""
    leaders: tuple[tuple[str, int], ...]
    """Authors with the most of these best solutions, and how many."""
    standings: Mapping[str, int]
    """Standing of a best solution → number of workloads."""
    confirmed: bool
    """Whether any of them is confirmed."""


def count_winners(
    rows: Sequence[BestRow], key: GroupKey, authors: Mapping[str, str], op_types: Mapping[str, str]
) -> list[WinnersRow]:
    """Return a row a group, the one with the most workloads first.

    Args:
        rows: the best solution of each workload.
        key: what a row is of.
        authors: solution name to author.
        op_types: definition name to op type.
    """
    groups: defaultdict[str, list[BestRow]] = defaultdict(list)
    for row in rows:
        names = {
            "author": authors.get(row.solution, UNKNOWN_AUTHOR),
            "op_type": op_types.get(row.definition, ""),
            "hardware": row.hardware,
        }
        groups[names[key]].append(row)
    made = [_winners_row(group, items, len(rows), authors) for group, items in groups.items()]
    return sorted(made, key=lambda row: (-row.workloads, row.group))


def _winners_row(group: str, items: Sequence[BestRow], of: int, authors: Mapping[str, str]) -> WinnersRow:
    speedups = [row.speedup for row in items if row.speedup is not None and row.timing_caveat is None]
    leaders = Counter(authors.get(row.solution, UNKNOWN_AUTHOR) for row in items)
    mean = geometric_mean(speedups) if speedups else None
    standings = dict(Counter(row.standing for row in items))
    return WinnersRow(
        group, len(items), of, mean, tuple(leaders.most_common(MOST_LEADERS)), standings, CONFIRMED in standings
    )
