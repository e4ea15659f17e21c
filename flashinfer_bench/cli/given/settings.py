"""Reads the settings of a command from its flags and its file, and tells where each value comes from."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig, ResolvedEvalConfig, describe_problems
from flashinfer_bench.bench.config_sources import EVAL_FIELDS, EvalSettings
from flashinfer_bench.errors import ConfigError

OVERRIDE: Final = re.compile(r"^override: (\w+)")
SETTING: Final = re.compile(rf"^({'|'.join(BenchmarkConfig.model_fields)}):")
FLAGS: Final = {
    "timeout_seconds": "--timeout",
    "cluster_address": "--address",
    "profile_baseline": "--no-profile-baseline",
    **{
        name: f"--no-{name.replace('_', '-')}" for name in ("norm_rule", "lost_rows_rule", "regimes_rule", "power_rule")
    },
}
"""Field to the flag that sets it, where their names differ."""


@dataclass(frozen=True)
class Setting:
    """One value and the place that gave it."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Subject:
    """A definition to resolve settings for. The set need not have it."""

    name: str
    op_type: str


def read_config(args: argparse.Namespace) -> BenchmarkConfig:
    """Read the file that the command names, or the bundled one, with the command's flags on top."""
    overrides = given_overrides(args)
    try:
        if args.config is not None:
            return BenchmarkConfig.from_yaml(args.config, **overrides)
        return BenchmarkConfig.default(**overrides)
    except ValidationError as error:
        raise ConfigError("\n".join(map(_name_flag, describe_problems(error)))) from None


def given_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration fields that flags gave, and no others."""
    return {name: value for name, value in vars(args).items() if name in BenchmarkConfig.model_fields}


def top_settings(config: BenchmarkConfig) -> list[Setting]:
    """Return every setting outside the sections, with `extra` key by key."""
    resolved = config.resolve_eval_config(Subject("", ""))
    return [
        Setting(name, _value_of(resolved if name in EVAL_FIELDS else config, name), _tell_origin(origin))
        for name, origin in sorted_fields(config).items()
    ]


def sorted_fields(config: BenchmarkConfig) -> dict[str, str]:
    """Return the origin of each top-level value: system fields first, then eval fields, then `extra` keys."""
    origins = config.origins()
    is_eval = {name: name in EvalConfig.model_fields or name.startswith("extra.") for name in origins}
    return {name: origins[name] for name in sorted(origins, key=lambda name: is_eval[name])}


def resolved_settings(resolved: ResolvedEvalConfig) -> list[Setting]:
    """Return the settings of one definition, with `extra` key by key."""
    values = {name: value for name, value in resolved.values().items() if name != "extra"}
    values.update({f"extra.{key}": value for key, value in resolved.extra.items()})
    return [Setting(name, value, _tell_origin(resolved.origins.get(name, ""))) for name, value in values.items()]


def section_settings(
    config: BenchmarkConfig, op_types: Mapping[str, str] | None = None
) -> Iterator[tuple[str, list[Setting]]]:
    """Yield each section by its dotted name with the settings that it decides.

    Args:
        config: the settings.
        op_types: definition → op type, where a set is open. Another source's section of the op type may decide a
            setting of the definition.
    """
    sections = {"op_type_config": config.op_type_config, "definition_config": config.definition_config}
    for section, configs in sections.items():
        for key in configs:
            is_op_type = section == "op_type_config"
            subject = Subject("", key) if is_op_type else Subject(key, (op_types or {}).get(key, ""))
            settings = resolved_settings(config.resolve_eval_config(subject))
            places = {_tell_origin(place) for place, name in config.section_places(section) if name == key}
            own = [setting for setting in settings if setting.origin in places]
            yield f"{section}.{key}", own


def format_value(value: Any) -> str:
    """Return a value as it is written in the file, or "not set"."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def _value_of(config: EvalSettings, name: str) -> Any:
    key = name.removeprefix("extra.")
    return config.extra[key] if key != name else getattr(config, name)


def _tell_origin(origin: str) -> str:
    return "flag" if origin == "override" else origin


@contextmanager
def naming_flags(args: argparse.Namespace) -> Iterator[None]:
    """Let a ConfigError name the flag or the file that gave the wrong setting."""
    given = given_overrides(args)
    file = "" if args.config is None else f"{args.config}: "

    def place(match: re.Match[str]) -> str:
        return f"{_flag(match[1]) if match[1] in given else f'{file}{match[1]}'}:"

    try:
        yield
    except ConfigError as error:
        raise ConfigError("\n".join(SETTING.sub(place, line) for line in str(error).splitlines())) from None


def _name_flag(problem: str) -> str:
    """Replace the name of an override by the flag that the user typed."""
    return OVERRIDE.sub(lambda match: _flag(match[1]), problem)


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")
