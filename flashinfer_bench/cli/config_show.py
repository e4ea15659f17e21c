"""`config show`: shows every setting and where it comes from, or the settings that one definition runs with."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.config_sources import DEFAULT_ORIGIN
from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins
from flashinfer_bench.bench.planning.selection import check_names
from flashinfer_bench.bench.runner.lookup import look_up_evaluators
from flashinfer_bench.bench.tolerances import own_tolerance
from flashinfer_bench.cli.args import describe_unknown
from flashinfer_bench.cli.args import is_set_named, open_trace_set
from flashinfer_bench.cli.settings import Setting, format_value, naming_flags, read_config, resolved_settings, section_settings, top_settings
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.render import Column, Row, available_width, count, render_table
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.errors import ConfigError, Misuse

Groups = dict[str, list[Setting]]


def execute(args: argparse.Namespace) -> int:
    """Print the settings."""
    groups, by_workload = _groups(args, read_config(args))
    if args.format == "json":
        write_out(json.dumps(_document(args.definition, groups, by_workload), indent=2) + "\n")
    else:
        write_out(_text({**groups, **_join_workloads(by_workload)}, available_width(sys.stdout)))
    return 0


def _groups(args: argparse.Namespace, config: BenchmarkConfig) -> tuple[Groups, Groups]:
    """Return settings by heading, and what workloads of the definition say themselves, by uuid.

    Where a set is named, check that it has what the configuration names.
    """
    if args.definition is None and not args.local:
        return {"": top_settings(config), **dict(section_settings(config))}, {}
    if not is_set_named(args):
        raise Misuse("--definition needs the trace set that has it: give --local PATH")
    trace_set = open_trace_set(args)
    config = config.for_set(trace_set)
    with naming_flags(args):
        check_names(trace_set, config)
    if args.definition is None:
        op_types = {name: definition.op_type for name, definition in trace_set.definitions.items()}
        return {"": top_settings(config), **dict(section_settings(config, op_types))}, {}
    definition = _find(trace_set, args.definition)
    own = [*resolved_settings(config.resolve_eval_config(definition)), *_declared_settings(config, definition)]
    settled = {setting.name for setting in own}
    general = [setting for setting in top_settings(config) if setting.name not in settled]
    heading = f"{definition.name} (op type {definition.op_type})"
    return {"": general, heading: own}, _workload_settings(trace_set, config, definition)


def _declared_settings(config: BenchmarkConfig, definition: Definition) -> list[Setting]:
    """Return what an evaluator from outside declares and nothing gives. Only where there are such is it asked."""
    plug_ins = list_plug_ins(config.evaluator_modules)
    if not plug_ins:
        return []
    found = look_up_evaluators([definition], plug_ins)
    found.check([definition], config)
    choice, given = found.choices[definition.name], config.resolve_eval_config(definition).extra
    return [
        Setting(
            f"extra.{key}", parameter.default, f"{choice.name}'s default" if parameter.has_default else DEFAULT_ORIGIN
        )
        for key, parameter in (choice.parameters or {}).items()
        if key not in given
    ]


def _workload_settings(trace_set: TraceSet, config: BenchmarkConfig, definition: Definition) -> Groups:
    """Return the settings that workloads state in their lines, by uuid, with what they come to."""
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


def _find(trace_set: TraceSet, name: str) -> Definition:
    if name not in trace_set.definitions:
        raise ConfigError(describe_unknown("--definition", "definition", name, trace_set.definitions))
    return trace_set.definitions[name]


def _text(groups: Groups, width: int) -> str:
    rows: list[Row] = []
    for heading, settings in groups.items():
        rows += [heading] if heading else []
        indent = "  " if heading else ""
        rows += [[f"{indent}{setting.name}", format_value(setting.value), setting.origin] for setting in settings]
    return render_table([Column("Setting"), Column("Value"), Column("From")], rows, width)


def _document(definition: str | None, groups: Groups, by_workload: Groups) -> dict[str, Any]:
    told, workloads = (
        {
            heading or "settings": {
                setting.name: {"value": setting.value, "origin": setting.origin} for setting in settings
            }
            for heading, settings in some.items()
        }
        for some in (groups, by_workload)
    )
    if definition is None:
        return {"definition": None, "settings": told.pop("settings"), "sections": told}
    return {
        "definition": definition,
        "settings": {name: item for group in told.values() for name, item in group.items()},
        "workloads": workloads,
    }
