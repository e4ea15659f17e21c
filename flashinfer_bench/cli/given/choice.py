"""Chooses from a trace set what the name flags of `list` and `report` name.

An unknown name is refused, and the nearest known name is told.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.trace_lines import AnyTrace, kept_of
from flashinfer_bench.data.workload import MIN_PREFIX
from flashinfer_bench.errors import DataSetError


def choose_definitions(trace_set: TraceSet, args: argparse.Namespace) -> list[Definition]:
    """Return the definitions that --definitions and --op-types leave, by op type and name."""
    definitions = list(trace_set.definitions.values())
    op_types = {normalise_op_type(item.op_type) for item in definitions}
    names = getattr(args, "definitions", None)
    wanted = [normalise_op_type(op_type) for op_type in getattr(args, "op_types", [])]
    _refuse_unknown(
        [
            *_unknown("--definitions", "definition", names or [], trace_set.definitions),
            *_unknown("--op-types", "op type", wanted, op_types),
        ]
    )
    kept = [
        item
        for item in definitions
        if (not names or item.name in names) and (not wanted or normalise_op_type(item.op_type) in wanted)
    ]
    return sorted(kept, key=lambda item: (item.op_type, item.name))


def choose_traces(trace_set: TraceSet, args: argparse.Namespace) -> list[AnyTrace]:
    """Return the traces of the chosen definitions that --solutions and --authors leave, in the order of the files."""
    authors = {item.name: item.author for group in trace_set.solutions.values() for item in group}
    chosen = [trace_set.traces.get(item.name, []) for item in choose_definitions(trace_set, args)]
    traces = [trace for part in chosen for trace in kept_of(part)]
    if not any(getattr(args, flag, None) for flag in ("solutions", "authors", "workloads")):
        return traces
    known = {*authors, *(trace.solution or "" for trace in traces)}
    wanted, wanted_authors = getattr(args, "solutions", None), getattr(args, "authors", None)
    uuids = getattr(args, "workloads", None) or []
    judged = {trace.workload.uuid for trace in traces}
    begun = {uuid for uuid in judged if any(uuid == one or _begins(uuid, one) for one in uuids)}
    strange = [one for one in uuids if not any(uuid == one or _begins(uuid, one) for uuid in judged)]
    _refuse_unknown(
        [
            *_unknown("--solutions", "solution", wanted or [], known),
            *_unknown("--authors", "author", wanted_authors or [], set(authors.values())),
            *_unknown("--workloads", "workload with a trace", strange, judged),
        ]
    )
    return [
        trace
        for trace in traces
        if (not wanted or trace.solution in wanted)
        and (not uuids or trace.workload.uuid in begun)
        and (not wanted_authors or authors.get(trace.solution or "") in wanted_authors)
    ]


def check_solutions(trace_set: TraceSet, args: argparse.Namespace) -> None:
    """Refuse names of solutions and authors that the set does not have."""
    there = [item for group in trace_set.solutions.values() for item in group]
    _refuse_unknown(
        [
            *_unknown("--solutions", "solution", args.solutions, {item.name for item in there}),
            *_unknown("--authors", "author", getattr(args, "authors", []), {item.author for item in there}),
        ]
    )


def _begins(uuid: str, start: str) -> bool:
    return len(start) >= MIN_PREFIX and uuid.startswith(start)


def describe_unknown(flag: str, kind: str, name: str, known: Iterable[str]) -> str:
    """Return the error line for a name that the set does not have."""
    hint = did_you_mean(name, known) or "; `flashinfer-bench list` shows what there is"
    return f"{flag}: the trace set has no {kind} {name!r}{hint}"


def _unknown(flag: str, kind: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    there = set(known)
    for name in names:
        if name not in there:
            yield describe_unknown(flag, kind, name, there)


def _refuse_unknown(problems: list[str]) -> None:
    if problems:
        raise DataSetError("\n".join(problems))
