"""One device's session: it judges the jobs of a request in order, each solution in a worker.

`DeviceSession._judge` runs a job from top to bottom: inputs, the reference's outputs and time; load; call and compare;
time; compare timed calls; stress cases. The reference runs in this process, which holds the inputs and the expected
outputs. Solutions run only in workers, which `workers/pool.py` starts and ends. `outcome.py` makes the evaluation.
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
    JobFault,
    Phase,
    RequestedJob,
    RequestedSolution,
    SessionConfig,
    SessionRequest,
)
from flashinfer_bench.bench.runner.session.job import (
    BaselineKey,
    JobContext,
    JobResult,
    RequestContext,
    bytes_held,
    find_expect,
    plan_floor,
    plan_solution,
)
from flashinfer_bench.bench.runner.session.judged_calls import (
    judge_library_calls,
    judge_reads,
    judge_stress,
    plan_stress,
)
from flashinfer_bench.bench.runner.session.machine_check import PROGRAM_S, MachineCheck
from flashinfer_bench.bench.runner.session.opening import files_of
from flashinfer_bench.bench.runner.session.outcome import PRINTED, JobOutcome, Passed
from flashinfer_bench.bench.runner.session.precompiling import Precompiler
from flashinfer_bench.bench.runner.session.reference_timing import COMPILE_S, KeptTimes, ReferenceTimer
from flashinfer_bench.bench.runner.workers.artifacts import load_solution
from flashinfer_bench.bench.runner.workers.calling_style import CallingStyle, choose_style
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel, WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, SessionTools
from flashinfer_bench.bench.runner.workers.pool import (
    MOST_WARM,
    SlowContext,
    SolutionFiles,
    reference_files,
)
from flashinfer_bench.bench.runner.workers.timed.call_buffers import HUGE_SHARE
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerProcess
from flashinfer_bench.compile.build_pool import BUILD_LIMIT_S
from flashinfer_bench.data import EvaluationStatus, Performance
from flashinfer_bench.errors import BuildFault, DefinitionFault, DeviceFault, Fault, SolutionFailure, WorkloadFault
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.worker.arena import CudaMemoryError

OUT_OF_MEMORY: Final = (torch.OutOfMemoryError, MemoryError, CudaMemoryError)
LARGE_CACHE_BYTES: Final = 8 << 30
"""A cache of unused memory in torch that exceeds this is freed before a solution runs."""
KEPT_BYTES: Final = 4 << 30
KEPT_SHARE: Final = 16
"""Prepared baselines hold at most KEPT_BYTES, and at most 1/KEPT_SHARE of the device's memory. A baseline beyond these
limits is made again for its job."""
LARGE_ARENA_BYTES: Final = 1 << 30
"""An arena of more bytes than this is freed before a request of another definition. That definition's reference may
need the memory."""
ROOMY_SHARE: Final = 0.75
"""If more than this share of the GPU's memory is free, a solution is called while the previous worker still ends."""
EXPECTED_WORKERS: Final = max(MOST_WARM.values()) + 2
"""Number of workers announced to the pool: the reference's, the current job's, and the warm workers."""


class KilledFault(Fault):
    """The machine ended a job's workers."""


class SlowReference(Exception):
    """The reference was timed in a slow context."""


class DeviceSession:
    """Judges jobs on one device.

    Args:
        report: sends a phase to the host.
        kept: cached times of references from earlier runs; None if the cache is off.
    """

    def __init__(
        self,
        session_config: SessionConfig,
        tools: SessionTools,
        report: Callable[[Phase], None],
        kept: KeptTimes | None = None,
    ) -> None:
        self._session_config, self._pool, self._report = session_config, tools.pool, report
        self._arena, self._device = tools.arena, tools.arena.device
        self._is_gpu = self._device.type == "cuda"
        self._tools = replace(tools, settle=self._settle)
        self._precompiler = Precompiler(self._pool, has_modules=session_config.compiles_ahead)
        self._timer = ReferenceTimer(session_config, self._tools, kept)
        mode = session_config.compile_mode
        self._compiled = ReferenceTimer(session_config, self._tools, kept, mode) if mode else None
        self._compiled_records: dict[BaselineKey, dict[str, Any]] = {}
        """The time of each workload's compiled reference, or the reason why there is none."""
        self._machine = MachineCheck(session_config, self._tools, self.end_workers)
        self._request: RequestContext | None = None
        self._ahead: RequestContext | None = None
        self._holder: WorkerProcess | None = None
        """The worker that may have written to the arena."""
        self._sound: set[BaselineKey] = set()
        """Workloads whose baseline was made while no worker held a solution."""
        self._serves = ""
        """Key of the latest job's worker."""
        self._styles: dict[str, CallingStyle] = {}
        self._printed = ["", ""]
        """Output of the job's solution during its import, and during its calls."""
        self._comes_next = ""
        """Key of the next job's worker; empty if it is unknown."""

    def close(self) -> None:
        """Stop precompiling, and free the shared memory."""
        self._precompiler.close()
        self._arena.release()

    def open_request(self, sent: SessionRequest) -> RequestContext:
        """Compile the reference of a request.

        Raises:
            WorkloadFault: the reference cannot be used.
        """
        before, request = self._request, self._context_of(sent)
        is_other = before is None or before.digest != request.digest
        if is_other and self._arena.largest > LARGE_ARENA_BYTES:
            self._pool.discard()  # the worker maps the arena
            self._release_arena()
        self._request = request
        _ = request.reference
        return request

    def _context_of(self, sent: SessionRequest) -> RequestContext:
        if self._ahead is None or self._ahead.sent is not sent:
            self._ahead = RequestContext(sent)
        return self._ahead

    # Preparation of later jobs: workers, kernels, baselines.

    def expect(
        self,
        request: RequestContext,
        left: Sequence[RequestedJob],
        ahead: SessionRequest | None = None,
        announced: Sequence[Announced] = (),
    ) -> None:
        """Start workers and compile kernels for the coming jobs, beginning with the first.

        Args:
            request: the running request.
            left: the remaining jobs of this request.
            ahead: the next request, if it is known.
            announced: solutions of later requests to compile.
        """
        coming = [(request, requested) for requested in left]
        if ahead is not None:
            later = self._context_of(ahead)
            coming += [(later, requested) for requested in ahead.jobs]
        self._precompiler.expect(coming, announced)
        self._pool.expect(self._list_workers(request, coming), adopts=self._find_new(coming))
        keys = [worker_key(shared.solutions[requested.solution], requested) for shared, requested in coming[:2]]
        self._comes_next = keys[1] if len(keys) == 2 else ""

    def _find_new(self, coming: Sequence[tuple[RequestContext, RequestedJob]]) -> SolutionFiles | None:
        """Return the first job's solution if it may take a warm worker that belongs to no solution yet; else None.
        Kernels compiled in such a worker are not kept, so they must compile quickly."""
        for shared, requested in coming[:1] if self._session_config.expects_new else ():
            solution = shared.solutions[requested.solution]
            if solution.sources and not solution.first_call.is_long:
                return files_of(solution)
        return None

    def _list_workers(
        self, request: RequestContext, coming: Sequence[tuple[RequestContext, RequestedJob]]
    ) -> list[SolutionFiles]:
        """Return the files for the next workers, in the order in which jobs need them."""
        wanted: list[SolutionFiles] = []
        before = ""
        for at, (shared, requested) in enumerate(coming):
            solution = shared.solutions[requested.solution]
            is_checked = at < 2 or coming[at - 1][0] is not shared  # checking each job would take long
            if is_checked and self._session_config.profile_baseline and self.lacks_baseline(shared, requested):
                before = ""
                if at == 0 or shared.digest != request.digest:
                    wanted.append(reference_files(shared.digest))
            key = worker_key(solution, requested)
            is_next = self._session_config.isolated or key != before
            before = key
            if is_next and self._find_broken(shared, solution) is None:
                wanted.append(files_of(solution))
            if len(wanted) >= EXPECTED_WORKERS:
                break
        return wanted

    def lacks_baseline(self, request: RequestContext, requested: RequestedJob) -> bool:
        """Return whether a job's baseline must be made before any worker holds a solution."""
        job = request.open_job(requested)
        if not job.workload.timed:
            return False
        if self._find_broken(request, job.solution) is not None or request.find_fault(job) is not None:
            return False
        if self._forget_slow(job):
            self._forget_baseline(job)
        # The only part of a baseline that a solution can disturb is the reference's time. If this time is known,
        # workers may hold solutions.
        compiled = self._compiled if job.key not in self._compiled_records else None
        return job.key not in self._sound and any(
            timer.recall(job) is None for timer in (self._timer, compiled) if timer is not None
        )

    def _forget_slow(self, job: JobContext) -> bool:
        """Forget times of a job's reference that were measured in a slow context; return whether there were any."""
        forgot = [timer.forget_slow(job.key) for timer in (self._timer, self._compiled) if timer is not None]
        return any(forgot)

    def _forget_baseline(self, job: JobContext) -> None:
        self._sound.discard(job.key)
        self._compiled_records.pop(job.key, None)
        job.baseline = None

    def _find_broken(self, request: RequestContext, solution: RequestedSolution) -> SolutionFailure | None:
        """Return why a solution was not built or loaded; None if no failure is known. If each job has its own worker, a
        failed load is tried again."""
        if solution.build_error is not None:
            return SolutionFailure("COMPILE_ERROR", solution.build_error)
        return None if self._session_config.isolated else request.broken_loads.get(solution.digest)

    def end_workers(self) -> None:
        """End every worker that holds a solution, and free the memory that it maps."""
        self._pool.discard()
        self._pool.finish_ending()
        self._release_arena()

    def prepare(self, request: RequestContext, requested: RequestedJob) -> None:
        """Make a job's baseline and time the reference. Call it only while no worker holds a solution.

        A failure is stored, and reported when the job itself runs.
        """
        job = request.open_job(requested)
        try:
            self._find_compiled(job, self._make_baseline(job, REFERENCE_PHASE), REFERENCE_PHASE)
        except OUT_OF_MEMORY:
            request.jobs.clear()
            self._give_memory_back()
            return
        except WorkloadFault as fault:
            self._note_fault(job, fault)
            return
        self._sound.add(job.key)
        if sum(map(bytes_held, request.jobs.values())) > min(KEPT_BYTES, total_bytes(self._device) // KEPT_SHARE):
            job.baseline = None

    # One job.

    def run_job(self, request: RequestContext, requested: RequestedJob) -> JobResult | JobFault:
        """Judge one job; return its result, or its fault."""
        job = request.open_job(requested)
        self._printed = ["", ""]
        key, digest = worker_key(job.solution, requested), job.solution.digest
        if self._serves != key and (requested.assurance is not None or self._serves.startswith(digest)):
            self._pool.discard()  # a winner is confirmed in a worker of its own
        self._serves = key
        known = request.find_fault(job)
        if known is not None:
            request.jobs.pop(requested.index)
            return known
        outcome: JobOutcome | str
        try:
            outcome = self._judge_in_workers(job)
        except SolutionFailure as failure:
            outcome = self._machine.why(job.solution, failure, partial(self._begin_check, job)) or failure
        except OUT_OF_MEMORY as error:
            self._give_memory_back()
            outcome = (
                f"{job.title}: the judge needs more memory than this device has left for inputs, expected outputs and "
                f"their comparison; use a device with more: {error}"
            )
        except WorkloadFault as error:
            outcome = self._note_fault(job, error)
        except (BuildFault, KilledFault) as error:
            outcome = str(error)
        finally:
            request.jobs.pop(requested.index, None)
            self._precompiler.resume()
        if isinstance(outcome, str):
            return JobFault(job=requested.index, message=outcome, retry=False)
        self._take_output()
        is_kept, ran_out = not self._session_config.isolated, None
        if isinstance(outcome, SolutionFailure):
            is_kept = outcome.is_answer and self._pool.recover() and is_kept
            ran_out = outcome.ran_out
            job.notes |= {"timeout": outcome.timeout} if outcome.timeout is not None else {}
        elif self._printed[1].strip():
            job.notes[PRINTED] = len(self._printed[1].encode("utf-8", "replace"))
        if not is_kept:
            self._pool.discard()
        if ran_out is not None:
            ran_out = "call" if job.solution.first_call is FirstCall.NOTHING else ran_out
            request.hung.note(requested.solution, job.solution.name, job.workload.uuid, ran_out)
        extra = {"evaluator": request.evaluator.__name__, **job.notes}
        return JobResult(outcome, "".join(self._printed), extra, ran_out)

    def _judge_in_workers(self, job: JobContext) -> JobOutcome:
        """Judge the solution. Judge it again after a slow context, a signal that ended the worker, or too little
        memory.

        Memory may be missing because the previous job's memory was not free yet.
        """
        kills, killed, loads, was_full = count_memory_kills(), None, job.request.broken_loads, False
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
                self.prepare(job.request, job.requested)
            except WorkerKilled as latest:
                self._pool.discard()
                was_loading = loads.pop(job.solution.digest, None) is not None
                if killed is not None:
                    failure = describe_kills(job.title, killed, latest, count_memory_kills() - kills)
                    if was_loading:
                        loads[job.solution.digest] = failure
                    raise failure from None
                killed = latest
            if was_full:  # the error, which held the job's tensors, is gone now
                gc.collect()
                self._give_memory_back()

    def _judge(self, job: JobContext) -> JobOutcome:
        request, evaluator = job.request, job.request.evaluator
        broken = self._find_broken(request, job.solution)
        if broken is not None:
            raise broken
        baseline = job.baseline or self._make_baseline(job, EXPECTED_PHASE)
        compiled = self._find_compiled(job, baseline, EXPECTED_PHASE)
        kernel = self._load(job, baseline)
        if self._forget_slow(job):  # the solution's worker has the first fast context
            raise SlowReference
        is_timed = job.workload.timed
        is_each_checked = not (is_timed and kernel.is_meaningful and evaluator.judges_calls_alone)
        verdict = self._check(job, kernel, baseline, slice(None if is_each_checked else 1))
        measure = partial(evaluator.eval_performance, request.definition, kernel, baseline.inputs)
        if isinstance(verdict, Rejected):
            if job.config.extra.get(MEASURE_REJECTED) and verdict.status is EvaluationStatus.INCORRECT_NUMERICAL:
                measure(None, job.config, context=self._context(job))  # only for the notes
            return verdict
        if not is_timed:
            self._let_go(baseline)
            return Passed(verdict.correctness, Performance())
        is_empty = all(0 in output.shape for output in kernel.task.outputs)  # a speed-up would have no meaning
        reference_ms = None if is_empty else baseline.mean_latency_ms
        performance = measure(reference_ms, job.config, context=self._context(job))
        sets = len({id(inputs) for inputs in baseline.inputs})  # trials of huge calls share inputs
        if not is_each_checked and len(kernel.reads) < sets:  # the other trials were not timed
            rest = self._check(job, kernel, baseline, slice(max(1, len(kernel.reads)), sets))
            if isinstance(rest, Rejected):
                return rest
        if baseline.measurement is not None:
            job.notes["baseline"] = baseline.measurement
            if compiled is not None:
                job.notes["baseline_compile"] = compiled
        self._let_go(baseline)
        wrong: Rejected | None = None
        if kernel.is_meaningful:
            self._say(job, EXPECTED_PHASE)
            kernel.worker.pause()  # on a CPU the worker's processes must not slow the reference down
            wrong = judge_reads(job, kernel.reads, baseline, replace(self._context(job), notes={}))
        planned = kernel.planned_stress()
        wrong = wrong or judge_stress(job, kernel.stress_calls, baseline, self._context(job), planned)
        wrong = wrong or judge_library_calls(job.notes, self._session_config.library_calls)
        return wrong or Passed(verdict.correctness, performance)

    def _load(self, job: JobContext, baseline: Baseline) -> RemoteKernel:
        """Load the job's solution in its own worker; return it as a callable for the job's workload."""
        solution, request = job.solution, job.request
        definition, digest = request.definition, solution.digest
        if self._is_gpu and cached_bytes(self._device) > LARGE_CACHE_BYTES:
            torch.cuda.empty_cache()
        self._say(job, "load")
        self._pool.unbind_reference()
        worker, is_fresh = self._pool.worker_for(files_of(solution))
        self._pool.make_room()
        written = request.reference.mutates or frozenset()
        task = KernelTask(
            input_names=list(definition.inputs),
            outputs=job.output_specs(),
            timeout_seconds=self._session_config.timeout_seconds,
            call_timeout_seconds=self._session_config.call_timeout_seconds,
            reference_s=(baseline.mean_latency_ms or 0.0) / 1e3,
            plan=plan_solution(self._session_config, job),
            vary=job.vary_secretly(derive_seed(job.requested.seed, "contents")),
            in_out_inputs=written,
            may_return_inputs=request.reference.returns_inputs is not False,
            stress=plan_stress(job, baseline),
            expect=find_expect(job, baseline),
            floor_ms=plan_floor(definition, job.workload, self._device, self._session_config.timing),
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
        solution, definition = job.solution, job.request.definition
        wait_s = self._session_config.timeout_seconds
        if self._precompiler.finish(solution.digest, wait_s, partial(self._say, job, "precompile")):
            self._say(job, "load")
        try:
            signature = load_solution(kernel, solution)
            style = choose_style(
                signature,
                inputs=list(definition.inputs),
                outputs=list(definition.outputs),
                declared=solution.declared_style,
                is_python=solution.kind == "python",
            )
        except SolutionFailure as failure:
            job.request.broken_loads[solution.digest] = failure
            raise
        self._precompiler.resume()  # its fork server may not have been ready before the import
        self._printed[0] = self._pool.take_output()
        if style.is_known or solution.digest not in self._styles:
            self._styles[solution.digest] = style

    def _check(self, job: JobContext, kernel: RemoteKernel, expected: Baseline, trials: slice) -> Verdict:
        """Call the solution on the inputs of some trials and compare its outputs with the expected outputs."""
        inputs, outputs = expected.inputs[trials], expected.outputs[trials]
        return job.request.evaluator.check_correctness(
            job.request.definition, kernel, inputs, outputs, job.config, context=self._context(job)
        )

    def _make_baseline(self, job: JobContext, phase: str) -> Baseline:
        """Make a job's inputs and expected outputs, and time the reference if its time is unknown."""
        self._say(job, phase)
        job.baseline = job.request.evaluator.build_baseline(
            job.request.definition, job.workload, job.config, self._device, context=self._context(job, phase)
        )
        return job.baseline

    def _find_compiled(self, job: JobContext, baseline: Baseline, phase: str) -> dict[str, Any] | None:
        """Return the record of a job's compiled reference; time the reference if there is no record. None if the job is
        not timed, or the run wants no compiled reference."""
        if self._compiled is None or not job.workload.timed:
            return None
        if job.key not in self._compiled_records:
            self._compiled_records[job.key] = self._time_compiled(self._compiled, job, baseline, phase)
        return self._compiled_records[job.key]

    def _time_compiled(self, timer: ReferenceTimer, job: JobContext, baseline: Baseline, phase: str) -> dict[str, Any]:
        """Time a job's reference under torch.compile. If this fails, the reason is recorded, and the job goes on."""

        def check(kernel: RemoteKernel) -> None:
            verdict = self._check(job, kernel, baseline, slice(1))
            if isinstance(verdict, Rejected):
                raise SolutionFailure(verdict.status.value, f"its outputs are wrong: {verdict.message}")

        limit_s = 2 * (self._session_config.timeout_seconds + COMPILE_S)  # the reference may be timed twice
        self._report(Phase(job=job.requested.index, name=phase, limit_s=limit_s))
        try:
            measured = self._time_reference(timer, job, baseline.inputs, phase, check=check)
        except (WorkloadFault, *OUT_OF_MEMORY) as error:
            return {"mode": timer.mode, "reason": str(error).partition("\n")[0]}
        finally:
            self._pool.end_reference()
            self._say(job, phase)
        record = {"trials_ms": measured.trials, **measured.record}
        return {**record.pop("compiled"), "latency_ms": measured.latency_ms, "measurement": record}

    def _time_reference(
        self, timer: ReferenceTimer, job: JobContext, input_sets: list[list[Any]], phase: str, **check: Any
    ) -> Measured:
        if timer.recall(job) is None:
            self._give_arena(None)
            self._precompiler.pause()
        try:
            return timer.measure(job, input_sets, is_alone=phase == REFERENCE_PHASE, **check)
        finally:
            self._precompiler.resume()

    def _context(self, job: JobContext, phase: str = EXPECTED_PHASE) -> JudgeContext:
        def measure_reference(input_sets: list[list[Any]]) -> Measured:
            return self._time_reference(self._timer, job, input_sets, phase)

        return JudgeContext(
            seed=job.requested.seed,
            blob_root=Path(job.requested.blob_root),
            reference=job.request.reference,
            profile_baseline=self._session_config.profile_baseline and job.workload.timed,
            measure_reference=measure_reference,
            notes=job.notes,
        )

    def _let_go(self, baseline: Baseline) -> None:
        """On a GPU, begin to end the worker if the next job does not need it, or if calls of this job need much memory.
        The worker ends during the rest of this job."""
        is_last = self._session_config.isolated or self._comes_next not in ("", self._serves)
        is_huge = bytes_of([*baseline.inputs[0], *baseline.outputs[0]]) > total_bytes(self._device) // HUGE_SHARE
        if self._is_gpu and (is_last or is_huge):
            self._take_output()
            self._pool.discard()

    # Helpers.

    def _settle(self, host_counts: bool) -> bool:
        """Wait until no process disturbs a timed call on a GPU; return whether there was such a process.

        Args:
            host_counts: whether the host's time is part of the call. If so, compilation pauses until the job is over.
        """
        was_compiling = host_counts and self._precompiler.pause()
        return self._pool.settle() or was_compiling

    def _give_arena(self, worker: WorkerProcess | None, size: int = 0) -> None:
        """Give the arena to a worker. The arena then has no data of other workers or of the session.

        Args:
            worker: the worker that writes to the arena next; None for a reference's worker.
            size: bytes of a call. If the last worker has not ended and memory allows, the calls get separate memory
                until they are timed.
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
        """Free the shared memory, after all workers that map it have ended."""
        self._arena.release()
        self._holder = None

    def _give_memory_back(self) -> None:
        """End the workers that map the arena; free the arena and torch's cache."""
        self._pool.discard()
        self._pool.end_reference()
        self._release_arena()
        if self._is_gpu:
            torch.cuda.empty_cache()

    def _note_fault(self, job: JobContext, fault: WorkloadFault) -> str:
        """Store why a workload cannot be judged.

        Raises:
            DeviceFault: the failed reference has left the device unusable.
        """
        # A fault of the definition has the same text for all workloads, so that it is reported once.
        message = str(fault) if isinstance(fault, DefinitionFault) else f"{job.title}: {fault}"
        job.request.broken_workloads[job.workload.uuid] = message
        if self._is_gpu:
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise DeviceFault(f"the device is lost: {error}") from None
        return message

    def _take_output(self) -> None:
        self._printed[1] += self._pool.take_output()

    def _begin_check(self, job: JobContext) -> None:
        """Keep the solution's output before its worker ends, and report the phase of the machine check."""
        self._take_output()
        self._report(Phase(job=job.requested.index, name="a program of ours", limit_s=BUILD_LIMIT_S + PROGRAM_S))

    def _say(self, job: JobContext, phase: str) -> None:
        self._report(Phase(job=job.requested.index, name=phase, limit_s=self._session_config.timeout_seconds))


def worker_key(solution: RequestedSolution, requested: RequestedJob) -> str:
    """Return the key of the worker. One worker serves successive jobs with the same key."""
    return f"{solution.digest} {requested.assurance or ''}"


def describe_kills(job: str, first: WorkerKilled, second: WorkerKilled, memory_kills: int) -> SolutionFailure:
    """Return the failure of a solution whose worker was ended by a signal twice.

    Args:
        job: the job's name, for the message.
        first: how the first worker ended.
        second: how the second, fresh worker ended.
        memory_kills: number of processes that the kernel has ended for want of memory since the job began.

    Raises:
        KilledFault: the machine may have ended the workers.
    """
    if first.ended.over_machine or second.ended.over_machine:
        raise KilledFault(
            f"{job}: {second.message}. The solution or another program of this machine took it, in both of two "
            "tries; find out which, or raise worker_memory_gb, and run the job again"
        )
    if memory_kills > 0:
        raise KilledFault(
            f"{job}: its worker was killed twice while the kernel ended processes because memory ran out; free "
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
