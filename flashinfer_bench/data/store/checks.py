"""Whether a workload fits its definition: what can be said without making the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import why_not_held
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import parse_reference
from flashinfer_bench.data.workload import CustomInput, GeneratedInput, SafetensorsInput, ScalarInput, Workload

MOST_FINDINGS: Final = 10
"""Findings of one workload that are reported."""

Finding = tuple[tuple[str, ...], str]
"""Path of a field in the workload's line, and what does not fit."""


def check_workload(definition: Definition, workload: Workload) -> list[Finding]:
    """Find everything in a workload that does not fit its definition, and so keeps it from being run."""
    return list(islice(chain(_check_axes(definition, workload), _check_inputs(definition, workload)), MOST_FINDINGS))


def _check_axes(definition: Definition, workload: Workload) -> Iterator[Finding]:
    place, sizes = ("workload", "axes"), definition.const_axes
    missing = [name for name in definition.var_axes if name not in workload.axes]
    for name in missing:
        yield (*place, name), f"axis {name!r} of {definition.name} has no value"
    if not missing:
        try:
            sizes = definition.bind_axes(workload.axes)
        except ValueError as error:
            yield place, str(error)
    for name, value in workload.axes.items():
        if name not in definition.axes:
            yield (*place, name), f"{definition.name} has no axis {name!r}{did_you_mean(name, definition.axes)}"
        elif sizes.get(name, value) != value:
            yield (*place, name), f"{definition.name} fixes axis {name!r} at {sizes[name]}, this says {value}"


def _check_inputs(definition: Definition, workload: Workload) -> Iterator[Finding]:
    for name, source in workload.inputs.items():
        place, spec = ("workload", "inputs", name), definition.inputs.get(name)
        if spec is None:
            yield place, f"{definition.name} has no input {name!r}{did_you_mean(name, definition.inputs)}"
        elif isinstance(source, ScalarInput) and spec.shape:
            yield place, f"input {name!r} has shape {spec.shape}; a scalar cannot fill it"
        elif isinstance(source, ScalarInput) and (limits := why_not_held(spec.dtype, source.value)) is not None:
            given = f"workload {workload.uuid} gives {source.value!r} for input {name!r} of {definition.name}"
            yield (*place, "value"), f"{given}; {limits}"
        elif isinstance(source, GeneratedInput):
            yield (
                place,
                f"inputs of type {source.type!r} need code of another engine; use random, scalar or safetensors",
            )
        elif isinstance(source, CustomInput) and (why := _why_not_made(definition)) is not None:
            yield place, f"inputs of type 'custom' need a function: {why}"
        elif isinstance(source, SafetensorsInput) and not is_inside(source.path):
            reason = f"{source.path[:200]!r} leads out of the set; blob paths are relative to its root"
            yield (*place, "path"), reason


def _why_not_made(definition: Definition) -> str | None:
    """Say why a definition cannot make the inputs that a workload calls custom; None if it can."""
    entry, names = definition.custom_inputs_entrypoint, parse_reference(definition.reference).names
    if entry is None:
        return f"{definition.name} has no custom_inputs_entrypoint"
    if entry not in names:
        return f"the function {entry!r}, which the reference of {definition.name} has not"
    return f"{entry!r} of {definition.name} {names[entry]}" if names[entry] is not None else None


def is_inside(path: str) -> bool:
    """Tell whether a blob path, as text, stays under the root of its set."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path
