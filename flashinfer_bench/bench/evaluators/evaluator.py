"""The interface of an evaluator: its methods, with their arguments and results. An evaluator runs in the judge's
process, where no solution code runs.

To judge a kind of definition differently, subclass `DefaultEvaluator` and override one method, or subclass `Evaluator`.
docs/evaluators.md shows how, and how a run finds the new evaluator. Class attributes declare the abilities of an
evaluator. An evaluator reads its own parameters with `cls.extra_value(cfg, "my_param")`, and declares them in
`extra_keys`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, Performance, Workload
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.timing.measurement import Measured

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.bench.evaluators.stress_checks import StressChecks


@dataclass(frozen=True)
class Accepted:
    """The solution is right."""

    correctness: Correctness


@dataclass(frozen=True)
class Rejected:
    """The solution is wrong."""

    status: EvaluationStatus
    message: str
    """Kind, location and size of the error, for the trace's log."""
    correctness: Correctness | None = None
    """The errors; None if no values were compared."""
    integrity: Mapping[str, Any] | None = None
    """`rule` and `evidence` if a rule besides the user's tolerance rejected the solution; the trace has both in
    `extra`."""
    call: JudgedCall | None = None
    """The rejected call, if a single call was rejected; `repro` writes it to disk."""


Verdict = Accepted | Rejected


@dataclass(frozen=True)
class Baseline:
    """The inputs and their expected outputs; one entry for each trial."""

    inputs: list[list[Any]]
    """Tensors, Python numbers, and None for an omitted optional input; in the order of the definition."""
    outputs: list[list[torch.Tensor]]
    """The reference's outputs for the inputs; in the order of the definition."""
    mean_latency_ms: float | None
    """Latency of the reference; None if the reference is not timed."""
    measurement: dict[str, Any] | None
    """How the latency was measured, for the trace."""


@dataclass(frozen=True)
class JudgeContext:
    """The device session's services for one job."""

    seed: int
    """Every random value of this job comes from this seed. A solution does not get the seed before its verdict."""
    blob_root: Path
    """Root of the trace set that holds the workload."""
    reference: Callable[[list[Any]], list[torch.Tensor]]
    """The reference. Takes inputs and returns outputs, both in the order of the definition; numbers are 0-d tensors."""
    profile_baseline: bool
    """Whether the reference is timed."""
    measure_reference: Callable[[list[list[Any]]], Measured]
    """Times the reference, one trial for each set of inputs."""
    notes: dict[str, Any]
    """JSON values that the evaluator adds to the trace."""


class SolutionRunnable(Protocol):
    """A solution that can be called, whatever process it runs in. Evaluators must not catch its SolutionFailure."""

    @property
    def metadata(self) -> Any:
        """Has `destination_passing_style`: whether the solution writes into given outputs."""

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Return the outputs for inputs in the order of the definition. The call fills output tensors that follow the
        inputs."""

    def call_repeatedly(self, inputs: Sequence[Any], count: int) -> Iterator[list[torch.Tensor]]:
        """Yield the outputs of `count` calls on the same inputs. For short calls this is faster than separate calls."""

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Time the solution, one trial for each set of inputs."""


@dataclass(frozen=True)
class JudgedCall:
    """One call that is judged; each list is in the order of the definition."""

    inputs: list[Any]
    got: list[torch.Tensor]
    """The solution's outputs."""
    expected: list[torch.Tensor]
    """The reference's outputs for the same inputs."""


class RecordedCalls:
    """Replays timed calls as a solution: a call on the inputs of a timed call returns its recorded outputs."""

    metadata = SimpleNamespace(destination_passing_style=False)

    def __init__(self, calls: Sequence[JudgedCall]) -> None:
        self._outputs: dict[tuple[int, ...], list[list[torch.Tensor]]] = {}
        for call in calls:
            self._outputs.setdefault(tuple(map(id, call.inputs)), []).append(call.got)

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Return copies of the outputs recorded for these inputs.

        Raises:
            WorkloadFault: no timed call had these inputs.
        """
        result = self._outputs.get(tuple(map(id, args)))
        if result is None:
            raise WorkloadFault("the evaluator asks for a call on inputs of its own after the solution was timed")
        result.append(result.pop(0))  # repeated calls on the same inputs return the recorded calls in turn
        return [output.clone() for output in result[-1]]

    def call_repeatedly(self, inputs: Sequence[Any], count: int) -> Iterator[list[torch.Tensor]]:
        """Yield copies of the outputs recorded for these inputs, `count` times."""
        return (self(*inputs) for _ in range(count))

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Refuse: recorded calls cannot be timed."""
        raise WorkloadFault("the evaluator asks for a measurement after the solution was timed")


class Evaluator(ABC):
    """Decides whether a solution is right, and measures how fast it is, for one kind of definition."""

    revision: ClassVar[int] = 0
    """Increase this number when a verdict or its figures may change, so that resumed runs judge again."""
    extra_keys: ClassVar[Mapping[str, Any] | None] = None
    """The keys of `extra` that this evaluator reads, each with its default. A key without a default has its type
    instead, such as `float`. A run refuses other keys, and values of another type. None: no check, since the evaluator
    may read any key."""
    judges_calls_alone: ClassVar[bool] = False
    """Whether `check_correctness` judges each trial by one call on its inputs, independent of the other trials. If so,
    the first trial is checked before the solution is timed, and the other trials are checked by timed calls."""
    needs_expected: ClassVar[bool] = True
    """Whether `judge_reads` needs the reference's output values for each call. If not, it needs only their shapes and
    dtypes."""

    @classmethod
    @abstractmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Return whether this evaluator judges the definition; it may be called without a device."""

    @classmethod
    def why(cls, definition: Definition) -> str:
        """Return the reason why this evaluator takes the definition, in one line for `list --evaluators`."""
        return (cls.__doc__ or "Its can_evaluate says so.").strip().splitlines()[0]

    @classmethod
    def extra_value(cls, cfg: ResolvedEvalConfig, key: str) -> Any:
        """Return the configured value of one of `extra_keys`, else its default; None if it has no default."""
        declared = (cls.extra_keys or {})[key]
        return cfg.extra.get(key, None if isinstance(declared, type) else declared)

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
        """Make the inputs, and have the reference compute the expected outputs.

        Raises:
            WorkloadFault: the workload, its files or the reference cannot be used.
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
        """Call the solution and judge its outputs."""

    @classmethod
    def count_reads(cls, elements: int) -> int:
        """Return how many timed calls of each trial must be judged.

        Args:
            elements: number of elements of the first output.
        """
        return 0

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls as `check_correctness` judges its own calls.

        An evaluator that calls a solution more than once on the same inputs overrides this. By default,
        `check_correctness` gets a solution that returns the outputs of the timed calls.
        """
        inputs, expected = [call.inputs for call in calls], [call.expected for call in calls]
        return cls.check_correctness(definition, RecordedCalls(calls), inputs, expected, cfg, context=context)

    @classmethod
    def stress_checks(cls, definition: Definition, cfg: ResolvedEvalConfig) -> StressChecks | None:
        """Return the checks of calls on inputs of stress cases; None if no call gets such inputs."""
        return None

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
        """Time a solution that was accepted."""
