"""What the steps of a job share: its block, the job itself, and a baseline that was made for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.evaluator import Baseline, Evaluator
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockSolution
from flashinfer_bench.bench.runner.session.outcome import JobOutcome
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import RanOut, WorkloadFault

BaselineKey = tuple[str, str]
"""Digests of a definition and of a workload."""


@dataclass(frozen=True)
class MadeBaseline:
    """A baseline, and what was noted while it was made."""

    baseline: Baseline
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its inputs and outputs."""
        sets = [*self.baseline.inputs, *self.baseline.outputs]
        return bytes_of({id(value): value for values in sets for value in values}.values())


@dataclass(frozen=True)
class BlockContext:
    """What all jobs of a block share."""

    definition: Definition
    config: ResolvedEvalConfig
    evaluator: type[Evaluator]
    reference: Reference
    solutions: dict[str, BlockSolution]
    """By key."""
    kept: dict[int, MadeBaseline] = field(default_factory=dict)
    """Index of a job → its baseline, made before any worker had a solution."""

    def open_job(self, order: BlockJob) -> JobContext:
        """Return what the steps of one job share."""
        workload = Workload.model_validate(order.workload)
        if not order.settings:
            return JobContext(self, order, workload, self.config)
        return JobContext(self, order, workload, self.config.model_copy(update=order.settings))


@dataclass(frozen=True)
class JobContext:
    """What the steps of one job share."""

    block: BlockContext
    order: BlockJob
    workload: Workload
    config: ResolvedEvalConfig
    """The block's, with what the workload says of itself."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What evaluators and measurements add to the trace; it grows while the job is judged."""

    @property
    def key(self) -> BaselineKey:
        """What its baseline is known by."""
        return self.block.definition.digest(), self.workload.digest()

    @property
    def solution(self) -> BlockSolution:
        """What is judged."""
        return self.block.solutions[self.order.solution]

    @property
    def place(self) -> str:
        """What it is about, for messages."""
        return f"{self.block.definition.name}, workload {self.workload.uuid}"

    def output_specs(self) -> list[OutputSpec]:
        """Return shape and dtype of every output, the axes bound by the workload.

        Raises:
            WorkloadFault: the workload does not bind every axis that an output needs.
        """
        definition = self.block.definition
        try:
            shapes = definition.get_output_shapes(self.workload.axes)
        except (KeyError, ValueError) as error:
            raise WorkloadFault(f"the shapes of the outputs cannot be told: {error}") from None
        return [
            OutputSpec(name, storage_shape(tuple(shape or ()), tensor.dtype), torch_dtype(tensor.dtype))
            for (name, tensor), shape in zip(definition.outputs.items(), shapes, strict=True)
        ]


@dataclass(frozen=True)
class JobResult:
    """What a job came to, before it is made into an evaluation."""

    outcome: JobOutcome
    printed: str
    extra: dict[str, Any]
    ran_out: RanOut | None = None
    """As in `JobVerdict`."""
