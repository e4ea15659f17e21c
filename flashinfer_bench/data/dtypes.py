"""The element types of the format: one table. Torch is touched by `torch_dtype` alone, and only when it is called.

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
"""Units that do arithmetic; `roofline.peaks` knows how fast each is."""


class Dtype(NamedTuple):
    """What one dtype name of a definition stands for."""

    bits: int
    """Size of one element, in bits (of one byte of two elements for the packed spelling)."""
    kind: Kind
    """What the values are."""
    storage: str
    """The name of the torch dtype that stores it, without "torch."."""


DTYPES: Final[Mapping[str, Dtype]] = MappingProxyType(
    {
        "float64": Dtype(64, "float", "float64"),
        "float32": Dtype(32, "float", "float32"),
        "float16": Dtype(16, "float", "float16"),
        "bfloat16": Dtype(16, "float", "bfloat16"),
        "float8_e4m3fn": Dtype(8, "float", "float8_e4m3fn"),
        "float8_e5m2": Dtype(8, "float", "float8_e5m2"),
        "float8_e8m0fnu": Dtype(8, "float", "float8_e8m0fnu"),
        "float4_e2m1": Dtype(4, "float", "float4_e2m1fn_x2"),
        "float4_e2m1fn_x2": Dtype(8, "float", "float4_e2m1fn_x2"),
        "int64": Dtype(64, "int", "int64"),
        "int32": Dtype(32, "int", "int32"),
        "int16": Dtype(16, "int", "int16"),
        "int8": Dtype(8, "int", "int8"),
        "uint64": Dtype(64, "uint", "uint64"),
        "uint32": Dtype(32, "uint", "uint32"),
        "uint16": Dtype(16, "uint", "uint16"),
        "uint8": Dtype(8, "uint", "uint8"),
        "bool": Dtype(8, "bool", "bool"),
    }
)


LARGEST_FLOATS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "float64": 1.7976931348623157e308,
        "float32": 3.4028234663852886e38,
        "float16": 65504.0,
        "bfloat16": 3.3895313892515355e38,
        "float8_e4m3fn": 448.0,
        "float8_e5m2": 57344.0,
        "float8_e8m0fnu": 2.0**127,
        "float4_e2m1fn_x2": 6.0,
    }
)
"""The largest finite number of each float, by the name of its storage."""
POWERS_OF_TWO: Final = "float8_e8m0fnu"
NO_INFINITY: Final = frozenset({"float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2"})


def why_not_held(name: str, value: bool | float) -> str | None:
    """Say which numbers a dtype holds where it does not hold this one; None where it does."""
    bits, kind, storage = DTYPES[name]
    if bits == 4:
        return f"{name} is packed, two to a byte: no single one can be stored"
    if kind == "bool":
        return None if isinstance(value, bool) else f"{name} holds true and false"
    if kind == "float":
        largest = LARGEST_FLOATS[storage]
        least = 2.0**-127 if storage == POWERS_OF_TWO else -largest
        if isinstance(value, float) and not math.isfinite(value):
            is_held = math.isnan(value) or storage not in NO_INFINITY
        else:
            is_held = least <= value <= largest
        return None if is_held else f"{name} holds {least:g} to {largest:g}"
    least, most = (0, (1 << bits) - 1) if kind == "uint" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if (isinstance(value, int) or value.is_integer()) and least <= value <= most:
        return None
    return f"{name} holds whole numbers from {least} to {most}"


class DType(str, Enum):
    """The names of `DTYPES`, for scripts that write them as members; a model keeps the plain name."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E8M0FNU = "float8_e8m0fnu"
    FLOAT4_E2M1 = "float4_e2m1"
    FLOAT4_E2M1FN_X2 = "float4_e2m1fn_x2"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"


NOT_RECORDED: Final = "unknown"
"""What a library dumps for a dtype that it did not see."""


def check_dtype(name: str) -> str:
    """Return the name when the table has it; raise ValueError with the nearest one when not."""
    if name == NOT_RECORDED:
        raise ValueError("the dump did not record this dtype; write its name there, such as bfloat16 or int32")
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}{did_you_mean(name, DTYPES)} (known: {', '.join(DTYPES)})")
    return name


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that stores this dtype; raise ValueError when this torch does not have it."""
    import torch  # heavy: only who needs tensors pays for it

    storage = DTYPES[check_dtype(name)].storage
    if not hasattr(torch, storage):
        raise ValueError(f"torch {torch.__version__} has no dtype {storage}, which {name} needs; use a newer torch")
    found: torch.dtype = getattr(torch, storage)
    return found
