"""`list`: shows the definitions of a trace set with counts or evaluators; or its solutions, or its workloads."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import Any, Final

from flashinfer_bench.cli.args import choose_definitions, open_trace_set, refuse_unknown
from flashinfer_bench.cli.parser import PROGRAM, NameList, Parser, add_format, add_local, add_names
from flashinfer_bench.cli.render import render_rows, write_result
from flashinfer_bench.errors import Misuse

TABLES: Final = {
    "definitions": {
        "Definition": "name",
        "Op type": "op_type",
        "Workloads": "workloads",
        "Solutions": "solutions",
        "Traces": "traces",
    },
    "evaluators": {
        "Definition": "definition",
        "Op type": "op_type",
        "Evaluator": "name",
        "From": "origin",
        "Why": "why",
    },
    "solutions": {"Solution": "name", "Definition": "definition", "Author": "author", "Language": "language"},
    "workloads": {"Workload": "uuid", "Definition": "definition", "Axes": "axes"},
}
"""Each list → headings of its table → keys of its rows."""


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


def execute(args: Namespace) -> int:
    """Print the list."""
    if not args.evaluators and (args.config is not None or hasattr(args, "evaluator_modules")):
        raise Misuse("--config and --evaluator-modules say which evaluators there are: give --evaluators too")
    if sum((args.solutions is not None, args.lists_workloads, args.evaluators)) > 1:
        raise Misuse("--solutions, --workloads and --evaluators are lists of their own: give one of them")
    trace_set = open_trace_set(args)
    definitions = choose_definitions(trace_set, args)
    document: dict[str, Any] = {}
    if args.solutions is not None:
        kind, there = "solutions", [item for group in trace_set.solutions.values() for item in group]
        authors = getattr(args, "authors", None)
        refuse_unknown(
            ("solution", args.solutions, {item.name for item in there}),
            ("author", authors, {item.author for item in there}),
        )
        rows = [
            {
                **{key: getattr(item, key) for key in ("name", "definition", "author")},
                "language": item.spec.language.value,
            }
            for definition in definitions
            for item in trace_set.solutions.get(definition.name, [])
            if item.name in (args.solutions or [item.name]) and item.author in (authors or [item.author])
        ]
    elif args.lists_workloads:
        kind, lines = "workloads", [line for item in definitions for line in trace_set.workloads.get(item.name, [])]
        rows = [
            {"uuid": line.workload.uuid, "definition": line.definition, "axes": dict(line.workload.axes)}
            for line in lines
        ]
    else:
        kind, document = "definitions", {"roots": list(map(str, trace_set.roots))}
        rows = [
            {
                "name": item.name,
                "op_type": item.op_type,
                "workloads": len(trace_set.workloads.get(item.name, [])),
                "solutions": [solution.name for solution in trace_set.solutions.get(item.name, [])],
                "traces": len(trace_set.traces.get(item.name, [])),
                "not_runnable": item.not_runnable_reason,
            }
            for item in definitions
        ]
    shown = rows
    if args.evaluators:
        from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins  # needs the engine; other lists do not
        from flashinfer_bench.bench.runner.lookup import look_up_evaluators
        from flashinfer_bench.cli.settings import read_config

        config = read_config(args)
        found = look_up_evaluators(definitions, list_plug_ins(config.evaluator_modules))
        found.check(definitions, config)
        for row in rows:
            row["evaluator"] = asdict(found.choices[row["name"]])
        shown = [{**row, "definition": row["name"], **row["evaluator"]} for row in rows]
    table = render_rows(shown, TABLES["evaluators" if args.evaluators else kind])
    write_result(args, {**document, kind: rows}, table)
    return 0
