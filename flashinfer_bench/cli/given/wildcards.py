"""Names with wildcards, as a shell has them: `*` any text, `?` one character, `[ab]` one of these."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError

MARKS: Final = frozenset("*?[")


def is_wildcard(name: str) -> bool:
    """Tell whether a name stands for all names of a pattern."""
    return bool(MARKS & set(name))


def expand_wildcards(args: argparse.Namespace, trace_set: TraceSet) -> None:
    """Put the names of the set in the place of the wildcards of a command's flags.

    Raises:
        DataSetError: nothing in the set has such a name.
    """
    solutions = [item for group in trace_set.solutions.values() for item in group]
    traced = (trace.solution for group in trace_set.traces.values() for trace in group)
    known: dict[str, Iterable[str | None]] = {
        "definitions": trace_set.definitions,
        "op_types": (item.op_type for item in trace_set.definitions.values()),
        "solutions": (item.name for item in solutions),
        "authors": (item.author for item in solutions),
        "workloads": (line.workload.uuid for group in trace_set.workloads.values() for line in group),
    }
    problems = []
    for flag, there in known.items():
        given = getattr(args, flag, None)
        if not isinstance(given, list) or not any(map(is_wildcard, given)):
            continue
        names = dict.fromkeys(name for name in there if name)
        if flag == "solutions":
            names.update(dict.fromkeys(name for name in traced if name))
        expanded = {pattern: _matching(pattern, names) for pattern in given}
        setattr(args, flag, list(dict.fromkeys(name for found in expanded.values() for name in found)))
        told = f"--{flag.replace('_', '-')}"
        problems += [f"{told}: the trace set has nothing like {one!r}" for one, found in expanded.items() if not found]
    if problems:
        raise DataSetError("\n".join(problems))


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)] if is_wildcard(pattern) else [pattern]
