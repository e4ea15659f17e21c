"""Settings of a command: flags, values and origins.

A field of `BenchmarkConfig` becomes a flag with the field's name, kind and docstring. Only given flags override
settings. The fields check the values of flags. `config show` prints each setting with its origin.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError

from flashinfer_bench.bench.config import BenchmarkConfig, NamedDefinition, describe_problems
from flashinfer_bench.bench.config_sources import DEFINITIONS, SECTIONS, flatten
from flashinfer_bench.bench.tolerances import find_tolerances, own_tolerance, read_own_tolerances
from flashinfer_bench.cli.args import is_set_named, open_trace_set, refuse_unknown
from flashinfer_bench.cli.parser import NAMED, Parser, add_filters, add_flags, add_format, add_local, add_names
from flashinfer_bench.cli.tables import count, render_table, write_result
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.errors import ConfigError, UsageError

OTHER_NAMES: Final = {"timeout_seconds": "timeout", "cluster_address": "address"}
"""Field → flag, for fields whose flags have a different name."""
SETTING: Final = re.compile(rf"^(?:override: )?({'|'.join(BenchmarkConfig.model_fields)})(?=[:.])")
"""A setting at the beginning of an error message."""
METAVARS: Final = {int: "N", float: "F"}
NOT_ABOUT_VERDICTS: Final = (*NAMED, "cluster", "cluster_address", "shared_blobs")
"""Settings that choose jobs and devices."""
CONFIG_FLAG: Final = {"--config FILE": "a YAML file instead of the bundled eval_config.yaml"}
Settings = dict[str, dict[str, Any]]
"""Setting → value and origin."""


class Subject(NamedTuple):
    """A definition whose settings are resolved. The set may lack this definition."""

    name: str
    op_type: str


def flag_of(name: str) -> str:
    """Return the flag of a field. The flag of a switch with default True begins with `--no-`."""
    field = BenchmarkConfig.model_fields[name]
    flag = OTHER_NAMES.get(name, name).replace("_", "-")
    return f"--no-{flag}" if field.default is True else f"--{flag}"


def add_setting(group: argparse._ActionsContainer, name: str, text: str = "") -> None:
    """Add the flag of one field. The help is `text`, else the field's description."""
    field = BenchmarkConfig.model_fields[name]
    text = text or " ".join((field.description or "").split()).removesuffix(".")
    text = (text[:1].lower() + text[1:]).replace("%", "%%")
    kind: Any = field.annotation
    while get_origin(kind) in (UnionType, Union, Annotated):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is list:
        add_names(group, flag_of(name), text)
        return
    more: dict[str, Any] = {"metavar": METAVARS.get(kind, "TEXT")}
    if kind is bool and field.default is True:
        text, more = f"do not {text}", {"action": "store_false"}
    elif kind is bool:
        more = {"action": "store_true"}
    elif get_origin(kind) is Literal:
        more = {"choices": get_args(kind)}
    group.add_argument(flag_of(name), dest=name, default=argparse.SUPPRESS, help=text, **more)


def add_settings(parser: Parser) -> None:
    """Add the flag of the configuration file, and the flags that override its settings."""
    group = parser.add_argument_group("settings", "they override the configuration file, including its sections")
    add_flags(group, CONFIG_FLAG)
    for name in BenchmarkConfig.model_fields:
        if name not in (*SECTIONS, *NAMED, "extra"):
            add_setting(group, name)


def add_selection(parser: Parser) -> None:
    """Add the flags that choose the jobs of a run, and its devices."""
    group = parser.add_argument_group("what to run", "one or more names each, separated by spaces or commas")
    add_filters(group, "workloads", "devices")


def read_config(args: argparse.Namespace) -> BenchmarkConfig:
    """Read the command's configuration file, or the bundled file. The command's flags override the file."""
    overrides = given_overrides(args)
    with naming_flags(args):
        if args.config is not None:
            return BenchmarkConfig.from_yaml(args.config, **overrides)
        return BenchmarkConfig.default(**overrides)


def given_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration fields that flags set."""
    return {name: value for name in BenchmarkConfig.model_fields if (value := getattr(args, name, ())) != ()}


def setting_words(args: argparse.Namespace) -> list[str]:
    """Return the flags that give a later command the settings of this command. Flags that choose jobs and devices are
    omitted."""
    words = [] if args.config is None else ["--config", str(args.config)]
    for name, value in given_overrides(args).items():
        if name not in NOT_ABOUT_VERDICTS and not isinstance(value, float):  # only commands give numbers
            values = {str: [value], bool: []}.get(type(value), value)
            words += [flag_of(name), *values]
    return words


@contextmanager
def naming_flags(args: argparse.Namespace) -> Iterator[None]:
    """Turn an error of the settings into a ConfigError that names the flag or file of the wrong setting."""
    file = "" if args.config is None else f"{args.config}: "

    def locate(match: re.Match[str]) -> str:
        return flag_of(match[1]) if match[1] in given_overrides(args) else f"{file}{match[1]}"

    try:
        yield
    except (ConfigError, ValidationError) as error:
        lines = describe_problems(error) if isinstance(error, ValidationError) else str(error).splitlines()
        raise ConfigError("\n".join(SETTING.sub(locate, line) for line in lines)) from None


def describe_tolerances(trace_set: TraceSet) -> list[str]:
    """Return a line for each root with tolerances, for each problem in a tolerances file, and for tolerances without
    effect.

    Raises:
        ConfigError: a tolerances file cannot be used.
    """
    lines = []
    for found in find_tolerances(trace_set):
        if found.sections:
            judged = f"{count(len(found.sections), 'definition')} {'is' if len(found.sections) == 1 else 'are'} judged"
            lines.append(f"note: {found.file} says how {judged}")
    lines += [str(issue) for issue in find_tolerance_issues(trace_set)]
    stated = [
        own_tolerance(trace_set, name, line.workload) is not None
        for name, group in trace_set.workloads.items()
        for line in group
        if line.workload.tolerance is not None
    ]
    if not all(stated):
        lost = count(len(stated) - sum(stated), "workload")
        why = "not of the set that has its definition, so its tolerance does not count"
        lines.append(f"warning: {lost} with a tolerance: {why}")
    return lines


def find_tolerance_issues(trace_set: TraceSet) -> list[LoadIssue]:
    """Return the problems of the tolerances files of the roots."""
    issues = []
    for file in (root / TOLERANCES_FILE for root in trace_set.roots):
        try:
            unknown = read_own_tolerances(file.parent, trace_set).unknown
            reason = "this set has no such definition, and what a set says counts for its own definitions only"
            issues += [LoadIssue("warning", file, None, name, reason) for name in unknown]
        except ConfigError as error:
            reasons = [line.removeprefix(f"{file}: ") for line in str(error).splitlines()]
            issues += [LoadIssue("error", file, None, None, reason) for reason in reasons]
    return issues


def declare_config(parser: Parser) -> None:
    """Add the help and the sub-command of `config`."""
    example = "config show --definition gemm_n128_k4096 --local flashinfer-trace"
    parser.describe("Show settings.", example=example)
    show = parser.add_command(
        "show",
        "show every setting and where it comes from",
        description="Show every setting with its origin; with --definition, those that this definition runs with.",
        usage="%(prog)s [--definition NAME --local PATH] [flags]",
        example=f"{example} --rtol 0.001",
        execute=show_config,
    )
    add_flags(show, {"--definition NAME": "resolve the settings of this definition"})
    add_local(show)
    add_selection(show)
    add_settings(show)
    add_format(show)


def show_config(args: argparse.Namespace) -> int:
    """Print the settings. If a set is named, check that the set has every name in the configuration."""
    config, name = read_config(args), args.definition
    trace_set = TraceSet()
    if name is not None or args.local:
        if not is_set_named(args):
            raise UsageError("--definition needs the trace set that has it: give --local PATH")
        from flashinfer_bench.bench.planning.selection import check_names

        trace_set = open_trace_set(args)
        config = config.for_set(trace_set)
        with naming_flags(args):
            check_names(trace_set, config)
    origins = config.origins().items()
    settings = {key: _setting(getattr(config, key), origin) for key, origin in origins if hasattr(config, key)}
    settings |= resolve_settings(config, Subject("", ""))
    sections, workloads = dict[str, Settings](), dict[str, Settings]()
    if name is None:
        sections = dict(_list_sections(config, trace_set.definitions))
    else:
        refuse_unknown(("definition", [name], trace_set.definitions))
        definition = trace_set.definitions[name]
        settings |= _list_declared(config, definition) | resolve_settings(config, definition)
        for workload in (line.workload for line in trace_set.workloads.get(name, [])):
            if tolerance := own_tolerance(trace_set, name, workload):  # the tolerance in the workload's line
                resolved = resolve_settings(config, definition, tolerance)
                workloads[workload.uuid] = {key: resolved[key] for key in tolerance}
    groups = {"": settings} | sections | {f"workload {uuid}": group for uuid, group in workloads.items()}
    document = {"definition": name, "settings": settings, "sections": sections, "workloads": workloads}
    write_result(args, document, render_settings(groups))
    return 0


def render_settings(groups: Mapping[str, Settings]) -> str:
    """Render settings with their origins, in groups with headings. The heading of the first group may be empty."""
    rows: list[list[str]] = []
    for heading, group in groups.items():
        rows += [[heading, "", ""]] if heading else []
        rows += [["  " * bool(heading) + key, _as_text(one["value"]), one["origin"]] for key, one in group.items()]
    return render_table(["Setting", "Value", "From"], rows)


def _setting(value: Any, origin: str) -> dict[str, Any]:
    return {"value": value, "origin": "flag" if origin == "override" else origin}


def _as_text(value: Any) -> str:
    """Return a value in the format of the configuration file, or "not set"."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def resolve_settings(
    config: BenchmarkConfig, subject: NamedDefinition, tolerance: Mapping[str, Any] | None = None
) -> Settings:
    """Return the settings of a definition or a workload, with a separate entry for each key of `extra`."""
    resolved = config.resolve_eval_config(subject, tolerance)
    return {key: _setting(value, resolved.origins.get(key, "")) for key, value in flatten(resolved.values()).items()}


def _list_sections(config: BenchmarkConfig, definitions: Mapping[str, Definition]) -> Iterator[tuple[str, Settings]]:
    """Yield the dotted name of each section, with the settings that the section decides. The section of a definition
    omits settings that the section of the op type overrides.
    """
    for section in SECTIONS:
        for key in getattr(config, section):
            subject = definitions.get(key, Subject(key, "")) if section == DEFINITIONS else Subject("", key)
            origins = {origin for origin, name in config.section_locations(section) if name == key}
            settings = resolve_settings(config, subject).items()
            yield f"{section}.{key}", {name: one for name, one in settings if one["origin"] in origins}


def _list_declared(config: BenchmarkConfig, definition: Definition) -> Settings:
    """Return the parameters of the definition's evaluator. Without external evaluators, return an empty dict, and start
    no process."""
    from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins
    from flashinfer_bench.bench.runner.lookup import look_up_evaluators

    plug_ins = list_plug_ins(config.evaluator_modules)
    if not plug_ins:
        return {}
    found = look_up_evaluators([definition], plug_ins)
    found.check([definition], config)
    choice = found.choices[definition.name]
    return {
        f"extra.{key}": _setting(one.default, f"{choice.name}'s default" if one.has_default else "default")
        for key, one in (choice.parameters or {}).items()
    }
