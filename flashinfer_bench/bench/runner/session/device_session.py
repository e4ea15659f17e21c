"""One device's judge: takes blocks of jobs, runs each solution in a worker, and sends a verdict for each job as it
comes.

Here live the definition's reference, the inputs, the expected outputs, the comparison and the baseline's timing;
solution code never does. How processes are kept is worker_pool's; how a verdict becomes a trace is outcome's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import MEASURE_REJECTED, ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.evaluator import Baseline, Evaluator, JudgeContext, Rejected
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of, total_bytes
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution, Hello, JobFault, Phase
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.session.outcome import JobOutcome, Passed
from flashinfer_bench.bench.runner.session.reference_timing import BaselineKey, ReferenceTimer
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact
from flashinfer_bench.bench.runner.workers.claims import OutputSpec, choose_style
from flashinfer_bench.bench.runner.workers.kernel import (
    KernelMetadata,
    MeasurePlan,
    RemoteKernel,
)
from flashinfer_bench.bench.runner.workers.pool import Claim, WorkerPool
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.bench.runner.workers.readings import find_implausible
from flashinfer_bench.data import Definition, EvaluationStatus, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import BuildFault, DefinitionFault, DeviceFault, SolutionFailure, WorkloadFault
from flashinfer_bench.timing.clocks import Clock
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.worker.cuda_memory import CudaMemoryError

INTERPRETED: Final = {
    "meaningful": False,
    "reason": "Triton's interpreter ran the kernels on a CPU; the time says nothing about them",
}
REFERENCE_PHASE: Final = "reference"
"""The reference runs and no worker holds a solution: who ends the session now is the reference."""
EXPECTED_PHASE: Final = "expected"
"""The reference runs, and a solution is loaded."""
CONFIRMATIONS: Final = 5
"""So often is a call's cost taken from outside before it is held against a claim: a busy machine disturbs some."""
OUT_OF_MEMORY: Final = (torch.OutOfMemoryError, MemoryError, CudaMemoryError)
LARGE_CACHE_BYTES: Final = 8 << 30
LARGE_ARENA_BYTES: Final = 1 << 30
"""An arena above this is not kept for the next block: its memory may be what the next reference needs."""

EXPECTED_WORKERS: Final = 2
AHEAD_S: Final = 60.0
"""Baselines of a block's workloads are made ahead, before a solution is loaded, for so long at a time."""
KEPT_BYTES: Final = 4 << 30
KEPT_SHARE: Final = 16
"""Baselines made ahead are kept up to so many bytes, and no more than the device's memory divided by this; others are
made again for their job."""


@dataclass(frozen=True)
class MadeBaseline:
    """A baseline, and what was noted while it was made."""

    baseline: Baseline
    notes: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its inputs and outputs."""
        sets = [*self.baseline.inputs, *self.baseline.outputs]
        return bytes_of({id(value): value for values in sets for value in values}.values())


@dataclass(frozen=True)
class JobResult:
    """What a job came to, before it is made into an evaluation."""

    outcome: JobOutcome
    printed: str
    extra: dict[str, Any]


@dataclass(frozen=True)
class BlockContext:
    """What all jobs of a block share."""

    definition: Definition
    config: ResolvedEvalConfig
    evaluator: type[Evaluator]
    reference: Reference
    kept: dict[int, MadeBaseline] = field(default_factory=dict)
    """Job → its baseline, made ahead."""

    def key(self, workload: Workload) -> BaselineKey:
        """Return what a baseline is known by."""
        return self.definition.digest(), workload.digest()


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
        self._readout = readout
        self._timer = ReferenceTimer(hello, device, clock, readout, self._arena)
        self._arena_of: WorkerProcess | None = None
        self._sound: set[BaselineKey] = set()
        """Workloads whose baseline was made while no worker held a solution."""
        self._broken_loads: dict[str, SolutionFailure] = {}
        self._broken_workloads: dict[str, str] = {}
        self._styles: dict[str, bool] = {}

    def close(self) -> None:
        """Give the shared memory back."""
        self._arena.release()

    def open_block(self, block: BlockOrder) -> BlockContext:
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

    def expect(self, jobs: Sequence[BlockJob], solutions: dict[str, BlockSolution]) -> None:
        """Tell the pool whose workers come next, that of the first job among them."""
        wanted = [solutions[job.solution] for job in jobs]
        if not self._hello.isolated:  # one worker does all jobs of a solution that stand together
            wanted = [one for at, one in enumerate(wanted) if at == 0 or one.digest != wanted[at - 1].digest]
        built = [claim_of(solution) for solution in wanted[:EXPECTED_WORKERS] if solution.build_error is None]
        self._pool.expect(built)

    def to_prepare(
        self, shared: BlockContext, jobs: Sequence[BlockJob], solutions: dict[str, BlockSolution]
    ) -> Iterator[BlockJob]:
        """Yield the jobs whose baselines are to be made before the first job can run; each is to be prepared at once.

        Nothing where that job's baseline was made before. Else the worker is ended, and the workloads of later jobs
        come too, so that this is rarely done twice.
        """
        if not self._lacks_baseline(shared, jobs[0], solutions):
            return
        self._pool.discard()
        self._pool.quiesce()
        self._arena.release()
        start = time.monotonic()
        for job in jobs:
            if job is not jobs[0] and time.monotonic() - start > AHEAD_S:
                return
            if self._lacks_baseline(shared, job, solutions):
                yield job

    def _lacks_baseline(self, shared: BlockContext, job: BlockJob, solutions: dict[str, BlockSolution]) -> bool:
        solution, workload = solutions[job.solution], Workload.model_validate(job.workload)
        if solution.build_error is not None or shared.reference.broken is not None:
            return False
        if solution.digest in self._broken_loads and not self._hello.isolated:
            return False
        return workload.uuid not in self._broken_workloads and shared.key(workload) not in self._sound

    def prepare(self, shared: BlockContext, job: BlockJob) -> None:
        """Make a job's baseline and time the reference, while no worker holds a solution that could disturb it.

        What it fails with is told when the job itself runs.
        """
        workload = Workload.model_validate(job.workload)
        notes: dict[str, Any] = {}
        try:
            made = MadeBaseline(self._make_baseline(shared, job, workload, notes, phase=REFERENCE_PHASE), notes)
        except OUT_OF_MEMORY:
            shared.kept.clear()
            self._give_memory_back()
            return
        except WorkloadFault as fault:
            self._note_fault(shared, workload, fault)
            return
        self._sound.add(shared.key(workload))
        room = min(KEPT_BYTES, total_bytes(self._device) // KEPT_SHARE)
        if made.nbytes + sum(kept.nbytes for kept in shared.kept.values()) <= room:
            shared.kept[job.index] = made

    def _note_fault(self, shared: BlockContext, workload: Workload, fault: WorkloadFault) -> str:
        """Remember why a workload cannot be judged."""
        # What is the definition's fault reads the same for all of its workloads, and so is told once.
        is_definition = isinstance(fault, DefinitionFault)
        message = str(fault) if is_definition else f"{shared.definition.name}, workload {workload.uuid}: {fault}"
        self._broken_workloads[workload.uuid] = message
        self._check_device()
        return message

    def run_job(self, shared: BlockContext, job: BlockJob, solution: BlockSolution) -> JobResult | JobFault:
        """Judge one job."""
        workload = Workload.model_validate(job.workload)
        known = self._broken_workloads.get(workload.uuid, shared.reference.broken)
        if known is not None:
            return JobFault(job=job.index, message=known, retry=False)
        notes: dict[str, Any] = {}
        outcome: JobOutcome
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
        except BuildFault as fault:
            return JobFault(job=job.index, message=str(fault), retry=False)
        except WorkloadFault as fault:
            return JobFault(job=job.index, message=self._note_fault(shared, workload, fault), retry=False)
        finally:
            shared.kept.pop(job.index, None)
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
        self._say(job, "load", self._hello.timeout_seconds)
        worker, is_fresh = self._pool.worker_for(claim_of(solution))
        definition = shared.definition
        kernel = RemoteKernel(
            worker,
            self._arena,
            output_specs(definition, workload),
            KernelMetadata(solution.name, definition.name, self._styles.get(solution.digest, True)),
            timeout_seconds=self._hello.timeout_seconds,
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
        self._pool.finish_ending()  # what the worker before can do to files is done
        artifact = self._pool.hand_over(find_artifact(solution, self._pool.make_folder))
        signature = kernel.load(artifact, self._pool.solution_environment(solution.digest))
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
        return MeasurePlan(
            config.warmup_runs,
            config.iterations,
            per_trial_s,
            timing=self._hello.timing,
        )

    def _judge(
        self, shared: BlockContext, job: BlockJob, workload: Workload, kernel: RemoteKernel, notes: dict[str, Any]
    ) -> JobOutcome:
        """Make the expected outputs, compare, measure."""
        definition, config, evaluator = shared.definition, shared.config, shared.evaluator
        made = shared.kept.pop(job.index, None)
        if made is not None:
            baseline = made.baseline
            notes |= made.notes
        else:
            baseline = self._make_baseline(shared, job, workload, notes, phase=EXPECTED_PHASE)
        context = self._context(shared, job, workload, notes)
        self._trim_cache()
        self._hand_over_arena(kernel.worker)
        self._say(job, "solution", self._hello.timeout_seconds)
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
        wrong = self._confirm(shared, job, workload, kernel, baseline, performance.latency_ms)
        return wrong or Passed(verdict.correctness, performance)

    def _confirm(
        self,
        shared: BlockContext,
        job: BlockJob,
        workload: Workload,
        kernel: RemoteKernel,
        baseline: Baseline,
        latency_ms: float,
    ) -> Rejected | None:
        """Call a solution that was timed on inputs that it has not seen: its outputs must be right, its time plausible.

        Raises:
            SolutionFailure: it claims a latency that cannot be.
        """
        costs_ns: list[int] = []
        why: str | None = None
        for attempt in range(CONFIRMATIONS if kernel.is_meaningful else 0):
            made = self._make_unseen(shared, job, workload, attempt) or last_trial(baseline)
            context = self._context(shared, job, workload, {})
            kernel.allow_again()
            kernel.call_costs_ns.clear()
            self._say(job, "solution", self._hello.timeout_seconds)
            verdict = shared.evaluator.check_correctness(
                shared.definition, kernel, made.inputs, made.outputs, shared.config, context=context
            )
            if isinstance(verdict, Rejected):
                return replace(verdict, message=f"after it was timed: {verdict.message}")
            costs_ns += kernel.call_costs_ns
            why = find_implausible(latency_ms * 1e6, costs_ns, MadeBaseline(made, {}).nbytes)
            if why is None or self._device.type != "cpu":
                return None
        if why is not None:
            raise SolutionFailure("RUNTIME_ERROR", why)
        return None

    def _make_unseen(self, shared: BlockContext, job: BlockJob, workload: Workload, attempt: int) -> Baseline | None:
        """Make one more set of inputs and what is expected of it; None where there is no memory for it."""
        self._say(job, EXPECTED_PHASE, self._hello.timeout_seconds)
        seed = derive_seed(job.seed, "confirmation", attempt)
        context = replace(self._context(shared, job, workload, {}), seed=seed, profile_baseline=False)
        config = shared.config.model_copy(update={"num_trials": 1})
        try:
            return shared.evaluator.build_baseline(shared.definition, workload, config, self._device, context=context)
        except OUT_OF_MEMORY:
            return None

    def _make_baseline(
        self, shared: BlockContext, job: BlockJob, workload: Workload, notes: dict[str, Any], *, phase: str
    ) -> Baseline:
        self._say(job, phase, self._hello.timeout_seconds)
        context = self._context(shared, job, workload, notes)
        return shared.evaluator.build_baseline(
            shared.definition, workload, shared.config, self._device, context=context
        )

    def _context(self, shared: BlockContext, job: BlockJob, workload: Workload, notes: dict[str, Any]) -> JudgeContext:
        return JudgeContext(
            seed=job.seed,
            blob_root=Path(job.blob_root),
            reference=shared.reference,
            profile_baseline=self._hello.profile_baseline,
            measure_reference=lambda sets: self._measure_reference(shared, workload, sets),
            notes=notes,
        )

    def _measure_reference(self, shared: BlockContext, workload: Workload, input_sets: list[list[Any]]) -> Measured:
        """Time the reference, once per workload on this device."""
        size = sum(output.nbytes for output in output_specs(shared.definition, workload))
        return self._timer.measure(shared.key(workload), shared.reference, shared.config, input_sets, size)

    def _hand_over_arena(self, worker: WorkerProcess) -> None:
        """See to it that a worker finds nothing in the arena that another, or the session, has left there."""
        if self._arena_of is not worker:
            self._pool.finish_ending()
            self._arena.renew()
            self._arena_of = worker

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


def claim_of(solution: BlockSolution) -> Claim:
    """Return what a solution's worker is known by."""
    return Claim(solution.digest, Path(solution.directory) if solution.directory else None)


def last_trial(baseline: Baseline) -> Baseline:
    """Return what belongs to the last trial alone."""
    return replace(baseline, inputs=baseline.inputs[-1:], outputs=baseline.outputs[-1:])


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
