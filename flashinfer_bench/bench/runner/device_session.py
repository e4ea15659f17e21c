"""One device's judge: takes blocks of jobs, runs each solution in a worker, and sends a verdict for each job as it
comes.

Here live the definition's reference, the inputs, the expected outputs, the comparison and the baseline's timing;
solution code never does. How processes are kept is worker_pool's; how a verdict becomes a trace is outcome's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import MEASURE_REJECTED, ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import Evaluator, JudgeContext, Rejected
from flashinfer_bench.bench.evaluators.packed import storage_shape
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.runner.claims import OutputSpec, choose_style
from flashinfer_bench.bench.runner.environments import solution_environment
from flashinfer_bench.bench.runner.outcome import Outcome, Passed
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.remote_kernel import (
    KernelMetadata,
    MeasurePlan,
    RemoteKernel,
)
from flashinfer_bench.bench.runner.session_protocol import Block, BlockJob, BlockSolution, Hello, JobFault, Phase
from flashinfer_bench.bench.runner.shared_arena import SharedArena
from flashinfer_bench.bench.runner.worker_pool import WorkerPool
from flashinfer_bench.compile import Artifact
from flashinfer_bench.data import Definition, EvaluationStatus, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import DefinitionFault, DeviceFault, SolutionFailure, WorkloadFault
from flashinfer_bench.timing.clocks import Clock, Launch
from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.places import Kept, choose_places, note_places
from flashinfer_bench.timing.progress import Recipe, Supplier
from flashinfer_bench.timing.recipe import take_trial
from flashinfer_bench.worker.cuda_memory import CudaMemoryError

INTERPRETED: Final = {
    "meaningful": False,
    "reason": "Triton's interpreter ran the kernels on a CPU; the time says nothing about them",
}
OUT_OF_MEMORY: Final = (torch.OutOfMemoryError, MemoryError, CudaMemoryError)
LARGE_CACHE_BYTES: Final = 8 << 30
LARGE_ARENA_BYTES: Final = 1 << 30
"""An arena above this is not kept for the next block: its memory may be what the next reference needs."""


@dataclass(frozen=True)
class JobResult:
    """What a job came to, before it is made into an evaluation."""

    outcome: Outcome
    printed: str
    extra: dict[str, Any]


@dataclass(frozen=True)
class BlockContext:
    """What all jobs of a block share."""

    definition: Definition
    config: ResolvedEvalConfig
    evaluator: type[Evaluator]
    reference: Reference


class DeviceSession:
    """Judges jobs on one device.

    Args:
        hello: the session's settings.
        device: the torch device.
        pool: where workers come from.
        clock: times the reference.
        readout: makes measurements of trials.
        tell: sends a phase to the host.
    """

    def __init__(
        self,
        hello: Hello,
        device: torch.device,
        *,
        pool: WorkerPool,
        clock: Clock,
        readout: Readout,
        tell: Callable[[Phase], None],
    ) -> None:
        self._hello = hello
        self._device = device
        self._pool = pool
        self._tell = tell
        self._arena = SharedArena(device)
        self._clock = clock
        self._readout = readout
        self._baselines: dict[tuple[str, str], Measured] = {}
        self._broken_loads: dict[str, SolutionFailure] = {}
        self._broken_workloads: dict[str, str] = {}
        self._styles: dict[str, bool] = {}

    def close(self) -> None:
        """Give the shared memory back."""
        self._arena.release()

    def open_block(self, block: Block) -> BlockContext:
        """Compile what the block's jobs share.

        Raises:
            WorkloadFault: the definition's reference cannot be used.
        """
        definition = Definition.model_validate(block.definition)
        if self._arena.size > LARGE_ARENA_BYTES:
            self._pool.discard()  # the worker maps the arena
            self._arena.release()
        self._broken_loads.clear()
        self._broken_workloads.clear()
        return BlockContext(
            definition=definition,
            config=ResolvedEvalConfig.model_validate(block.config),
            evaluator=find_evaluator(definition),
            reference=Reference.compile(definition),
        )

    def run_job(self, shared: BlockContext, job: BlockJob, solution: BlockSolution) -> JobResult | JobFault:
        """Judge one job."""
        workload = Workload.model_validate(job.workload)
        known = self._broken_workloads.get(workload.uuid, shared.reference.broken)
        if known is not None:
            return JobFault(job=job.index, message=known, retry=False)
        notes: dict[str, Any] = {}
        outcome: Outcome
        try:
            kernel = self._load(shared, job, solution, workload)
            outcome = self._judge(shared, job, workload, kernel, notes)
        except SolutionFailure as failure:
            outcome = failure
        except OUT_OF_MEMORY as error:
            self._give_memory_back()
            message = (
                f"{shared.definition.name}, workload {workload.uuid}: the judge needs more memory than this device has "
                f"left for inputs, expected outputs and their comparison; use a device with more: {error}"
            )
            return JobFault(job=job.index, message=message, retry=False)
        except WorkloadFault as fault:
            # What is the definition's fault reads the same for all of its workloads, and so is told once.
            is_definition = isinstance(fault, DefinitionFault)
            message = str(fault) if is_definition else f"{shared.definition.name}, workload {workload.uuid}: {fault}"
            self._broken_workloads[workload.uuid] = message
            self._check_device()
            return JobFault(job=job.index, message=message, retry=False)
        printed = self._pool.take_output()
        if self._hello.isolated or isinstance(outcome, SolutionFailure):
            self._pool.discard()
        return JobResult(outcome, printed, {"evaluator": shared.evaluator.__name__, **notes})

    def _give_memory_back(self) -> None:
        """Free what can be freed: the arena, the worker that maps it, torch's own cache."""
        self._pool.discard()
        self._arena.release()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _say(self, job: BlockJob, name: str, limit_s: float) -> None:
        self._tell(Phase(job=job.index, name=name, limit_s=limit_s))

    def _load(self, shared: BlockContext, job: BlockJob, solution: BlockSolution, workload: Workload) -> RemoteKernel:
        """Return the solution, loaded in a worker of its own, as a callable for this workload."""
        if solution.build_error is not None:
            raise SolutionFailure("COMPILE_ERROR", solution.build_error)
        broken = self._broken_loads.get(solution.digest)
        if broken is not None and not self._hello.isolated:
            raise broken
        self._say(job, "load", self._hello.timeout_s)
        worker, is_fresh = self._pool.worker_for(solution.digest)
        definition = shared.definition
        kernel = RemoteKernel(
            worker,
            self._arena,
            output_specs(definition, workload),
            KernelMetadata(solution.name, definition.name, self._styles.get(solution.digest, True)),
            allowed_s=self._hello.timeout_s,
            plan=self._measure_plan(shared.config, solution),
            quiesce=self._pool.quiesce,
            readout=self._readout,
            input_names=list(definition.inputs),
        )
        if is_fresh:
            try:
                self._import(kernel, definition, solution)
            except SolutionFailure as failure:
                self._broken_loads[solution.digest] = failure
                raise
        return kernel

    def _import(self, kernel: RemoteKernel, definition: Definition, solution: BlockSolution) -> None:
        """Have the worker import the solution, and find out how it is called."""
        artifact = Artifact(Path(solution.directory or ""), solution.entry, solution.symbol, solution.kind)
        signature = kernel.load(artifact, solution_environment(Path(self._hello.cache_root), solution.digest))
        style = choose_style(
            signature,
            inputs=len(definition.inputs),
            outputs=len(definition.outputs),
            declared=solution.declared_style,
        )
        self._styles[solution.digest] = style == "dps"
        kernel.metadata = replace(kernel.metadata, destination_passing_style=style == "dps")

    def _measure_plan(self, config: ResolvedEvalConfig, solution: BlockSolution) -> MeasurePlan:
        if solution.language == "triton" and self._device.type == "cpu":
            return MeasurePlan(0, 1, self._hello.time_budget_s, trials=1, facts=INTERPRETED)
        per_trial_s = self._hello.time_budget_s / config.num_trials
        return MeasurePlan(config.warmup_runs, config.iterations, per_trial_s, use_graphs=self._hello.use_graphs)

    def _judge(
        self, shared: BlockContext, job: BlockJob, workload: Workload, kernel: RemoteKernel, notes: dict[str, Any]
    ) -> Outcome:
        """Make the expected outputs, compare, measure."""
        definition, config, evaluator = shared.definition, shared.config, shared.evaluator
        context = JudgeContext(
            seed=job.seed,
            blob_root=Path(job.blob_root),
            reference=shared.reference,
            profile_baseline=self._hello.profile_baseline,
            measure_reference=lambda sets: self._measure_reference(shared, workload, sets),
            notes=notes,
        )
        self._say(job, "reference", self._hello.timeout_s)
        baseline = evaluator.build_baseline(definition, workload, config, self._device, context=context)
        self._trim_cache()
        self._say(job, "solution", self._hello.timeout_s)
        verdict = evaluator.check_correctness(
            definition, kernel, baseline.inputs, baseline.outputs, config, context=context
        )
        if isinstance(verdict, Rejected):
            if config.extra.get(MEASURE_REJECTED) and verdict.status is EvaluationStatus.INCORRECT_NUMERICAL:
                # Wrong stays wrong; its time stands in the notes.
                evaluator.eval_performance(definition, kernel, baseline.inputs, None, config, context=context)
            return verdict
        performance = evaluator.eval_performance(
            definition, kernel, baseline.inputs, baseline.mean_latency_ms, config, context=context
        )
        if baseline.measurement is not None:
            notes["baseline"] = baseline.measurement
        return Passed(verdict.correctness, performance)

    def _measure_reference(self, shared: BlockContext, workload: Workload, input_sets: list[list[Any]]) -> Measured:
        """Time the reference, once per workload on this device."""
        key = (shared.definition.digest(), workload.digest())
        if key not in self._baselines:
            self._pool.quiesce()
            before = self._readout.look()
            size = sum(output.nbytes for output in output_specs(shared.definition, workload))
            trials = self._take_reference_trials(shared, input_sets, size)
            self._baselines[key] = self._readout.measured(trials, before)
        return self._baselines[key]

    def _take_reference_trials(self, shared: BlockContext, input_sets: list[list[Any]], size: int) -> list[Trial]:
        """Take one trial per set of inputs; a reference that spends the whole budget in one gets no more.

        Its outputs have `size` bytes.
        """
        budget_s, start = self._hello.baseline_budget_s, time.monotonic()
        trials: list[Trial] = []
        for inputs in input_sets:
            if trials and time.monotonic() - start > budget_s:
                break
            recipe = Recipe(
                warmup_runs=shared.config.warmup_runs,
                iterations=shared.config.iterations,
                budget_s=budget_s / len(input_sets),
                use_graphs=self._hello.use_graphs,
                was_called=True,  # for what is expected of solutions
            )
            places = choose_places(size, calls=recipe.warmup_runs, clock=self._clock, device=self._device)
            launch = Kept(_bind_reference(shared.reference, inputs, self._arena), places, size)
            trial = take_trial(_always(launch), self._clock, recipe)
            trials.append(note_places(trial, launch.places))
            launch.give_back(trial)
        return trials

    def _trim_cache(self) -> None:
        """Leave the solution the device memory that the reference no longer needs."""
        if (
            self._device.type == "cuda"
            and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > LARGE_CACHE_BYTES
        ):
            torch.cuda.empty_cache()

    def _check_device(self) -> None:
        """Raise DeviceFault where a failed reference has left the device unusable."""
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise DeviceFault(f"the device is lost: {error}") from None


def _always(launch: Launch) -> Supplier:
    """Return the supplier that gives one launch for every call."""
    return lambda _index: launch


def _bind_reference(reference: Reference, inputs: list[Any], arena: SharedArena) -> Launch:
    """Return a call of the reference.

    Its inputs are copies that lie where a solution's lie: it may write to them, and where data lies changes a short
    call's latency by up to a tenth.
    """
    slots = iter(arena.place([value for value in inputs if isinstance(value, torch.Tensor)]))
    own = [next(slots).view(arena.block) if isinstance(value, torch.Tensor) else value for value in inputs]
    return partial(reference.launch, own)


def output_specs(definition: Definition, workload: Workload) -> list[OutputSpec]:
    """Return shape and dtype of every output, the axes bound by the workload.

    Raises:
        WorkloadFault: the workload does not bind every axis that an output needs.
    """
    try:
        shapes = definition.get_output_shapes(workload.axes)
    except (KeyError, ValueError) as error:
        raise WorkloadFault(f"the shapes of the outputs cannot be told: {error}") from None
    return [
        OutputSpec(name, storage_shape(tuple(shape or ()), tensor.dtype), torch_dtype(tensor.dtype))
        for (name, tensor), shape in zip(definition.outputs.items(), shapes, strict=True)
    ]


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
