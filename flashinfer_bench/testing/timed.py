"""What `bench_gpu_time` returns: two numbers to unpack, and the whole measurement behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class GpuTime:
    """The time of one call. `median_ms, std_ms = …` unpacks it; as a numpy array it is the single readings."""

    median_ms: float
    std_ms: float
    times_ms: tuple[float, ...]
    """Every reading, in the order in which they were taken."""
    measurement: dict[str, Any]
    """What the numbers stand on, as JSON-able values: method, cache state, counts, spread, flags and more."""

    def __iter__(self) -> Iterator[float]:
        return iter((self.median_ms, self.std_ms))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the readings, so that `numpy.median(bench_gpu_time(...))` says what a script expects of it."""
        del copy  # it is made anew each time
        return np.array(self.times_ms, dtype=dtype)

    @property
    def method(self) -> str:
        """The clock that it was timed by: "cupti", "cuda_events" or "wall"."""
        return str(self.measurement["method"])
