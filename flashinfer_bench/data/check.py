"""Static checks of a set, without running its code. `run`, `validate`, loading and merging use these checks.

`check_workload` compares a workload with its definition. Loading does not check stored inputs, references and entry
points; the other functions do. For a blob, only the header is read, not the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import Parameter
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashinfer_bench.data.definition import Definition, TensorSpec, normalise_op_type
from flashinfer_bench.data.dtypes import DTYPES, why_not_held
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.issue import LoadIssue, Severity
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import ENTRY_NAME, read_module
from flashinfer_bench.data.store.blobs import BlobPointer, is_inside, locate_blob
from flashinfer_bench.data.store.layout import SOLUTIONS, path_part
from flashinfer_bench.data.workload import CustomInput, GeneratedInput, SafetensorsInput, ScalarInput, Workload
from flashinfer_bench.errors import WorkloadFault

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

STORED_NAMES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The name of a dtype in a safetensors file → the name of the torch dtype."""
SHOWN_KEYS: Final = 20
MOST_FINDINGS: Final = 10
"""Maximum number of findings reported for one workload or one reference."""
Finding = tuple[tuple[str, ...], str]
"""Path of a field in the workload's line, and the problem."""


Tensors = dict[str, tuple[list[int], str]]
"""Key → shape and dtype from a blob's header."""


@dataclass(frozen=True)
class Asked:
    """The part of a set that a command selects: names, or None for all."""

    definitions: Sequence[str] | None = None
    solutions: Sequence[str] | None = None
    op_types: Sequence[str] | None = None
    authors: Sequence[str] | None = None

    def is_about(self, issue: LoadIssue, trace_set: TraceSet) -> bool:
        """Return whether the file of an issue belongs to the selected part."""
        parts = parts_below(issue.file, trace_set.roots)
        definitions = self.definitions
        if self.solutions and not definitions:
            definitions = [item.definition for item in trace_set.all_solutions() if item.name in self.solutions]
        is_solution = parts[:1] == (SOLUTIONS,)
        op_types = set(map(normalise_op_type, self.op_types or ()))
        return issue.file in trace_set.roots or (
            (not op_types or not op_types.isdisjoint(map(normalise_op_type, parts)))
            and (not definitions or (is_solution and not self.definitions) or _are_among(definitions, parts))
            and (not is_solution or not self.solutions or _are_among(self.solutions, parts[-1:]))
            and (not is_solution or not self.authors or _are_among(self.authors, parts))
        )


def parts_below(file: Path, roots: Iterable[Path]) -> tuple[str, ...]:
    """Return the folders between a root and a file, and the file's name without its suffix."""
    root = next((root for root in roots if file.is_relative_to(root)), None)
    return () if file == root else (file if root is None else file.relative_to(root)).with_suffix("").parts


def _are_among(names: Iterable[str], parts: Iterable[str]) -> bool:
    return not set(map(path_part, names)).isdisjoint(parts)


def check_workload(definition: Definition, workload: Workload) -> list[Finding]:
    """Return the findings that keep a workload of this definition from running."""
    return list(islice(chain(_check_axes(definition, workload), _check_inputs(definition, workload)), MOST_FINDINGS))


def _check_axes(definition: Definition, workload: Workload) -> Iterator[Finding]:
    location, sizes = ("workload", "axes"), definition.const_axes
    missing = [name for name in definition.var_axes if name not in workload.axes]
    for name in missing:
        yield (*location, name), f"axis {name!r} of {definition.name} has no value"
    if not missing:
        try:
            sizes = definition.bind_axes(workload.axes)
        except ValueError as error:
            yield location, str(error)
    for name, value in workload.axes.items():
        if name not in definition.axes:
            yield (*location, name), f"{definition.name} has no axis {name!r}{did_you_mean(name, definition.axes)}"
        elif sizes.get(name, value) != value:
            yield (*location, name), f"{definition.name} fixes axis {name!r} at {sizes[name]}, this says {value}"


def _check_inputs(definition: Definition, workload: Workload) -> Iterator[Finding]:
    for name, source in workload.inputs.items():
        location, spec = ("workload", "inputs", name), definition.inputs.get(name)
        if spec is None:
            yield location, f"{definition.name} has no input {name!r}{did_you_mean(name, definition.inputs)}"
        elif isinstance(source, ScalarInput) and spec.shape:
            yield location, f"input {name!r} has shape {spec.shape}; a scalar cannot fill it"
        elif isinstance(source, ScalarInput) and (limits := why_not_held(spec.dtype, source.value)) is not None:
            given = f"workload {workload.uuid} gives {source.value!r} for input {name!r} of {definition.name}"
            yield (*location, "value"), f"{given}; {limits}"
        elif isinstance(source, GeneratedInput):
            reason = f"inputs of type {source.type!r} need code of another engine; use random, scalar or safetensors"
            yield location, reason
        elif isinstance(source, CustomInput) and (why := _why_not_made(definition)) is not None:
            yield location, f"inputs of type 'custom' need a function: {why}"
        elif isinstance(source, SafetensorsInput) and not is_inside(source.path):
            reason = f"{source.path[:200]!r} leads out of the set; blob paths are relative to its root"
            yield (*location, "path"), reason


def _why_not_made(definition: Definition) -> str | None:
    """Return why a definition cannot make a workload's inputs of type "custom"; None if it can."""
    entry, names = definition.custom_inputs_entrypoint, read_module(definition.reference).names
    if entry is None:
        return f"{definition.name} has no custom_inputs_entrypoint"
    if entry not in names:
        return f"the function {entry!r}, which the reference of {definition.name} has not"
    return f"{entry!r} of {definition.name} {names[entry]}" if names[entry] is not None else None


def find_input_issues(trace_set: TraceSet, jobs: Iterable[tuple[str, Workload]]) -> Iterator[LoadIssue]:
    """Yield an issue for each stored input that a run cannot use: an error, or a warning for a git-lfs pointer.

    Args:
        trace_set: the set with the definitions and roots.
        jobs: pairs of a definition's name and a workload.
    """
    blobs: dict[tuple[Path, str], Tensors] = {}
    for name, workload in jobs:
        definition, root = trace_set.definitions.get(name), trace_set.blob_root(name, workload.uuid)
        shapes = _shapes_of(definition, workload) if definition is not None and workload.stored_inputs else {}
        for key, source in workload.stored_inputs.items():
            where, whose = (root or Path(), source.path), f"workload {workload.uuid} of {name}: "
            if root is not None and where not in blobs:
                blobs[where] = {}
                try:
                    blobs[where] = read_tensors(locate_blob(root, source.path))
                except WorkloadFault as fault:
                    severity: Severity = "warning" if isinstance(fault, BlobPointer) else "error"
                    yield LoadIssue(severity, root, None, None, f"{whose}{fault}")
                except ValueError as error:
                    yield LoadIssue("error", root, None, None, f"{whose}input {key!r}, blob {source.path}: {error}")
            if root is None or definition is None or not blobs[where] or key not in shapes:
                continue
            why = why_unfit(blobs[where], source.tensor_key, definition.inputs[key], shapes[key])
            if why is not None:
                text = f"{whose}input {key!r}, blob {source.path}, key {source.tensor_key!r}: {why}"
                yield LoadIssue("error", root, None, None, text)


def _shapes_of(definition: Definition, workload: Workload) -> dict[str, tuple[int, ...] | None]:
    """Return input → its shape, None for a scalar. Return an empty dict if an axis is missing; the loader reports
    missing axes."""
    try:
        return dict(zip(definition.inputs, definition.get_input_shapes(workload.axes), strict=True))
    except ValueError:
        return {}


def read_tensors(file: Path) -> Tensors:
    """Return the tensors of a blob; raise ValueError if the file cannot be read."""
    from safetensors import SafetensorError, safe_open  # needs numpy, which sets without blobs do not need

    try:
        with safe_open(file, "np") as opened:
            slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118 - it is no mapping
            return {key: (one.get_shape(), one.get_dtype()) for key, one in slices.items()}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot be read: {error}") from error


def why_unfit(tensors: Tensors, key: str, spec: TensorSpec, shape: tuple[int, ...] | None) -> str | None:
    """Return why a stored tensor does not match its definition; None if it does."""
    if key not in tensors:
        return f"there is no such key; the file has {', '.join(list(tensors)[:SHOWN_KEYS])}"
    found, stored_as = tensors[key]
    wanted = list(shape or ())
    if spec.dtype == "float4_e2m1" and wanted:
        wanted[-1] //= 2
    if found != wanted and not (shape is None and found == [1]):
        return f"shape {found}, the definition and the axes give {wanted}"
    dtype, storage = STORED_NAMES.get(stored_as), DTYPES[spec.dtype]
    as_bytes = dtype == "uint8" and storage.kind == "float" and storage.bits <= 8
    if dtype is not None and dtype != storage.storage and not as_bytes:
        return f"dtype {dtype}, the definition says {storage.storage}"
    return None


def find_reference_issues(trace_set: TraceSet, definitions: Iterable[Definition]) -> Iterator[LoadIssue]:
    """Yield a warning for each reference parameter that is no input, and an error if no call can work."""
    for definition in definitions:
        name, file = definition.name, trace_set.definition_files.get(definition.name, Path())
        signature, call = read_module(definition.reference).signatures.get(ENTRY_NAME), definition.reference_call
        if signature is None:
            continue
        kinds = {key: one.kind for key, one in signature.parameters.items() if key not in definition.inputs}
        unknown = [
            key for key, kind in kinds.items() if kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        ]
        for parameter in unknown[:MOST_FINDINGS]:
            hint = did_you_mean(parameter, definition.inputs)
            reason = f"parameter {parameter!r} of the reference's run is no input of {name}{hint}"
            yield LoadIssue("warning", file, None, "reference", reason)
        try:
            signature.bind(*call.positional, **dict.fromkeys(call.keywords))
        except TypeError as error:
            takes = f"it takes ({', '.join(signature.parameters)}), the inputs are {', '.join(definition.inputs)}"
            reason = f"{name}: no call of the reference's run can work: {takes}: {error}"
            yield LoadIssue("error", file, None, "reference", reason)


def find_entry_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield a warning for each solution whose sources show that it will get COMPILE_ERROR."""
    for solution in trace_set.all_solutions():
        file = trace_set.solution_files.get(solution.name)
        if file is None:
            continue
        reasons = check_entry(solution, trace_set.definitions.get(solution.definition))
        yield from (LoadIssue("warning", file, None, None, f"{solution.name}: {reason}") for reason in reasons)
