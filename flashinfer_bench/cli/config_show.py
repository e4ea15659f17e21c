"""`config show`: shows every setting and where it comes from, or the settings that one definition runs with."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from flashinfer_bench.cli.args import describe_unknown, is_set_named, open_trace_set
from flashinfer_bench.cli.output import write_json, write_out
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_format, add_local
from flashinfer_bench.cli.render import Column, Row, available_width, count, render_table
from flashinfer_bench.cli.settings import (
    Setting,
    add_selection,
    add_settings,
    format_value,
    naming_flags,
    read_config,
    resolved_settings,
    section_settings,
    top_settings,
)
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.errors import ConfigError, Misuse

if TYPE_CHECKING:
    from flashinfer_bench.bench.config import BenchmarkConfig

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


def execute(args: argparse.Namespace) -> int:
    """Print the settings."""
    groups, by_workload = _groups(args, read_config(args))
    if args.format == "json":
        write_json(_document(args.definition, groups, by_workload))
        return 0
    rows: list[Row] = []
    for heading, settings in {**groups, **_join_workloads(by_workload)}.items():
        rows += [heading] if heading else []
        indent = "  " if heading else ""
        rows += [[f"{indent}{setting.name}", format_value(setting.value), setting.origin] for setting in settings]
    write_out(render_table([Column("Setting"), Column("Value"), Column("From")], rows, available_width(sys.stdout)))
    return 0


def _groups(args: argparse.Namespace, config: BenchmarkConfig) -> tuple[Groups, Groups]:
    """Return settings by heading, and what workloads of the definition say themselves, by uuid.

    Where a set is named, check that it has what the configuration names.
    """
    if args.definition is None and not args.local:
        return {"": top_settings(config), **dict(section_settings(config, {}))}, {}
    if not is_set_named(args):
        raise Misuse("--definition needs the trace set that has it: give --local PATH")
    from flashinfer_bench.bench.planning.selection import check_names

    trace_set = open_trace_set(args)
    config = config.for_set(trace_set)
    with naming_flags(args):
        check_names(trace_set, config)
    if args.definition is None:
        op_types = {name: definition.op_type for name, definition in trace_set.definitions.items()}
        return {"": top_settings(config), **dict(section_settings(config, op_types))}, {}
    if args.definition not in trace_set.definitions:
        raise ConfigError(describe_unknown("definition", args.definition, trace_set.definitions, "--definition"))
    definition = trace_set.definitions[args.definition]
    own = [*resolved_settings(config.resolve_eval_config(definition)), *_declared_settings(config, definition)]
    settled = {setting.name for setting in own}
    general = [setting for setting in top_settings(config) if setting.name not in settled]
    heading = f"{definition.name} (op type {definition.op_type})"
    return {"": general, heading: own}, _workload_settings(trace_set, config, definition)


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


def _workload_settings(trace_set: TraceSet, config: BenchmarkConfig, definition: Definition) -> Groups:
    """Return the settings that workloads state in their lines, by uuid, with what they come to."""
    from flashinfer_bench.bench.tolerances import own_tolerance

    found: Groups = {}
    for line in trace_set.workloads.get(definition.name, []):
        tolerance = own_tolerance(trace_set, definition.name, line.workload)
        if tolerance is not None:
            settings = resolved_settings(config.resolve_eval_config(definition, tolerance))
            found[line.workload.uuid] = [setting for setting in settings if setting.name in tolerance]
    return found


def _join_workloads(by_workload: Groups) -> Groups:
    """Put workloads of equal settings under one heading."""
    alike: dict[tuple[Setting, ...], list[str]] = {}
    for uuid, settings in by_workload.items():
        alike.setdefault(tuple(settings), []).append(uuid)
    joined: Groups = {}
    for settings_of_all, uuids in alike.items():
        others = f" and {count(len(uuids) - 1, 'other')}" if len(uuids) > 1 else ""
        joined[f"workload {uuids[0]}{others}"] = list(settings_of_all)
    return joined


def _document(definition: str | None, groups: Groups, by_workload: Groups) -> dict[str, Any]:
    told, workloads = (
        {heading: {one.name: {"value": one.value, "origin": one.origin} for one in items} for heading, items in it}
        for it in (groups.items(), by_workload.items())
    )
    if definition is None:
        return {"definition": None, "settings": told.pop(""), "sections": told}
    settings = {name: item for group in told.values() for name, item in group.items()}
    return {"definition": definition, "settings": settings, "workloads": workloads}
