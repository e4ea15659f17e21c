"""`show`: one definition, solution or workload of a set, with its verdicts and the next commands."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.tolerances import own_tolerance
from flashinfer_bench.cli.args import choose_definitions, open_trace_set
from flashinfer_bench.cli.output import RAN, write_json, write_out, write_styled
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_flags, add_format, add_local, add_names
from flashinfer_bench.cli.settings import Settings, resolve_settings, value_as_text
from flashinfer_bench.cli.tables import Names, join_sections, lay_out, render_table, shorten_uuid, some
from flashinfer_bench.cli.verdicts import name_jobs, render_summary, render_verdicts
from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.trace_lines import AnyTrace, kept_of
from flashinfer_bench.data.workload import MIN_PREFIX, InputSpec, SafetensorsInput, ScalarInput
from flashinfer_bench.errors import DataSetError, UsageError
from flashinfer_bench.report.summary import WorkloadRow, best_by_workload, by_workload, summarise

TOLERANCE: Final = ("rtol", "atol", "required_matched_ratio")
"""The settings of a tolerance, besides the parameters of the evaluator."""
SHOWN_SIZES: Final = 8
MOST_COLOURED: Final = 40_000
"""Longest coloured source, in characters. Lexers are slow on unusual texts."""
AXES: Final = {"Axis": "{name}", "Kind": "{kind}", "Size": "{size}", "Description": "{description}"}
TENSORS: Final = {
    "Name": "{name}",
    "Kind": "{kind}",
    "Shape": "{shape}",
    "Dtype": "{dtype}",
    "Source": "{source}",
    "Description": "{description}",
}
WORKLOADS: Final = {
    "Workload": "{name}",
    "Uuid": "{uuid:uuid}",
    "Fastest": "{solution}",
    "#Latency": "{latency_ms:ms}",
    "#Speed-up": "{speedup:x}",
    "Hardware": "{hardware}",
}


class View(NamedTuple):
    """An object of a set, ready to print."""

    document: dict[str, Any]
    head: str
    sources: Mapping[str, str]
    """Path → source code."""
    tail: str
    following: Sequence[Sequence[str]]
    """Words of the next commands, without the set."""


def declare_show(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show a definition, a solution or a workload: what it is, its latest verdicts, and the next commands.\n"
        "A workload is named by its uuid, the beginning of its uuid, or its axes, such as batch_size=7.",
        example="show rmsnorm_h4096 --local flashinfer-trace",
        execute=execute,
    )
    add_flags(parser, {"NAME": "a definition, a solution or a workload"})
    add_local(parser)
    add_names(parser, "--definitions", "search for a solution or a workload only in these definitions")
    add_format(parser)


def execute(args: Namespace) -> int:
    """Print the object of this name."""
    trace_set = open_trace_set(args)
    view = _find(trace_set, args.name, choose_definitions(trace_set, args))
    roots = [word for root in trace_set.roots for word in ("--local", str(root))]
    following = [shlex.join([PROGRAM, *words, *roots]) for words in view.following]
    if args.format == "json":
        write_json({**view.document, "next": following})
        return RAN
    write_out(view.head)
    for path, source in view.sources.items():
        write_out(f"\n{path}\n{'─' * len(path)}\n")
        _write_source(source.rstrip() + "\n", path)
    write_out("\n" + join_sections(view.tail, [f"next: {command}" for command in following]))
    return RAN


def _write_source(text: str, path: str) -> None:
    """Write source code to stdout. On a terminal its syntax is coloured, unless it is long."""
    if not sys.stdout.isatty() or len(text) > MOST_COLOURED:
        write_out(text)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    shown = "\n".join(map(to_printable, text.expandtabs().split("\n")))
    console = Console(file=sys.stdout)
    with console.capture() as captured:
        lexer = Syntax.guess_lexer(path)
        console.print(Syntax(shown, lexer, theme="ansi_dark", background_color="default", word_wrap=True))
    write_styled(captured.get())


def _find(trace_set: TraceSet, name: str, definitions: Sequence[Definition]) -> View:
    """Return the view of a name.

    Raises:
        DataSetError: the set has no object of this name.
        UsageError: several workloads have this name.
    """
    if (definition := trace_set.definitions.get(name)) is not None:
        return _view_definition(trace_set, definition)
    solutions = [one for definition in definitions for one in trace_set.solutions.get(definition.name, [])]
    for solution in solutions:
        if solution.name == name:
            return _view_solution(trace_set, solution)
    workloads = [(one, line.workload) for one in definitions for line in trace_set.workloads.get(one.name, [])]
    found = [pair for pair in workloads if pair[1].uuid == name] or [
        pair for pair in workloads if _is_called(pair[1], name)
    ]
    if len(found) > 1:
        listed = some([f"{shorten_uuid(workload.uuid)} of {definition.name}" for definition, workload in found])
        raise UsageError(f"{name!r} names several workloads: {listed}; give more of the uuid, or --definition")
    if found:
        return _view_workload(trace_set, *found[0])
    known = [*trace_set.definitions, *(one.name for one in solutions), *(workload.uuid for _, workload in workloads)]
    hint = did_you_mean(name, known) or f"; `{PROGRAM} list` shows what there is"
    raise DataSetError(f"the trace set has no definition, solution or workload {name!r}{hint}")


def _is_called(workload: Workload, name: str) -> bool:
    """Return whether a name has axes of a workload, or the beginning of its uuid, and no other word."""
    sizes = {f"{axis}={size}" for axis, size in workload.axes.items()}
    words = name.split()
    starts = [word for word in words if word not in sizes]
    return bool(words) and all(len(word) >= MIN_PREFIX and workload.uuid.startswith(word) for word in starts)


def _view_definition(trace_set: TraceSet, definition: Definition) -> View:
    name = definition.name
    lines = sorted(trace_set.workloads.get(name, []), key=lambda line: [*line.workload.axes.items()])
    traces = list(kept_of(trace_set.traces.get(name, [])))
    names, uuids = _name_workloads(trace_set, name, traces), [line.workload.uuid for line in lines]
    best = best_by_workload(traces, trace_set=trace_set)
    workloads = list[dict[str, Any]]()
    for line in lines:
        row = {"name": names[name, line.workload.uuid], "uuid": line.workload.uuid, "axes": dict(line.workload.axes)}
        fastest = [one for one in best if one.workload == line.workload.uuid]
        keys = ("solution", "latency_ms", "speedup", "hardware")
        workloads += [row | {key: getattr(one, key) for key in keys} for one in fastest] or [row | dict.fromkeys(keys)]
    seen = {axis: _list_sizes(line.workload.axes.get(axis) for line in lines) for axis in definition.axes}
    axes = [
        {
            "name": axis,
            "kind": spec.type,
            "size": str(getattr(spec, "value", "") or getattr(spec, "expression", "") or seen[axis]),
            "description": spec.description or "",
        }
        for axis, spec in definition.axes.items()
    ]
    settings = _find_tolerance(trace_set, definition)
    rows = summarise(traces, {(name, one.name): uuids for one in trace_set.solutions.get(name, [])})
    head = [f"{name}: definition of op type {definition.op_type}", definition.description or ""]
    problem = definition.not_runnable_reason
    return View(
        {
            "kind": "definition",
            "definition": definition.to_dict(),
            "tolerance": settings,
            "workloads": workloads,
            "solutions": list(map(asdict, rows)),
        },
        join_sections(
            [*filter(None, head), *([f"it cannot be run: {problem}"] if problem else [])],
            lay_out(AXES, axes, spared=()),
            lay_out(TENSORS, _list_tensors(definition), spared=()),
            [f"constraint: {one}" for one in definition.constraints],
            _render_settings(settings),
        ),
        {"reference.py": definition.reference},
        join_sections(
            lay_out(WORKLOADS, workloads, spared=()),
            render_summary(rows, names) if rows else "",
        ),
        [
            ["report", "table", name] if traces else ["run", "--definitions", name],
            ["new", "solution", "--definition", name],
            *([["show", rows[0].solution]] if rows else []),
        ],
    )


def _view_solution(trace_set: TraceSet, solution: Solution) -> View:
    name, spec = solution.name, solution.spec
    traces = [one for one in kept_of(trace_set.traces.get(solution.definition, [])) if one.solution == name]
    rows = by_workload(traces, trace_set)
    fields = {
        "author": solution.author,
        "language": spec.language.value,
        "entry point": spec.entry_point,
        "hardware": ", ".join(spec.target_hardware),
        "dependencies": ", ".join(spec.dependencies),
        "binding": spec.binding.value if spec.binding is not None else "",
        "file": str(trace_set.solution_files.get(name, "")),
    }
    names = _name_workloads(trace_set, solution.definition, traces)
    failed = next((row.workload for row in rows if row.status != "PASSED"), None)
    following = [["run", "--solutions", name], ["show", solution.definition]]
    return View(
        {"kind": "solution", "solution": solution.to_dict(), "verdicts": _list_verdicts(rows)},
        join_sections(
            [f"{name}: solution of {solution.definition}", *([solution.description] if solution.description else [])],
            render_table(["Field", "Value"], [item for item in fields.items() if item[1]]),
        ),
        {source.path: source.content for source in solution.sources},
        render_verdicts(rows, names, "Workload"),
        [*([["repro", name, failed, "--dump", "why"]] if failed else []), *following],
    )


def _view_workload(trace_set: TraceSet, definition: Definition, workload: Workload) -> View:
    name, uuid = definition.name, workload.uuid
    traces = [one for one in kept_of(trace_set.traces.get(name, [])) if one.workload.uuid == uuid]
    rows = by_workload(traces, trace_set)
    names = _name_workloads(trace_set, name, traces)
    settings = _find_tolerance(trace_set, definition, workload)
    axes = {axis: workload.axes[axis] for axis in definition.var_axes if axis in workload.axes}
    return View(
        {
            "kind": "workload",
            "definition": name,
            "workload": workload.to_dict(),
            "tolerance": settings,
            "verdicts": _list_verdicts(rows),
        },
        join_sections(
            [f"{names[name, uuid]}: workload {uuid} of {name}"],
            lay_out({"Axis": "{name}", "#Size": "{size}"}, [{"name": axis, "size": axes[axis]} for axis in axes]),
            lay_out(TENSORS, _list_tensors(definition, workload), spared=()),
            _render_settings(settings),
        ),
        {},
        render_verdicts(rows, names, "Solution"),
        [["run", "--workloads", uuid], ["show", name]],
    )


def _list_sizes(sizes: Iterable[int | None]) -> str:
    return some([str(size) for size in sorted({size for size in sizes if size is not None})], SHOWN_SIZES)


def _name_workloads(trace_set: TraceSet, definition: str, traces: Sequence[AnyTrace]) -> Names:
    return name_jobs([*trace_set.workloads.get(definition, []), *traces])


def _find_tolerance(trace_set: TraceSet, definition: Definition, workload: Workload | None = None) -> Settings:
    """Return the tolerance of a definition or a workload, and the parameters of its evaluator, with origins."""
    own = own_tolerance(trace_set, definition.name, workload) if workload is not None else None
    settings = resolve_settings(BenchmarkConfig.default().for_set(trace_set), definition, own)
    return {key: one for key, one in settings.items() if key in TOLERANCE or key.startswith("extra.")}


def _render_settings(settings: Settings) -> str:
    rows = [[key, value_as_text(one["value"]), one["origin"]] for key, one in settings.items()]
    return render_table(["Setting", "Value", "From"], rows)


def _list_tensors(definition: Definition, workload: Workload | None = None) -> list[dict[str, str]]:
    """Return the inputs and outputs of a definition; for a workload with sizes and the source of each input."""
    sizes: Mapping[str, int] = {} if workload is None else workload.axes
    with suppress(ValueError):  # an axis without a size is shown by its name
        sizes = sizes and definition.bind_axes(sizes)
    rows = []
    for kind, specs in (("input", definition.inputs), ("output", definition.outputs)):
        for name, spec in specs.items():
            source = workload.inputs.get(name) if workload is not None and kind == "input" else None
            shape = None if spec.shape is None else ", ".join(str(sizes.get(axis, axis)) for axis in spec.shape)
            rows.append(
                {
                    "name": name,
                    "kind": f"optional {kind}" if spec.optional else kind,
                    "shape": "scalar" if shape is None else f"[{shape}]",
                    "dtype": spec.dtype,
                    "source": _describe_source(source) if workload is not None and kind == "input" else "",
                    "description": spec.description or "",
                }
            )
    return rows


def _describe_source(source: InputSpec | None) -> str:
    match source:
        case ScalarInput():
            return str(source.value)
        case SafetensorsInput():
            return f"{source.path}: {source.tensor_key}"
        case None:
            return "random"
        case _:
            return source.type


def _list_verdicts(rows: Sequence[WorkloadRow]) -> list[dict[str, Any]]:
    keys = ("solution", "workload", "axes", "hardware", "status", "latency_ms", "speedup", "is_best", "is_tie")
    return [
        {key: getattr(row, key) for key in keys} | {"reason": row.failures[0].reason if row.failures else None}
        for row in rows
    ]
