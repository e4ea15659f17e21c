"""A solution that lives in the test's own process: what an evaluator is given, without a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from flashinfer_bench.timing.measurement import Measured


class FakeRunnable:
    """Calls a plain function with the inputs; what it returns is handed on as it is.

    Args:
        function: takes the inputs in the order of the definition.
        latency_ms: what `measure` claims.
    """

    def __init__(self, function: Callable[..., Any], *, latency_ms: float = 1.0) -> None:
        self.metadata = SimpleNamespace(destination_passing_style=False)
        self.calls = 0
        self._function = function
        self._latency_ms = latency_ms

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        result = self._function(*args)
        return [result] if isinstance(result, torch.Tensor) else result

    def call_repeatedly(self, inputs: Any, count: int) -> Iterator[Any]:
        return (self(*inputs) for _ in range(count))

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        for inputs in input_sets:
            self(*inputs)
        return Measured(self._latency_ms, [self._latency_ms] * len(input_sets), {"method": "fake"})
