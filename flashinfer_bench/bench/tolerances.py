"""A trace set's own settings for judging its definitions: `tolerances.yaml` in its root, and tolerances of workloads.

    rmsnorm_h4096:
      rtol: 0.02
      atol: 0.001
      required_matched_ratio: 0.98

A set is trusted like its references, which decide what is right. So a set's tolerances hold for its own definitions.
These tolerances beat the bundled settings; the user's settings beat both. The tolerance in a workload's line beats the
file, if the workload lies in the same root as its definition.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from flashinfer_bench.bench.config_sources import (
    Extra,
    Ratio,
    StrictModel,
    Tolerance,
    as_validation_error,
    describe_problems,
    drop_unsaid,
    list_problems,
)
from flashinfer_bench.bench.evaluator_record import MAX_ABSOLUTE_ERROR, SUMMED_TOLERANCE
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.data.store.yaml_file import read_yaml_file
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from flashinfer_bench.data import TraceSet


class Section(StrictModel):
    """Settings that the file may give for one definition; only given settings count. A tolerance may be 0."""

    rtol: Tolerance | None = None
    atol: Tolerance | None = None
    required_matched_ratio: Ratio | None = None
    extra: Extra = Field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """Return the given values of the file."""
        return drop_unsaid(self.model_dump(exclude_unset=True))


_SECTIONS: Final = TypeAdapter(dict[str, Section])
Sections = dict[str, dict[str, Any]]
"""Definition → the settings that a file gives, as they are written."""


@dataclass(frozen=True)
class SetTolerances:
    """Tolerances of one root."""

    file: Path
    sections: Sections
    """Sections of the definitions that the root has."""
    unknown: tuple[str, ...] = ()
    """Names in the file for which the root has no definition."""


def find_tolerances(trace_set: TraceSet) -> list[SetTolerances]:
    """Return the settings of each root of a trace set for its own definitions. Roots without a file are omitted.

    Raises:
        ConfigError: a file cannot be read or used; all problems of a file at once, each with its location.
    """
    return [read_own_tolerances(root, trace_set) for root in trace_set.roots if os.path.lexists(root / TOLERANCES_FILE)]


def read_own_tolerances(root: Path, trace_set: TraceSet) -> SetTolerances:
    """Return the settings that a root of a trace set gives for the definitions of that root.

    Raises:
        ConfigError: the file cannot be read or used.
    """
    sections = read_tolerances(root)
    own = {name for name, file in trace_set.definition_files.items() if file.is_relative_to(root)}
    kept = {name: values for name, values in sections.items() if name in own}
    return SetTolerances(root / TOLERANCES_FILE, kept, tuple(name for name in sections if name not in own))


def merge_tolerances(trace_sets: Iterable[TraceSet]) -> str:
    """Return the text of one file with the tolerances of several sets; empty if there are none.

    Raises:
        ConfigError: a file cannot be used, or two files contradict each other on a definition.
    """
    merged: Sections = {}
    said: dict[str, Path] = {}
    problems = []
    for result in (result for trace_set in trace_sets for result in find_tolerances(trace_set)):
        for name, values in result.sections.items():
            if merged.setdefault(name, values) != values:
                problems.append(f"{result.file}: {name}: {said[name]} says something else")
            said.setdefault(name, result.file)
    if problems:
        raise ConfigError("\n".join(problems))
    return yaml.safe_dump(merged) if merged else ""


def own_tolerance(trace_set: TraceSet, definition: str, workload: Workload) -> Mapping[str, Any] | None:
    """Return a workload's own settings for judging, by field or "extra.<key>".

    None if the workload has no tolerance, or is of another root than the definition.
    """
    given = workload.tolerance
    if given is None or not trace_set.is_of_one_root(definition, workload.uuid):
        return None
    is_summed = given.max_atol is not None or given.max_rtol is not None  # in the format, the two limits are added
    values = {
        "rtol": given.max_rtol,
        "atol": given.max_atol,
        "required_matched_ratio": given.required_matched_ratio,
        f"extra.{SUMMED_TOLERANCE}": is_summed or None,
        f"extra.{MAX_ABSOLUTE_ERROR}": given.max_error_cap,
    }
    return {name: value for name, value in values.items() if value is not None}


def read_tolerances(root: Path) -> Sections:
    """Return the sections of a root's file, by definition; empty without a file.

    Raises:
        ConfigError: the file cannot be read or used.
    """
    file = root / TOLERANCES_FILE
    if not os.path.lexists(file):
        return {}
    result = read_yaml_file(file)
    try:
        sections = _SECTIONS.validate_python(result.values)
    except ValidationError as error:
        problems = list_problems(error, source=str(file), lines=result.lines)
        raise ConfigError("\n".join(describe_problems(as_validation_error(str(file), problems)))) from None
    return {name: section.given() for name, section in sections.items()}
