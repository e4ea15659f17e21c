"""`list`: shows the definitions of a trace set with counts or evaluators; or its solutions, or its workloads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flashinfer_bench.cli.args import choose_definitions, open_trace_set, refuse_unknown
from flashinfer_bench.cli.output import write_json, write_out
from flashinfer_bench.cli.parser import PROGRAM, NameList, Parser, add_format, add_local, add_names
from flashinfer_bench.cli.render import Column, available_width, render_table
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.errors import Misuse

if TYPE_CHECKING:
    from flashinfer_bench.bench.evaluators.plug_ins import EvaluatorChoice

NUMBERS = ("Workloads", "Solutions", "Traces")
Rows = list[dict[str, Any]]


def declare_list(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "List the definitions with their op type and how many workloads, solutions and traces they have.\n"
        "Or list the solutions, or the workloads, of these definitions.",
        example=f"{PROGRAM} list --local flashinfer-trace --op-types gemm rmsnorm",
        execute=execute,
    )
    add_local(parser)
    add_names(parser, "--definitions")
    add_names(parser, "--op-types")
    add_names(parser, "--authors", "with --solutions: only those of these authors")
    listed = "list solutions, or only these"
    parser.add_argument("--solutions", "--solution", nargs="*", action=NameList, metavar="NAME", help=listed)
    sized = "list workloads: uuids and sizes"
    parser.add_argument("--workloads", "--workload", dest="lists_workloads", action="store_true", help=sized)
    parser.add_argument("--evaluators", action="store_true", help="which evaluator judges each definition, and why")
    parser.add_argument("--config", metavar="FILE", help="with --evaluators: the run's file, for its evaluator_modules")
    add_names(parser, "--evaluator-modules", "with --evaluators: modules with evaluators of your own")
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the list."""
    if not args.evaluators and (args.config is not None or hasattr(args, "evaluator_modules")):
        raise Misuse("--config and --evaluator-modules say which evaluators there are: give --evaluators too")
    if sum((args.solutions is not None, args.lists_workloads, args.evaluators)) > 1:
        raise Misuse("--solutions, --workloads and --evaluators are lists of their own: give one of them")
    trace_set = open_trace_set(args)
    definitions = choose_definitions(trace_set, args)
    if args.solutions is not None:
        _print(args, "solutions", _list_solutions(args, trace_set, definitions))
    elif args.lists_workloads:
        lines = [line for item in definitions for line in trace_set.workloads.get(item.name, [])]
        rows = [
            {"uuid": line.workload.uuid, "definition": line.definition, "axes": dict(line.workload.axes)}
            for line in lines
        ]
        _print(args, "workloads", rows, {"uuid": "Workload"})
    else:
        _list_definitions(args, trace_set, definitions)
    return 0


def _list_solutions(args: argparse.Namespace, trace_set: TraceSet, definitions: Sequence[Definition]) -> Rows:
    there = [item for group in trace_set.solutions.values() for item in group]
    authors = getattr(args, "authors", None)
    refuse_unknown(
        ("solution", args.solutions, {item.name for item in there}),
        ("author", authors, {item.author for item in there}),
    )
    return [
        {"name": item.name, "definition": item.definition, "author": item.author, "language": item.spec.language.value}
        for definition in definitions
        for item in trace_set.solutions.get(definition.name, [])
        if item.name in (args.solutions or [item.name]) and item.author in (authors or [item.author])
    ]


def _list_definitions(args: argparse.Namespace, trace_set: TraceSet, definitions: Sequence[Definition]) -> None:
    choices: dict[str, EvaluatorChoice] = {}
    if args.evaluators:
        from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins  # needs the engine; other lists do not
        from flashinfer_bench.bench.runner.lookup import look_up_evaluators
        from flashinfer_bench.cli.settings import read_config

        config = read_config(args)
        found = look_up_evaluators(definitions, list_plug_ins(config.evaluator_modules))
        found.check(definitions, config)
        choices = dict(found.choices)
    if args.format == "json":
        document = [
            {
                "name": item.name,
                "op_type": item.op_type,
                "workloads": len(trace_set.workloads.get(item.name, [])),
                "solutions": [solution.name for solution in trace_set.solutions.get(item.name, [])],
                "traces": len(trace_set.traces.get(item.name, [])),
                "not_runnable": item.not_runnable_reason,
                **({"evaluator": asdict(choices[item.name])} if choices else {}),
            }
            for item in definitions
        ]
        write_json({"roots": [str(root) for root in trace_set.roots], "definitions": document})
        return
    there = (trace_set.workloads, trace_set.solutions, trace_set.traces)
    parts: dict[str, Mapping[str, Sequence[object]]] = dict(zip(NUMBERS, there, strict=True))
    rows: Rows = []
    for item in definitions:
        counts = {name: len(part.get(item.name, ())) for name, part in parts.items()}
        chosen = choices.get(item.name)
        further = counts if chosen is None else {"evaluator": chosen.name, "from": chosen.origin, "why": chosen.why}
        rows.append({"definition": item.name, "op type": item.op_type, **further})
    _print(args, "definitions", rows)


def _print(args: argparse.Namespace, key: str, rows: Rows, headings: dict[str, str] | None = None) -> None:
    """Print rows as a table, whose headings are their keys, or as JSON."""
    if args.format == "json":
        write_json({key: rows})
        return
    singular = key.removesuffix("s").capitalize()
    named = {"name": singular, **(headings or {})}
    columns = [
        Column(named.get(name, name[:1].upper() + name[1:]), name in NUMBERS)
        for name in (rows[0] if rows else {"name": ""})
    ]
    cells = [[_cell(value) for value in row.values()] for row in rows]
    write_out(render_table(columns, cells, available_width(sys.stdout)))


def _cell(value: object) -> str:
    return " ".join(f"{name}={size}" for name, size in value.items()) if isinstance(value, dict) else str(value)
