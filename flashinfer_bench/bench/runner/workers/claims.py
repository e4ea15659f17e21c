"""Compares a solution's reported return values with the definition.

Pure. A report that does not fit raises a SolutionFailure with its status.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

import torch

from flashinfer_bench.bench.runner.workers.calling_style import NOTHING
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.protocol import Returned

SCALARS_FOR: Final = {"float": ("float", "int"), "int": ("int",), "bool": ("bool",)}
Status = Literal["INCORRECT_SHAPE", "INCORRECT_DTYPE"]


@dataclass(frozen=True)
class OutputSpec:
    """One output of the definition, with the workload's axes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return prod(self.shape) * self.dtype.itemsize


def check_returned(returned: list[Returned], outputs: list[OutputSpec], device_type: str) -> None:
    """Compare the values of a value-returning solution with the definition: count, then shapes, then dtypes.

    Raises:
        SolutionFailure: a value does not fit; the status is that of the first mismatch.
    """
    if len(returned) != len(outputs):
        names = ", ".join(output.name for output in outputs)
        values = "1 value" if len(returned) == 1 else f"{len(returned)} values"
        if [value.type for value in returned] == [NOTHING]:
            values = "nothing (None)"
        elif len(returned) == 1 and returned[0].kind == "other":
            values = f"a {returned[0].type}"
        raise SolutionFailure(
            "INCORRECT_SHAPE", f"returned {values}; the definition has {len(outputs)} outputs: {names}"
        )
    pairs = zip(returned, outputs, strict=True)
    found = [misfit for value, output in pairs for misfit in _list_misfits(value, output, device_type)]
    if found:
        raise SolutionFailure(*min(found, key=lambda misfit: misfit[0] != "INCORRECT_SHAPE"))


def check_memory(returned: list[Returned], outputs: list[OutputSpec]) -> None:
    """Raise SolutionFailure if an output wrongly uses the memory of an input."""
    for value, output in zip(returned, outputs, strict=False):
        if value.is_input:
            raise SolutionFailure(
                "INCORRECT_NUMERICAL",
                f"output {output.name!r} lies in the memory of an input, unlike the reference's; return a new tensor",
            )


def _list_misfits(value: Returned, output: OutputSpec, device_type: str) -> Iterator[tuple[Status, str]]:
    """Yield each mismatch between a returned value and the definition's output."""
    name, shape, dtype = f"output {output.name!r}", list(output.shape), str(output.dtype).removeprefix("torch.")
    if value.type == NOTHING:
        hint = "return it, or set destination_passing_style to true and write into it"
        yield "INCORRECT_DTYPE", f"the function returned nothing (None) for {name}; {hint}"
    elif value.kind == "other":
        yield "INCORRECT_DTYPE", f"{name} is a {value.type}, not a plain torch.Tensor"
    elif value.kind == "scalar":
        kind = "bool" if output.dtype == torch.bool else "float" if output.dtype.is_floating_point else "int"
        if shape:
            yield "INCORRECT_SHAPE", f"{name} is a Python {value.type}, expected shape {shape}"
        if value.type not in SCALARS_FOR[kind]:
            yield "INCORRECT_DTYPE", f"{name} is a Python {value.type}, expected {dtype}"
    else:
        if (value.shape or []) != shape:
            yield "INCORRECT_SHAPE", f"{name} has shape {value.shape}, expected {shape}"
        if value.dtype != dtype:
            yield "INCORRECT_DTYPE", f"{name} has dtype {value.dtype}, expected {dtype}"
        if value.device != device_type:
            yield "INCORRECT_DTYPE", f"{name} lies on {value.device}, expected {device_type}"
