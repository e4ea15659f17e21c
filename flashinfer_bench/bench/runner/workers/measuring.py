"""The time of a solution on a job's workload, and the calls to compare afterwards.

`Measuring.run` takes samples of all trials, makes further calls if too few can be compared, picks the calls to compare,
and makes the remaining calls on stress cases. Last, `Measuring.run` makes the record. On a GPU the record has the bound
from outside. Each call has its own content. The samples are the worker's reports, which `timed/` checks against the
session's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.memory import total_bytes
from flashinfer_bench.bench.runner.workers.pool import SlowContext
from flashinfer_bench.bench.runner.workers.timed.batches import BatchTimer, count_batch_calls, count_batch_reads
from flashinfer_bench.bench.runner.workers.timed.call_buffers import (
    FEWEST_CALLS,
    HUGE_SHARE,
    LARGE_SHARE,
    MOST_BUFFERS,
    VAST_SHARE,
    check_room,
    describe_inputs,
)
from flashinfer_bench.bench.runner.workers.timed.chain import (
    ChainTimer,
    count_chain_calls,
    count_chain_reads,
    open_chain_tools,
)
from flashinfer_bench.bench.runner.workers.timed.reported_time import (
    Bound,
    ClaimContradicted,
    Claimed,
    Confirmation,
    check_trial,
    raise_claim,
    report_time,
    settle_by_requests,
    tell_outside,
)
from flashinfer_bench.bench.runner.workers.timed.sampling import RemoteClock
from flashinfer_bench.bench.runner.workers.timed.stress_calls import UNTOUCHED, StressCall, StressSchedule
from flashinfer_bench.bench.runner.workers.timed.timed_calls import Mode, ReadCall, TimedCalls
from flashinfer_bench.errors import DefinitionFault, WorkloadFault
from flashinfer_bench.timing.clocks import ClockLost, Preamble
from flashinfer_bench.timing.libraries import describe_kernels
from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.procedure import Procedure, take_trial

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel

MEASURED_SHARE: Final = 0.7
"""Share of a solution's remaining time for its measurement. So a slow solution gets fewer samples instead of a
timeout."""
MEASUREMENTS: Final = 4
"""Maximum number of measurements of a solution, if times from outside contradict its latency. The speed of a busy
machine can change threefold between samples and batches. A forged report is contradicted each time."""
FEW_READS: Final = 2
"""Number of calls of a trial that are compared if memory is too small for MOST_BUFFERS buffers."""
SWITCH_NS: Final = 1_000_000, 100_000_000
"""Shortest and longest calls, in nanoseconds, whose time a starting context changes. A GPU switches contexts every
millisecond or so, and takes 0.2 s to make a context."""
MAKING_UP_S: Final = 0.5
"""Maximum seconds for making further calls to compare."""
QUICK_CALL_NS: Final = 5_000_000
"""Calls of at most this many nanoseconds are made on all stress cases, even if the samples ended before the cases were
due."""


class Measuring:
    """One measurement of a kernel.

    Args:
        kernel: the solution, loaded.
        input_sets: the inputs of each trial; several trials can use one set. If the shapes or scalars of a set differ
            from the first set's, this set and all later sets are not used.
    """

    def __init__(self, kernel: RemoteKernel, input_sets: Sequence[list[Any]]) -> None:
        self.kernel, self.plan, self.tools = kernel, kernel.task.plan, kernel.tools
        self.device = kernel.tools.arena.device
        form = describe_inputs(input_sets[0])
        alike = [*takewhile(lambda inputs: describe_inputs(inputs) == form, input_sets[: self.plan.trials])]
        self.input_sets, self.trials = input_sets, len(alike)
        self.sets = [*{id(inputs): inputs for inputs in alike}.values()]
        self._open_contents(1)

    def _open_contents(self, attempt: int) -> None:
        """Open the contents of all calls of an attempt. Each trial has its own contents."""
        first, task = attempt * len(self.sets), self.kernel.task
        self._contents = DealtContents([task.vary(first + at, inputs) for at, inputs in enumerate(self.sets)])
        self._schedule: StressSchedule | None = None
        if task.stress is not None and self.kernel.planned_stress():
            self._schedule = StressSchedule(task.stress, self._contents)

    def make_ahead(self, is_over: Callable[[], bool]) -> None:
        """Make inputs of the first stress cases until the wait is over. Large inputs are not made ahead."""
        if self._schedule is not None:
            self._schedule.make_ahead(is_over)

    def run(self) -> Measured:
        """Return the latency and its record. The kernel gets the calls to compare.

        Raises:
            SolutionFailure: the calls failed, or the worker's samples are impossible.
            SlowContext: the worker's context makes the calls slower.
        """
        for attempt in range(1, MEASUREMENTS):
            with suppress(ClaimContradicted):
                return self._run_once()
            self.kernel.forget_buffers()
            self._open_contents(attempt + 1)
        return self._run_once()

    def _run_once(self) -> Measured:
        kernel, plan, worker = self.kernel, self.plan, self.kernel.worker
        before, was_starting = self.tools.run_metadata.query_before(), self.tools.pool.is_starting()
        calls = self._open_calls()
        same_inputs = not calls.contents.differs  # kept calls need the memory that this needs for a moment
        taken = self._take_samples(calls)
        low_ns, high_ns = SWITCH_NS
        waits = bool(taken.metadata.get("waits_inside"))
        is_moved = waits or low_ns < median(taken.spans_ns) < high_ns
        if is_moved and (self.tools.settle(waits) or was_starting):
            calls.begin()  # the calls so far do not count; stress calls are still judged
            calls.costs_ns.clear()
            calls.setup_samples.clear()
            taken = self._take_samples(calls)
        call_ns, operations = median(taken.spans_ns), max(sample.operations or 1 for sample in taken.samples)
        if self.tools.pool.is_slowed(worker, operations, call_ns, bool(taken.metadata.get("streams"))):
            raise SlowContext
        costs_ns, setup_ns = [*calls.costs_ns], calls.setup_ns
        self._make_up(calls, is_quick=call_ns <= QUICK_CALL_NS)
        trials = taken.dealt(self.trials)
        kernel.reads = [[] for _ in self.sets]
        self._take_reads(calls, "reading")
        while len(kernel.reads) > len(trials) and not kernel.reads[-1]:
            kernel.reads.pop()
        kernel.stress_calls = self._finish_stress()
        measured = self.tools.run_metadata.measured(trials, before, plan.precision)
        record = measured.record | (plan.metadata or {})
        if plan.fewest is not None:
            record["iterations_taken"] = min(len(trial.samples) for trial in trials)
        if self.device.type == "cuda" and not kernel.task.is_reference:
            record |= describe_kernels([*taken.samples, *calls.setup_samples], calls.launches)
        if worker.ready.chain_gap_ns:
            record["chain_gap_ns"] = worker.ready.chain_gap_ns
        bound: Bound | None = None
        if kernel.is_meaningful and self.device.type == "cpu":
            bound = partial(tell_outside, costs_ns)
        elif kernel.is_meaningful and not kernel.task.is_reference:
            bound = partial(self._bound, calls, costs_ns)
        return report_time(replace(measured, record=record), setup_ns, bound, same_inputs=same_inputs)

    def _open_calls(self) -> TimedCalls:
        """Return the calls of all trials."""
        kernel, task, plan, sets = self.kernel, self.kernel.task, self.plan, len(self.sets)
        buffers = kernel.lay_out(self.sets[0])
        memory, is_gpu = total_bytes(self.device), self.device.type == "cuda"
        is_large, is_huge, is_vast = (buffers.stride > memory // at for at in (LARGE_SHARE, HUGE_SHARE, VAST_SHARE))
        reads = plan.reads if len(buffers) >= MOST_BUFFERS else min(plan.reads, 1 if is_huge else FEW_READS)
        if self._schedule is not None:
            most = 0 if is_vast else 1 if is_huge else sets if is_large else None
            names = self._schedule.plan.calls[:most]
            self._schedule.spread(names, plan.warmup_runs + (plan.fewest or plan.iterations) * self.trials)
        return TimedCalls(
            buffers,
            self._contents,
            reads * sets,
            kernel.check_inputs,
            plan.timing if is_gpu else None,
            # Calls of a reference are not compared. On a CPU their outputs are still checked, because the checks change
            # the caches.
            is_idle=task.is_reference and is_gpu,
            has_setup=kernel.worker.has_setup,
            returns=kernel.style != "dps" and bool(task.outputs),
            may_return_inputs=task.may_return_inputs,
            schedule=self._schedule,
            is_huge=is_huge,
        )

    def _take_samples(self, calls: TimedCalls) -> Trial:
        """Take the samples of all trials, within the solution's time."""
        plan, sets = self.plan, self.trials
        procedure = Procedure(
            warmup_runs=plan.warmup_runs,
            iterations=plan.iterations * sets,
            fewest=None if plan.fewest is None else plan.fewest * sets,
            budget_s=max(0.0, min(plan.budget_s, MEASURED_SHARE * self.kernel.left_s)),
            precision=plan.precision,
            cuda_graphs=plan.timing.cuda_graphs and not calls.has_setup,
            sets=sets,
            stops_early=plan.stops_early,
        )
        return check_trial(take_trial(calls.supply, self._clock(calls), procedure))

    def _clock(self, calls: TimedCalls) -> RemoteClock:
        return RemoteClock(self.kernel.ask, self.kernel.worker.clock, calls)

    def _make_up(self, calls: TimedCalls, *, is_quick: bool) -> None:
        """Make further calls that look like timed calls: if too few calls can be compared, or to hide the remaining
        stress cases."""
        schedule, deadline, counts = self._schedule, time.monotonic() + MAKING_UP_S, list[int]()
        if schedule is not None and is_quick and (left := schedule.left):
            counts = [*[1] * UNTOUCHED, 2 * len(left)]  # calls without stress inputs first, as at the start of a job
            schedule.spread(left, sum(counts))
        is_short = self.plan.makes_up and bool(calls.missing)
        if not counts and not is_short:
            return
        with suppress(ClockLost), self._clock(calls) as clock:
            while counts or (is_short and calls.missing and time.monotonic() < deadline):
                count = counts.pop(0) if counts else min(calls.missing, len(calls.buffers))
                clock.sample([calls.supply(index) for index in range(count)], [Preamble()] * count)

    def _take_reads(self, calls: TimedCalls, mode: Mode) -> None:
        """Take the calls to compare, each for its trial."""
        for read in calls.reads(mode):
            self.kernel.reads[read.trial].append(read)

    def _finish_stress(self) -> list[StressCall]:
        """Return the calls on stress cases. If slow calls ended before any case was due, make one call."""
        schedule = self._schedule
        if schedule is None:
            return []
        if schedule.left and not schedule.made:
            ((_, inputs),) = schedule.make(schedule.left[:1])
            outputs = [output.clone() for output in self.kernel.call_once(inputs)]
            schedule.made.append(StressCall(schedule.left[0], inputs, outputs))
        return schedule.made

    # On a GPU: the bound from outside.

    def _bound(self, calls: TimedCalls, costs_ns: Sequence[float], claimed_ms: float, record: dict[str, Any]) -> float:
        """Return the latency to report on a GPU, and record its bound.

        A chain bounds the latency. At full assurance, batches that could raise the latency also bound it. If no chain
        is run, the bound comes from the requests of slow calls, or from batches.

        Args:
            costs_ns: time of each timed call by the session's clock.
            claimed_ms: latency of one call, including `setup`.
        """
        flags, claimed_ns = record.get("flags", []), claimed_ms * 1e6
        claimed = Claimed(claimed_ns, "waits_inside" in flags, record.get("operations", 1), "side_stream" in flags)
        found = chain = self._take_chain(calls, claimed)
        if found is None and not calls.has_setup:
            # A request with setup runs all setups first, and their threads could run in parallel.
            found = settle_by_requests(claimed_ns, costs_ns)
        if found is None:
            found = self._take_batches(calls, claimed, None)
        elif chain is not None and self.plan.timing.assurance == "full" and chain.leaves_open(claimed_ns):
            found = chain.with_batches(self._take_batches(calls, claimed, chain))
        # The end of a setup's work on the GPU is not observed, so its time has no floor.
        read_ms = 0.0 if calls.has_setup else self.kernel.task.floor_ms(claimed_ms)
        record["assurance"] = self.plan.timing.assurance
        return raise_claim(claimed_ms, record, found, max(read_ms, self.tools.run_metadata.least_call_ns / 1e6))

    def _take_chain(self, calls: TimedCalls, claimed: Claimed) -> Confirmation | None:
        """Check a latency against chains; return None if no chain is run.

        The chains use the buffers of the samples, if there are enough.
        """
        buffers, size, chain_tools = calls.buffers, calls.buffers.stride, open_chain_tools(self.device)
        count = count_chain_calls(claimed.latency_ns, size, len(buffers.outputs(0)))
        if chain_tools is None or not count:
            return None
        if len(buffers) < count or buffers.replayed:  # graphs of the samples hold memory
            buffers = self.kernel.lay_out(calls.contents.base, count)
            count = len(buffers)
        if count < FEWEST_CALLS:
            check_room(size, self.device, self.tools.arena.size)
            return None
        chained, gap_ns = calls.moved_to(buffers, count_chain_reads(count, size)), self.tools.run_metadata.launch_gap_ns
        timer = ChainTimer(self.kernel.ask, chained, chain_tools, claimed, calls=count, gap_ns=gap_ns)
        found = timer.confirm(claimed.latency_ns)
        self._take_reads(chained, "chain")
        return found

    def _take_batches(self, calls: TimedCalls, claimed: Claimed, chain: Confirmation | None) -> Confirmation:
        """Check a latency against batches, after a chain if one was run."""
        buffers = self.kernel.lay_out(
            calls.contents.base, count_batch_calls(claimed.latency_ns, calls.buffers.stride, claimed.operations)
        )
        batched, expect = calls.moved_to(buffers, count_batch_reads(buffers.stride)), self.kernel.task.expect
        meanwhile = None if expect is None else partial(self._expect, expect)
        timer = BatchTimer(self.kernel.ask, batched, self.kernel.worker.overhead, claimed, chain, meanwhile=meanwhile)
        found = timer.confirm(claimed.latency_ns)
        self._take_reads(batched, "batch")
        return found

    def _expect(self, expect: Callable[[Sequence[Any]], list[torch.Tensor]], is_over: Callable[[], bool]) -> None:
        """Compute expected outputs of the calls to compare, until the wait is over."""
        calls: list[StressCall | ReadCall] = [*self.kernel.stress_calls]
        calls += [call for reads in self.kernel.reads for call in reads if not call.is_base]
        with suppress(DefinitionFault, WorkloadFault):  # the error is raised again when the call is judged
            for call in calls:
                if is_over():
                    break
                call.expected = expect(call.inputs)
