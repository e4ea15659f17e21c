"""The time of a solution on a job's workload, and the calls that are compared afterwards.

`Measuring.run` reads top to bottom: samples of all trials; further calls if there were too few to compare; the calls
that are to be compared; calls on stress cases; the record; on a GPU the bound from outside. Each call has content of
its own. The samples are the worker's claims; `timed/` holds them against the session's clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.memory import total_bytes
from flashinfer_bench.bench.runner.workers.pool import check_context
from flashinfer_bench.bench.runner.workers.timed.batches import BatchTimer, count_batch_calls, count_batch_reads
from flashinfer_bench.bench.runner.workers.timed.bounds import (
    CHAIN_REFUSED_SHARE,
    REFUSED_SHARE,
    ClaimContradicted,
    Claimed,
    Confirmation,
    add_flags,
    check_trial,
    raise_claim,
    settle_by_requests,
    tell_outside,
)
from flashinfer_bench.bench.runner.workers.timed.call_places import (
    FEWEST_CALLS,
    LARGE_SHARE,
    MOST_PLACES,
    check_room,
    describe_inputs,
)
from flashinfer_bench.bench.runner.workers.timed.chain import (
    ChainTimer,
    count_chain_calls,
    count_chain_reads,
    open_chain_tools,
)
from flashinfer_bench.bench.runner.workers.timed.reader import ReadCall, Reader, Way
from flashinfer_bench.bench.runner.workers.timed.sampling import RemoteClock, RemoteTrial
from flashinfer_bench.bench.runner.workers.timed.stress_calls import (
    UNTOUCHED,
    MadeAhead,
    StressCall,
    StressSchedule,
)
from flashinfer_bench.errors import DefinitionFault, WorkloadFault
from flashinfer_bench.timing.clocks import ClockLost, Preamble
from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.procedure import Procedure, take_trial

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel

MEASURED_SHARE: Final = 0.7
"""Share of a solution's remaining time that its measurement plans with: a slow one is timed less, not timed out."""
MEASUREMENTS: Final = 4
"""Most measurements of a solution until batches do not contradict one: the speed of a busy machine may change threefold
between samples and batches. A forged claim is contradicted each time."""
FEW_READS: Final = 2
"""Compared calls of a trial if they are so large that there is no memory for MOST_PLACES of them."""
HUGE_SHARE: Final = 24
"""Of calls above all memory divided by LARGE_SHARE, one of each trial has inputs of a stress case. Of calls above all
memory divided by this, one of the job has, and one of each trial is compared: what is compared is kept until then."""
SWITCH_NS: Final = 1_000_000, 100_000_000
"""Contexts that are made beside a call move its time if it is between these: a GPU goes from one context to the next
every millisecond or so, and takes 0.2 s to make one."""
MAKING_UP_S: Final = 0.5
"""Most seconds of further calls."""
QUICK_CALL_NS: Final = 5_000_000
"""Calls up to this long are made on all stress cases, if samples ended before these were due."""


class Measuring:
    """One measurement of a kernel.

    Args:
        kernel: the solution, loaded.
        input_sets: the inputs of each trial.
    """

    def __init__(self, kernel: RemoteKernel, input_sets: Sequence[list[Any]]) -> None:
        self.kernel = kernel
        self.plan = kernel.task.plan
        self.tools = kernel.tools
        self.device = kernel.tools.arena.device
        self.sets = choose_sets(input_sets, self.plan.trials)
        self._contents = self._vary(1)
        self._made = MadeAhead()

    def _vary(self, attempt: int) -> DealtContents:
        """Return contents of all calls of an attempt; each trial has its own."""
        first = attempt * len(self.sets)
        return DealtContents([self.kernel.task.vary(first + at, inputs) for at, inputs in enumerate(self.sets)])

    def is_for(self, input_sets: Sequence[list[Any]]) -> bool:
        """Tell whether it was made for these inputs."""
        return [*map(id, self.sets)] == [*map(id, choose_sets(input_sets, self.plan.trials))]

    def make_ahead(self, is_over: Callable[[], bool]) -> None:
        """Make inputs of the first stress cases, until it is over; nothing of large ones."""
        stress = self.kernel.task.stress
        if stress is not None and self.kernel.planned_stress():
            self._made.make(stress, self._contents, is_over)

    def run(self) -> Measured:
        """Return the latency and its record; the kernel gets the calls that are to be compared.

        Raises:
            SolutionFailure: the calls failed, or the worker claims samples that cannot be.
            SlowContext: the worker's context makes the calls slower.
        """
        for attempt in range(1, MEASUREMENTS):
            with suppress(ClaimContradicted):
                return self._run_once(attempt)
            self.kernel.forget_places()
        return self._run_once(MEASUREMENTS)

    def _run_once(self, attempt: int) -> Measured:
        kernel, plan, sets = self.kernel, self.plan, len(self.sets)
        before, was_starting = self.tools.readout.look_before(), self.tools.is_starting()
        remote = self._open(self._contents if attempt == 1 else self._vary(attempt))
        taken = self._take_samples(remote)
        low_ns, high_ns = SWITCH_NS
        waits = bool(taken.facts.get("waits_inside"))
        is_moved = waits or low_ns < median(taken.spans_ns) < high_ns
        if is_moved and (self.tools.settle(waits) or was_starting):
            remote.reader.begin()  # nothing of it counts, except for calls on stress cases: these are judged
            remote.costs_ns.clear()
            remote.setup_samples.clear()
            taken = self._take_samples(remote)
        check_context(taken, self.tools.excess_of(kernel.worker))
        costs_ns, setup_ns = [*remote.costs_ns], remote.setup_ns
        self._make_up(remote, is_quick=median(taken.spans_ns) <= QUICK_CALL_NS)
        trials = taken.dealt(sets)
        kernel.reads = [[] for _ in self.sets]
        self._take_reads(remote, "reading")
        while len(kernel.reads) > len(trials) and not kernel.reads[-1]:
            kernel.reads.pop()
        kernel.stress_calls = self._finish_stress(remote.schedule)
        measured = self.tools.readout.measured(trials, before, plan.precision)
        record, latency_ms, medians_ms = measured.record | (plan.facts or {}), measured.latency_ms, measured.trials
        if plan.fewest is not None:
            record["iterations_taken"] = min(len(trial.samples) for trial in trials)
        if kernel.worker.ready.chain_gap_ns:
            record["chain_gap_ns"] = kernel.worker.ready.chain_gap_ns
        if setup_ns is not None:
            setup_ms = setup_ns / 1e6
            record |= {"kernel_ms": latency_ms, "setup_ms": setup_ms}
            latency_ms, medians_ms = latency_ms + setup_ms, [value + setup_ms for value in medians_ms]
        if kernel.is_meaningful and self.device.type == "cpu":
            tell_outside(latency_ms, record, costs_ns)
        elif kernel.is_meaningful and not kernel.task.is_reference:
            latency_ms = self._bound(remote, latency_ms, record, costs_ns)
        add_flags(record, unconfirmed="why_unconfirmed" in record, same_inputs=not remote.contents.differs)
        return Measured(latency_ms, medians_ms, record)

    def _open(self, dealt: DealtContents) -> RemoteTrial:
        """Return what the calls of all trials share."""
        kernel, task, plan, sets = self.kernel, self.kernel.task, self.plan, len(self.sets)
        places = kernel.lay_out(self.sets[0])
        memory, is_gpu = total_bytes(self.device), self.device.type == "cuda"
        is_large, is_huge = places.stride > memory // LARGE_SHARE, places.stride > memory // HUGE_SHARE
        reads = plan.reads if len(places) >= MOST_PLACES else min(plan.reads, 1 if is_huge else FEW_READS)
        # Nobody compares calls of a reference. On a CPU looks move the caches, so there it has them as well.
        reader = Reader(places, dealt, reads * sets, kernel.check_inputs, is_idle=task.is_reference and is_gpu)
        returns, timing = kernel.style != "dps" and bool(task.outputs), plan.timing if is_gpu else None
        remote = RemoteTrial(places, dealt, reader, timing, kernel.worker.has_setup, returns, task.may_return_inputs)
        if task.stress is not None and kernel.planned_stress():
            names = task.stress.calls[: (1 if is_huge else sets) if is_large else None]
            calls = plan.warmup_runs + (plan.fewest or plan.iterations) * sets
            remote.schedule = StressSchedule(task.stress, dealt, names, calls)
            if dealt is self._contents:
                remote.schedule.ahead = self._made.take()
        return remote

    def _take_samples(self, remote: RemoteTrial) -> Trial:
        """Take the samples of all trials, within the solution's time."""
        plan, sets = self.plan, len(self.sets)
        procedure = Procedure(
            warmup_runs=plan.warmup_runs,
            iterations=plan.iterations * sets,
            fewest=None if plan.fewest is None else plan.fewest * sets,
            budget_s=max(0.0, min(plan.budget_s, MEASURED_SHARE * self.kernel.left_s)),
            precision=plan.precision,
            cuda_graphs=plan.timing.cuda_graphs and not self.kernel.worker.has_setup,
            sets=sets,
            stops_early=plan.stops_early,
        )
        return check_trial(take_trial(remote.supply, self._clock(remote), procedure))

    def _clock(self, remote: RemoteTrial) -> RemoteClock:
        return RemoteClock(self.kernel.ask, self.kernel.worker.clock, remote)

    def _make_up(self, remote: RemoteTrial, *, is_quick: bool) -> None:
        """Make more calls that look timed, if there were too few to choose from, or to hide stress cases among."""
        reader, schedule, deadline = remote.reader, remote.schedule, time.monotonic() + MAKING_UP_S
        counts: list[int] = []
        if schedule is not None and is_quick and (left := schedule.left):
            counts = [*[1] * UNTOUCHED, 2 * len(left)]  # as a job begins
            schedule.spread(left, sum(counts))
        is_short = self.plan.makes_up and bool(reader.missing)
        if not counts and not is_short:
            return
        with suppress(ClockLost), self._clock(remote) as clock:
            while counts or (is_short and reader.missing and time.monotonic() < deadline):
                count = counts.pop(0) if counts else min(reader.missing, len(remote.places))
                clock.sample([remote.supply(index) for index in range(count)], [Preamble()] * count)

    def _take_reads(self, remote: RemoteTrial, way: Way) -> None:
        """Take the calls that are to be compared, each to those of its trial."""
        for read in remote.reader.reads(way):
            self.kernel.reads[read.trial].append(read)

    def _finish_stress(self, schedule: StressSchedule | None) -> list[StressCall]:
        """Return the calls on stress cases. If slow calls ended before one was due, one is made."""
        if schedule is None:
            return []
        if schedule.left and not schedule.made:
            ((_, inputs),) = schedule.make(schedule.left[:1])
            outputs = [output.clone() for output in self.kernel.call_once(inputs)]
            schedule.made.append(StressCall(schedule.left[0], inputs, outputs))
        return schedule.made

    def _bound(
        self, remote: RemoteTrial, claimed_ms: float, record: dict[str, Any], costs_ns: Sequence[float]
    ) -> float:
        """Return the latency that is reported for a claim on a GPU; the record gets what bounds it.

        Args:
            remote: the timed calls.
            claimed_ms: latency of one call, `setup` included.
            record: the measurement's.
            costs_ns: time of each timed call by the session's clock.
        """
        flags = record.get("flags", [])
        waits, strays = "waits_inside" in flags, "side_stream" in flags
        claimed = Claimed(claimed_ms * 1e6, waits, record.get("operations", 1), strays)
        # A request with setup makes all its calls' setups first, and threads of these may work side by side. Work that
        # a setup leaves to the GPU is not seen to the end, so its reading has no floor.
        found = self._confirm(remote, claimed, [] if remote.has_setup else costs_ns)
        read_ms = 0.0 if remote.has_setup else self.kernel.task.floor_ms(claimed_ms)
        record["assurance"] = self.plan.timing.assurance
        return raise_claim(claimed_ms, record, found, max(read_ms, self.tools.readout.least_call_ns / 1e6))

    def _confirm(self, remote: RemoteTrial, claimed: Claimed, costs_ns: Sequence[float]) -> Confirmation:
        """Hold a latency on a GPU against a chain; at full assurance, or without a chain, against batches."""
        opened = self._open_chain(remote, claimed)
        if opened is None:
            return settle_by_requests(claimed.latency_ns, costs_ns) or self._take_batches(remote, claimed)
        timer, chained = opened
        chain = timer.confirm(claimed.latency_ns)
        self._take_reads(chained, "chain")
        if self.plan.timing.assurance != "full" or not timer.leaves_open(max(claimed.latency_ns, chain.least_ns)):
            return chain
        return chain.with_batches(self._take_batches(remote, claimed, timer.most_ns, chain=chain))

    def _open_chain(self, remote: RemoteTrial, claimed: Claimed) -> tuple[ChainTimer, RemoteTrial] | None:
        """Return what times chains of the call, and their calls; None if none is run.

        They lie in places of the samples, if there are as many.
        """
        places, size, chain_tools = remote.places, remote.places.stride, open_chain_tools(self.device)
        calls = count_chain_calls(claimed.latency_ns, size, len(places.outputs(0)))
        if chain_tools is None or not calls:
            return None
        if len(places) < calls or places.replayed:  # graphs of the samples hold memory
            places = self.kernel.lay_out(remote.contents.base, calls)
            calls = len(places)
        if calls < FEWEST_CALLS:
            check_room(size, self.device, self.tools.arena.size)
            return None
        remote = remote.moved_to(places, count_chain_reads(calls, size))
        gap_ns = self.tools.readout.launch_gap_ns
        return ChainTimer(self.kernel.ask, remote, chain_tools, claimed, calls=calls, gap_ns=gap_ns), remote

    def _take_batches(
        self, remote: RemoteTrial, claimed: Claimed, most_ns: float = math.inf, *, chain: Confirmation | None = None
    ) -> Confirmation:
        """Hold the latency against batches.

        They refuse nothing that a chain confirms: if calls read little of large inputs, caches do not hold it.

        Args:
            remote: the timed calls.
            claimed: the worker's claim.
            most_ns: most that a call costs.
            chain: the result of a chain, if one was run. It has not refused the latency.
        """
        calls = count_batch_calls(claimed.latency_ns, remote.places.stride, claimed.operations)
        places = self.kernel.lay_out(remote.contents.base, calls)
        remote = remote.moved_to(places, count_batch_reads(places.stride))
        timer = BatchTimer(
            self.kernel.ask,
            remote,
            self.kernel.worker.overhead,
            operations=None if claimed.waits_inside else claimed.operations,
            most_ns=most_ns,
            refused_share=REFUSED_SHARE if chain is None else CHAIN_REFUSED_SHARE,
            meanwhile=None if self.kernel.task.expect is None else partial(self._expect, self.kernel.task.expect),
        )
        found = timer.confirm(claimed.latency_ns, is_believed=chain is not None and chain.why_not is None)
        self._take_reads(remote, "batch")
        return found

    def _expect(self, expect: Callable[[Sequence[Any]], list[torch.Tensor]], is_over: Callable[[], bool]) -> None:
        """Compute expected outputs of calls that are to be compared, until it is over."""
        calls: list[StressCall | ReadCall] = [*self.kernel.stress_calls]
        calls += [call for reads in self.kernel.reads for call in reads if not call.is_base]
        with suppress(DefinitionFault, WorkloadFault):  # raised again when the call is judged
            for call in calls:
                if is_over():
                    break
                call.expected = expect(call.inputs)


def choose_sets(input_sets: Sequence[list[Any]], most: int | None) -> list[list[Any]]:
    """Return the inputs of each trial, up to the first whose shapes or single values are not the first one's."""
    form = describe_inputs(input_sets[0])
    return list(takewhile(lambda inputs: describe_inputs(inputs) == form, input_sets[:most]))
