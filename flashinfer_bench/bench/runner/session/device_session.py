"""One device's judge: it judges the jobs of a block, one after the other, each solution in a worker.

The reference runs in this process, which holds the inputs and the expected outputs. No solution runs here.
`workers/pool.py` starts and ends workers; `outcome.py` makes a trace of a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.host import count_memory_kills
from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import MEASURE_REJECTED
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of, cached_bytes, total_bytes
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.runner.hung_solutions import HungSolutions
from flashinfer_bench.bench.runner.protocol import (
    EXPECTED_PHASE,
    REFERENCE_PHASE,
    Announced,
    BlockJob,
    BlockOrder,
    BlockSolution,
    Hello,
    JobFault,
    Phase,
)
from flashinfer_bench.bench.runner.session.arena_turns import ArenaTurns
from flashinfer_bench.bench.runner.session.floor import plan_floor
from flashinfer_bench.bench.runner.session.job import BaselineKey, BlockContext, JobContext, JobResult, MadeBaseline
from flashinfer_bench.bench.runner.session.kept_baselines import KeptBaselines
from flashinfer_bench.bench.runner.session.machine_check import PROGRAM_S, MachineCheck
from flashinfer_bench.bench.runner.session.outcome import PRINTED, JobOutcome, Passed
from flashinfer_bench.bench.runner.session.plans import plan_ahead, plan_solution
from flashinfer_bench.bench.runner.session.precompiling import Precompiler, what_compiles
from flashinfer_bench.bench.runner.session.reads import judge_reads
from flashinfer_bench.bench.runner.session.reference_ahead import ReferenceAhead
from flashinfer_bench.bench.runner.session.reference_timing import ReferenceTimer, SlowReference
from flashinfer_bench.bench.runner.session.rehearsal import Rehearsals, is_small
from flashinfer_bench.bench.runner.session.stress import judge_stress, plan_stress
from flashinfer_bench.bench.runner.session.variation import vary_secretly
from flashinfer_bench.bench.runner.session.wanted import WantedBlock, files_of, list_wanted
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact
from flashinfer_bench.bench.runner.workers.calling import WorkerKilled
from flashinfer_bench.bench.runner.workers.calling_style import CallingStyle, choose_style
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, SessionTools
from flashinfer_bench.bench.runner.workers.pool import SlowContext, WorkerPool, reference_files
from flashinfer_bench.compile.farm import BUILD_LIMIT_S
from flashinfer_bench.data import Definition, EvaluationStatus
from flashinfer_bench.errors import BuildFault, DefinitionFault, DeviceFault, Fault, SolutionFailure, WorkloadFault
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.worker.arena import CudaMemoryError

OUT_OF_MEMORY: Final = (torch.OutOfMemoryError, MemoryError, CudaMemoryError)
LARGE_CACHE_BYTES: Final = 8 << 30
"""Above this torch's unused memory is freed before a solution runs, which may need it."""
KEPT_BYTES: Final = 4 << 30
KEPT_SHARE: Final = 16
"""A baseline that is prepared is kept while all kept ones hold at most KEPT_BYTES, and at most the device's memory
divided by KEPT_SHARE. A baseline that is not kept is made again for its job."""


class KilledFault(Fault):
    """The machine ended a job's workers."""


def tell_killed(place: str, first: WorkerKilled, second: WorkerKilled, memory_kills: int) -> SolutionFailure:
    """Return the failure of a solution whose worker was ended by a signal twice.

    Args:
        place: names the job.
        first: the first end.
        second: the second one, in a fresh worker.
        memory_kills: processes that the kernel has ended for want of memory since the job began.

    Raises:
        KilledFault: the machine may have ended them.
    """
    if first.ended.over_machine or second.ended.over_machine:
        raise KilledFault(
            f"{place}: {second.message}. The solution or another program of this machine took it, in both of two "
            "tries; find out which, or raise worker_memory_gb, and run the job again"
        )
    if memory_kills > 0:
        raise KilledFault(
            f"{place}: its worker was killed twice while the kernel ended processes because memory ran out; free "
            "memory, or lower worker_memory_gb, and run the job again"
        )
    signals = [killed.ended.signal for killed in (first, second)]
    told = f"ended by signal {signals[0]} twice" if signals[0] == signals[1] else f"ended by signals {signals}"
    return SolutionFailure(
        "RUNTIME_ERROR",
        f"{told}: in two workers, the second time during {second.what}; the kernel ended no process for want of memory "
        "meanwhile. A solution may not end its process; if something else did, run the job again without --resume",
    )


def _nothing() -> None:
    """Nobody wants to be told."""


class DeviceSession:
    """Judges jobs on one device.

    Args:
        hello: the session's settings.
        pool: where workers come from.
        tools: what it gives every kernel.
        tell: sends a phase to the host.
        kept: times of references from earlier runs; None where none are taken over.
    """

    def __init__(
        self,
        hello: Hello,
        pool: WorkerPool,
        tools: SessionTools,
        tell: Callable[[Phase], None],
        kept: KeptBaselines | None = None,
    ) -> None:
        self._hello = hello
        self._pool = pool
        self._precompiler = Precompiler(pool, has_modules=hello.compiles_ahead)
        tools = replace(tools, settle=self._settle, settle_contexts=pool.settle, is_starting=pool.is_starting)
        self._tools = tools
        self._timer = ReferenceTimer(hello, pool, tools, kept)
        self._rehearsals = Rehearsals()
        self._has_judged = False
        self._device = tools.arena.device
        self._arena = tools.arena
        self._tell = tell
        self._turns = ArenaTurns(tools.arena, pool)
        self._ahead = ReferenceAhead(self.lacks_baseline)
        self._sound: set[BaselineKey] = set()
        """Workloads whose baseline was made while no worker held a solution."""
        self._broken_loads: dict[str, SolutionFailure] = {}
        self._broken_workloads: dict[str, str] = {}
        self._machine = MachineCheck(hello, pool, tools, self.end_workers)
        self._hung = HungSolutions()
        self._styles: dict[str, CallingStyle] = {}
        self._memory_kills = 0
        """The kernel's count of kills for want of memory when the job began."""
        self._printed_ahead = ""
        """What the job's solution printed before its first call."""
        self._printed_calling = ""
        """What it has printed since, where its worker was let go before the verdict."""
        self._comes_next = ""
        """Digest of the solution of the job after this one; empty where nobody knows it yet."""
        self.on_loaded: Callable[[], object] = _nothing
        """Told on a GPU when a job's solution is loaded: workers for what has come since may be made beside the job."""

    def _settle(self) -> bool:
        """Have nothing go on beside a call of which the host's time is part; say whether anything did."""
        was_compiling = self._precompiler.hold()
        return self._pool.settle() or was_compiling

    def close(self) -> None:
        """Give the shared memory back."""
        self._precompiler.close()
        self._arena.release()

    def open_block(self, block: BlockOrder) -> BlockContext:
        """Compile what the block's jobs share.

        Raises:
            WorkloadFault: the definition's reference cannot be used.
        """
        definition = Definition.model_validate(block.definition)
        self._turns.open_block(definition.digest())
        self._broken_loads.clear()
        self._broken_workloads.clear()
        self._hung = HungSolutions()
        return BlockContext(
            definition=definition,
            config=ResolvedEvalConfig.model_validate(block.config),
            evaluator=find_evaluator(definition),
            reference=Reference.compile(definition),
            solutions=block.solutions,
        )

    def take_announced(self, announced: Sequence[Announced]) -> None:
        """Learn which solutions of later blocks are to be compiled ahead."""
        self._precompiler.announced = announced

    def expect(self, block: BlockContext, orders: Sequence[BlockJob], ahead: BlockOrder | None = None) -> None:
        """Tell the pool which solutions the next workers are for, beginning with that of the first job.

        Args:
            block: the block that runs.
            orders: its jobs that are left.
            ahead: the block that comes after it, as far as that is known.
        """
        self._precompiler.expect([(block, orders), *([(ahead, ahead.jobs)] if ahead is not None else [])])
        coming = [WantedBlock(block.solutions, orders)]
        if ahead is not None:
            reference = self._ahead.find(block.definition, ahead) if self._hello.profile_baseline else []
            coming.append(WantedBlock(ahead.solutions, ahead.jobs, reference))
        broken = () if self._hello.isolated else self._broken_loads
        wanted = list_wanted(coming, isolated=self._hello.isolated, broken=broken)
        lacking = [self._hello.profile_baseline and self.lacks_baseline(block, order) for order in orders[:2]]
        if lacking[:1] == [True]:
            wanted.insert(0, reference_files(block.definition.digest()))
        elif lacking == [False, True] and orders[0].solution == orders[1].solution and not self._hello.isolated:
            wanted = wanted[:1] + wanted  # its worker ends before that baseline is made, and it gets another
        self._pool.expect(wanted)
        digests = (part.solutions[job.solution].digest for part in coming for job in part.orders)
        self._comes_next = next(islice(digests, 1, None), "")

    def lacks_baseline(self, block: BlockContext, order: BlockJob) -> bool:
        """Tell whether a job's baseline has to be made before any worker holds a solution."""
        job = block.open_job(order)
        if job.solution.build_error is not None or block.reference.broken is not None:
            return False
        if job.solution.digest in self._broken_loads and not self._hello.isolated:
            return False
        if job.workload.uuid in self._broken_workloads or job.key in self._sound:
            return False
        if self._hung.reason(order.solution) is not None:
            return False
        return self._timer.recall(job) is None  # where the time is known, nothing is left that a solution could disturb

    def end_workers(self) -> None:
        """End every worker that holds a solution, and give back the memory that it knows."""
        self._pool.discard()
        self._pool.finish_ending()
        self._turns.release()

    def prepare(self, block: BlockContext, order: BlockJob) -> None:
        """Make a job's baseline and time the reference; no worker may hold a solution, which could disturb it.

        A failure is kept, and told when the job itself runs.
        """
        job = block.open_job(order)
        try:
            made = MadeBaseline(self._make_baseline(job, REFERENCE_PHASE), job.notes)
        except OUT_OF_MEMORY:
            block.kept.clear()
            self._give_memory_back()
            return
        except WorkloadFault as fault:
            self._note_fault(job, fault)
            return
        self._sound.add(job.key)
        room = min(KEPT_BYTES, total_bytes(self._device) // KEPT_SHARE)
        if made.nbytes + sum(kept.nbytes for kept in block.kept.values()) <= room:
            block.kept[order.index] = made

    def _note_fault(self, job: JobContext, fault: WorkloadFault) -> str:
        """Remember why a workload cannot be judged."""
        # A fault of the definition has the same text for all workloads, so that it is told once.
        message = str(fault) if isinstance(fault, DefinitionFault) else f"{job.place}: {fault}"
        self._broken_workloads[job.workload.uuid] = message
        self._check_device()
        return message

    def run_job(self, block: BlockContext, order: BlockJob) -> JobResult | JobFault:
        """Judge one job."""
        self._printed_ahead = self._printed_calling = ""
        self._memory_kills = count_memory_kills()
        job = block.open_job(order)
        known = self._broken_workloads.get(job.workload.uuid, block.reference.broken)
        if known is not None:
            return JobFault(job=order.index, message=known, retry=False)
        left_out = self._hung.reason(order.solution)
        if left_out is not None:
            return JobFault(job=order.index, message=left_out, retry=False, is_left_out=True)
        outcome: JobOutcome
        try:
            outcome = self._judge_in_fast_context(job)
        except SolutionFailure as failure:
            fault = self._machine.why(job, failure, partial(self._begin_check, job))
            if fault is not None:
                return JobFault(job=order.index, message=fault, retry=False)
            outcome = failure
        except OUT_OF_MEMORY as error:
            self._give_memory_back()
            message = (
                f"{job.place}: the judge needs more memory than this device has left for inputs, expected outputs and "
                f"their comparison; use a device with more: {error}"
            )
            return JobFault(job=order.index, message=message, retry=False)
        except WorkloadFault as fault:
            return JobFault(job=order.index, message=self._note_fault(job, fault), retry=False)
        except (BuildFault, KilledFault) as fault:
            return JobFault(job=order.index, message=str(fault), retry=False)
        finally:
            block.kept.pop(order.index, None)
            self._has_judged = True
            self._precompiler.go_on()
        printed = self._printed_calling + self._pool.take_output()
        if printed.strip() and not isinstance(outcome, SolutionFailure):
            job.notes[PRINTED] = len(printed.encode("utf-8", "replace"))
        printed = self._printed_ahead + printed
        if self._hello.isolated or (isinstance(outcome, SolutionFailure) and not self._recovers(outcome)):
            self._pool.discard()
        ran_out = outcome.ran_out if isinstance(outcome, SolutionFailure) else None
        if ran_out is not None:
            if what_compiles(job.solution) is FirstCall.NOTHING:
                ran_out = "call"
            self._hung.note(order.solution, job.solution.name, job.workload.uuid, ran_out)
        return JobResult(outcome, printed, {"evaluator": block.evaluator.__name__, **job.notes}, ran_out)

    def _begin_check(self, job: JobContext) -> None:
        """Keep what the solution printed: its worker ends before the machine is looked at."""
        self._printed_calling += self._pool.take_output()
        self._tell(Phase(job=job.order.index, name="a program of ours", limit_s=BUILD_LIMIT_S + PROGRAM_S))

    def _recovers(self, failure: SolutionFailure) -> bool:
        """Tell whether the worker can do its solution's next job: the solution merely raised, and all of it works."""
        return failure.is_answer and self._pool.recover()

    def _give_memory_back(self) -> None:
        """Free what can be freed: the arena, the worker that maps it, torch's own cache."""
        self._pool.discard()
        self._pool.end_reference()
        self._arena.release()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _say(self, job: JobContext, phase: str) -> None:
        self._tell(Phase(job=job.order.index, name=phase, limit_s=self._hello.timeout_seconds))

    def _load(self, job: JobContext) -> RemoteKernel:
        """Return the job's solution, loaded in a worker of its own, as a callable for the job's workload."""
        solution = job.solution
        if solution.build_error is not None:
            raise SolutionFailure("COMPILE_ERROR", solution.build_error)
        broken = self._broken_loads.get(solution.digest)
        if broken is not None and not self._hello.isolated:
            raise broken
        self._use_wait(job)
        self._say(job, "load")
        self._pool.rest_reference()
        worker, is_fresh = self._pool.worker_for(files_of(solution))
        definition = job.block.definition
        task = KernelTask(
            input_names=list(definition.inputs),
            outputs=job.output_specs(),
            timeout_seconds=self._hello.timeout_seconds,
            plan=plan_solution(self._hello, job, solution),
            vary=vary_secretly(job, derive_seed(job.order.seed, "contents")),
            floor_ms=plan_floor(definition, job.workload, self._device, self._hello.timing),
        )
        kernel = RemoteKernel(worker, self._tools, task, KernelMetadata(solution.name, definition.name, True))
        if is_fresh:
            wait_s = self._hello.timeout_seconds
            if self._precompiler.finish(solution.digest, wait_s, lambda: self._say(job, "precompile")):
                self._say(job, "load")
            try:
                self._import(kernel, definition, solution)
            except SolutionFailure as failure:
                self._broken_loads[solution.digest] = failure
                raise
        kernel.calling_style = self._styles[solution.digest]
        return kernel

    def _import(self, kernel: RemoteKernel, definition: Definition, solution: BlockSolution) -> None:
        """Have the worker import the solution, and find out how it is called."""
        self._pool.await_writers()
        self._pool.name_folder(solution.digest, solution.name)
        artifact = self._pool.hand_over(find_artifact(solution, self._pool.make_folder))
        signature = kernel.load(artifact, self._pool.solution_environment(solution.digest))
        style = choose_style(
            signature,
            inputs=list(definition.inputs),
            outputs=list(definition.outputs),
            declared=solution.declared_style,
            is_python=solution.kind == "python",
        )
        self._printed_ahead = self._pool.take_output()
        known = self._styles.get(solution.digest)
        self._styles[solution.digest] = known if known is not None and not style.is_settled else style

    def _judge_in_fast_context(self, job: JobContext) -> JobOutcome:
        """Judge the solution; once more, in another worker, where a slow context makes its calls slower.

        Where one has made those of the reference slower, that is timed again first. Where a signal ended the worker
        that may have come from outside, the solution is judged once more, too.
        """
        killed: WorkerKilled | None = None
        while True:  # each happens once
            try:
                return self._load_and_judge(job)
            except WorkerKilled as latest:
                self._pool.discard()
                was_loading = self._broken_loads.pop(job.solution.digest, None) is not None
                if killed is not None:
                    failure = tell_killed(job.place, killed, latest, count_memory_kills() - self._memory_kills)
                    if was_loading:
                        self._broken_loads[job.solution.digest] = failure
                    raise failure from None
                killed = latest
            except SlowContext:
                self._pool.end_slow()
            except SlowReference:
                self._sound -= self._timer.forget_slow()
                job.block.kept.clear()  # the times are in these, too
                self.end_workers()
                self.prepare(job.block, job.order)
                fault = self._broken_workloads.get(job.workload.uuid)
                if fault is not None:
                    raise DefinitionFault(fault) from None  # it is told as it was noted

    def _load_and_judge(self, job: JobContext) -> JobOutcome:
        self._timer.check_context(job)
        kernel = self._load(job)
        self._timer.check_context(job)  # its worker's context may be the first fast one
        with kernel.worker.resting():
            return self._judge(job, kernel)

    def _use_wait(self, job: JobContext) -> None:
        """Make the expected outputs while the first job's worker starts, on a GPU, and load the code of judging.

        Later a worker that is to end may hold the memory that the reference needs.
        """
        block, is_awaited = job.block, partial(self._pool.is_awaited, files_of(job.solution))
        if self._has_judged or not is_awaited():
            return
        if job.order.index not in block.kept:
            block.kept[job.order.index] = MadeBaseline(self._make_baseline(job, EXPECTED_PHASE), dict(job.notes))
        made = block.kept[job.order.index].baseline
        if is_small(made.inputs[0], job.output_specs()):
            steps = self._rehearsals.find(job, self._context(job))
            self._pool.work_while([partial(step, made.inputs[0], made.outputs[0]) for step in steps], is_awaited)

    def _judge(self, job: JobContext, kernel: RemoteKernel) -> JobOutcome:
        """Make the expected outputs, compare, measure."""
        block, evaluator = job.block, job.block.evaluator
        made = block.kept.pop(job.order.index, None)
        if made is not None:
            baseline = made.baseline
            job.notes.update(made.notes)
        else:
            baseline = self._make_baseline(job, EXPECTED_PHASE)
        self._trim_cache()
        self._turns.hand_over(kernel.worker, bytes_of([*baseline.inputs[0], *baseline.outputs[0]]))
        self._settle_task(job, kernel, baseline)
        kernel.expect(baseline.inputs)
        is_each_checked = not kernel.is_meaningful or not evaluator.judges_calls_alone
        verdict = self._check(job, kernel, baseline, slice(None if is_each_checked else 1))
        measure = partial(evaluator.eval_performance, block.definition, kernel, baseline.inputs)
        if isinstance(verdict, Rejected):
            if job.config.extra.get(MEASURE_REJECTED) and verdict.status is EvaluationStatus.INCORRECT_NUMERICAL:
                # The verdict stays the same; the notes get the time.
                measure(None, job.config, context=self._context(job))
            return verdict
        is_empty = all(0 in output.shape for output in kernel.task.outputs)  # then no speed-up says anything
        try:
            performance = measure(
                None if is_empty else baseline.mean_latency_ms, job.config, context=self._context(job)
            )
        except SlowContext:
            block.kept[job.order.index] = MadeBaseline(baseline, dict(job.notes))
            raise
        if not is_each_checked and len(kernel.reads) < len(baseline.inputs):  # of the other trials nothing was timed
            rest = self._check(job, kernel, baseline, slice(max(1, len(kernel.reads)), None))
            if isinstance(rest, Rejected):
                return rest
        if baseline.measurement is not None:
            job.notes["baseline"] = baseline.measurement
        self._let_go(job)
        wrong: Rejected | None = None
        if kernel.is_meaningful:
            self._say(job, EXPECTED_PHASE)
            kernel.worker.rest_all()  # on a CPU nothing that it has started slows the reference down
            wrong = judge_reads(job, kernel.reads, baseline, self._context(replace(job, notes={})))
        planned = kernel.planned_stress()
        wrong = wrong or judge_stress(job, kernel.stress_calls, baseline, self._context(job), planned)
        return wrong or Passed(verdict.correctness, performance)

    def _let_go(self, job: JobContext) -> None:
        """Begin to end the worker on a GPU where no job is left for it: its end takes as long as what follows here."""
        is_last = self._hello.isolated or self._comes_next not in ("", job.solution.digest)
        if is_last and self._device.type == "cuda":
            self._printed_calling = self._pool.take_output()
            self._pool.let_go()

    def _settle_task(self, job: JobContext, kernel: RemoteKernel, baseline: Baseline) -> None:
        """Take into the task what the reference's calls have shown, and find out how the solution is called."""
        reference = job.block.reference
        written = reference.mutates or frozenset()
        kernel.task = replace(
            kernel.task,
            may_return_inputs=reference.returns_inputs is not False,
            in_out_inputs=written,
            stress=plan_stress(job, baseline),
            work_ahead=plan_ahead(job, baseline),
        )
        if written:
            job.notes["in_out_inputs"] = sorted(written)
        self._say(job, "solution")
        if self._device.type == "cuda":
            self.on_loaded()
        kernel.settle_style(baseline.inputs[0])
        self._styles[job.solution.digest] = kernel.calling_style
        note = kernel.calling_style.to_note()
        if note is not None:
            job.notes["calling_style"] = note

    def _check(self, job: JobContext, kernel: RemoteKernel, expected: Baseline, trials: slice) -> Verdict:
        """Call the solution on the inputs of some trials and compare its outputs with what is expected."""
        block = job.block
        inputs, outputs = expected.inputs[trials], expected.outputs[trials]
        return block.evaluator.check_correctness(
            block.definition, kernel, inputs, outputs, job.config, context=self._context(job)
        )

    def _make_baseline(
        self, job: JobContext, phase: str, config: ResolvedEvalConfig | None = None, **changes: Any
    ) -> Baseline:
        block = job.block
        self._say(job, phase)
        context = replace(self._context(job, is_alone=phase == REFERENCE_PHASE), **changes)
        return block.evaluator.build_baseline(
            block.definition, job.workload, config or job.config, self._device, context=context
        )

    def _context(self, job: JobContext, *, is_alone: bool = False) -> JudgeContext:
        first = partial(self._call_reference_first, job)
        return JudgeContext(
            seed=job.order.seed,
            blob_root=Path(job.order.blob_root),
            reference=job.block.reference,
            profile_baseline=self._hello.profile_baseline,
            measure_reference=partial(self._measure_reference, job, is_alone=is_alone),
            notes=job.notes,
            call_reference_first=first if self._device.type == "cuda" and self._hello.profile_baseline else None,
        )

    def _call_reference_first(self, job: JobContext, inputs: list[Any]) -> list[torch.Tensor]:
        """Call the reference here while its worker makes its first call: neither finds the code it needs on the GPU."""
        if not is_small(inputs, job.output_specs()) or self._timer.recall(job) is not None:
            return job.block.reference(inputs)
        self._turns.clear()
        return self._timer.call_first(job, inputs, self._rehearsals.find(job, self._context(job)))

    def _measure_reference(self, job: JobContext, input_sets: list[list[Any]], *, is_alone: bool) -> Measured:
        """Time the reference in a worker of its own."""
        if self._timer.recall(job) is None:
            self._turns.clear()
        with self._precompiler.held_still():
            return self._timer.measure(job, input_sets, is_alone=is_alone)

    def _trim_cache(self) -> None:
        """Free device memory that the reference and spare workers do not need; the solution may need it."""
        if self._device.type == "cuda" and cached_bytes(self._device) > LARGE_CACHE_BYTES:
            torch.cuda.empty_cache()
        self._pool.make_room()

    def _check_device(self) -> None:
        """Raise DeviceFault where a failed reference has left the device unusable."""
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise DeviceFault(f"the device is lost: {error}") from None
