"""Inputs that are not random: numbers that a workload gives, and tensors in its safetensors files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.bench.evaluators.compare.packed import is_packed, storage_shape
from flashinfer_bench.data import TensorSpec
from flashinfer_bench.data.dtypes import DTYPES, torch_dtype, why_not_held
from flashinfer_bench.errors import WorkloadFault


def make_scalar(name: str, spec: TensorSpec, value: bool | float, *, device: torch.device) -> Any:
    """Give a workload's number as a Python number of the input's kind, or as a 0-d tensor where the shape is [].

    Raises:
        WorkloadFault: the input's dtype does not hold the number, or the input is a tensor with dimensions.
    """
    if spec.shape:
        raise WorkloadFault(f"input {name!r} has shape {spec.shape}; the workload gives the number {value!r}")
    if (held := why_not_held(spec.dtype, value)) is not None:
        raise WorkloadFault(f"the workload gives {value!r} for input {name!r}; {held}")
    kind = DTYPES[spec.dtype].kind
    number = bool(value) if kind == "bool" else float(value) if kind == "float" else int(value)
    return number if spec.shape is None else torch.tensor(number, dtype=torch_dtype(spec.dtype), device=device)


def read_stored(file: Path, key: str, spec: TensorSpec, shape: tuple[int, ...] | None, *, where: str) -> torch.Tensor:
    """Read a tensor from a safetensors file, onto the CPU; the file is mapped, and only this tensor is read.

    Args:
        file: the safetensors file.
        key: the tensor's name in the file.
        spec: what the definition says of the input.
        shape: the shape that it must have; None for a single number.
        where: names input, workload, file and key in messages.

    Raises:
        WorkloadFault: the file, the key, the shape or the dtype is not as it should be.
    """
    try:
        fd = open_to_read(file)
    except OSError as error:
        raise WorkloadFault(f"{where}: cannot be read: {error.strerror}") from error
    try:  # the file that was looked at is read, whatever has its name by now
        with safe_open(f"/dev/fd/{fd}", framework="pt", device="cpu") as blob:
            keys = list(blob.keys())
            if key not in keys:
                raise WorkloadFault(f"{where}: there is no such key; the file has {', '.join(keys[:20]) or 'none'}")
            found = tuple(blob.get_slice(key).get_shape())
            expected = storage_shape(shape or (), spec.dtype)
            if found != expected and not (shape is None and found == (1,)):
                raise WorkloadFault(f"{where}: shape {list(found)}, the definition and the axes give {list(expected)}")
            stored = blob.get_tensor(key)
    except (SafetensorError, OSError, ValueError) as error:
        raise WorkloadFault(f"{where}: cannot be read: {error}") from error
    finally:
        os.close(fd)
    return _with_dtype(stored, torch_dtype(spec.dtype), where)


def _with_dtype(stored: torch.Tensor, dtype: torch.dtype, where: str) -> torch.Tensor:
    if stored.dtype == dtype:
        return stored
    # Packed and fp8 tensors are often stored as plain bytes, because early safetensors files had no such types.
    if dtype.itemsize == 1 and stored.dtype == torch.uint8 and (is_packed(dtype) or dtype.is_floating_point):
        return stored.view(dtype)
    raise WorkloadFault(f"{where}: dtype {stored.dtype}, the definition says {dtype}")
