"""`list`: prints definitions of a trace set with counts or evaluators, or prints solutions, or workloads."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import Any, Final

from flashinfer_bench.cli.args import choose_definitions, open_trace_set, refuse_unknown
from flashinfer_bench.cli.parser import NameList, Parser, add_flags, add_format, add_local, add_names
from flashinfer_bench.cli.tables import lay_out, write_result
from flashinfer_bench.errors import UsageError

TABLES: Final = {
    "definitions": {
        "Definition": "{name}",
        "Op type": "{op_type}",
        "#Workloads": "{workloads}",
        "#Solutions": "{solutions}",
        "#Traces": "{traces}",
    },
    "evaluators": {
        "Definition": "{name}",
        "Op type": "{op_type}",
        "Evaluator": "{evaluator[name]}",
        "From": "{evaluator[origin]}",
        "Why": "{evaluator[why]}",
    },
    "solutions": {"Solution": "{name}", "Definition": "{definition}", "Author": "{author}", "Language": "{language}"},
    "workloads": {"Workload": "{uuid}", "Definition": "{definition}", "Axes": "{axes}"},
}
"""Name of a list → the table's columns."""


def declare_list(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "List the definitions with their op type and their numbers of workloads, solutions and traces.\n"
        "Or list the solutions, or the workloads, of these definitions.",
        example="list --local flashinfer-trace --op-types gemm rmsnorm",
        execute=execute,
    )
    add_local(parser)
    add_names(parser, "--definitions")
    add_names(parser, "--op-types")
    add_names(parser, "--authors", "with --solutions: only solutions of these authors")
    listed = "list solutions, or only these"
    parser.add_argument("--solutions", "--solution", nargs="*", action=NameList, metavar="NAME", help=listed)
    sized = "list workloads: uuids and sizes"
    parser.add_argument("--workloads", "--workload", dest="lists_workloads", action="store_true", help=sized)
    flags = {
        "--evaluators": "which evaluator judges each definition, and why",
        "--config FILE": "with --evaluators: the run's file, for its evaluator_modules",
    }
    add_flags(parser, flags)
    add_names(parser, "--evaluator-modules", "with --evaluators: modules with your own evaluators")
    add_format(parser)


def execute(args: Namespace) -> int:
    """Print the list."""
    if not args.evaluators and (args.config is not None or args.evaluator_modules):
        raise UsageError("--config and --evaluator-modules choose evaluators: give --evaluators too")
    if sum((args.solutions is not None, args.lists_workloads, args.evaluators)) > 1:
        raise UsageError("--solutions, --workloads and --evaluators are separate lists: give one of them")
    trace_set = open_trace_set(args)
    definitions = choose_definitions(trace_set, args)
    solutions, workloads = trace_set.solutions, trace_set.workloads
    names = [definition.name for definition in definitions]
    kind, document, rows = "definitions", dict[str, Any](), list[dict[str, Any]]()
    if args.solutions is not None:
        kind, authors = "solutions", args.authors
        known = [item for group in solutions.values() for item in group]
        refuse_unknown(
            ("solution", args.solutions, {item.name for item in known}),
            ("author", authors, {item.author for item in known}),
        )
        for item in (item for name in names for item in solutions.get(name, [])):
            if item.name in (args.solutions or [item.name]) and item.author in (authors or [item.author]):
                row = {key: getattr(item, key) for key in ("name", "definition", "author")}
                rows.append(row | {"language": item.spec.language.value})
    elif args.lists_workloads:
        kind = "workloads"
        for line in (line for name in names for line in workloads.get(name, [])):
            rows.append({"uuid": line.workload.uuid, "definition": line.definition, "axes": dict(line.workload.axes)})
    else:
        document["roots"] = list(map(str, trace_set.roots))
        for name, definition in zip(names, definitions, strict=True):
            row = {"name": name, "op_type": definition.op_type, "workloads": len(workloads.get(name, []))}
            row["solutions"] = [item.name for item in solutions.get(name, [])]
            row["traces"] = len(trace_set.traces.get(name, []))
            rows.append(row | {"not_runnable": definition.not_runnable_reason})
    if args.evaluators:
        from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins  # needs the engine; other lists do not
        from flashinfer_bench.bench.runner.lookup import look_up_evaluators
        from flashinfer_bench.cli.settings import read_config

        config = read_config(args)
        found = look_up_evaluators(definitions, list_plug_ins(config.evaluator_modules))
        found.check(definitions, config)
        for row in rows:
            row["evaluator"] = asdict(found.choices[row["name"]])
    table = lay_out(TABLES["evaluators" if args.evaluators else kind], rows)
    write_result(args, {**document, kind: rows}, table)
    return 0
