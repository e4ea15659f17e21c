"""The result of `bench_gpu_time`: two numbers to unpack, the single samples, and the whole measurement behind them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from opcode import opmap
from types import FrameType
from typing import Any, Final

import numpy as np

UNPACK: Final = opmap["UNPACK_SEQUENCE"]
UNPACK_SOME: Final = opmap["UNPACK_EX"]
"""Of `first, *others = …`."""
NO_PLACES: Final = (
    "it is unclear whether samples or (median, std) are meant: unpack the result, median_ms, std_ms = …, "
    "or take its times_ms"
)


@dataclass(frozen=True)
class GpuTime:
    """The time of one call. `median_ms, std_ms = …` unpacks it; to everything else it is the single samples.

    So it serves scripts that take two numbers, and those that take a list: `min`, `sorted`, `statistics.median`, `len`
    and numpy's functions are of the samples.
    """

    median_ms: float
    std_ms: float
    times_ms: tuple[float, ...]
    """Every sample, in the order in which they were taken."""
    measurement: dict[str, Any]
    """Method, cache state, counts, spread, flags and more, as JSON-able values."""

    def __iter__(self) -> Iterator[float]:
        return iter((self.median_ms, self.std_ms) if _unpacks_two(sys._getframe(1)) else self.times_ms)

    def __len__(self) -> int:
        return len(self.times_ms)

    def __getitem__(self, place: slice) -> tuple[float, ...]:
        if not isinstance(place, slice):
            raise TypeError(NO_PLACES)
        return self.times_ms[place]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the samples, so that `numpy.median(bench_gpu_time(...))` says what a script expects of it."""
        del copy  # it is made anew each time
        return np.array(self.times_ms, dtype=dtype)

    @property
    def method(self) -> str:
        """The clock that it was timed by: "cupti", "cuda_events" or "wall"."""
        return str(self.measurement["method"])


def _unpacks_two(frame: FrameType) -> bool:
    """Return whether code is about to unpack a value into two names. Nothing else tells the two uses apart.

    Raises:
        TypeError: it is about to put all but some into one name.
    """
    operation, count = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    if operation == UNPACK_SOME:
        raise TypeError(NO_PLACES)
    return operation == UNPACK and count == 2
