"""Settings of a command: flags made of the fields of `BenchmarkConfig`, the configuration that they give, its origins.

A field is a flag: its name, its kind and its docstring are the flag's. A flag that is not typed overrides nothing, and
the values that are typed are checked by the fields themselves.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig, describe_problems
from flashinfer_bench.bench.config_sources import EVAL_FIELDS, SECTIONS
from flashinfer_bench.bench.tolerances import SetTolerances, find_tolerances, own_tolerance, read_own_tolerances
from flashinfer_bench.cli.parser import NAMED, Parser, add_filters, add_names
from flashinfer_bench.cli.render import count
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.store.layout import TOLERANCES_FILE, definition_names
from flashinfer_bench.errors import ConfigError

OTHER_NAMES: Final = {"timeout_seconds": "timeout", "cluster_address": "address"}
"""Field → its flag, where their names differ."""
SETTING: Final = re.compile(rf"^({'|'.join(BenchmarkConfig.model_fields)}):")
OVERRIDE: Final = re.compile(r"^override: (\w+)")


@dataclass(frozen=True)
class Setting:
    """One value and the source that gave it."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Subject:
    """A definition to resolve settings for. The set need not have it."""

    name: str
    op_type: str


def flag_of(name: str) -> str:
    """Return the flag of a field. That of a switch which is usually on begins with `--no-`."""
    field = BenchmarkConfig.model_fields[name]
    flag = OTHER_NAMES.get(name, name).replace("_", "-")
    return f"--no-{flag}" if field.default is True else f"--{flag}"


def add_setting(group: argparse._ActionsContainer, name: str, text: str = "") -> None:
    """Add the flag of one field, with another help where the command uses it otherwise."""
    field = BenchmarkConfig.model_fields[name]
    text = text or " ".join((field.description or "").split()).removesuffix(".")
    text = (text[:1].lower() + text[1:]).replace("%", "%%")
    kind: Any = field.annotation
    while get_origin(kind) in (UnionType, Union, Annotated):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    given: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
    if get_origin(kind) is list:
        add_names(group, flag_of(name), text)
    elif kind is bool:
        if field.default is True:
            given["help"] = f"switch off: {text}"
        group.add_argument(flag_of(name), action="store_false" if field.default is True else "store_true", **given)
    elif get_origin(kind) is Literal:
        group.add_argument(flag_of(name), choices=get_args(kind), **given)
    else:
        group.add_argument(flag_of(name), metavar="N" if kind is int else "F" if kind is float else "TEXT", **given)


def add_settings(parser: Parser) -> None:
    """Add the configuration file and the flags that override it."""
    group = parser.add_argument_group("settings", "they beat the configuration file, its sections included")
    add_config_file(group)
    for name in BenchmarkConfig.model_fields:
        if name not in (*SECTIONS, *NAMED, "extra"):
            add_setting(group, name)


def add_config_file(group: argparse._ActionsContainer) -> None:
    """Add the flag that names the file of settings."""
    group.add_argument("--config", metavar="FILE", help="a YAML file instead of the bundled eval_config.yaml")


def add_selection(parser: Parser) -> None:
    """Add the flags that choose what a run judges, and on which devices."""
    group = parser.add_argument_group("what to run", "one or more names each, separated by spaces or commas")
    add_filters(group, "workloads", "devices")


def read_config(args: argparse.Namespace) -> BenchmarkConfig:
    """Read the file that the command names, or the bundled one, with the command's flags on top."""
    overrides = given_overrides(args)
    try:
        if args.config is not None:
            return BenchmarkConfig.from_yaml(args.config, **overrides)
        return BenchmarkConfig.default(**overrides)
    except ValidationError as error:
        lines = (OVERRIDE.sub(lambda match: flag_of(match[1]), line) for line in describe_problems(error))
        raise ConfigError("\n".join(lines)) from None


def given_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration fields that flags gave, and no others."""
    return {name: value for name, value in vars(args).items() if name in BenchmarkConfig.model_fields}


@contextmanager
def naming_flags(args: argparse.Namespace) -> Iterator[None]:
    """Let a ConfigError name the flag or the file that gave the wrong setting."""
    file = "" if args.config is None else f"{args.config}: "

    def place(match: re.Match[str]) -> str:
        return f"{flag_of(match[1]) if hasattr(args, match[1]) else f'{file}{match[1]}'}:"

    try:
        yield
    except ConfigError as error:
        raise ConfigError("\n".join(SETTING.sub(place, line) for line in str(error).splitlines())) from None


def top_settings(config: BenchmarkConfig) -> list[Setting]:
    """Return every setting outside the sections: those of the run, then those of definitions, `extra` key by key."""
    resolved = {one.name: one for one in resolved_settings(config.resolve_eval_config(Subject("", "")))}
    of_run = [
        Setting(name, getattr(config, name), _tell_origin(origin))
        for name, origin in config.origins().items()
        if name not in resolved and name not in EVAL_FIELDS
    ]
    return [*of_run, *resolved.values()]


def resolved_settings(resolved: ResolvedEvalConfig) -> list[Setting]:
    """Return the settings of one definition, with `extra` key by key."""
    values = {name: value for name, value in resolved.values().items() if name != "extra"}
    values.update({f"extra.{key}": value for key, value in resolved.extra.items()})
    return [Setting(name, value, _tell_origin(resolved.origins.get(name, ""))) for name, value in values.items()]


def section_settings(config: BenchmarkConfig, op_types: Mapping[str, str]) -> Iterator[tuple[str, list[Setting]]]:
    """Yield each section by its dotted name with the settings that it decides.

    Args:
        config: the settings.
        op_types: definition → op type, where a set is open. Another source's section of the op type may decide a
            setting of the definition.
    """
    for section in SECTIONS:
        for key in getattr(config, section):
            subject = Subject("", key) if section == SECTIONS[0] else Subject(key, op_types.get(key, ""))
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


def describe_tolerances(trace_set: TraceSet) -> list[str]:
    """Return a line for each root and for the workloads that say how they are judged, and for what does not count.

    Raises:
        ConfigError: a tolerances file cannot be used.
    """
    lines = []
    for found in find_tolerances(trace_set):
        if found.sections:
            judged = f"{count(len(found.sections), 'definition')} {'is' if len(found.sections) == 1 else 'are'} judged"
            lines.append(f"note: {found.file} says how {judged}")
        lines += [f"warning: {found.file}: {name}: {why}" for name, why in _foreign(found, trace_set)]
    stated = [
        own_tolerance(trace_set, name, line.workload) is not None
        for name, group in trace_set.workloads.items()
        for line in group
        if line.workload.tolerance is not None
    ]
    if any(stated):
        lines.append(f"note: {count(sum(stated), 'workload')} with a tolerance (config show --definition NAME)")
    if not all(stated):
        lost = count(len(stated) - sum(stated), "workload")
        why = "not of the set that has its definition, so its tolerance does not count"
        lines.append(f"warning: {lost} with a tolerance: {why}")
    return lines


def find_tolerance_issues(trace_set: TraceSet) -> list[LoadIssue]:
    """Return the problems of the tolerances files of the roots."""
    issues = []
    for root in trace_set.roots:
        file = root / TOLERANCES_FILE
        try:
            foreign = _foreign(read_own_tolerances(root, trace_set), trace_set)
            issues += [LoadIssue("warning", file, None, name, why) for name, why in foreign]
        except ConfigError as error:
            reasons = [line.removeprefix(f"{file}: ") for line in str(error).splitlines()]
            issues += [LoadIssue("error", file, None, None, reason) for reason in reasons]
    return issues


def _foreign(found: SetTolerances, trace_set: TraceSet) -> list[tuple[str, str]]:
    """Return the names of a file that its set does not have, with why they do not count.

    A definition whose own file is broken is left out.
    """
    broken = definition_names(found.file.parent, (one.file for one in trace_set.issues if one.severity == "error"))
    hint = "; what a set says counts for its own definitions only"
    return [
        (name, f"this set has no such definition{hint if name in trace_set.definitions else ''}")
        for name in found.unknown
        if name not in broken
    ]
