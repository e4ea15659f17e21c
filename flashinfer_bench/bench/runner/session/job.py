"""The jobs of a request: settings, contents of calls, and limits of time.

No call is made or timed here. `device_session.py` judges a job, and writes its results into the job's notes.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
from flashinfer_bench.bench.runner.known_failures import HungCalls
from flashinfer_bench.bench.runner.protocol import JobFault, RequestedJob, SessionConfig, SessionRequest
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
"""Maximum and minimum number of samples of a trial if `iterations` is "auto"."""
REFERENCE_PRECISION: Final = 0.01
"""Largest relative half-width of a reference's interval. All speed-ups of a workload depend on its reference."""
AHEAD_MS: Final = 0.5
AHEAD_BYTES: Final = 1 << 25
"""Expected outputs are computed while a worker runs if the reference takes less than AHEAD_MS, and a call's outputs
have less than AHEAD_BYTES. A worker should not wait for the reference, and all these outputs stay in memory."""
FIRST_CALLS: Final = 8
"""The evaluator's own inputs go to one of the first FIRST_CALLS calls of a trial. The call is chosen at random, so that
no solution knows it."""


@dataclass
class RequestContext:
    """The common part of a request's jobs. Code of the definition runs only after the first use of `reference`."""

    sent: SessionRequest
    jobs: dict[int, JobContext] = field(default_factory=dict)
    """Index of a job → the job, from its first use until it is judged."""
    broken_loads: dict[str, SolutionFailure] = field(default_factory=dict)
    """Digest of a solution → why it could not be loaded."""
    broken_workloads: dict[str, str] = field(default_factory=dict)
    """Workload's uuid → why it cannot be judged."""
    hung: HungCalls = field(default_factory=HungCalls)

    def __post_init__(self) -> None:
        """Set the solutions by key, and the settings of jobs that have none of their own."""
        self.solutions = self.sent.solutions
        self.config = ResolvedEvalConfig.model_validate(self.sent.config)

    @cached_property
    def definition(self) -> Definition:
        return Definition.model_validate(self.sent.definition)

    @cached_property
    def digest(self) -> str:
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
        """Return why a job can have no verdict, if that is known before the job runs. No code of the definition is
        executed."""
        reference: Reference | None = vars(self).get("reference")
        broken = self.broken_workloads.get(job.workload.uuid, reference and reference.broken)
        left_out = self.hung.reason(job.requested.solution)
        if not broken and left_out is None:
            return None
        return JobFault(job=job.requested.index, message=broken or left_out or "", retry=False, is_left_out=not broken)

    def open_job(self, requested: RequestedJob) -> JobContext:
        """Return a job of the request: the same object until it is judged."""
        if requested.index not in self.jobs:
            config = self.config.model_copy(update=requested.settings) if requested.settings else self.config
            self.jobs[requested.index] = JobContext(
                self, requested, Workload.model_validate(requested.workload), config
            )
        return self.jobs[requested.index]


@dataclass
class JobContext:
    """One job."""

    request: RequestContext
    requested: RequestedJob
    workload: Workload
    config: ResolvedEvalConfig
    notes: dict[str, Any] = field(default_factory=dict)
    """Entries of evaluators and measurements for the trace."""
    baseline: Baseline | None = None
    """Inputs, expected outputs and the reference's time; None until they are made."""
    _varied: list[VariedInput] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Set its solution, and its name for messages: definition and workload."""
        self.solution = self.request.solutions[self.requested.solution]
        self.title = f"{self.request.definition.name}, workload {self.workload.uuid}"

    @cached_property
    def key(self) -> BaselineKey:
        """Key of its baseline."""
        return self.request.digest, self.workload.digest()

    def output_specs(self) -> list[OutputSpec]:
        """Return shape and dtype of every output, with the workload's axes.

        Raises:
            WorkloadFault: the workload does not bind every axis that an output needs.
        """
        definition = self.request.definition
        try:
            shapes = definition.get_output_shapes(self.workload.axes)
        except (KeyError, ValueError) as error:
            raise WorkloadFault(f"the shapes of the outputs cannot be told: {error}") from None
        return [
            OutputSpec(name, storage_shape(tuple(shape or ()), tensor.dtype), torch_dtype(tensor.dtype))
            for (name, tensor), shape in zip(definition.outputs.items(), shapes, strict=True)
        ]

    def vary_secretly(self, seed: int | None = None) -> Vary:
        """Return a function that makes the contents of a trial's calls.

        Args:
            seed: decides the contents, so that a run can be repeated; None draws a secret seed.
        """
        secret = secrets.randbits(62) if seed is None else seed

        def vary(trial: int, inputs: Sequence[Any]) -> Contents:
            if self._varied is None:  # once for reference and solution, since custom inputs may be slow
                devices = (value.device for value in inputs if isinstance(value, torch.Tensor))
                device = next(devices, torch.device("cpu"))
                self._varied = find_varied(self.request.definition, self.workload, device)
            return Contents(inputs, self._varied, secret + trial, secrets.randbelow(FIRST_CALLS))

        return vary


@dataclass(frozen=True)
class JobResult:
    """Result of a job, before its evaluation is made."""

    outcome: JobOutcome
    printed: str
    extra: dict[str, Any]
    ran_out: RanOut | None = None
    """See `JobVerdict`."""


def bytes_held(job: JobContext) -> int:
    """Return the bytes of a job's inputs and expected outputs that exist."""
    sets = [*job.baseline.inputs, *job.baseline.outputs] if job.baseline is not None else []
    return bytes_of({id(value): value for values in sets for value in values}.values())


def plan_solution(session_config: SessionConfig, job: JobContext) -> MeasurePlan:
    """Return the measurement plan of a job's solution."""
    if job.solution.language == "triton" and session_config.device == "cpu":
        return MeasurePlan(0, 1, 0.0, trials=1, metadata=INTERPRETED)
    wanted = job.request.evaluator.count_reads(next((math.prod(one.shape) for one in job.output_specs()), 0))
    plan = _plan(job.config, session_config.time_budget_s)
    timing = replace(session_config.timing, assurance=job.requested.assurance or session_config.timing.assurance)
    return replace(plan, timing=timing, reads=max(READS[session_config.device], wanted), makes_up=wanted > 0)


def plan_reference(session_config: SessionConfig, config: ResolvedEvalConfig) -> MeasurePlan:
    """Return the measurement plan of a reference.

    A reference's time does not depend on the assurance, and can be cached for later runs. On a CPU the inputs and
    outputs are copied as for a solution, since copies disturb the caches. The copies are not compared.
    """
    plan = _plan(config, session_config.baseline_budget_s)
    return replace(
        plan,
        precision=min(config.precision, REFERENCE_PRECISION),
        timing=replace(session_config.timing, assurance=USUAL.assurance),
        reads=READS["cpu"] if session_config.device == "cpu" else 0,
        stops_early=True,
    )


def _plan(config: ResolvedEvalConfig, budget_s: float) -> MeasurePlan:
    most, fewest = AUTO_SAMPLES if config.iterations == AUTO else (config.iterations, None)
    return MeasurePlan(config.warmup_runs, most, budget_s, config.precision, fewest=fewest)


def find_expect(job: JobContext, baseline: Baseline) -> Callable[[Sequence[Any]], list[torch.Tensor]] | None:
    """Return the reference if it is quick enough to run while the worker runs; else None."""
    is_quick = baseline.mean_latency_ms is not None and baseline.mean_latency_ms < AHEAD_MS
    is_small = bytes_of(baseline.outputs[0]) < AHEAD_BYTES
    return job.request.reference if is_quick and is_small and job.request.evaluator.needs_expected else None


def plan_floor(
    definition: Definition, workload: Workload, device: torch.device, timing: TimingSettings
) -> Callable[[float], float]:
    """Return a function from a reported latency to its floor, both in ms. The floor is 0 on a CPU, and if the L2 is
    kept warm."""
    if device.type != "cuda" or timing.l2_cache != "cold":
        return lambda _claimed_ms: 0.0
    return partial(find_floor_ms, definition, workload, torch.cuda.get_device_properties(device))


def find_floor_ms(definition: Definition, workload: Workload, device: Any, claimed_ms: float) -> float:
    """Return the least time of a correct call in ms; 0 if it is unknown, or if it cannot exceed the reported latency.

    Only inputs that are proven to be read whole (`read_whole.py`) count. The size of the L2 is subtracted, since that
    many bytes may be cached before a call, in spite of a flush. Outputs may stay in the L2.

    Args:
        workload: sizes of the axes.
        device: the GPU's properties in torch.
        claimed_ms: latency of one call. The reference is analysed only if reading all inputs would take longer than
        this latency.
    """
    peak = find_peak(device.name)
    if peak is None:
        return 0.0
    # Units are kHz and bits. A card whose memory or clocks are faster than usual for its name reads faster.
    by_clock = 2e3 * getattr(device, "memory_clock_rate", 0) * getattr(device, "memory_bus_width", 0) / 8 / 1e12
    bytes_per_ms = max(peak.tb_per_sec, by_clock) * TERA * SLACK / 1e3
    l2_bytes = float(max(peak.l2_bytes, device.L2_cache_size))
    shapes = zip(definition.inputs.values(), definition.get_input_shapes(workload.axes), strict=True)
    total = sum(math.prod(shape) * DTYPES[spec.dtype].bits / 8 for spec, shape in shapes if shape is not None)
    if claimed_ms >= (total - l2_bytes) / bytes_per_ms:
        return 0.0
    read = float(sum(find_read_whole(definition, workload).values()))
    return max(0.0, read - l2_bytes) / bytes_per_ms
