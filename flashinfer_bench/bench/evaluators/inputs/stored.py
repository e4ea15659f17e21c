"""Inputs that are not random: numbers that a workload gives, and tensors that lie in its safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, storage_shape
from flashinfer_bench.data import SafetensorsInput, TensorSpec
from flashinfer_bench.data.dtypes import DTYPES, torch_dtype
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.errors import WorkloadFault


def make_scalar(name: str, spec: TensorSpec, value: bool | float, *, device: torch.device) -> Any:
    """Give a number of the workload as a Python number of the input's kind, or as a 0-d tensor where the shape is [].

    Raises:
        WorkloadFault: the number is of another kind, or the input is no single number.
    """
    if spec.shape:
        raise WorkloadFault(f"input {name!r} has shape {spec.shape}; the workload gives the number {value!r}")
    kind = DTYPES[spec.dtype].kind
    whole = isinstance(value, int) or value.is_integer()
    if (kind == "bool" and not isinstance(value, bool)) or (kind in ("int", "uint") and not whole):
        raise WorkloadFault(f"input {name!r} is {spec.dtype}; the workload gives {value!r}")
    number = bool(value) if kind == "bool" else float(value) if kind == "float" else int(value)
    return number if spec.shape is None else torch.tensor(number, dtype=torch_dtype(spec.dtype), device=device)


def read_stored(
    name: str,
    spec: TensorSpec,
    source: SafetensorsInput,
    shape: tuple[int, ...] | None,
    *,
    blob_root: Path,
    workload: str,
) -> torch.Tensor:
    """Read an input from its blob, on the CPU; the file is mapped, only this tensor is read.

    Args:
        name: of the input.
        spec: what the definition says of it.
        source: where it lies.
        shape: what it has to be, its axes bound; None for a single number.
        blob_root: the root that the source's path is relative to.
        workload: its uuid, for messages.

    Raises:
        WorkloadFault: the file, the key, the shape or the dtype is not as it should be.
    """
    file = BlobStore(blob_root).locate(source.path, workload=workload)
    where = f"input {name!r} of workload {workload} ({file}, key {source.tensor_key!r})"
    try:
        with safe_open(file, framework="pt", device="cpu") as blob:
            keys = list(blob.keys())
            if source.tensor_key not in keys:
                raise WorkloadFault(f"{where}: there is no such key; the file has {', '.join(keys[:20]) or 'none'}")
            found = tuple(blob.get_slice(source.tensor_key).get_shape())
            expected = storage_shape(shape or (), spec.dtype)
            if found != expected and not (shape is None and found == (1,)):
                raise WorkloadFault(f"{where}: shape {list(found)}, the definition and the axes give {list(expected)}")
            stored = blob.get_tensor(source.tensor_key)
    except (SafetensorError, OSError, ValueError) as error:
        raise WorkloadFault(f"{where}: cannot be read: {error}") from error
    return _with_dtype(stored, torch_dtype(spec.dtype), where)


def _with_dtype(stored: torch.Tensor, dtype: torch.dtype, where: str) -> torch.Tensor:
    if stored.dtype == dtype:
        return stored
    # Packed and fp8 tensors are often stored as plain bytes: files did not have these types at first.
    if dtype.itemsize == 1 and stored.dtype == torch.uint8 and (is_packed(dtype) or dtype.is_floating_point):
        return stored.view(dtype)
    raise WorkloadFault(f"{where}: dtype {stored.dtype}, the definition says {dtype}")
