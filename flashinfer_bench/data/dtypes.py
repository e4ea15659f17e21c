"""The table of the format's element types. Only `torch_dtype` imports torch, when it is called.

float4_e2m1 is stored packed, two elements to a byte; its storage type is torch.float4_e2m1fn_x2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from flashinfer_bench.data.names import did_you_mean

if TYPE_CHECKING:
    import torch

Kind = Literal["float", "int", "uint", "bool"]
Unit = Literal["fp64", "fp32", "tf32", "fp16", "fp8", "fp4"]
"""Arithmetic units; `roofline.peaks` has their peak rates."""


class Dtype(NamedTuple):
    """The properties of one dtype name."""

    bits: int
    """Size of one stored element, in bits. An element of the packed dtype is a byte with two numbers."""
    kind: Kind
    """Kind of the values."""
    storage: str
    """The name of the torch dtype for storage, without "torch."."""
    largest: float = 0.0
    """Largest finite number of a float."""
    has_infinity: bool = True


_FLOATS: Final = {
    "float64": Dtype(64, "float", "float64", 1.7976931348623157e308),
    "float32": Dtype(32, "float", "float32", 3.4028234663852886e38),
    "float16": Dtype(16, "float", "float16", 65504.0),
    "bfloat16": Dtype(16, "float", "bfloat16", 3.3895313892515355e38),
    "float8_e4m3fn": Dtype(8, "float", "float8_e4m3fn", 448.0, False),
    "float8_e5m2": Dtype(8, "float", "float8_e5m2", 57344.0),
    "float8_e8m0fnu": Dtype(8, "float", "float8_e8m0fnu", 2.0**127, False),
    "float4_e2m1": Dtype(4, "float", "float4_e2m1fn_x2", 6.0, False),
    "float4_e2m1fn_x2": Dtype(8, "float", "float4_e2m1fn_x2", 6.0, False),
}
_INTEGERS: Final = {f"int{bits}": Dtype(bits, "int", f"int{bits}") for bits in (64, 32, 16, 8)}
_UNSIGNED: Final = {f"uint{bits}": Dtype(bits, "uint", f"uint{bits}") for bits in (64, 32, 16, 8)}
DTYPES: Final[Mapping[str, Dtype]] = MappingProxyType(
    {**_FLOATS, **_INTEGERS, **_UNSIGNED, "bool": Dtype(8, "bool", "bool")}
)
POWERS_OF_TWO: Final = "float8_e8m0fnu"


def why_not_held(name: str, value: bool | float) -> str | None:
    """Return None if a dtype can hold a number, else a text with the dtype's range."""
    bits, kind, storage, largest, has_infinity = DTYPES[name]
    if bits == 4:
        return f"{name} is packed, two to a byte, so a single value cannot be stored"
    if kind == "bool":
        return None if isinstance(value, bool) else f"{name} holds true and false"
    if kind == "float":
        least = 2.0**-127 if storage == POWERS_OF_TWO else -largest
        if isinstance(value, float) and not math.isfinite(value):
            is_held = math.isnan(value) or has_infinity
        else:
            is_held = least <= value <= largest
        return None if is_held else f"{name} holds {least:g} to {largest:g}"
    least, most = (0, (1 << bits) - 1) if kind == "uint" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if (isinstance(value, int) or value.is_integer()) and least <= value <= most:
        return None
    return f"{name} holds whole numbers from {least} to {most}"


DType = Enum("DType", {name.upper(): name for name in DTYPES}, type=str)  # type: ignore[misc] # of the table's names
"""The names of `DTYPES` as an enum, for scripts that use members; a model keeps the plain name."""
NOT_RECORDED: Final = "unknown"
"""Value in a library's dump for a dtype that was not recorded."""


def check_dtype(name: str) -> str:
    """Return the name if the table has it; else raise ValueError with the nearest name."""
    if name == NOT_RECORDED:
        raise ValueError("the dump did not record this dtype; write its name there, such as bfloat16 or int32")
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}{did_you_mean(name, DTYPES)} (known: {', '.join(DTYPES)})")
    return name


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that stores this dtype; raise ValueError if this version of torch lacks that dtype."""
    import torch  # slow to import, so only callers with tensors import it

    storage = DTYPES[check_dtype(name)].storage
    if not hasattr(torch, storage):
        raise ValueError(f"torch {torch.__version__} has no dtype {storage}, which {name} needs; use a newer torch")
    found: torch.dtype = getattr(torch, storage)
    return found
