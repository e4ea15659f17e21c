"""The inputs of a workload: given numbers and stored tensors, custom inputs from the definition's own function, and
random values for all others. An equal seed gives equal inputs.

Each input has its own generator, seeded by a sha256 of the seed and the input's name. So an input's values do not
depend on earlier inputs. `rules` picks an input's random values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.bench.evaluators.compare.packed import is_packed, storage_shape
from flashinfer_bench.bench.evaluators.inputs.constraints import check_constraints, find_broken_by_axes
from flashinfer_bench.bench.evaluators.inputs.custom import CustomInputs, list_custom
from flashinfer_bench.bench.evaluators.inputs.distributions import ValueSpec
from flashinfer_bench.bench.evaluators.inputs.memory import total_bytes
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput, find_varied_input, make_number, make_tensor
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.data import Definition, RandomInput, SafetensorsInput, ScalarInput, TensorSpec, Workload
from flashinfer_bench.data.dtypes import DTYPES, torch_dtype, why_not_held
from flashinfer_bench.data.store.blobs import locate_blob
from flashinfer_bench.data.workload import CustomInput
from flashinfer_bench.errors import WorkloadFault

_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class InputMaker:
    """Makes the inputs of one workload; all trials share the tensors that are read from files."""

    definition: Definition
    workload: Workload
    device: torch.device
    """The device of the tensors."""
    blob_root: Path
    """Root of the trace set that holds the workload."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Gets "broken_constraints" if the axes break constraints, and "unchecked_constraints" if constraints cannot be
    checked."""
    _stored: dict[str, Any] = field(default_factory=dict)
    """Stored values, by the input's name, so that each is read once."""

    def make(self, seed: int) -> list[Any]:
        """Make a set of inputs, in the order of the definition; an omitted optional input is None.

        Raises:
            WorkloadFault: a file, a number, an axis, a constraint or the definition's function is invalid.
        """
        definition, device = self.definition, self.device
        axes, shapes = bind_axes(definition, self.workload)
        inputs = count_bytes(definition.inputs.values(), shapes.values())
        outputs = count_bytes(definition.outputs.values(), definition.get_output_shapes(self.workload.axes))
        for what, needed in (("inputs", inputs), ("outputs", outputs)):
            if needed > total_bytes(device):
                needs, has = f"{needed // 10**6 / 1e3:.1f} GB", f"{total_bytes(device) / 1e9:.1f} GB"
                raise WorkloadFault(f"the {what} take {needs}, {device.type} has {has}; use a device with more memory")
        given = _find_given(definition, self.workload, device)
        for name in [name for name in definition.inputs if name not in given]:
            match self.workload.inputs.get(name):
                case SafetensorsInput() as source:
                    given[name] = self._read(name, source, shapes[name])
                case None | RandomInput() | CustomInput():
                    pass
                case source:
                    what = f"input {name!r} of workload {self.workload.uuid} is of type {source.type!r}"
                    raise WorkloadFault(f"{what}, which cannot be made here; store it in a safetensors file")
        made = {**given}
        if list_custom(self.workload):
            made |= CustomInputs(definition, self.workload, axes, shapes, device).draw(derive_seed(seed, "custom"))
        # Numbers first, since the valid values of integers can depend on them.
        for name, shape in sorted(shapes.items(), key=lambda item: item[1] is not None):
            if name not in made:
                value_spec = ValueSpec(name, definition, shape or (), axes, made, seed, device, given)
                made[name] = make_number(value_spec) if shape is None else make_tensor(value_spec)
        broken = find_broken_by_axes(definition, self.workload)
        if broken:
            self.notes["broken_constraints"] = list(broken.values())
        kept = [constraint for constraint in definition.constraints if constraint not in broken]
        unchecked = check_constraints(kept, {**axes, **made})
        if unchecked:
            self.notes["unchecked_constraints"] = unchecked
        return [made[name] for name in definition.inputs]

    def _read(self, name: str, source: SafetensorsInput, shape: tuple[int, ...] | None) -> Any:
        if name not in self._stored:
            workload = self.workload.uuid
            file = locate_blob(self.blob_root, source.path, workload=workload)
            where = f"input {name!r} of workload {workload} ({file}, key {source.tensor_key!r})"
            tensor = read_stored(file, source.tensor_key, self.definition.inputs[name], shape, where=where)
            # The tensor is copied on the CPU too, because the mapped memory belongs to the data set.
            self._stored[name] = tensor.item() if shape is None else tensor.to(self.device, copy=True)
        return self._stored[name]


def _find_given(definition: Definition, workload: Workload, device: torch.device) -> dict[str, Any]:
    """Return the numbers that a workload gives, and None for each omitted optional input, by name."""
    given: dict[str, Any] = {}
    for name, spec in definition.inputs.items():
        source = workload.inputs.get(name)
        if isinstance(source, ScalarInput):
            given[name] = _make_scalar(name, spec, source.value, device=device)
        elif source is None and spec.optional:
            given[name] = None
    return given


def _make_scalar(name: str, spec: TensorSpec, value: bool | float, *, device: torch.device) -> Any:
    """Return a workload's number as a Python number of the input's kind, or as a 0-d tensor if the shape is [].

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
        spec: the definition's entry for the input.
        shape: the shape that it must have; None for a single number.
        where: names input, workload, file and key in messages.

    Raises:
        WorkloadFault: the file, the key, the shape or the dtype is invalid.
    """
    try:
        fd = open_to_read(file)
    except OSError as error:
        raise WorkloadFault(f"{where}: cannot be read: {error.strerror}") from error
    try:  # this path leads to the checked file, even if another file has taken its name
        with safe_open(f"/dev/fd/{fd}", framework="pt", device="cpu") as blob:
            keys = list(blob.keys())
            if key not in keys:
                raise WorkloadFault(f"{where}: there is no such key; the file has {', '.join(keys[:20]) or 'none'}")
            result = tuple(blob.get_slice(key).get_shape())
            expected = storage_shape(shape or (), spec.dtype)
            if result != expected and not (shape is None and result == (1,)):
                raise WorkloadFault(f"{where}: shape {list(result)}, the definition and the axes give {list(expected)}")
            stored: torch.Tensor = blob.get_tensor(key)
    except (SafetensorError, OSError, ValueError) as error:
        raise WorkloadFault(f"{where}: cannot be read: {error}") from error
    finally:
        os.close(fd)
    dtype = torch_dtype(spec.dtype)
    # Packed and fp8 tensors are often stored as plain bytes, because early safetensors files had no such types.
    if dtype.itemsize == 1 and stored.dtype == torch.uint8 and (is_packed(dtype) or dtype.is_floating_point):
        return stored.view(dtype)
    if stored.dtype != dtype:
        raise WorkloadFault(f"{where}: dtype {stored.dtype}, the definition says {dtype}")
    return stored


def find_varied_inputs(
    definition: Definition, workload: Workload, device: torch.device = _CPU
) -> dict[str, VariedInput]:
    """Return how each input of a workload differs from call to call, by name, as the rules say.

    Raises:
        WorkloadFault: an axis of the workload has no size, or a number is invalid.
    """
    axes, shapes = bind_axes(definition, workload)
    given, varied = _find_given(definition, workload, device), {}
    has_stored = any(
        isinstance(source, SafetensorsInput) and DTYPES[definition.inputs[name].dtype].kind != "float"
        for name, source in workload.inputs.items()
        if name in definition.inputs
    )
    for name, shape in shapes.items():
        varied[name] = VariedInput(name)
        if shape is not None:
            value_spec = ValueSpec(name, definition, shape, axes, device=device, given=given)
            is_random = isinstance(workload.inputs.get(name), RandomInput | None)
            varied[name] = find_varied_input(value_spec, is_random=is_random, has_stored_integers=has_stored)
    return varied


def count_bytes(specs: Iterable[TensorSpec], shapes: Iterable[Sequence[int] | None]) -> int:
    """Return the bytes of tensors and numbers that have these shapes."""
    return sum(math.prod(shape or ()) * DTYPES[spec.dtype].bits // 8 for spec, shape in zip(specs, shapes, strict=True))


def bind_axes(
    definition: Definition, workload: Workload
) -> tuple[dict[str, int], Mapping[str, tuple[int, ...] | None]]:
    """Return the size of every axis and the shape of every input.

    Raises:
        WorkloadFault: an axis has no size, or the workload's size of a constant axis is not the definition's.
    """
    axes = {**workload.axes, **definition.const_axes}
    for name, size in definition.const_axes.items():
        if workload.axes.get(name, size) != size:
            raise WorkloadFault(
                f"workload {workload.uuid} has {name}={workload.axes[name]}; {definition.name} has {size}"
            )
    try:
        axes = definition.bind_axes(axes)
        shapes = definition.get_input_shapes(workload.axes)
    except ValueError as error:
        raise WorkloadFault(f"workload {workload.uuid}: {error}") from error
    return axes, dict(zip(definition.inputs, shapes, strict=True))
