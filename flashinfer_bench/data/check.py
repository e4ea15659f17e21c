"""What is wrong in a set that loading does not see: stored inputs, references, entry points. `run` and `validate` ask.

No code of the set is run. Of a blob its header is read, which says what each tensor is; no tensor is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.data.definition import Definition, TensorSpec, normalise_op_type
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.issue import LoadIssue, Severity
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.layout import SOLUTIONS, path_part
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload

STORED_NAMES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The name of a dtype in a safetensors file → the name of the torch dtype."""
SHOWN_KEYS: Final = 20
MOST_UNKNOWN: Final = 20
"""Parameters of one reference that are reported as no inputs."""
Jobs = Iterable[tuple[str, Workload]]
"""Definition, by name, and workload."""
Tensors = dict[str, tuple[list[int], str]]
"""Key → shape and dtype, as a blob's header says them."""


@dataclass(frozen=True)
class Asked:
    """The part of a set that a command was asked for: names, or None where all are meant."""

    definitions: Sequence[str] | None = None
    solutions: Sequence[str] | None = None
    op_types: Sequence[str] | None = None
    authors: Sequence[str] | None = None

    def issues(self, trace_set: TraceSet) -> list[LoadIssue]:
        """Return the issues of loading that are about this part, by the paths of their files."""
        return [issue for issue in trace_set.issues if self.is_about(issue, trace_set)]

    def is_about(self, issue: LoadIssue, trace_set: TraceSet) -> bool:
        """Tell whether an issue is about this part, by the path of its file."""
        parts = parts_below(issue.file, trace_set.roots)
        if issue.file in trace_set.roots or not any((self.definitions, self.solutions, self.op_types, self.authors)):
            return True
        if self.op_types and not set(map(normalise_op_type, parts)) & set(map(normalise_op_type, self.op_types)):
            return False
        if self.definitions and not _are_among(self.definitions, parts):
            return False
        if parts and parts[0] == SOLUTIONS:
            named = not self.solutions or _are_among(self.solutions, parts[-1:])
            return named and (not self.authors or _are_among(self.authors, parts))
        if not self.solutions or self.definitions:
            return True
        known = (item for group in trace_set.solutions.values() for item in group)
        return _are_among([item.definition for item in known if item.name in self.solutions], parts)


def parts_below(file: Path, roots: Iterable[Path]) -> tuple[str, ...]:
    """Return the folders of a file below its root, and its name without the suffix."""
    root = next((root for root in roots if file.is_relative_to(root)), None)
    return () if file == root else (file if root is None else file.relative_to(root)).with_suffix("").parts


def find_input_issues(trace_set: TraceSet, jobs: Jobs) -> list[LoadIssue]:
    """Return an issue for each stored input that no run could use: an error, or a warning for a git-lfs pointer."""
    blobs: dict[tuple[Path, str], Tensors | str] = {}
    issues = []
    for name, workload in jobs:
        definition, root = trace_set.definitions.get(name), trace_set.blob_root(name, workload.uuid)
        whose, stored = f"workload {workload.uuid} of {name}: ", workload.stored_inputs
        if root is None or not stored:
            continue
        shapes = _shapes_of(definition, workload)
        for key, source in stored.items():
            where = (root, source.path)
            if where not in blobs:
                store = BlobStore(root)
                reason = store.why_not_ready(source.path)
                blobs[where] = reason or _read_tensors(store, source.path)
                if reason is not None:
                    severity: Severity = "warning" if store.is_pointer(source.path) else "error"
                    issues.append(LoadIssue(severity, root, None, None, f"{whose}{reason}"))
                elif isinstance(problem := blobs[where], str):
                    text = f"{whose}input {key!r}, blob {source.path}: cannot be read: {problem}"
                    issues.append(LoadIssue("error", root, None, None, text))
            tensors = blobs[where]
            if definition is None or key not in shapes or isinstance(tensors, str):
                continue
            if (why := _why_unfit(tensors, source.tensor_key, definition.inputs[key], shapes[key])) is not None:
                text = f"{whose}input {key!r}, blob {source.path}, key {source.tensor_key!r}: {why}"
                issues.append(LoadIssue("error", root, None, None, text))
    return issues


def find_reference_issues(trace_set: TraceSet, definitions: Iterable[Definition]) -> Iterator[LoadIssue]:
    """Yield a warning for each parameter of a reference that is no input, and an error where no call can work."""
    for definition in definitions:
        name, file = definition.name, trace_set.definition_files.get(definition.name, Path())
        unknown = [one for one in definition.reference_parameters or () if one not in definition.inputs]
        for parameter in unknown[:MOST_UNKNOWN]:
            hint = did_you_mean(parameter, definition.inputs)
            reason = f"parameter {parameter!r} of the reference's run is no input of {name}{hint}"
            yield LoadIssue("warning", file, None, "reference", reason)
        if (why := definition.why_no_call_works) is not None:
            yield LoadIssue("error", file, None, "reference", f"{name}: no call of the reference's run can work: {why}")


def find_entry_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield a warning for each entry point whose text shows that it will end in COMPILE_ERROR."""
    for solution in (item for group in trace_set.solutions.values() for item in group):
        file = trace_set.solution_files.get(solution.name)
        if file is None or not solution.get_entry_source().content.strip():
            continue  # the loader has warned of an empty source
        reasons = check_entry(solution, trace_set.definitions.get(solution.definition))
        yield from (LoadIssue("warning", file, None, None, f"{solution.name}: {reason}") for reason in reasons)


def _are_among(names: Iterable[str], parts: Iterable[str]) -> bool:
    return not set(map(path_part, names)).isdisjoint(parts)


def _read_tensors(store: BlobStore, path: str) -> Tensors | str:
    """Return what a blob holds, or why it cannot be read."""
    from safetensors import SafetensorError, safe_open  # with numpy, which sets without blobs do not need

    try:
        with safe_open(store.locate(path), "np") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
            return {key: (one.get_shape(), one.get_dtype()) for key, one in slices.items()}
    except (OSError, SafetensorError) as error:
        return str(error)


def _shapes_of(definition: Definition | None, workload: Workload) -> dict[str, tuple[int, ...] | None]:
    """Return input → its shape, None for a scalar; nothing if an axis is missing, which the loader has reported."""
    try:
        return (
            dict(zip(definition.inputs, definition.get_input_shapes(workload.axes), strict=True)) if definition else {}
        )
    except (KeyError, ValueError):
        return {}


def _why_unfit(tensors: Tensors, key: str, spec: TensorSpec, shape: tuple[int, ...] | None) -> str | None:
    """Say why a stored tensor is not the input that a definition describes; None if it is."""
    if key not in tensors:
        return f"there is no such key; the file has {', '.join(list(tensors)[:SHOWN_KEYS]) or 'none'}"
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
