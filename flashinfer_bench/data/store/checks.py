"""Whether a workload fits its definition: what can be said without making the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from flashinfer_bench.data.definition import AxisConst, AxisExpr, Definition
from flashinfer_bench.data.dtypes import why_not_held
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import parse_reference
from flashinfer_bench.data.workload import CustomInput, GeneratedInput, SafetensorsInput, ScalarInput, Workload

MOST_FINDINGS: Final = 20
"""Findings of one workload that are reported."""


class WorkloadFinding(NamedTuple):
    """One thing that does not fit."""

    place: tuple[str, ...]
    """Path of the field in the workload's line."""
    reason: str
    """What is wrong."""


def check_workload(definition: Definition, workload: Workload) -> list[WorkloadFinding]:
    """Find everything in a workload that does not fit its definition, and so keeps it from being run."""
    return list(islice(chain(_check_axes(definition, workload), _check_inputs(definition, workload)), MOST_FINDINGS))


def _check_axes(definition: Definition, workload: Workload) -> Iterator[WorkloadFinding]:
    for name in definition.var_axes:
        if name not in workload.axes:
            yield WorkloadFinding(("workload", "axes", name), f"axis {name!r} of {definition.name} has no value")
    for name, value in workload.axes.items():
        place = ("workload", "axes", name)
        axis = definition.axes.get(name)
        if axis is None:
            hint = did_you_mean(name, definition.axes)
            yield WorkloadFinding(place, f"{definition.name} has no axis {name!r}{hint}")
        elif isinstance(axis, AxisConst) and axis.value != value:
            yield WorkloadFinding(place, f"{definition.name} fixes axis {name!r} at {axis.value}, this says {value}")
    if all(name in workload.axes for name in definition.var_axes):
        yield from _check_expressions(definition, workload)


def _check_expressions(definition: Definition, workload: Workload) -> Iterator[WorkloadFinding]:
    if not any(isinstance(axis, AxisExpr) for axis in definition.axes.values()):
        return
    try:
        sizes = definition.bind_axes(workload.axes)
    except ValueError as error:
        yield WorkloadFinding(("workload", "axes"), str(error))
        return
    for name, value in workload.axes.items():
        if isinstance(definition.axes.get(name), AxisExpr) and value != sizes[name]:
            reason = f"{definition.name} makes axis {name!r} {sizes[name]} of the others, this says {value}"
            yield WorkloadFinding(("workload", "axes", name), reason)


def _check_inputs(definition: Definition, workload: Workload) -> Iterator[WorkloadFinding]:
    for name, source in workload.inputs.items():
        place = ("workload", "inputs", name)
        spec = definition.inputs.get(name)
        if spec is None:
            hint = did_you_mean(name, definition.inputs)
            yield WorkloadFinding(place, f"{definition.name} has no input {name!r}{hint}")
        elif isinstance(source, ScalarInput) and spec.shape:
            yield WorkloadFinding(place, f"input {name!r} has shape {spec.shape}; a scalar cannot fill it")
        elif isinstance(source, ScalarInput) and (range_ := why_not_held(spec.dtype, source.value)) is not None:
            given = f"workload {workload.uuid} gives {source.value!r} for input {name!r} of {definition.name}"
            yield WorkloadFinding((*place, "value"), f"{given}; {range_}")
        elif isinstance(source, GeneratedInput):
            reason = f"inputs of type {source.type!r} need code of another engine; use random, scalar or safetensors"
            yield WorkloadFinding(place, reason)
        elif isinstance(source, CustomInput):
            if (why := _why_not_made(definition)) is not None:
                yield WorkloadFinding(place, why)
        elif isinstance(source, SafetensorsInput) and not is_inside(source.path):
            reason = f"{source.path[:200]!r} leads out of the set; blob paths are relative to its root"
            yield WorkloadFinding((*place, "path"), reason)


def _why_not_made(definition: Definition) -> str | None:
    """Say why a definition cannot make the inputs that a workload calls custom; None where it can."""
    entry = definition.custom_inputs_entrypoint
    if entry is None:
        return f"inputs of type 'custom' need a function: {definition.name} has no custom_inputs_entrypoint"
    names = parse_reference(definition.reference).names
    if names.get(entry) is not None:
        return f"inputs of type 'custom' need a function: {entry!r} of {definition.name} {names[entry]}"
    if entry not in names:
        return f"inputs of type 'custom' need the function {entry!r}, which the reference of {definition.name} has not"
    return None


def is_inside(path: str) -> bool:
    """Tell whether a blob path, as text, stays under the root of its set."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path
