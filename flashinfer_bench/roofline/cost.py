"""The least cost of one call: arithmetic, and bytes between memory and chip. Pure numbers.

Every input element that must be read, and every output element that must be written, counts once. Repeated reads and
intermediate stores of a kernel do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.data.dtypes import DTYPES, Unit

TERA: Final = 1e12

UNIT_OF: Final[Mapping[str, Unit]] = {
    "float64": "fp64",
    "float32": "tf32",
    "float16": "fp16",
    "bfloat16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float4_e2m1": "fp4",
}
"""dtype of the multiplied elements → the unit that multiplies them, on tensor cores if the device has some."""


@dataclass(frozen=True)
class Cost:
    """The work of one call."""

    flops: float
    """Floating-point operations; a multiplication with its addition counts as two. With 0 only bytes count."""
    bytes: float
    """Bytes read and written."""
    unit: Unit = "fp32"
    """The unit that runs the operations: a key of `Peak.tflops`."""


def size_of(dtype: str) -> float:
    """Return the bytes of one element; half a byte for a 4-bit element."""
    return DTYPES[dtype].bits / 8
