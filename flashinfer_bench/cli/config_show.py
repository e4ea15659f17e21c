"""`config show`: shows every setting and where it comes from, or the settings that one definition runs with."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flashinfer_bench.bench.config import BenchmarkConfig, NamedDefinition
from flashinfer_bench.bench.config_sources import DEFINITIONS, SECTIONS, flatten
from flashinfer_bench.bench.tolerances import own_tolerance
from flashinfer_bench.cli.args import is_set_named, open_trace_set, refuse_unknown
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_format, add_local
from flashinfer_bench.cli.render import Column, Row, render_table, write_result
from flashinfer_bench.cli.settings import add_selection, add_settings, naming_flags, read_config
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.errors import Misuse


class Subject(NamedTuple):
    """A definition to resolve settings for. The set need not have it."""

    name: str
    op_type: str


Settings = dict[str, tuple[Any, str]]
"""Setting → its value and the source that gave it."""


def declare_config(parser: Parser) -> None:
    """Add the help and the sub-command."""
    example = f"{PROGRAM} config show --definition gemm_n128_k4096 --local flashinfer-trace"
    parser.describe("Show settings.", example=example)
    show = parser.add_commands().add_parser("show", help="show every setting and where it comes from")
    show.describe(
        "Show every setting with its origin; with --definition, those that this definition runs with.",
        usage="%(prog)s [--definition NAME --local PATH] [flags]",
        example=f"{example} --rtol 0.001",
        execute=execute,
    )
    show.add_argument("--definition", metavar="NAME", help="resolve the settings of this definition")
    add_local(show)
    add_selection(show)
    add_settings(show)
    add_format(show)


def execute(args: Namespace) -> int:
    """Print the settings. Where a set is named, check that it has what the configuration names."""
    config, name = read_config(args), args.definition
    trace_set: TraceSet | None = None
    if name is not None or args.local:
        if not is_set_named(args):
            raise Misuse("--definition needs the trace set that has it: give --local PATH")
        from flashinfer_bench.bench.planning.selection import check_names

        trace_set = open_trace_set(args)
        config = config.for_set(trace_set)
        with naming_flags(args):
            check_names(trace_set, config)
    definitions = {} if trace_set is None else trace_set.definitions
    settings = {key: (getattr(config, key), origin) for key, origin in config.origins().items() if hasattr(config, key)}
    settings |= _resolve(config, Subject("", ""))
    sections, workloads = dict(_list_sections(config, definitions)), dict[str, Settings]()
    if name is not None and trace_set is not None:
        refuse_unknown(("definition", [name], definitions))
        declared = _list_declared(config, definitions[name])
        settings |= declared | _resolve(config, definitions[name])
        sections, workloads = {}, dict(_list_workloads(trace_set, config, definitions[name]))
    rows: list[Row] = []
    for heading, group in (
        {"": settings} | sections | {f"workload {uuid}": one for uuid, one in workloads.items()}
    ).items():
        rows += [heading] if heading else []
        rows += [
            [f"  {key}" if heading else key, _as_text(value), _name_of(origin)]
            for key, (value, origin) in group.items()
        ]
    document = {"definition": name, "settings": _document(settings)}
    for kind, groups in (("sections", sections), ("workloads", workloads)):
        document[kind] = {heading: _document(group) for heading, group in groups.items()}
    write_result(args, document, render_table(list(map(Column, ("Setting", "Value", "From"))), rows))
    return 0


def _document(settings: Settings) -> dict[str, Any]:
    return {key: {"value": value, "origin": _name_of(origin)} for key, (value, origin) in settings.items()}


def _as_text(value: Any) -> str:
    """Return a value as it is written in the file, or "not set"."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def _name_of(origin: str) -> str:
    return "flag" if origin == "override" else origin


def _resolve(config: BenchmarkConfig, subject: NamedDefinition, tolerance: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a definition or a workload, with `extra` key by key."""
    resolved = config.resolve_eval_config(subject, tolerance)
    return {key: (value, resolved.origins.get(key, "")) for key, value in flatten(resolved.values()).items()}


def _list_sections(config: BenchmarkConfig, definitions: Mapping[str, Definition]) -> Iterator[tuple[str, Settings]]:
    """Yield each section by its dotted name with the settings that it decides.

    Args:
        config: the settings.
        definitions: those of the set, where one is open. Another source's section of the op type may decide a
            setting of the definition.
    """
    for section in SECTIONS:
        for key in getattr(config, section):
            subject = definitions.get(key, Subject(key, "")) if section == DEFINITIONS else Subject("", key)
            places = {place for place, name in config.section_places(section) if name == key}
            yield f"{section}.{key}", {name: it for name, it in _resolve(config, subject).items() if it[1] in places}


def _list_declared(config: BenchmarkConfig, definition: Definition) -> Settings:
    """Return what an evaluator from outside declares. Only if there are such is it asked."""
    from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins
    from flashinfer_bench.bench.runner.lookup import look_up_evaluators

    plug_ins = list_plug_ins(config.evaluator_modules)
    if not plug_ins:
        return {}
    found = look_up_evaluators([definition], plug_ins)
    found.check([definition], config)
    choice = found.choices[definition.name]
    return {
        f"extra.{key}": (one.default, f"{choice.name}'s default" if one.has_default else "default")
        for key, one in (choice.parameters or {}).items()
    }


def _list_workloads(
    trace_set: TraceSet, config: BenchmarkConfig, definition: Definition
) -> Iterator[tuple[str, Settings]]:
    """Yield the settings that workloads state in their lines, by uuid, with what they come to."""
    for line in trace_set.workloads.get(definition.name, []):
        tolerance = own_tolerance(trace_set, definition.name, line.workload)
        if tolerance is not None:
            settings = _resolve(config, definition, tolerance)
            yield line.workload.uuid, {key: settings[key] for key in tolerance}
