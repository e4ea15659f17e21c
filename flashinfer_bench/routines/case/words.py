"""Dtypes as the routines' flags spell them, and the small arithmetic that families share: tiles, averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flashinfer_bench.errors import Misuse

DTYPE_WORDS: Final = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""A dtype as flags spell it → as definitions spell it."""


def read_dtype(word: str, flag: str, allowed: Sequence[str]) -> str:
    """Return the dtype that a flag means.

    Raises:
        Misuse: this routine does not take it.
    """
    if word not in allowed:
        raise Misuse(f"--{flag} {word}: this routine takes {', '.join(allowed)}")
    return DTYPE_WORDS[word]


def require(condition: object, message: str) -> None:
    """Raise Misuse unless a condition on flags holds."""
    if not condition:
        raise Misuse(message)


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is not below a value."""
    return -(-value // step) * step


def swizzled_size(rows: int, columns: int) -> int:
    """Return the number of scales in tiles of 128 rows by 4 columns, with the padding."""
    return round_up(rows, 128) * round_up(columns, 4)
