"""What a solution claims to have returned, compared with the definition.

Pure. A claim that does not fit raises a SolutionFailure with its status.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from flashinfer_bench.bench.runner.workers.calling_style import NOTHING
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.protocol import Returned

SCALARS_FOR: Final = {"float": ("float", "int"), "int": ("int",), "bool": ("bool",)}


@dataclass(frozen=True)
class OutputSpec:
    """What the definition says of one output, its axes bound."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return prod(self.shape) * self.dtype.itemsize


def check_returned(returned: list[Returned], outputs: list[OutputSpec], device_type: str) -> None:
    """Compare what a value-returning solution returned with the definition: count, then shapes, then dtypes.

    Raises:
        SolutionFailure: with the status of the first that does not fit.
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
    for check in (check_shape, check_dtype):
        for value, output in zip(returned, outputs, strict=True):
            check(value, output)
    for value, output in zip(returned, outputs, strict=True):
        if value.kind == "tensor" and value.device != device_type:
            raise SolutionFailure(
                "INCORRECT_DTYPE", f"output {output.name!r} lies on {value.device}, expected {device_type}"
            )


def check_memory(returned: list[Returned], outputs: list[OutputSpec]) -> None:
    """Raise SolutionFailure where an output lies in the memory of an input, and must not."""
    for value, output in zip(returned, outputs, strict=False):
        if value.is_input:
            raise SolutionFailure(
                "INCORRECT_NUMERICAL",
                f"output {output.name!r} lies in the memory of an input, which the reference's does not: whoever reads "
                "it would do the work (return a tensor of its own)",
            )


def check_shape(value: Returned, output: OutputSpec) -> None:
    """Raise SolutionFailure where a returned value has another shape than the definition gives."""
    if value.kind == "tensor" and tuple(value.shape or ()) != output.shape:
        raise SolutionFailure(
            "INCORRECT_SHAPE", f"output {output.name!r} has shape {value.shape}, expected {list(output.shape)}"
        )
    if value.kind == "scalar" and output.shape != ():
        raise SolutionFailure(
            "INCORRECT_SHAPE", f"output {output.name!r} is a Python {value.type}, expected shape {list(output.shape)}"
        )


def check_dtype(value: Returned, output: OutputSpec) -> None:
    """Raise SolutionFailure where a returned value is no plain tensor or number, or has another dtype."""
    expected = str(output.dtype).removeprefix("torch.")
    if value.type == NOTHING:
        hint = "return it, or set destination_passing_style to true and write into it"
        raise SolutionFailure(
            "INCORRECT_DTYPE", f"the function returned nothing (None) for output {output.name!r}; {hint}"
        )
    if value.kind == "other":
        raise SolutionFailure("INCORRECT_DTYPE", f"output {output.name!r} is a {value.type}, not a plain torch.Tensor")
    if value.kind == "tensor" and value.dtype != expected:
        raise SolutionFailure("INCORRECT_DTYPE", f"output {output.name!r} has dtype {value.dtype}, expected {expected}")
    if value.kind == "scalar" and value.type not in SCALARS_FOR[dtype_kind(output.dtype)]:
        raise SolutionFailure(
            "INCORRECT_DTYPE", f"output {output.name!r} is a Python {value.type}, expected {expected}"
        )


def dtype_kind(dtype: torch.dtype) -> str:
    """Return "float", "bool" or "int"."""
    if dtype == torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"
