"""One device's judge: it judges the jobs of a block one after the other, each solution in a worker.

A job runs from top to bottom through `DeviceSession._judge`: inputs, the reference's outputs and its time; load; call
and compare; time; compare timed calls; stress cases. The reference runs in this process, which holds the inputs and the
expected outputs. No solution runs here. `workers/pool.py` starts and ends workers, `outcome.py` makes the evaluation.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.host import count_memory_kills
from flashinfer_bench.bench.evaluator_record import MEASURE_REJECTED
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.memory import (
    bytes_of,
    cached_bytes,
    recently_free_bytes,
    total_bytes,
)
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.planning.first_call import FirstCall
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
from flashinfer_bench.bench.runner.session.job import (
    BaselineKey,
    BlockContext,
    JobContext,
    JobResult,
    bytes_held,
    find_expect,
    plan_floor,
    plan_solution,
)
from flashinfer_bench.bench.runner.session.judged_calls import judge_reads, judge_stress, plan_stress
from flashinfer_bench.bench.runner.session.machine_check import PROGRAM_S, MachineCheck
from flashinfer_bench.bench.runner.session.opening import files_of
from flashinfer_bench.bench.runner.session.outcome import PRINTED, JobOutcome, Passed
from flashinfer_bench.bench.runner.session.precompiling import Precompiler, what_compiles
from flashinfer_bench.bench.runner.session.reference_timing import KeptTimes, ReferenceTimer
from flashinfer_bench.bench.runner.workers.artifacts import load_solution
from flashinfer_bench.bench.runner.workers.calling_style import CallingStyle, choose_style
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel, WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, SessionTools
from flashinfer_bench.bench.runner.workers.pool import (
    MOST_WARM,
    SlowContext,
    SolutionFiles,
    WorkerPool,
    reference_files,
)
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.compile.farm import BUILD_LIMIT_S
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import BuildFault, DefinitionFault, DeviceFault, Fault, SolutionFailure, WorkloadFault
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.worker.arena import CudaMemoryError

OUT_OF_MEMORY: Final = (torch.OutOfMemoryError, MemoryError, CudaMemoryError)
LARGE_CACHE_BYTES: Final = 8 << 30
"""Above this torch's unused memory is freed before a solution runs, which may need it."""
KEPT_BYTES: Final = 4 << 30
KEPT_SHARE: Final = 16
"""Prepared baselines hold at most KEPT_BYTES, and at most the device's memory divided by KEPT_SHARE. Others are made
again for their jobs."""
LARGE_ARENA_BYTES: Final = 1 << 30
"""An arena above this is freed before a block of another definition, whose reference may need its memory."""
ROOMY_SHARE: Final = 0.75
"""Free share of the GPU's memory above which a solution is called before the worker before it has ended."""
EXPECTED_WORKERS: Final = max(MOST_WARM.values()) + 2
"""Workers that the pool is told of: the reference's, the current job's, and the spares."""


class KilledFault(Fault):
    """The machine ended a job's workers."""


class SlowReference(Exception):
    """The reference was timed in a context that turns out to be slow."""


class DeviceSession:
    """Judges jobs on one device.

    Args:
        hello: the session's settings.
        pool: the source of workers.
        tools: tools of every kernel.
        tell: sends a phase to the host.
        kept: times of references from earlier runs; None if none are taken over.
    """

    def __init__(
        self,
        hello: Hello,
        pool: WorkerPool,
        tools: SessionTools,
        tell: Callable[[Phase], None],
        kept: KeptTimes | None = None,
    ) -> None:
        self._hello, self._pool, self._tell = hello, pool, tell
        self._arena, self._device = tools.arena, tools.arena.device
        self._is_gpu = self._device.type == "cuda"
        self._tools = replace(tools, settle=self._settle)
        self._precompiler = Precompiler(pool, has_modules=hello.compiles_ahead)
        self._timer = ReferenceTimer(hello, pool, self._tools, kept)
        self._machine = MachineCheck(hello, pool, self._tools, self.end_workers)
        self._block: BlockContext | None = None
        self._ahead: BlockContext | None = None
        self._holder: WorkerProcess | None = None
        """The worker that may have written to the arena."""
        self._sound: set[BaselineKey] = set()
        """Workloads whose baseline was made while no worker held a solution."""
        self._serves = ""
        """Key of the latest job's worker."""
        self._styles: dict[str, CallingStyle] = {}
        self._printed = ["", ""]
        """Output of the job's solution at its import, and in its calls."""
        self._comes_next = ""
        """Digest of the solution of the job after this one; empty if it is not known yet."""

    def close(self) -> None:
        """Give the shared memory back."""
        self._precompiler.close()
        self._arena.release()

    def open_block(self, order: BlockOrder) -> BlockContext:
        """Compile the reference of a block.

        Raises:
            WorkloadFault: it cannot be used.
        """
        before, block = self._block, self._context_of(order)
        is_other = before is None or before.digest != block.digest
        if is_other and self._arena.largest > LARGE_ARENA_BYTES:
            self._pool.discard()  # the worker maps the arena
            self._release_arena()
        self._block = block
        _ = block.reference
        return block

    def _context_of(self, order: BlockOrder) -> BlockContext:
        if self._ahead is None or self._ahead.order is not order:
            self._ahead = BlockContext(order)
        return self._ahead

    # Ahead of jobs: workers, kernels, baselines.

    def expect(
        self,
        block: BlockContext,
        orders: Sequence[BlockJob],
        ahead: BlockOrder | None = None,
        announced: Sequence[Announced] = (),
    ) -> None:
        """Have workers started and kernels compiled for jobs that come, beginning with the first.

        Args:
            block: the block that runs.
            orders: its jobs that are left.
            ahead: the block after it, as far as that is known.
            announced: solutions of later blocks that are to be compiled.
        """
        coming = [(block, order) for order in orders]
        if ahead is not None:
            later = self._context_of(ahead)
            coming += [(later, order) for order in ahead.jobs]
        self._precompiler.expect(coming, announced)
        self._pool.expect(self._list_workers(block, coming), adopts=self._find_new(coming))
        keys = [worker_key(shared.solutions[order.solution], order) for shared, order in coming[:2]]
        self._comes_next = keys[1] if len(keys) == 2 else ""

    def _find_new(self, coming: Sequence[tuple[BlockContext, BlockJob]]) -> SolutionFiles | None:
        """Return the first job's solution if nobody expected it, and what it compiles need not be kept."""
        for shared, order in coming[:1] if self._hello.expects_new else ():
            solution = shared.solutions[order.solution]
            if solution.sources and not what_compiles(solution).is_long:
                return files_of(solution)
        return None

    def _list_workers(
        self, block: BlockContext, coming: Sequence[tuple[BlockContext, BlockJob]]
    ) -> list[SolutionFiles]:
        """Return what the next workers are for. No worker holds a solution while a baseline is made."""
        wanted: list[SolutionFiles] = []
        before = ""
        for at, (shared, order) in enumerate(coming):
            solution = shared.solutions[order.solution]
            is_looked_at = at < 2 or coming[at - 1][0] is not shared  # a look at each would take long
            if is_looked_at and self._hello.profile_baseline and self.lacks_baseline(shared, order):
                before = ""
                if at == 0 or shared.digest != block.digest:
                    wanted.append(reference_files(shared.digest))
            key = worker_key(solution, order)
            is_next = self._hello.isolated or key != before
            before = key
            if is_next and self._find_broken(shared, solution) is None:
                wanted.append(files_of(solution))
            if len(wanted) >= EXPECTED_WORKERS:
                break
        return wanted

    def lacks_baseline(self, block: BlockContext, order: BlockJob) -> bool:
        """Tell whether a job's baseline has to be made before any worker holds a solution."""
        job = block.open_job(order)
        if self._find_broken(block, job.solution) is not None or block.find_fault(job) is not None:
            return False
        if self._timer.forget_slow(job.key):
            self._forget_baseline(job)
        # If the time is known, nothing is left that a solution could disturb.
        return job.key not in self._sound and self._timer.recall(job) is None

    def _forget_baseline(self, job: JobContext) -> None:
        self._sound.discard(job.key)
        job.baseline = None

    def _find_broken(self, block: BlockContext, solution: BlockSolution) -> SolutionFailure | None:
        """Return why a solution was not built or loaded, if a worker for each job would not try again."""
        if solution.build_error is not None:
            return SolutionFailure("COMPILE_ERROR", solution.build_error)
        return None if self._hello.isolated else block.broken_loads.get(solution.digest)

    def end_workers(self) -> None:
        """End every worker that holds a solution, and give back the memory that it knows."""
        self._pool.discard()
        self._pool.finish_ending()
        self._release_arena()

    def prepare(self, block: BlockContext, order: BlockJob) -> None:
        """Make a job's baseline and time the reference; no worker may hold a solution, which could disturb it.

        A failure is kept, and reported when the job itself runs.
        """
        job = block.open_job(order)
        try:
            self._make_baseline(job, REFERENCE_PHASE)
        except OUT_OF_MEMORY:
            block.jobs.clear()
            self._give_memory_back()
            return
        except WorkloadFault as fault:
            self._note_fault(job, fault)
            return
        self._sound.add(job.key)
        if sum(map(bytes_held, block.jobs.values())) > min(KEPT_BYTES, total_bytes(self._device) // KEPT_SHARE):
            job.baseline = None

    # One job.

    def run_job(self, block: BlockContext, order: BlockJob) -> JobResult | JobFault:
        """Judge one job, and say what became of it."""
        job = block.open_job(order)
        self._printed = ["", ""]
        key, digest = worker_key(job.solution, order), job.solution.digest
        if self._serves != key and (order.assurance is not None or self._serves.startswith(digest)):
            self._pool.discard()  # a winner is confirmed in a worker of its own
        self._serves = key
        known = block.find_fault(job)
        if known is not None:
            block.jobs.pop(order.index)
            return known
        outcome: JobOutcome | str
        try:
            outcome = self._judge_in_workers(job)
        except SolutionFailure as failure:
            outcome = self._machine.why(job.solution, failure, partial(self._begin_check, job)) or failure
        except OUT_OF_MEMORY as error:
            self._give_memory_back()
            outcome = (
                f"{job.place}: the judge needs more memory than this device has left for inputs, expected outputs and "
                f"their comparison; use a device with more: {error}"
            )
        except WorkloadFault as error:
            outcome = self._note_fault(job, error)
        except (BuildFault, KilledFault) as error:
            outcome = str(error)
        finally:
            block.jobs.pop(order.index, None)
            self._precompiler.resume()
        if isinstance(outcome, str):
            return JobFault(job=order.index, message=outcome, retry=False)
        self._take_output()
        is_kept, ran_out = not self._hello.isolated, None
        if isinstance(outcome, SolutionFailure):
            is_kept = outcome.is_answer and self._pool.recover() and is_kept
            ran_out = outcome.ran_out
            job.notes |= {"timeout": outcome.timeout} if outcome.timeout is not None else {}
        elif self._printed[1].strip():
            job.notes[PRINTED] = len(self._printed[1].encode("utf-8", "replace"))
        if not is_kept:
            self._pool.discard()
        if ran_out is not None:
            ran_out = "call" if what_compiles(job.solution) is FirstCall.NOTHING else ran_out
            block.hung.note(order.solution, job.solution.name, job.workload.uuid, ran_out)
        extra = {"evaluator": block.evaluator.__name__, **job.notes}
        return JobResult(outcome, "".join(self._printed), extra, ran_out)

    def _judge_in_workers(self, job: JobContext) -> JobOutcome:
        """Judge the solution; once more if a context was slow, a signal ended its worker, or memory did not do.

        What the job before has held may have been there still.
        """
        kills, killed, loads, was_full = count_memory_kills(), None, job.block.broken_loads, False
        while True:
            try:
                return self._judge(job)
            except OUT_OF_MEMORY:
                if was_full:
                    raise
                was_full = True
            except SlowContext:
                self._pool.end_slow()
            except SlowReference:
                self._forget_baseline(job)
                self.end_workers()
                self.prepare(job.block, job.order)
            except WorkerKilled as latest:
                self._pool.discard()
                was_loading = loads.pop(job.solution.digest, None) is not None
                if killed is not None:
                    failure = describe_kills(job.place, killed, latest, count_memory_kills() - kills)
                    if was_loading:
                        loads[job.solution.digest] = failure
                    raise failure from None
                killed = latest
            if was_full:  # the error, which holds the job's tensors, is gone by now
                gc.collect()
                self._give_memory_back()

    def _judge(self, job: JobContext) -> JobOutcome:
        block, evaluator = job.block, job.block.evaluator
        broken = self._find_broken(block, job.solution)
        if broken is not None:
            raise broken
        baseline = job.baseline or self._make_baseline(job, EXPECTED_PHASE)
        kernel = self._load(job, baseline)
        if self._timer.forget_slow(job.key):  # the context of its worker is the first fast one
            raise SlowReference
        is_each_checked = not kernel.is_meaningful or not evaluator.judges_calls_alone
        verdict = self._check(job, kernel, baseline, slice(None if is_each_checked else 1))
        measure = partial(evaluator.eval_performance, block.definition, kernel, baseline.inputs)
        if isinstance(verdict, Rejected):
            if job.config.extra.get(MEASURE_REJECTED) and verdict.status is EvaluationStatus.INCORRECT_NUMERICAL:
                measure(None, job.config, context=self._context(job))  # for the notes
            return verdict
        is_empty = all(0 in output.shape for output in kernel.task.outputs)  # then no speed-up says anything
        reference_ms = None if is_empty else baseline.mean_latency_ms
        performance = measure(reference_ms, job.config, context=self._context(job))
        if not is_each_checked and len(kernel.reads) < len(baseline.inputs):  # the other trials were not timed
            rest = self._check(job, kernel, baseline, slice(max(1, len(kernel.reads)), None))
            if isinstance(rest, Rejected):
                return rest
        if baseline.measurement is not None:
            job.notes["baseline"] = baseline.measurement
        self._let_go()
        wrong: Rejected | None = None
        if kernel.is_meaningful:
            self._say(job, EXPECTED_PHASE)
            kernel.worker.pause()  # on a CPU nothing that it has started slows the reference down
            wrong = judge_reads(job, kernel.reads, baseline, replace(self._context(job), notes={}))
        planned = kernel.planned_stress()
        wrong = wrong or judge_stress(job, kernel.stress_calls, baseline, self._context(job), planned)
        return wrong or Passed(verdict.correctness, performance)

    def _load(self, job: JobContext, baseline: Baseline) -> RemoteKernel:
        """Return the job's solution, loaded in a worker of its own, as a callable for the job's workload."""
        solution, block = job.solution, job.block
        definition, digest = block.definition, solution.digest
        if self._is_gpu and cached_bytes(self._device) > LARGE_CACHE_BYTES:
            torch.cuda.empty_cache()
        self._say(job, "load")
        self._pool.rest_reference()
        worker, is_fresh = self._pool.worker_for(files_of(solution))
        self._pool.make_room()
        written = block.reference.mutates or frozenset()
        task = KernelTask(
            input_names=list(definition.inputs),
            outputs=job.output_specs(),
            timeout_seconds=self._hello.timeout_seconds,
            call_timeout_seconds=self._hello.call_timeout_seconds,
            reference_s=(baseline.mean_latency_ms or 0.0) / 1e3,
            plan=plan_solution(self._hello, job),
            vary=job.vary_secretly(derive_seed(job.order.seed, "contents")),
            in_out_inputs=written,
            may_return_inputs=block.reference.returns_inputs is not False,
            stress=plan_stress(job, baseline),
            expect=find_expect(job, baseline),
            floor_ms=plan_floor(definition, job.workload, self._device, self._hello.timing),
        )
        kernel = RemoteKernel(worker, self._tools, task, KernelMetadata(solution.name, definition.name, True))
        if is_fresh:
            self._import(job, kernel)
        kernel.calling_style = self._styles[digest]
        self._give_arena(worker, bytes_of([*baseline.inputs[0], *baseline.outputs[0]]))
        self._say(job, "solution")
        kernel.expect(baseline.inputs)
        kernel.settle_style(baseline.inputs[0])
        style = self._styles[digest] = kernel.calling_style
        if written:
            job.notes["in_out_inputs"] = sorted(written)
        if (note := style.to_note()) is not None:
            job.notes["calling_style"] = note
        return kernel

    def _import(self, job: JobContext, kernel: RemoteKernel) -> None:
        """Have the worker import the solution, and find out how it is called."""
        solution, definition = job.solution, job.block.definition
        wait_s = self._hello.timeout_seconds
        if self._precompiler.finish(solution.digest, wait_s, partial(self._say, job, "precompile")):
            self._say(job, "load")
        try:
            signature = load_solution(kernel, self._pool, solution, self._precompiler.begin)
            style = choose_style(
                signature,
                inputs=list(definition.inputs),
                outputs=list(definition.outputs),
                declared=solution.declared_style,
                is_python=solution.kind == "python",
            )
        except SolutionFailure as failure:
            job.block.broken_loads[solution.digest] = failure
            raise
        self._printed[0] = self._pool.take_output()
        if style.is_settled or solution.digest not in self._styles:
            self._styles[solution.digest] = style

    def _check(self, job: JobContext, kernel: RemoteKernel, expected: Baseline, trials: slice) -> Verdict:
        """Call the solution on the inputs of some trials and compare its outputs with the expected ones."""
        inputs, outputs = expected.inputs[trials], expected.outputs[trials]
        return job.block.evaluator.check_correctness(
            job.block.definition, kernel, inputs, outputs, job.config, context=self._context(job)
        )

    def _make_baseline(self, job: JobContext, phase: str) -> Baseline:
        """Make a job's inputs and expected outputs, and time the reference if its time is not known."""
        self._say(job, phase)
        job.baseline = job.block.evaluator.build_baseline(
            job.block.definition, job.workload, job.config, self._device, context=self._context(job, phase)
        )
        return job.baseline

    def _context(self, job: JobContext, phase: str = EXPECTED_PHASE) -> JudgeContext:
        def measure_reference(input_sets: list[list[Any]]) -> Measured:
            if self._timer.recall(job) is None:
                self._give_arena(None)
                self._precompiler.pause()
            try:
                return self._timer.measure(job, input_sets, is_alone=phase == REFERENCE_PHASE)
            finally:
                self._precompiler.resume()

        return JudgeContext(
            seed=job.order.seed,
            blob_root=Path(job.order.blob_root),
            reference=job.block.reference,
            profile_baseline=self._hello.profile_baseline,
            measure_reference=measure_reference,
            notes=job.notes,
        )

    def _let_go(self) -> None:
        """Begin to end the worker on a GPU if no job is left for it: its end takes as long as the rest of the job."""
        if self._is_gpu and (self._hello.isolated or self._comes_next not in ("", self._serves)):
            self._take_output()
            self._pool.discard()

    # Small parts.

    def _settle(self, host_counts: bool) -> bool:
        """Wait until nothing disturbs a call on a GPU that is timed; say whether anything did.

        Args:
            host_counts: the host's time is part of the call: nothing is compiled until the job is over.
        """
        was_compiling = host_counts and self._precompiler.pause()
        return self._pool.settle() or was_compiling

    def _give_arena(self, worker: WorkerProcess | None, size: int = 0) -> None:
        """Give the arena to a worker, which must not see what another worker or the session has left there.

        Args:
            worker: the next one to write there; None for a reference's.
            size: bytes of its calls. They get other memory until they are timed, if the last worker has not ended and
                there is room for both.
        """
        if worker is self._holder:
            return
        is_aside = worker is not None and self._pool.has_readers and self._arena.may_step_aside(size)
        if is_aside and recently_free_bytes(self._device) > ROOMY_SHARE * total_bytes(self._device):
            self._arena.step_aside()
        else:
            self._pool.await_readers()
            self._arena.come_back()
            self._arena.renew()
        self._holder = worker

    def _release_arena(self) -> None:
        """Give the shared memory back; no worker maps it any more."""
        self._arena.release()
        self._holder = None

    def _give_memory_back(self) -> None:
        """Free the arena, the workers that map it, and torch's own cache."""
        self._pool.discard()
        self._pool.end_reference()
        self._release_arena()
        if self._is_gpu:
            torch.cuda.empty_cache()

    def _note_fault(self, job: JobContext, fault: WorkloadFault) -> str:
        """Remember why a workload cannot be judged.

        Raises:
            DeviceFault: the failed reference has left the device unusable.
        """
        # A fault of the definition has the same text for all workloads, so that it is told once.
        message = str(fault) if isinstance(fault, DefinitionFault) else f"{job.place}: {fault}"
        job.block.broken_workloads[job.workload.uuid] = message
        if self._is_gpu:
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise DeviceFault(f"the device is lost: {error}") from None
        return message

    def _take_output(self) -> None:
        self._printed[1] += self._pool.take_output()

    def _begin_check(self, job: JobContext) -> None:
        """Keep the solution's output: its worker ends before the machine is looked at."""
        self._take_output()
        self._tell(Phase(job=job.order.index, name="a program of ours", limit_s=BUILD_LIMIT_S + PROGRAM_S))

    def _say(self, job: JobContext, phase: str) -> None:
        self._tell(Phase(job=job.order.index, name=phase, limit_s=self._hello.timeout_seconds))


def worker_key(solution: BlockSolution, order: BlockJob) -> str:
    """Return what jobs that follow one another share if one worker serves them."""
    return f"{solution.digest} {order.assurance or ''}"


def describe_kills(place: str, first: WorkerKilled, second: WorkerKilled, memory_kills: int) -> SolutionFailure:
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
    ending = f"ended by signal {signals[0]} twice" if signals[0] == signals[1] else f"ended by signals {signals}"
    return SolutionFailure(
        "RUNTIME_ERROR",
        f"{ending}: in two workers, the second time during {second.what}; the kernel ended no process for want of "
        "memory meanwhile. A solution may not end its process; if something else did, run the job again without "
        "--resume",
    )
