"""The solution as the judge sees it: a callable whose code runs in another process.

`kernel(*inputs)` copies the inputs into the arena, poisons the output slots, and has the worker call the solution. It
compares what the worker claims to have returned with the definition, and returns copies of the slots. Whatever goes
wrong in the worker becomes a SolutionFailure with its status.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.workers.arena import SharedArena, as_bytes
from flashinfer_bench.bench.runner.workers.claims import OutputSpec, check_returned
from flashinfer_bench.bench.runner.workers.cpu_time import cpu_time_ns
from flashinfer_bench.bench.runner.workers.process import WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.bench.runner.workers.readings import ReadingsAsked, check_readings
from flashinfer_bench.compile import Artifact
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.settings import USUAL, TimingSettings
from flashinfer_bench.worker.arena import Slot
from flashinfer_bench.worker.protocol import Bound, Called, Claim, Failed, Loaded, Sampled, Signature, Style
from flashinfer_bench.worker.wire import WireError

POISON_FLOAT: Final = 0xFF  # every floating-point format that torch has reads this as NaN, packed fp4 apart
POISON_OTHER: Final = 0xA5
"""Output slots are filled with these bytes before a call, so that an output that was not written is found."""
MEASURED_SHARE: Final = 0.7
"""A measurement plans with this share of the solution's remaining time. So a slow solution gets fewer samples, and no
TIMEOUT."""

Answer = TypeVar("Answer", bound=Claim)


@dataclass(frozen=True)
class KernelMetadata:
    """What an evaluator may know of the solution."""

    name: str
    definition: str
    destination_passing_style: bool


@dataclass(frozen=True)
class MeasurePlan:
    """How many calls a trial of a solution has, and how long it may take."""

    warmup_runs: int
    iterations: int
    budget_s: float
    trials: int | None = None
    """At most this many of the input sets are measured; None for all."""
    timing: TimingSettings = USUAL
    facts: dict[str, Any] | None = None
    """Added to the record, for example that the timing means nothing."""


@dataclass(frozen=True)
class KernelTask:
    """What a solution has to do for one workload."""

    input_names: list[str]
    outputs: list[OutputSpec]
    timeout_seconds: float
    """Seconds that it may take, all calls together."""
    plan: MeasurePlan


@dataclass(frozen=True)
class SessionTools:
    """What the session gives every kernel."""

    arena: SharedArena
    """Shared memory; whatever it holds may be overwritten."""
    readout: Readout
    """Makes a measurement of trials."""
    quiesce: Callable[[], None]
    """Called before a measurement begins; it returns once no other process of ours uses the device."""


class RemoteKernel:
    """One solution in one worker, for one workload.

    Args:
        worker: a worker that is ready.
        tools: what the session gives every kernel.
        task: what the solution has to do.
        metadata: the solution's names; its style is set when it is loaded.
    """

    def __init__(self, worker: WorkerProcess, tools: SessionTools, task: KernelTask, metadata: KernelMetadata) -> None:
        self.metadata = metadata
        self.worker = worker
        self._tools = tools
        self._arena = tools.arena
        self._task = task
        self._left_s = task.timeout_seconds
        self._bound_generation = -1
        self.call_costs_ns: list[int] = []
        """Processor time of the worker that each call took, request and answer included, where the system tells."""

    @property
    def style(self) -> Style:
        """The calling style, as a word of the protocol."""
        return "dps" if self.metadata.destination_passing_style else "value"

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Call the solution once on copies of the inputs.

        Args:
            *args: the definition's inputs in order; outputs to be filled may follow.

        Returns:
            One tensor per output of the definition, in its order.

        Raises:
            SolutionFailure: it failed, or what it returned has the wrong count, shape or dtype.
        """
        count = len(self._task.input_names)
        inputs, given = list(args[:count]), list(args[count:])
        if len(inputs) != count or len(given) not in (0, len(self._task.outputs)):
            raise TypeError(
                f"a solution takes {count} inputs, or those and {len(self._task.outputs)} outputs; got {len(args)}"
            )
        arguments, slots = self._place(inputs)
        before_ns = cpu_time_ns(self.worker.pid)
        called = self._ask(
            "call",
            Called,
            "the call",
            style=self.style,
            arguments=arguments,
            outputs=[slot.to_json() for slot in slots],
        )
        after_ns = cpu_time_ns(self.worker.pid)
        if before_ns is not None and after_ns is not None:
            self.call_costs_ns.append(after_ns - before_ns)
        if self.style == "value":
            check_returned(called.returned or [], self._task.outputs, self._arena.device.type)
        self._check_inputs_intact(inputs, arguments)
        results = [slot.view(self._arena.block).clone() for slot in slots]
        for target, result in zip(given, results, strict=False):
            target.copy_(result)
        return results

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Time the solution, one trial per set of inputs.

        Raises:
            SolutionFailure: it failed, or its worker claims readings that the session's own clock rules out.
        """
        self._tools.quiesce()
        before = self._tools.readout.look()
        chosen = input_sets[: self._task.plan.trials]
        trials = [self._measure_trial(list(inputs), left=len(chosen) - at) for at, inputs in enumerate(chosen)]
        measured = self._tools.readout.measured(trials, before)
        context = {"chain_gap_ns": self.worker.chain_gap_ns} if self.worker.chain_gap_ns else {}
        record = {**measured.record, **context, **(self._task.plan.facts or {})}
        return Measured(measured.latency_ms, measured.trials, record)

    def _measure_trial(self, inputs: list[Any], *, left: int) -> Trial:
        """Take the next trial; `left` trials, this one too, share the solution's remaining time."""
        arguments, slots = self._place(inputs)
        budget_s = min(self._task.plan.budget_s, MEASURED_SHARE * self._left_s / left)
        start = time.monotonic()
        sampled = self._ask(
            "measure",
            Sampled,
            "the measurement",
            style=self.style,
            arguments=arguments,
            outputs=[slot.to_json() for slot in slots],
            warmup_runs=self._task.plan.warmup_runs,
            iterations=self._task.plan.iterations,
            budget_s=max(0.0, budget_s),
            cuda_graphs=self._task.plan.timing.cuda_graphs,
        )
        wall_ns = (time.monotonic() - start) * 1e9
        asked = ReadingsAsked(self._arena.device.type, self._task.plan.iterations, self._task.plan.timing)
        check_readings(sampled, asked, wall_ns=wall_ns)
        self._check_inputs_intact(inputs, arguments)
        return sampled.trial()

    def allow_again(self) -> None:
        """Give the solution its whole time once more: the calls that follow are extra ones of ours."""
        self._left_s = self._task.timeout_seconds

    @property
    def is_meaningful(self) -> bool:
        """Whether its times have a meaning."""
        return self._task.plan.facts is None

    def _place(self, inputs: list[Any]) -> tuple[list[dict[str, Any]], list[Slot]]:
        """Lay the call out in the arena; return the arguments for the wire and the poisoned output slots."""
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        slots = self._arena.place(tensors, [(output.shape, output.dtype) for output in self._task.outputs])
        if self._bound_generation != self._arena.generation:
            description, fds = self._arena.describe()
            self._ask("bind", Bound, "mapping its memory", fds=fds, arena=description)
            self._arena.drop_retired()
            self._bound_generation = self._arena.generation
        block = self._arena.block
        for slot in slots[len(tensors) :]:
            poison(slot, block)
        if block.device.type == "cuda":
            torch.cuda.synchronize(block.device)
        places = iter(slots)
        arguments = [
            next(places).to_json() if isinstance(value, torch.Tensor) else {"scalar": value} for value in inputs
        ]
        return arguments, slots[len(tensors) :]

    def _check_inputs_intact(self, inputs: list[Any], arguments: list[dict[str, Any]]) -> None:
        for name, value, argument in zip(self._task.input_names, inputs, arguments, strict=True):
            if isinstance(value, torch.Tensor):
                now = Slot.from_json(argument).view(self._arena.block)
                if not torch.equal(as_bytes(now), as_bytes(value)):
                    raise SolutionFailure(
                        "INCORRECT_NUMERICAL",
                        f"input {name!r} was changed by the call; a solution may write to its outputs only "
                        "(clone what the kernel works on in place)",
                    )

    def load(self, artifact: Artifact, environment: Mapping[str, str]) -> Signature | None:
        """Have the worker import the solution; return its entry function's signature.

        Args:
            artifact: what the build left.
            environment: variables that the worker sets first.

        Raises:
            SolutionFailure: COMPILE_ERROR where the import fails, TIMEOUT where it does not end.
        """
        place = {name: str(getattr(artifact, name)) for name in ("directory", "entry", "symbol", "kind")}
        try:
            loaded = self._ask("load", Loaded, "the import", **place, environment=dict(environment))
        except SolutionFailure as failure:
            if failure.status == "RUNTIME_ERROR":
                raise SolutionFailure("COMPILE_ERROR", failure.message) from None
            raise
        return loaded.signature

    def _ask(self, verb: str, expected: type[Answer], what: str, **fields: Any) -> Answer:
        """Ask the worker within the solution's remaining time; turn errors into a SolutionFailure."""
        start = time.monotonic()
        try:
            answer = self.worker.ask(verb, expected, max(0.0, self._left_s), **fields)
        except WorkerLate:
            raise SolutionFailure(
                "TIMEOUT", f"{what} was still running after {self._task.timeout_seconds:g} s"
            ) from None
        except WorkerGone as gone:
            raise SolutionFailure("RUNTIME_ERROR", f"the process ended during {what}: {gone}") from None
        except WireError as error:
            raise SolutionFailure(
                "RUNTIME_ERROR", f"the process answered out of protocol during {what}: {error}"
            ) from None
        finally:
            self._left_s -= time.monotonic() - start
        if isinstance(answer, Failed):
            said = answer.error
            raise SolutionFailure("RUNTIME_ERROR", f"{said.type} in {what}: {said.message}\n{said.traceback}".rstrip())
        return answer


def poison(slot: Slot, block: torch.Tensor) -> None:
    """Fill an output slot with what no honest kernel leaves there: NaN, or a pattern for integers."""
    if slot.nbytes:
        value = POISON_FLOAT if slot.dtype.is_floating_point else POISON_OTHER
        block[slot.offset : slot.offset + slot.nbytes].fill_(value)
