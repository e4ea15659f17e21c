"""Which definitions of a set are validated, and which issues of its files belong to them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flashinfer_bench.cli.args import choose_definitions
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.store.layout import path_part


@dataclass(frozen=True)
class Chosen:
    """The part of a set that the flags name."""

    trace_set: TraceSet
    """The set with the chosen definitions alone, and what belongs to them."""
    is_whole: bool
    """Whether no flag names a part."""
    names: frozenset[str]
    """The names of the chosen definitions, as parts of paths; those too that could not be read."""
    op_types: frozenset[str]

    def keeps(self, issue: LoadIssue) -> bool:
        """Tell whether an issue is about the chosen part, by the path of its file."""
        if self.is_whole or issue.file in self.trace_set.roots:
            return True
        parts = set(_parts(issue.file, self.trace_set.roots))
        if self.names & parts:
            return True
        return bool(not self.names and {normalise_op_type(part) for part in parts} & self.op_types)


def choose(trace_set: TraceSet, args: argparse.Namespace) -> Chosen:
    """Return what --definitions and --op-types leave. A definition whose file cannot be read may be named, too.

    Raises:
        DataSetError: a name is unknown.
    """
    asked: list[str] = getattr(args, "definitions", [])
    op_types: list[str] = getattr(args, "op_types", [])
    if not asked and not op_types:
        return Chosen(trace_set, is_whole=True, names=frozenset(), op_types=frozenset())
    broken = {issue.file.stem for issue in trace_set.issues if issue.severity == "error"}
    readable = [name for name in asked if name in trace_set.definitions or path_part(name) not in broken]
    wanted = argparse.Namespace(definitions=readable, op_types=op_types)
    names = [item.name for item in choose_definitions(trace_set, wanted)] if readable or not asked else []
    unread = broken.intersection(map(path_part, asked)) if asked else set()
    return Chosen(
        _keep(trace_set, set(names)),
        is_whole=False,
        names=frozenset({*map(path_part, names), *unread}),
        op_types=frozenset(map(normalise_op_type, op_types)),
    )


def _keep(trace_set: TraceSet, names: set[str]) -> TraceSet:
    return replace(
        trace_set,
        definitions={name: item for name, item in trace_set.definitions.items() if name in names},
        solutions={name: items for name, items in trace_set.solutions.items() if name in names},
        workloads={name: items for name, items in trace_set.workloads.items() if name in names},
        traces={name: items for name, items in trace_set.traces.items() if name in names},
    )


def _parts(file: Path, roots: list[Path]) -> Iterator[str]:
    """Yield the folders of a file below its root, and its name without the suffix."""
    root = next((root for root in roots if file.is_relative_to(root)), None)
    yield from (file if root is None else file.relative_to(root)).with_suffix("").parts
