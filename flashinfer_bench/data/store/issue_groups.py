"""Puts issues of one file together, so that a file with thousands of lines of one fault is told in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from flashinfer_bench.data.issue import LoadIssue

ONE_OF_MANY: Final = 2
"""How many steps of a field in a line count: `workload.inputs.x` and `workload.inputs.y` are one kind of place."""
_JOINED: Final = 8
"""A line that stands for a whole file names this many different reasons."""


def join_alike(issues: list[LoadIssue], start: int) -> None:
    """Put issues of a file's lines together where reason and kind of place are the same; the first place stays.

    Args:
        issues: all issues so far.
        start: index of the file's first one.
    """
    groups: dict[tuple[object, ...], list[LoadIssue]] = {}
    for issue in issues[start:]:
        field = ".".join(issue.field.split(".")[:ONE_OF_MANY]) if issue.field else None
        groups.setdefault((issue.severity, issue.file, issue.reason, field), []).append(issue)
    issues[start:] = [_count_lines(group) for group in groups.values()]


def join_all(issues: Sequence[LoadIssue], is_joined: Callable[[Path], bool]) -> list[LoadIssue]:
    """Make one issue of all those of a file: as severe as the worst of them, with its place.

    Args:
        issues: of any files.
        is_joined: whether this is done for a file.
    """
    groups: dict[Path | int, list[LoadIssue]] = {}
    for number, issue in enumerate(issues):
        groups.setdefault(issue.file if is_joined(issue.file) else number, []).append(issue)
    return [_join(group) for group in groups.values()]


def _count_lines(group: Sequence[LoadIssue]) -> LoadIssue:
    lines = len({issue.line for issue in group})
    return group[0] if lines < 2 else replace(group[0], reason=f"{group[0].reason} (so in {lines} lines of this file)")


def _join(group: Sequence[LoadIssue]) -> LoadIssue:
    if len(group) == 1:
        return group[0]
    worst = min(group, key=lambda issue: issue.severity != "error")
    reasons = {worst.reason: None}
    for issue in group:
        told = issue.reason if issue.field == worst.field or issue.field is None else f"{issue.field}: {issue.reason}"
        if issue is not worst:
            reasons[told] = None
    shown = list(reasons)[:_JOINED]
    more = f"; and {len(reasons) - _JOINED} more" if len(reasons) > _JOINED else ""
    return replace(worst, reason="; ".join(shown) + more)
