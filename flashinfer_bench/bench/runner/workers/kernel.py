"""The solution as the judge sees it: a callable whose code runs in another process (`calling.py`), and that is timed.

`kernel.measure(sets)` times calls, each on content of its own, and keeps some of them to be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from statistics import median
from typing import Any, Final

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.memory import total_bytes
from flashinfer_bench.bench.runner.workers.calling import CallableKernel
from flashinfer_bench.bench.runner.workers.kernel_task import (
    KernelMetadata,
    KernelTask,
    SessionTools,
)
from flashinfer_bench.bench.runner.workers.pool import check_context
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.bench.runner.workers.timed.batches import BatchTimer, count_batch_calls, count_batch_reads
from flashinfer_bench.bench.runner.workers.timed.bounds import (
    CHAIN_REFUSED_SHARE,
    ClaimContradicted,
    Claimed,
    Confirmation,
    ReadingsAsked,
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
    CallPlaces,
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
from flashinfer_bench.bench.runner.workers.timed.stress_calls import UNTOUCHED, StressCall, StressInputs, StressSchedule
from flashinfer_bench.timing.clocks import ClockLost, Preamble
from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.procedure import Procedure, take_trial

MEASURED_SHARE: Final = 0.7
"""Share of a solution's remaining time that its measurement plans with: a slow one is timed less, not timed out."""
MEASUREMENTS: Final = 4
"""Measurements, each with bursts of its own, that a solution gets until one is not contradicted; on a CPU none is. The
speed of a busy machine may change threefold between readings and bursts; a forged claim is contradicted each time."""
FEW_READS: Final = 2
"""Calls of a trial that are compared where they are so large that there is no memory for MOST_PLACES of them."""
HUGE_SHARE: Final = 24
"""Of calls whose inputs and outputs take more than all memory divided by LARGE_SHARE, one of each trial has
inputs of a stress case, by this one of a job: what it was given and gave is kept until it is
judged. For calls of 8 GB with three of them a GPU of 80 GB had no memory. Of these one of a trial is compared."""
SLICE_NS: Final = 1_000_000
"""A GPU that several contexts have work for goes from one to the next every millisecond or so."""
LONG_NS: Final = 100_000_000
"""Longer calls are not timed again: a context, which takes 0.2 s, makes little difference to their median."""
MAKING_UP_S: Final = 0.5
"""No more calls are made up for after so many seconds."""
QUICK_CALL_NS: Final = 5_000_000
"""Calls up to this are made up for where readings ended before stress cases were due: some dozens of them."""


def _is_moved_by_contexts(trial: Trial) -> bool:
    """Tell whether contexts that are made beside it move the time of a call.

    They do where the host's time is part of it, and where the GPU goes to another context in the middle.
    """
    return bool(trial.facts.get("waits_inside")) or SLICE_NS < median(trial.spans_ns) < LONG_NS


class RemoteKernel(CallableKernel):
    """One solution in one worker, for one workload: its calls, and their times. It is made as a CallableKernel is."""

    def __init__(self, worker: WorkerProcess, tools: SessionTools, task: KernelTask, metadata: KernelMetadata) -> None:
        super().__init__(worker, tools, task, metadata)
        self.reads: list[list[ReadCall]] = []
        """The calls that are to be compared, by the set of inputs that theirs were made of: a list for each trial."""
        self.stress_calls: list[StressCall] = []
        """Calls on inputs of stress cases."""
        self._expected: tuple[list[list[Any]], DealtContents, StressInputs | None] | None = None
        """Inputs that will be measured on, and what was made of them ahead."""

    def expect(self, input_sets: list[list[Any]]) -> None:
        """Make inputs of stress cases beside the calls that come before the measurement: no GPU is timed then."""
        chosen = self._choose(input_sets)
        self._expected = chosen, *self._vary(0, chosen)
        stress = self._expected[-1]
        if stress is not None and self._arena.device.type == "cuda":
            self.ahead = stress.make_ahead

    def _choose(self, input_sets: list[list[Any]]) -> list[list[Any]]:
        """Return the inputs of each trial, up to the first whose shapes or single values are not the first one's."""
        form = describe_inputs(input_sets[0])
        return list(takewhile(lambda inputs: describe_inputs(inputs) == form, input_sets[: self.task.plan.trials]))

    def _vary(self, first: int, chosen: list[list[Any]]) -> tuple[DealtContents, StressInputs | None]:
        """Return what timed calls are given, and what calls on stress cases are.

        Args:
            first: the number of the first trial.
            chosen: the inputs of each.
        """
        contents = DealtContents([self.task.vary(first + at, inputs) for at, inputs in enumerate(chosen)])
        stress = self.task.stress
        is_tried = stress is not None and any(stress.free) and self.is_meaningful
        return contents, StressInputs(stress, contents) if stress is not None and is_tried else None

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Time the solution, one trial per set of inputs; each call gets content of its own.

        Trials end at the first set whose shapes or single values are not those of the first one.

        Raises:
            SolutionFailure: it failed, or its worker claims readings that the session's own clock rules out.
            SlowContext: the readings show that the worker's context makes it slower. The job is to be judged again.
        """
        self._tools.quiesce()
        self._arena.come_back()
        self.ahead = None
        chosen = self._choose(input_sets)
        for attempt in range(MEASUREMENTS - 1):
            with suppress(ClaimContradicted):
                return self._measure(chosen, attempt * len(chosen))
            self._laid_out = None  # a worker keeps a relay's board until calls are laid out
        return self._measure(chosen, (MEASUREMENTS - 1) * len(chosen))

    def _measure(self, chosen: list[list[Any]], first: int) -> Measured:
        """Take the readings of all trials, and hold the latency against relays and bursts on a GPU.

        Args:
            chosen: the inputs of each trial.
            first: the number of the first trial.

        Raises:
            ClaimContradicted: bursts take far longer than the trials say.
        """
        before, was_starting = self._tools.readout.look_before(), self._tools.is_starting()
        remote = self._open(first, chosen)
        taken = self._take_readings(remote)
        if _is_moved_by_contexts(taken) and self._was_disturbed(taken, was_starting=was_starting):
            remote.reader.begin()  # nothing of it counts, but for calls on inputs of stress cases: these are judged
            remote.costs_ns.clear()
            remote.setup_samples.clear()
            taken = self._take_readings(remote)
        check_context(taken, self._tools.excess_of(self.worker))
        costs_ns, setup_ns = [*remote.costs_ns], remote.setup_ns
        self._make_up(remote, is_quick=median(taken.spans_ns) <= QUICK_CALL_NS)
        trials = taken.dealt(len(chosen))
        self.reads = [[] for _ in chosen]
        self._take_reads(remote, "reading")
        while len(self.reads) > len(trials) and not self.reads[-1]:
            self.reads.pop()
        self.stress_calls = self._finish_stress(remote)
        measured = self._tools.readout.measured(trials, before, self.task.plan.precision)
        record = {**measured.record, **(self.task.plan.facts or {})}
        if self.task.plan.fewest is not None:
            record["iterations_taken"] = min(len(trial.samples) for trial in trials)
        if self.worker.chain_gap_ns:
            record["chain_gap_ns"] = self.worker.chain_gap_ns
        latency_ms, medians_ms = measured.latency_ms, measured.trials
        if setup_ns is not None:
            setup_ms = setup_ns / 1e6
            record |= {"kernel_ms": latency_ms, "setup_ms": setup_ms}
            latency_ms, medians_ms = latency_ms + setup_ms, [value + setup_ms for value in medians_ms]
        if self.is_meaningful and self._arena.device.type == "cpu":
            tell_outside(latency_ms, record, costs_ns)
        elif self.is_meaningful and not self.task.is_ours:
            latency_ms = self._bound(remote, latency_ms, record, costs_ns)
        add_flags(record, unconfirmed="why_unconfirmed" in record, same_inputs=not remote.contents.differs)
        return Measured(latency_ms, medians_ms, record)

    def _bound(
        self, remote: RemoteTrial, claimed_ms: float, record: dict[str, Any], costs_ns: Sequence[float]
    ) -> float:
        """Return the latency that a claim on a GPU is told as; the record gets what bounds it.

        Args:
            remote: the latest trial.
            claimed_ms: latency of one call, `setup` included.
            record: the measurement's.
            costs_ns: what timed calls took by the session's clock.
        """
        flags = record.get("flags", [])
        waits, strays = "waits_inside" in flags, "side_stream" in flags
        claimed = Claimed(claimed_ms * 1e6, waits, record.get("operations", 1), strays)
        # A request with setup makes all its calls' setups first, and threads of these may work side by side. What a
        # setup leaves to the GPU is not seen to the end, so what it reads has no floor.
        found = self._confirm(remote, claimed, [] if remote.has_setup else costs_ns)
        read_ms = 0.0 if remote.has_setup else self.task.floor_ms(claimed_ms)
        record |= found.to_record()
        record["assurance"] = self.task.plan.timing.assurance
        floor_ms = max(read_ms, self._tools.readout.least_call_ns / 1e6)
        return raise_claim(claimed_ms, record, found.least_ns / 1e6, floor_ms)

    def _take_reads(self, remote: RemoteTrial, way: Way) -> None:
        """Take the calls that are to be compared, each to those of its trial."""
        for read in remote.reader.reads(way):
            self.reads[read.trial].append(read)

    def _was_disturbed(self, trial: Trial, *, was_starting: bool) -> bool:
        """Wait until nothing disturbs a call of this kind any more; say whether anything did while it was timed."""
        if trial.facts.get("waits_inside"):
            return self._tools.settle() or was_starting
        return self._tools.settle_contexts() or was_starting

    def _open(self, first: int, chosen: list[list[Any]]) -> RemoteTrial:
        """Return what the calls of all trials share.

        Args:
            first: the number of the first trial.
            chosen: the inputs of each.
        """
        plan, sets = self.task.plan, len(chosen)
        places = self._lay_out(chosen[0])
        expected, self._expected = self._expected, None
        is_expected = expected is not None and [*map(id, expected[0])] == [*map(id, chosen)]
        contents, stress = expected[1:] if expected is not None and is_expected else self._vary(first, chosen)
        is_huge = places.stride > total_bytes(self._arena.device) // HUGE_SHARE
        reads = plan.reads if len(places) >= MOST_PLACES else min(plan.reads, 1 if is_huge else FEW_READS)
        is_idle = not self.task.is_looked_at(self._arena.device.type)
        reader = Reader(places, contents, reads * sets, self._check_inputs_intact, is_idle=is_idle)
        asked = ReadingsAsked(self._arena.device.type, plan.timing)
        returns = self.style != "dps" and bool(self.task.outputs)
        remote = RemoteTrial(places, contents, reader, asked, self.worker.has_setup, returns=returns)
        remote.may_return_inputs = self.task.may_return_inputs
        remote.schedule = None if stress is None else self._schedule_stress(places, sets, stress)
        return remote

    def planned_stress(self) -> list[str]:
        """Return the stress cases that the job would have if its calls and the reference were quick."""
        stress = self.task.stress
        return stress.names if stress is not None and any(stress.free) and self.is_meaningful else []

    def _schedule_stress(self, places: CallPlaces, trials: int, stress: StressInputs) -> StressSchedule:
        """Choose which of the timed calls get inputs of stress cases; of large calls fewer do."""
        plan, memory, names = self.task.plan, total_bytes(self._arena.device), stress.cases
        if places.stride > memory // LARGE_SHARE:
            names = names[: 1 if places.stride > memory // HUGE_SHARE else trials]
        return StressSchedule(stress, names, plan.warmup_runs + (plan.fewest or plan.iterations) * trials)

    def _finish_stress(self, remote: RemoteTrial) -> list[StressCall]:
        """Return the calls on inputs of stress cases.

        Slow calls end before one is due. Then one is made, no more.
        """
        schedule = remote.schedule
        if schedule is None:
            return []
        if schedule.left and not schedule.made:
            name = schedule.left[0]
            _, inputs = schedule.inputs.take(name)
            schedule.made.append(StressCall(name, inputs, [output.clone() for output in self.call_once(inputs)]))
        return schedule.made

    def _make_up(self, remote: RemoteTrial, *, is_quick: bool) -> None:
        """Where there were too few calls to choose from, or to hide others among, make more that look timed.

        Args:
            remote: the calls.
            is_quick: calls take so little that all on other inputs can be made.
        """
        reader, schedule = remote.reader, remote.schedule
        left = schedule.left if schedule is not None and is_quick else []
        makes_up = self.task.plan.makes_up
        if not left and not (makes_up and reader.missing):
            return
        deadline = self._now() + MAKING_UP_S
        with suppress(ClockLost), self._clock(remote) as clock:
            if schedule is not None and left:
                counts = [*[1] * UNTOUCHED, 2 * len(left)]  # as a job begins
                schedule.spread(left, sum(counts))
                for count in counts:
                    clock.sample([remote.supply(index) for index in range(count)], [Preamble()] * count)
            while makes_up and reader.missing and self._now() < deadline:
                count = min(reader.missing, len(remote.places))
                clock.sample([remote.supply(index) for index in range(count)], [Preamble()] * count)

    def _take_readings(self, remote: RemoteTrial) -> Trial:
        """Take the readings of all trials, within the solution's time."""
        plan, sets = self.task.plan, len(remote.contents)
        procedure = Procedure(
            warmup_runs=plan.warmup_runs,
            iterations=plan.iterations * sets,
            fewest=None if plan.fewest is None else plan.fewest * sets,
            exact=plan.fewest is not None,
            budget_s=max(0.0, min(plan.budget_s, MEASURED_SHARE * self._left_s)),
            precision=plan.precision,
            cuda_graphs=plan.timing.cuda_graphs and not self.worker.has_setup,
            sets=sets,
            was_called=True,  # to be checked
            stops_early=plan.stops_early,
        )
        return check_trial(take_trial(remote.supply, self._clock(remote), procedure))

    def _clock(self, remote: RemoteTrial) -> RemoteClock:
        """Return the worker's clock for these calls."""
        return RemoteClock(self._ask, self.worker.clock, remote)

    def _confirm(self, remote: RemoteTrial, claimed: Claimed, known_ns: Sequence[float]) -> Confirmation:
        """Hold a latency on a GPU against relays, what requests took, or bursts; some of the calls are compared, too.

        Args:
            remote: the timed calls.
            claimed: what the worker says of the call.
            known_ns: what timed calls took by the session's clock.
        """
        relays = self._open_relays(remote, claimed)
        if relays is not None:
            timer, relayed = relays
            by_relays = timer.confirm(claimed.latency_ns)
            self._take_reads(relayed, "chain")
            is_full = self.task.plan.timing.assurance == "full"
            if not is_full or not timer.leaves_open(max(claimed.latency_ns, by_relays.least_ns)):
                return by_relays
            found = self._confirm_by_bursts(remote, claimed, timer.most_ns, by_relays=by_relays)
            why_not = found.why_not or by_relays.why_not
            return replace(
                by_relays,
                why_not=why_not,
                batch_ns=found.batch_ns,
                resolution_ns=found.resolution_ns,
                calls=found.calls,
            )
        settled = settle_by_requests(claimed.latency_ns, known_ns)
        return settled or self._confirm_by_bursts(remote, claimed)

    def _open_relays(self, remote: RemoteTrial, claimed: Claimed) -> tuple[ChainTimer, RemoteTrial] | None:
        """Return what times chains of the call, and their calls; None where none is run.

        They lie in places of the readings, where there are as many.

        Args:
            remote: the timed calls.
            claimed: what the worker says of the call.
        """
        size, desk = remote.places.stride, open_chain_tools(self._arena.device)
        calls = count_chain_calls(claimed.latency_ns, size, len(remote.places.outputs(0)))
        if desk is None or not calls:
            return None
        places = remote.places
        if len(places) < calls or places.replayed:  # graphs of the readings hold memory
            places = self._lay_out(remote.contents.base, calls)
            calls = len(places)
        if calls < FEWEST_CALLS:
            check_room(size, self._arena.device, self._arena.size)
            return None
        remote = remote.moved_to(places, count_chain_reads(calls, size))
        gap_ns = self._tools.readout.launch_gap_ns
        return ChainTimer(self._ask, remote, desk, claimed, calls=calls, gap_ns=gap_ns), remote

    def _confirm_by_bursts(
        self,
        remote: RemoteTrial,
        claimed: Claimed,
        most_ns: float = math.inf,
        *,
        by_relays: Confirmation | None = None,
    ) -> Confirmation:
        """Hold the latency against bursts; some of their calls are compared, too.

        They refuse nothing that a relay confirms: where calls read little of large inputs, caches do not hold it.

        Args:
            remote: the timed calls.
            claimed: what the worker says of the call.
            most_ns: what a call costs at the most.
            by_relays: what relays say of it, where some were run. They have not refused it.
        """
        inputs, size = remote.contents.base, remote.places.stride
        calls = count_batch_calls(claimed.latency_ns, size, claimed.operations)
        places = self._lay_out(inputs, calls)
        remote = remote.moved_to(places, count_batch_reads(places.stride))
        operations = None if claimed.waits_inside else claimed.operations
        timer = BatchTimer(self._ask, remote, operations=operations, most_ns=most_ns)
        if by_relays is not None:
            timer.refused_share = CHAIN_REFUSED_SHARE
        is_believed = by_relays is not None and by_relays.why_not is None
        confirmation = timer.confirm(claimed.latency_ns, self.worker.overhead, is_believed=is_believed)
        self._take_reads(remote, "batch")
        return confirmation

    @property
    def is_meaningful(self) -> bool:
        """Whether its times say anything."""
        return self.task.plan.facts is None
