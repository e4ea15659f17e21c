"""What an evaluator is, and what goes in and out of one. The judge's process runs it; solution code never does.

To judge a kind of definition in another way, subclass `Evaluator` (or `DefaultEvaluator`, and override one method):
docs/evaluators.md shows how, and how a run is told of it. Parameters of its own are read from
`cfg.extra.get("my_param", default)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.verdict import Accepted, Rejected, Verdict
from flashinfer_bench.data import Definition, Performance, Workload
from flashinfer_bench.timing.measurement import Measured

__all__ = ["Accepted", "Baseline", "Evaluator", "JudgeContext", "Rejected", "SolutionRunnable", "Verdict"]


@dataclass(frozen=True)
class Baseline:
    """What the solution is judged on and held against; one entry per trial."""

    inputs: list[list[Any]]
    """In the order of the definition: tensors, Python numbers, None for an optional input that is left out."""
    outputs: list[list[torch.Tensor]]
    """What the reference gives for them, in the order of the definition."""
    mean_latency_ms: float | None
    """Latency of the reference; None where it was not to be measured."""
    measurement: dict[str, Any] | None
    """How that was measured."""


@dataclass(frozen=True)
class JudgeContext:
    """What the device session lends an evaluator for one job."""

    seed: int
    """Everything random of this job comes from it; solutions never learn it before they are judged."""
    blob_root: Path
    """Root of the trace set that holds the workload."""
    reference: Callable[[list[Any]], list[torch.Tensor]]
    """Takes inputs in the order of the definition, gives outputs likewise; a Python number becomes a 0-d tensor."""
    profile_baseline: bool
    """Whether the reference is to be measured."""
    measure_reference: Callable[[list[list[Any]]], Measured]
    """Times the reference, one trial per set of inputs."""
    notes: dict[str, Any]
    """Takes JSON-able findings for the trace."""


class SolutionMetadata(Protocol):
    """What is known of a solution that can be called."""

    @property
    def destination_passing_style(self) -> bool:
        """Whether the solution writes into outputs that it is given."""


class SolutionRunnable(Protocol):
    """A solution that can be called, wherever it runs. It raises SolutionFailure, which an evaluator lets pass."""

    @property
    def metadata(self) -> SolutionMetadata:
        """What is known of the solution."""

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Return the outputs for inputs in the order of the definition; fills outputs that follow the inputs."""

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Time the solution, one trial per set of inputs."""


class Evaluator(ABC):
    """Decides whether a solution of some kind of definition is right, and how fast it is."""

    revision: ClassVar[int] = 0
    """Raised when a verdict or its numbers may come out otherwise than before: resumed runs then judge again."""

    @classmethod
    @abstractmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Tell whether this evaluator takes the definition; it is asked where there may be no device."""

    @classmethod
    def why(cls, definition: Definition) -> str:
        """Say why it takes a definition that it takes, in a line: what `list --evaluators` shows."""
        del definition
        return (cls.__doc__ or "Its can_evaluate says so.").strip().splitlines()[0]

    @classmethod
    @abstractmethod
    def build_baseline(
        cls,
        definition: Definition,
        workload: Workload,
        cfg: ResolvedEvalConfig,
        device: torch.device,
        *,
        context: JudgeContext,
    ) -> Baseline:
        """Make the inputs and what is expected of them.

        Raises:
            WorkloadFault: the workload, its blobs or the reference cannot be used.
        """

    @classmethod
    @abstractmethod
    def check_correctness(
        cls,
        definition: Definition,
        sol_runnable: SolutionRunnable,
        inputs: list[list[Any]],
        ref_outputs: list[list[torch.Tensor]],
        cfg: ResolvedEvalConfig,
        *,
        context: JudgeContext,
    ) -> Verdict:
        """Call the solution and judge what it gives.

        A solution that was timed is judged once more, on one trial that `build_baseline` makes of another seed.
        """

    @classmethod
    @abstractmethod
    def eval_performance(
        cls,
        definition: Definition,
        sol_runnable: SolutionRunnable,
        inputs: list[list[Any]],
        ref_mean_latency_ms: float | None,
        cfg: ResolvedEvalConfig,
        *,
        context: JudgeContext,
    ) -> Performance:
        """Measure a solution that is right."""
