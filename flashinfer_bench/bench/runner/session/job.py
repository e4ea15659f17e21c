"""A block of jobs and one job of it: what is judged, how its calls are made, and how long they may take.

Nothing is called or timed here. `device_session.py` judges a job; what it finds goes into the job's notes.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.config_sources import AUTO
from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.evaluator import Baseline, Evaluator
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, find_varied
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.inputs.read_whole import find_read_whole
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.runner.known_failures import HungSolutions
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, Hello, JobFault
from flashinfer_bench.bench.runner.session.outcome import JobOutcome
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.kernel_task import READS, MeasurePlan, Vary
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.dtypes import DTYPES, torch_dtype
from flashinfer_bench.errors import RanOut, SolutionFailure, WorkloadFault
from flashinfer_bench.roofline.cost import TERA
from flashinfer_bench.roofline.peaks import SLACK, find_peak
from flashinfer_bench.timing.settings import USUAL, TimingSettings

BaselineKey = tuple[str, str]
"""Digests of a definition and of a workload."""
INTERPRETED: Final = {
    "meaningful": False,
    "reason": "Triton's interpreter ran the kernels on a CPU; the time says nothing about them",
}
AUTO_SAMPLES: Final = 50, 20
"""Most and fewest samples of a trial if `iterations` is "auto"."""
REFERENCE_PRECISION: Final = 0.01
"""Largest relative half-width of a reference's interval: all speed-ups of its workload stand on it."""
AHEAD_MS: Final = 0.5
AHEAD_BYTES: Final = 1 << 25
"""Expected outputs are computed beside a worker if the reference is quicker and a call's outputs are smaller: a worker
that is done should not wait for it, and the outputs of all compared calls are held."""
FIRST_CALLS: Final = 8
"""The evaluator's own inputs go to one of this many calls, at random: no solution can know which."""


@dataclass
class BlockContext:
    """The parts that all jobs of a block share. Nothing of the definition is executed before `reference` is read."""

    order: BlockOrder
    jobs: dict[int, JobContext] = field(default_factory=dict)
    """Index of a job → the job, from its first use until it is judged."""
    broken_loads: dict[str, SolutionFailure] = field(default_factory=dict)
    """Digest of a solution → why it could not be loaded."""
    broken_workloads: dict[str, str] = field(default_factory=dict)
    """Workload's uuid → why it cannot be judged."""
    hung: HungSolutions = field(default_factory=HungSolutions)

    def __post_init__(self) -> None:
        """Take over the solutions by key, and the settings of all jobs but those that a job has of its own."""
        self.solutions = self.order.solutions
        self.config = ResolvedEvalConfig.model_validate(self.order.config)

    @cached_property
    def definition(self) -> Definition:
        """The definition that is computed."""
        return Definition.model_validate(self.order.definition)

    @cached_property
    def digest(self) -> str:
        """Digest of the definition."""
        return self.definition.digest()

    @cached_property
    def evaluator(self) -> type[Evaluator]:
        """The class that judges."""
        return find_evaluator(self.definition)

    @cached_property
    def reference(self) -> Reference:
        """The reference, compiled.

        Raises:
            WorkloadFault: it cannot be used.
        """
        return Reference.compile(self.definition)

    def find_fault(self, job: JobContext) -> JobFault | None:
        """Return why a job has no verdict, as far as that is known before it runs. Executes nothing."""
        reference: Reference | None = vars(self).get("reference")
        broken = self.broken_workloads.get(job.workload.uuid, reference and reference.broken)
        left_out = self.hung.reason(job.order.solution)
        if not broken and left_out is None:
            return None
        return JobFault(job=job.order.index, message=broken or left_out or "", retry=False, is_left_out=not broken)

    def open_job(self, order: BlockJob) -> JobContext:
        """Return one job of the block, the same one until it is judged."""
        if order.index not in self.jobs:
            config = self.config.model_copy(update=order.settings) if order.settings else self.config
            self.jobs[order.index] = JobContext(self, order, Workload.model_validate(order.workload), config)
        return self.jobs[order.index]


@dataclass
class JobContext:
    """One job."""

    block: BlockContext
    order: BlockJob
    workload: Workload
    config: ResolvedEvalConfig
    notes: dict[str, Any] = field(default_factory=dict)
    """Entries of the trace by evaluators and measurements; they grow while the job is judged."""
    baseline: Baseline | None = None
    """Inputs, expected outputs and the reference's time, once they are made."""

    def __post_init__(self) -> None:
        """Name its solution; definition and workload, for messages."""
        self.solution = self.block.solutions[self.order.solution]
        self.place = f"{self.block.definition.name}, workload {self.workload.uuid}"

    @cached_property
    def key(self) -> BaselineKey:
        """Key of its baseline."""
        return self.block.digest, self.workload.digest()

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

    def vary_secretly(self, seed: int | None = None) -> Vary:
        """Return a maker of contents for the calls of each trial.

        Args:
            seed: decides the contents, so that a run can be repeated; None draws a secret.
        """
        secret = secrets.randbits(62) if seed is None else seed

        @cache
        def find(device: torch.device) -> list[VariedInput]:
            return find_varied(self.block.definition, self.workload, device)

        def vary(trial: int, inputs: Sequence[Any]) -> Contents:
            devices = (value.device for value in inputs if isinstance(value, torch.Tensor))
            varied = find(next(devices, torch.device("cpu")))
            return Contents(inputs, varied, secret + trial, secrets.randbelow(FIRST_CALLS))

        return vary


@dataclass(frozen=True)
class JobResult:
    """Result of a job, before it is made into an evaluation."""

    outcome: JobOutcome
    printed: str
    extra: dict[str, Any]
    ran_out: RanOut | None = None
    """As in `JobVerdict`."""


def bytes_held(job: JobContext) -> int:
    """Return the bytes of a job's inputs and expected outputs, as far as they are made."""
    sets = [*job.baseline.inputs, *job.baseline.outputs] if job.baseline is not None else []
    return bytes_of({id(value): value for values in sets for value in values}.values())


def plan_solution(hello: Hello, job: JobContext) -> MeasurePlan:
    """Return how a job's solution is measured."""
    if job.solution.language == "triton" and hello.device == "cpu":
        return MeasurePlan(0, 1, 0.0, trials=1, metadata=INTERPRETED)
    wanted = job.block.evaluator.count_reads(next((math.prod(one.shape) for one in job.output_specs()), 0))
    plan = _plan(job.config, hello.time_budget_s)
    timing = replace(hello.timing, assurance=job.order.assurance or hello.timing.assurance)
    return replace(plan, timing=timing, reads=max(READS[hello.device], wanted), makes_up=wanted > 0)


def plan_reference(hello: Hello, config: ResolvedEvalConfig) -> MeasurePlan:
    """Return how a reference is measured.

    Its time is the same at each assurance, and so is one that is kept for later runs. On a CPU as many of its calls are
    copied as of a solution, since copies disturb the caches; nobody compares them.
    """
    plan = _plan(config, hello.baseline_budget_s)
    return replace(
        plan,
        precision=min(config.precision, REFERENCE_PRECISION),
        timing=replace(hello.timing, assurance=USUAL.assurance),
        reads=READS["cpu"] if hello.device == "cpu" else 0,
        stops_early=True,
    )


def _plan(config: ResolvedEvalConfig, budget_s: float) -> MeasurePlan:
    most, fewest = AUTO_SAMPLES if config.iterations == AUTO else (config.iterations, None)
    return MeasurePlan(config.warmup_runs, most, budget_s, config.precision, fewest=fewest)


def find_expect(job: JobContext, baseline: Baseline) -> Callable[[Sequence[Any]], list[torch.Tensor]] | None:
    """Return the reference if it is so quick that its calls for a job may be made beside the worker; else None."""
    is_quick = baseline.mean_latency_ms is not None and baseline.mean_latency_ms < AHEAD_MS
    is_small = bytes_of(baseline.outputs[0]) < AHEAD_BYTES
    return job.block.reference if is_quick and is_small and job.block.evaluator.needs_expected else None


def plan_floor(
    definition: Definition, workload: Workload, device: torch.device, timing: TimingSettings
) -> Callable[[float], float]:
    """Return a function from a claimed latency to its floor, both in ms; 0 on a CPU and if the L2 is kept warm."""
    if device.type != "cuda" or timing.l2_cache != "cold":
        return lambda _claimed_ms: 0.0
    return partial(find_floor_ms, definition, workload, torch.cuda.get_device_properties(device))


def find_floor_ms(definition: Definition, workload: Workload, device: Any, claimed_ms: float) -> float:
    """Return the least time in ms of a right call; 0 if none is known, or if it cannot exceed the claim.

    Only inputs that are proven to be read whole (`read_whole.py`) count, beyond the size of the L2: that much of them
    may lie there before a call, whatever a flush does. Outputs may stay in the L2.

    Args:
        definition: the definition.
        workload: its sizes.
        device: the GPU's properties, by torch.
        claimed_ms: latency of one call. The reference is followed only if all inputs together would take longer.
    """
    peak = find_peak(device.name)
    if peak is None:
        return 0.0
    # Kilohertz and bits: a card with faster memory than its name says, or with raised clocks, reads faster.
    by_clock = 2e3 * getattr(device, "memory_clock_rate", 0) * getattr(device, "memory_bus_width", 0) / 8 / 1e12
    bytes_per_ms = max(peak.tb_per_sec, by_clock) * TERA * SLACK / 1e3
    l2_bytes = float(max(peak.l2_bytes, device.L2_cache_size))
    shapes = zip(definition.inputs.values(), definition.get_input_shapes(workload.axes), strict=True)
    total = sum(math.prod(shape) * DTYPES[spec.dtype].bits / 8 for spec, shape in shapes if shape is not None)
    if claimed_ms >= (total - l2_bytes) / bytes_per_ms:
        return 0.0
    read = float(sum(find_read_whole(definition, workload).values()))
    return max(0.0, read - l2_bytes) / bytes_per_ms
