"""`list`: shows the definitions of a trace set with counts or evaluators; or its solutions, or its workloads."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flashinfer_bench.cli.args import choose_definitions
from flashinfer_bench.cli.given.choice import check_solutions
from flashinfer_bench.cli.args import open_trace_set
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.render import Column, available_width, render_table
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.errors import Misuse

if TYPE_CHECKING:
    from flashinfer_bench.bench.evaluators.plug_ins import EvaluatorChoice

COLUMNS = (
    *(Column("Definition"), Column("Op type")),
    *(Column("Workloads", True), Column("Solutions", True), Column("Traces", True)),
)
SOLUTION_COLUMNS = tuple(map(Column, ("Solution", "Definition", "Author", "Language")))
WORKLOAD_COLUMNS = tuple(map(Column, ("Workload", "Definition", "Axes")))
EVALUATOR_COLUMNS = tuple(map(Column, ("Definition", "Op type", "Evaluator", "From", "Why")))


def execute(args: argparse.Namespace) -> int:
    """Print the list."""
    if not args.evaluators and (args.config is not None or hasattr(args, "evaluator_modules")):
        raise Misuse("--config and --evaluator-modules say which evaluators there are: give --evaluators too")
    if sum((args.solutions is not None, args.lists_workloads, args.evaluators)) > 1:
        raise Misuse("--solutions, --workloads and --evaluators are lists of their own: give one of them")
    trace_set = open_trace_set(args)
    definitions = choose_definitions(trace_set, args)
    if args.solutions is not None:
        return _list_solutions(args, trace_set, definitions)
    if args.lists_workloads:
        return _list_workloads(args, trace_set, definitions)
    choices = _choose_evaluators(args, definitions) if args.evaluators else {}
    if args.format == "json":
        roots = [str(root) for root in trace_set.roots]
        items = [_describe(trace_set, definition, choices) for definition in definitions]
        write_out(json.dumps({"roots": roots, "definitions": items}, indent=2) + "\n")
        return 0
    columns, rows = _evaluator_table(definitions, choices) if choices else _count_table(trace_set, definitions)
    write_out(render_table(columns, rows, available_width(sys.stdout)))
    return 0


def _list_solutions(args: argparse.Namespace, trace_set: TraceSet, definitions: Sequence[Definition]) -> int:
    there = [item for definition in definitions for item in trace_set.solutions.get(definition.name, [])]
    check_solutions(trace_set, args)
    authors = getattr(args, "authors", None)
    kept = [item for item in there if item.name in (args.solutions or [item.name])]
    kept = [item for item in kept if item.author in (authors or [item.author])]
    rows = [
        {"name": item.name, "definition": item.definition, "author": item.author, "language": item.spec.language.value}
        for item in kept
    ]
    if args.format == "json":
        write_out(json.dumps({"solutions": rows}, indent=2) + "\n")
    else:
        write_out(render_table(SOLUTION_COLUMNS, [list(row.values()) for row in rows], available_width(sys.stdout)))
    return 0


def _list_workloads(args: argparse.Namespace, trace_set: TraceSet, definitions: Sequence[Definition]) -> int:
    there = [line for item in definitions for line in trace_set.workloads.get(item.name, [])]
    if args.format == "json":
        rows = [
            {"uuid": line.workload.uuid, "definition": line.definition, "axes": dict(line.workload.axes)}
            for line in there
        ]
        write_out(json.dumps({"workloads": rows}, indent=2) + "\n")
        return 0
    sizes = [" ".join(f"{name}={size}" for name, size in line.workload.axes.items()) for line in there]
    cells = [[line.workload.uuid, line.definition, axes] for line, axes in zip(there, sizes, strict=True)]
    write_out(render_table(WORKLOAD_COLUMNS, cells, available_width(sys.stdout)))
    return 0


def _choose_evaluators(args: argparse.Namespace, definitions: Sequence[Definition]) -> dict[str, EvaluatorChoice]:
    from flashinfer_bench.cli.given.evaluators import choose_evaluators  # needs the engine; other lists do not

    return choose_evaluators(args, definitions)


def _evaluator_table(
    definitions: Sequence[Definition], choices: Mapping[str, EvaluatorChoice]
) -> tuple[Sequence[Column], list[list[str]]]:
    chosen = [(item, choices[item.name]) for item in definitions]
    rows = [[item.name, item.op_type, choice.name, choice.origin, choice.why] for item, choice in chosen]
    return EVALUATOR_COLUMNS, rows


def _count_table(trace_set: TraceSet, definitions: Sequence[Definition]) -> tuple[Sequence[Column], list[list[str]]]:
    items = [_describe(trace_set, definition, {}) for definition in definitions]
    rows = [
        [item["name"], item["op_type"], str(item["workloads"]), str(len(item["solutions"])), str(item["traces"])]
        for item in items
    ]
    return COLUMNS, rows


def _describe(trace_set: TraceSet, definition: Definition, choices: Mapping[str, EvaluatorChoice]) -> dict[str, Any]:
    name = definition.name
    chosen = choices.get(name)
    evaluator = {} if chosen is None else {"evaluator": asdict(chosen)}
    return {
        "name": name,
        "op_type": definition.op_type,
        "workloads": len(trace_set.workloads.get(name, [])),
        "solutions": [solution.name for solution in trace_set.solutions.get(name, [])],
        "traces": len(trace_set.traces.get(name, [])),
        "not_runnable": definition.not_runnable_reason,
        **evaluator,
    }
