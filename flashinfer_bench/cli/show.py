"""`show`: one definition, solution or workload of a set, with its verdicts and the next commands."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from operator import itemgetter
from typing import Any, Final, NamedTuple

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.tolerances import own_tolerance
from flashinfer_bench.cli.args import choose_definitions, open_trace_set
from flashinfer_bench.cli.output import RAN
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_flags, add_format, add_local, add_names
from flashinfer_bench.cli.settings import Settings, render_settings, resolve_settings
from flashinfer_bench.cli.tables import (
    lay_out,
    render_table,
    shorten_uuid,
    some,
    wrap_line,
    write_result,
)
from flashinfer_bench.cli.verdicts import make_grid, name_jobs, render_grid, render_summary, render_verdicts
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.data.definition import AxisSpec
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.sets.weights import weights_of
from flashinfer_bench.data.workload import InputSpec, SafetensorsInput, ScalarInput, find_named
from flashinfer_bench.errors import DataSetError, UsageError
from flashinfer_bench.report.summary import by_workload, summarise

TOLERANCE: Final = ("rtol", "atol", "required_matched_ratio")
"""The settings of a tolerance, besides the parameters of the evaluator."""
SHOWN_NAMES: Final = 12
STYLES: Final = {True: "outputs are the last parameters", False: "outputs are returned", None: "detected"}
"""`destination_passing_style` → description of the style."""
AXES: Final = {"Axis": "{name}", "Kind": "{kind}", "Size": "{size}", "Description": "{description}"}
TENSORS: Final = {
    "Name": "{name}",
    "Kind": "{kind}",
    "Shape": "{shape}",
    "Dtype": "{dtype}",
    "Source": "{source}",
    "Description": "{description}",
}


class View(NamedTuple):
    """An object of a set, ready to print."""

    document: dict[str, Any]
    sections: Sequence[str | Sequence[str]]
    """The text, in sections."""
    following: Sequence[Sequence[str]]
    """Words of the commands to suggest, without the flag that names the set."""


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
    write_result(args, {**view.document, "next": following}, *view.sections, [f"next: {one}" for one in following])
    return RAN


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
    found = find_named(name, workloads, itemgetter(1))
    if len(found) > 1:
        listed = some([f"{shorten_uuid(workload.uuid)} of {definition.name}" for definition, workload in found])
        raise UsageError(f"{name!r} names several workloads: {listed}; give more of the uuid, or --definition")
    if found:
        return _view_workload(trace_set, *found[0])
    known = [*trace_set.definitions, *(one.name for one in solutions), *(workload.uuid for _, workload in workloads)]
    hint = did_you_mean(name, known) or f"; `{PROGRAM} list` shows what there is"
    raise DataSetError(f"the trace set has no definition, solution or workload {name!r}{hint}")


def _view_definition(trace_set: TraceSet, definition: Definition) -> View:
    name, lines = definition.name, trace_set.workloads.get(definition.name, [])
    traces = list(trace_set.all_traces(name))
    results = list_results(trace_set, traces)
    rows, names = by_workload(results), name_jobs([*lines, *traces])
    expected = weights_of(lines)
    wanted = {(name, one.name): expected for one in trace_set.solutions.get(name, [])}
    solutions = summarise(results, wanted, trace_set)
    alike = len({repr(line.workload.tolerance) for line in lines}) == 1
    settings = _find_tolerance(trace_set, definition, lines[0].workload if alike else None)
    weighted = [one.workload for one in lines if one.workload.weight != 1]
    weights = some([f"{names[name, one.uuid]}: {one.weight:g}" for one in weighted], SHOWN_NAMES)
    called = some(list(name_jobs(lines, uuids=True).values()), SHOWN_NAMES)
    next_words = ["report", "table", name] if rows else ["run", "--definitions", name]
    return View(
        {
            "kind": "definition",
            "definition": definition.to_dict(),
            "tolerance": settings,
            "workloads": [line.workload.to_dict() for line in lines],
            "solutions": list(map(asdict, solutions)),
            "verdicts": list(map(asdict, rows)),
        },
        [
            [f"{name}: definition of op type {definition.op_type}", *_if_any("{}", definition.description)],
            _if_any("it cannot be run: {}", definition.not_runnable_reason),
            _if_any("weights: {}", weights),
            lay_out(AXES, [_describe_axis(name, axis, lines) for name, axis in definition.axes.items()], spared=()),
            lay_out(TENSORS, _list_tensors(definition), spared=()),
            [f"constraint: {one}" for one in definition.constraints],
            render_settings({"": settings}),
            [wrap_line(line) for line in _if_any("workloads: {}", called)],
            _render_source("reference.py", definition.reference),
            render_grid(rows, *make_grid(rows, names)) if rows else "",
            render_summary(solutions, names) if solutions else "",
        ],
        [next_words, ["new", "solution", "--definition", name], *(["show", one.solution] for one in solutions[:1])],
    )


def _view_solution(trace_set: TraceSet, solution: Solution) -> View:
    name, spec = solution.name, solution.spec
    traces = [one for one in trace_set.all_traces(solution.definition) if one.solution == name]
    rows = by_workload(list_results(trace_set, traces))
    fields = {
        "author": solution.author,
        "language": spec.language.value,
        "entry point": spec.entry_point,
        "calling style": STYLES[spec.declared_style],
        "hardware": ", ".join(spec.target_hardware),
        "dependencies": ", ".join(spec.dependencies),
        "binding": spec.binding and spec.binding.value,
        "file": str(trace_set.solution_files.get(name, "")),
    }
    failed = [row.workload for row in rows if row.failures][:1]
    return View(
        {"kind": "solution", "solution": solution.to_dict(), "verdicts": list(map(asdict, rows))},
        [
            [f"{name}: solution of {solution.definition}", *_if_any("{}", solution.description)],
            render_table(["Field", "Value"], [[field, value] for field, value in fields.items() if value]),
            *(_render_source(source.path, source.content) for source in solution.sources),
            render_verdicts(rows, name_jobs([*trace_set.workloads.get(solution.definition, []), *traces]), "Workload"),
        ],
        [
            *(["repro", name, uuid, "--dump", "why"] for uuid in failed),
            ["run", "--solutions", name],
            ["show", solution.definition],
        ],
    )


def _view_workload(trace_set: TraceSet, definition: Definition, workload: Workload) -> View:
    name, uuid, lines = definition.name, workload.uuid, trace_set.workloads[definition.name]
    traces = [one for one in trace_set.all_traces(name) if one.workload.uuid == uuid]
    rows, names = by_workload(list_results(trace_set, traces)), name_jobs(lines)
    settings = _find_tolerance(trace_set, definition, workload)
    own = [line for line in lines if line.workload.uuid == uuid]
    axes = [_describe_axis(axis, definition.axes[axis], own) for axis in definition.var_axes]
    document = {"kind": "workload", "definition": name, "workload": workload.to_dict(), "tolerance": settings}
    return View(
        document | {"verdicts": list(map(asdict, rows))},
        [
            [f"{names[name, uuid]}: workload {uuid} of {name}"],
            [f"weight: {workload.weight:g}"] if workload.weight != 1 else [],
            lay_out(AXES, axes, spared=()),
            lay_out(TENSORS, _list_tensors(definition, workload), spared=()),
            render_settings({"": settings}),
            render_verdicts(rows, names, "Solution"),
        ],
        [["run", "--workloads", uuid], ["show", name]],
    )


def _if_any(form: str, value: str | None) -> list[str]:
    return [form.format(value)] if value else []


def _render_source(path: str, source: str) -> str:
    return f"{path}\n{'─' * len(path)}\n{source.rstrip()}\n"


def _describe_axis(name: str, axis: AxisSpec, lines: Sequence[Trace]) -> dict[str, str]:
    """Return the cells of an axis. The cell of a var axis has the sizes of the workloads."""
    sizes = sorted({line.workload.axes[name] for line in lines if name in line.workload.axes})
    size = getattr(axis, "value", None) or getattr(axis, "expression", None) or some(list(map(str, sizes)), SHOWN_NAMES)
    return {"name": name, "kind": axis.type, "size": str(size), "description": axis.description or ""}


def _find_tolerance(trace_set: TraceSet, definition: Definition, workload: Workload | None = None) -> Settings:
    """Return the tolerance of a definition or workload, and the parameters of the definition's evaluator, with
    origins."""
    own = own_tolerance(trace_set, definition.name, workload) if workload is not None else None
    settings = resolve_settings(BenchmarkConfig.default().for_set(trace_set), definition, own)
    return {key: one for key, one in settings.items() if key in TOLERANCE or key.startswith("extra.")}


def _list_tensors(definition: Definition, workload: Workload | None = None) -> list[dict[str, str]]:
    """Return the inputs and outputs of a definition. A workload adds the sizes, and the source of each input."""
    sizes: Mapping[str, int] = {} if workload is None else workload.axes
    with suppress(ValueError):  # an axis without a size is shown by its name
        sizes = sizes and definition.bind_axes(sizes)
    rows = []
    for kind, specs in (("input", definition.inputs), ("output", definition.outputs)):
        for name, spec in specs.items():
            shape = (
                f"[{', '.join(str(sizes.get(axis, axis)) for axis in spec.shape)}]" if spec.shape is not None else ""
            )
            rows.append(
                {
                    "name": name,
                    "kind": f"optional {kind}" if spec.optional else kind,
                    "shape": shape or "scalar",
                    "dtype": spec.dtype,
                    "source": _describe_source(workload.inputs.get(name)) if workload and kind == "input" else "",
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
