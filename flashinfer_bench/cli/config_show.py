"""`config show`: shows every setting and where it comes from, or the settings that one definition runs with."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.config_sources import SECTIONS, flatten
from flashinfer_bench.cli.args import is_set_named, open_trace_set, refuse_unknown
from flashinfer_bench.cli.output import write_result
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_format, add_local
from flashinfer_bench.cli.render import Column, Row, render_table, some
from flashinfer_bench.cli.settings import add_selection, add_settings, naming_flags, read_config
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.errors import Misuse


class Setting(NamedTuple):
    """One value and the source that gave it."""

    name: str
    value: Any
    origin: str


class Subject(NamedTuple):
    """A definition to resolve settings for. The set need not have it."""

    name: str
    op_type: str


Groups = dict[str, list[Setting]]


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
    workloads: Groups = {}
    if name is None and not args.local:
        settings, sections = top_settings(config), dict(section_settings(config, {}))
    elif not is_set_named(args):
        raise Misuse("--definition needs the trace set that has it: give --local PATH")
    else:
        from flashinfer_bench.bench.planning.selection import check_names

        trace_set = open_trace_set(args)
        config = config.for_set(trace_set)
        with naming_flags(args):
            check_names(trace_set, config)
        settings, sections = top_settings(config), dict(section_settings(config, trace_set.definitions))
        if name is not None:
            refuse_unknown(("definition", [name], trace_set.definitions))
            definition = trace_set.definitions[name]
            own = resolved_settings(config.resolve_eval_config(definition)) + _declared_settings(config, definition)
            settled = {one.name for one in own}
            settings, sections = [*(one for one in settings if one.name not in settled), *own], {}
            workloads = dict(_workload_settings(trace_set, config, definition))
    alike = defaultdict(list)
    for uuid, stated in workloads.items():
        alike[tuple(stated)].append(uuid)
    joined = {f"workload {some(uuids, 1)}": list(stated) for stated, uuids in alike.items()}
    rows: list[Row] = []
    for heading, group in ({"": settings} | sections | joined).items():
        rows += [heading] if heading else []
        indent = "  " if heading else ""
        rows += [[f"{indent}{one.name}", format_value(one.value), one.origin] for one in group]
    document = {"definition": name, "settings": _document(settings)}
    for kind, groups in (("sections", sections), ("workloads", workloads)):
        document[kind] = {heading: _document(group) for heading, group in groups.items()}
    write_result(args, document, render_table(list(map(Column, ("Setting", "Value", "From"))), rows))
    return 0


def _declared_settings(config: BenchmarkConfig, definition: Definition) -> list[Setting]:
    """Return what an evaluator from outside declares and nothing gives. Only if there are such is it asked."""
    from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins
    from flashinfer_bench.bench.runner.lookup import look_up_evaluators

    plug_ins = list_plug_ins(config.evaluator_modules)
    if not plug_ins:
        return []
    found = look_up_evaluators([definition], plug_ins)
    found.check([definition], config)
    choice, given = found.choices[definition.name], config.resolve_eval_config(definition).extra
    return [
        Setting(f"extra.{key}", one.default, f"{choice.name}'s default" if one.has_default else "default")
        for key, one in (choice.parameters or {}).items()
        if key not in given
    ]


def _workload_settings(
    trace_set: TraceSet, config: BenchmarkConfig, definition: Definition
) -> Iterator[tuple[str, list[Setting]]]:
    """Yield the settings that workloads state in their lines, by uuid, with what they come to."""
    from flashinfer_bench.bench.tolerances import own_tolerance

    for line in trace_set.workloads.get(definition.name, []):
        tolerance = own_tolerance(trace_set, definition.name, line.workload)
        if tolerance is not None:
            settings = resolved_settings(config.resolve_eval_config(definition, tolerance))
            yield line.workload.uuid, [setting for setting in settings if setting.name in tolerance]


def _document(settings: list[Setting]) -> dict[str, Any]:
    return {one.name: {"value": one.value, "origin": one.origin} for one in settings}


def top_settings(config: BenchmarkConfig) -> list[Setting]:
    """Return every setting outside the sections: those of the run, then those of definitions, `extra` key by key."""
    resolved = resolved_settings(config.resolve_eval_config(Subject("", "")))
    settled = {one.name for one in resolved}
    of_run = [
        Setting(name, getattr(config, name), _tell_origin(origin))
        for name, origin in config.origins().items()
        if name not in settled
    ]
    return of_run + resolved


def resolved_settings(resolved: ResolvedEvalConfig) -> list[Setting]:
    """Return the settings of one definition, with `extra` key by key."""
    values = flatten(resolved.values())
    return [Setting(name, value, _tell_origin(resolved.origins.get(name, ""))) for name, value in values.items()]


def section_settings(
    config: BenchmarkConfig, definitions: Mapping[str, Definition]
) -> Iterator[tuple[str, list[Setting]]]:
    """Yield each section by its dotted name with the settings that it decides.

    Args:
        config: the settings.
        definitions: those of the set, where one is open. Another source's section of the op type may decide a
            setting of the definition.
    """
    for section in SECTIONS:
        for key in getattr(config, section):
            op_type = definitions[key].op_type if key in definitions else ""
            subject = Subject("", key) if section == SECTIONS[0] else Subject(key, op_type)
            places = {_tell_origin(place) for place, name in config.section_places(section) if name == key}
            settings = resolved_settings(config.resolve_eval_config(subject))
            yield f"{section}.{key}", [setting for setting in settings if setting.origin in places]


def format_value(value: Any) -> str:
    """Return a value as it is written in the file, or "not set"."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def _tell_origin(origin: str) -> str:
    return "flag" if origin == "override" else origin
