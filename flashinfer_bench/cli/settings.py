"""Settings of a command: flags made of the fields of `BenchmarkConfig`, the configuration that they give, its origins.

A field is a flag: its name, its kind and its docstring are the flag's. A flag that is not typed overrides nothing, and
the values that are typed are checked by the fields themselves.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from flashinfer_bench.bench.config import BenchmarkConfig, describe_problems
from flashinfer_bench.bench.config_sources import SECTIONS
from flashinfer_bench.bench.tolerances import find_tolerances, own_tolerance, read_own_tolerances
from flashinfer_bench.cli.parser import NAMED, Parser, add_filters, add_names
from flashinfer_bench.cli.render import count
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from flashinfer_bench.data import TraceSet

OTHER_NAMES: Final = {"timeout_seconds": "timeout", "cluster_address": "address"}
"""Field → its flag, where their names differ."""
SETTING: Final = re.compile(rf"^(?:override: )?({'|'.join(BenchmarkConfig.model_fields)})(?=[:.])")
"""A setting at the beginning of a problem."""
METAVARS: Final = {int: "N", float: "F"}


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
    if get_origin(kind) is list:
        add_names(group, flag_of(name), text)
        return
    more: dict[str, Any] = {"metavar": METAVARS.get(kind, "TEXT")}
    if kind is bool and field.default is True:
        text, more = f"switch off: {text}", {"action": "store_false"}
    elif kind is bool:
        more = {"action": "store_true"}
    elif get_origin(kind) is Literal:
        more = {"choices": get_args(kind)}
    group.add_argument(flag_of(name), dest=name, default=argparse.SUPPRESS, help=text, **more)


def add_settings(parser: Parser) -> None:
    """Add the configuration file and the flags that override it."""
    group = parser.add_argument_group("settings", "they beat the configuration file, its sections included")
    group.add_argument("--config", metavar="FILE", help="a YAML file instead of the bundled eval_config.yaml")
    for name in BenchmarkConfig.model_fields:
        if name not in (*SECTIONS, *NAMED, "extra"):
            add_setting(group, name)


def add_selection(parser: Parser) -> None:
    """Add the flags that choose what a run judges, and on which devices."""
    group = parser.add_argument_group("what to run", "one or more names each, separated by spaces or commas")
    add_filters(group, "workloads", "devices")


def read_config(args: argparse.Namespace) -> BenchmarkConfig:
    """Read the file that the command names, or the bundled one, with the command's flags on top."""
    overrides = given_overrides(args)
    with naming_flags(args):
        if args.config is not None:
            return BenchmarkConfig.from_yaml(args.config, **overrides)
        return BenchmarkConfig.default(**overrides)


def given_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration fields that flags gave, and no others."""
    return {name: value for name, value in vars(args).items() if name in BenchmarkConfig.model_fields}


@contextmanager
def naming_flags(args: argparse.Namespace) -> Iterator[None]:
    """Make an error of the settings a ConfigError that names the flag or the file that gave the wrong one."""
    file = "" if args.config is None else f"{args.config}: "

    def place(match: re.Match[str]) -> str:
        return flag_of(match[1]) if hasattr(args, match[1]) else f"{file}{match[1]}"

    try:
        yield
    except (ConfigError, ValidationError) as error:
        lines = describe_problems(error) if isinstance(error, ValidationError) else str(error).splitlines()
        raise ConfigError("\n".join(SETTING.sub(place, line) for line in lines)) from None


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
