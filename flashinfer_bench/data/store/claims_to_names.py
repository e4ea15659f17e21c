"""Which of several files counts that claim one name. A file that lies where its content says beats one that does not.

Nobody displaces anybody: of solutions of one name the only one counts that lies in its author's folder under its name.
Where several do, or none, none counts. Of definitions that differ none counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.parse import Place

Named = TypeVar("Named", Definition, Solution)


@dataclass(frozen=True)
class Filed(Generic[Named]):
    """An object with a name, and where it stands."""

    model: Named
    place: Place
    file: Path


def settle_definitions(
    read: Sequence[Filed[Definition]], is_in_place: Callable[[Filed[Definition]], bool], issues: list[LoadIssue]
) -> Iterator[Filed[Definition]]:
    """Yield the definitions that count, with an issue for each that does not."""
    for group in _group(read):
        best = _find_best(group, is_in_place)
        first = best[0]
        others = [filed for filed in group if filed is not first]
        if all(filed.model == first.model for filed in best):
            yield first
            issues += [filed.place.issue("error", _describe_left_out("definition", first)) for filed in others]
            continue
        files = " and ".join(str(filed.file) for filed in best)
        reason = f"definition {first.model.name!r} differs between {files}; neither is used until one is removed"
        issues += [filed.place.issue("error", reason) for filed in best]


def settle_solutions(
    read: Sequence[Filed[Solution]], is_in_place: Callable[[Filed[Solution]], bool], issues: list[LoadIssue]
) -> Iterator[Filed[Solution]]:
    """Yield the solutions that count, with an issue for each that does not; every file that claims a name is named."""
    for group in _group(read):
        in_place = [filed for filed in group if is_in_place(filed)]
        kept = group if len(group) == 1 else in_place
        if len(kept) == 1:
            yield kept[0]
            reason = _describe_left_out("solution", kept[0])
        else:
            files = " and ".join(str(filed.file) for filed in group)
            where = "each in the folder of its author" if kept else "none in its author's folder under its name"
            reason = f"solution {group[0].model.name!r} is in {files}, {where}; none is used until one is left"
        issues += [filed.place.issue("error", reason) for filed in group if len(kept) != 1 or filed is not kept[0]]


def _group(read: Sequence[Filed[Named]]) -> list[list[Filed[Named]]]:
    groups: dict[str, list[Filed[Named]]] = {}
    for filed in read:
        groups.setdefault(filed.model.name, []).append(filed)
    return list(groups.values())


def _find_best(group: list[Filed[Named]], is_in_place: Callable[[Filed[Named]], bool]) -> list[Filed[Named]]:
    if len(group) == 1:
        return group
    return [filed for filed in group if is_in_place(filed)] or group


def _describe_left_out(kind: str, kept: Filed[Named]) -> str:
    return f"{kind} {kept.model.name!r} is in {kept.file} already; names are unique, this one is left out"
