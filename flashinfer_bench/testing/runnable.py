"""A solution or a reference as a callable of this process, for debugging: NOTHING IS ISOLATED.

Its code runs here, with all that this process may do. It can change the results of everything else in the process, and
crash it. What `Benchmark` judges never runs like this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.data import Definition


@dataclass(frozen=True)
class RunnableMetadata:
    """What is known of a runnable."""

    build_type: str
    """How it was loaded: "python", "tvm-ffi", "torch", or "reference"."""
    definition_name: str
    solution_name: str
    destination_passing_style: bool
    """Whether it writes into outputs that it is given."""
    definition: Definition
    misc: Mapping[str, Any] = field(default_factory=dict)
    """What else a builder wants to tell."""


class Runnable:
    """A function in this process, unisolated, and what is known of it."""

    def __init__(
        self,
        function: Callable[..., Any],
        metadata: RunnableMetadata,
        cleaner: Callable[[], None] | None = None,
    ) -> None:
        self.metadata = metadata
        self._function = function
        self._cleaner = cleaner

    def __call__(self, *args: Any) -> Any:
        """Call it in its own style: with the inputs, and with the outputs behind them where it writes into these."""
        return self._function(*args)

    def call_kwargs(self, **kwargs: Any) -> Any:
        """Call it in its own style, with the names of the definition.

        Raises:
            TypeError: a name is none of the definition's, or one is missing.
        """
        return self(*self.metadata.definition.merge_kwargs_to_args((), kwargs))

    def call_value_returning(self, *inputs: Any) -> Any:
        """Call it with inputs alone and return the outputs, whatever its style: one alone, several as a tuple."""
        definition = self.metadata.definition
        device = next((value.device for value in inputs if hasattr(value, "device")), "cpu")
        if self.metadata.destination_passing_style:
            outputs = allocate_outputs(definition, inputs, device)
            self(*inputs, *outputs)
        else:
            outputs = normalize_result(definition, self(*inputs), device)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def call_destination_passing(self, *args: Any) -> None:
        """Call it with inputs and the outputs behind them, whatever its style: the outputs are filled.

        Raises:
            ValueError: it returns another number of outputs than the definition has.
        """
        if self.metadata.destination_passing_style:
            self(*args)
            return
        definition = self.metadata.definition
        inputs, outputs = args[: len(definition.inputs)], args[len(definition.inputs) :]
        device = next((value.device for value in outputs if hasattr(value, "device")), "cpu")
        for output, value in zip(outputs, normalize_result(definition, self(*inputs), device), strict=True):
            output.copy_(value)

    def cleanup(self) -> None:
        """Forget what was imported for it; a second call does nothing."""
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is not None:
            cleaner()
