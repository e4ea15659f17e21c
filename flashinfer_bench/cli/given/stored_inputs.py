"""Finds inputs that no run could use: blobs that are cut, or hold something else.

Of a blob the header is read, which says where each tensor lies; no tensor is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.data import Definition, LoadIssue, SafetensorsInput, TensorSpec, Trace, TraceSet
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.errors import WorkloadFault

HEADER_SIZE_BYTES: Final = 8
"""A safetensors file begins with the size of its header, in so many bytes."""
MOST_HEADER_BYTES: Final = 100_000_000
"""A longer header is refused, as safetensors does."""
STORED_NAMES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The name of a dtype in a safetensors file → the name of the torch dtype."""
SHOWN_KEYS: Final = 20


def find_input_issues(trace_set: TraceSet, workloads: Iterable[Trace]) -> list[LoadIssue]:
    """Return an error for each input that no run could use. Blobs that are not there are told of elsewhere."""
    issues: list[LoadIssue] = []
    headers: dict[tuple[Path, str], dict[str, Any] | str | None] = {}
    for line in workloads:
        definition = trace_set.definitions.get(line.definition)
        root = trace_set.blob_root(line.definition, line.workload.uuid)
        if definition is None:
            continue
        for reason in _find_reasons(definition, line, root, headers):
            text = f"workload {line.workload.uuid} of {line.definition}: {reason}"
            issues.append(LoadIssue("error", root or Path(), None, None, text))
    return issues


def _find_reasons(
    definition: Definition, line: Trace, root: Path | None, headers: dict[tuple[Path, str], dict[str, Any] | str | None]
) -> Iterator[str]:
    try:
        shapes = dict(zip(definition.inputs, definition.get_input_shapes(line.workload.axes), strict=True))
    except (KeyError, ValueError):
        return  # the loader has told that an axis is missing
    for name, source in line.workload.inputs.items():
        spec = definition.inputs.get(name)
        if spec is None:
            continue
        if not isinstance(source, SafetensorsInput) or root is None:
            continue
        key = (root, source.path)
        if key not in headers:
            headers[key] = _read_header(root, source.path)
        header = headers[key]
        where = f"input {name!r}, blob {source.path}, key {source.tensor_key!r}"
        if isinstance(header, str):
            yield f"input {name!r}, blob {source.path}: cannot be read: {header}"
        elif header is not None:
            reason = _why_no_tensor(header, source.tensor_key, spec, shapes[name])
            yield from [f"{where}: {reason}"] if reason else []


def _why_no_tensor(header: dict[str, Any], key: str, spec: TensorSpec, shape: tuple[int, ...] | None) -> str | None:
    keys = [name for name in header if name != "__metadata__"]
    if key not in keys:
        return f"there is no such key; the file has {', '.join(keys[:SHOWN_KEYS]) or 'none'}"
    found, dtype = header[key].get("shape"), STORED_NAMES.get(str(header[key].get("dtype")))
    wanted = list(shape or ())
    if spec.dtype == "float4_e2m1" and wanted:
        wanted[-1] //= 2
    if found != wanted and not (shape is None and found == [1]):
        return f"shape {found}, the definition and the axes give {wanted}"
    storage = DTYPES[spec.dtype]
    as_bytes = dtype == "uint8" and storage.kind == "float" and storage.bits <= 8
    if dtype is not None and dtype != storage.storage and not as_bytes:
        return f"dtype {dtype}, the definition says {storage.storage}"
    return None


def _read_header(root: Path, path: str) -> dict[str, Any] | str | None:
    """Return the header of a blob, or why it cannot be read; None where it is not there, or not fetched yet."""
    store = BlobStore(root)
    if store.why_not_ready(path) is not None:
        return None
    try:
        fd = open_to_read(store.locate(path))
    except (OSError, WorkloadFault) as error:
        return str(error)
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(HEADER_SIZE_BYTES), "little")
        if size < HEADER_SIZE_BYTES or not 0 < length <= min(MOST_HEADER_BYTES, size - HEADER_SIZE_BYTES):
            return "it is no safetensors file, or it is cut"
        try:
            header = json.loads(file.read(length))
            ends = [item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"]
            whole = HEADER_SIZE_BYTES + length + max(ends, default=0)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError):
            return "its header is broken"
    return header if size == whole else f"it has {size} bytes, and its header says {whole}"
