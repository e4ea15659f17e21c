"""The solution as the judge sees it: a callable whose code runs in another process (`calling.py`), and that is timed.

`kernel.measure(sets)` times calls, each on content of its own, and keeps some of them to be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from secrets import randbelow
from statistics import fmean, median
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.memory import total_bytes
from flashinfer_bench.bench.runner.workers.calling import CallableKernel
from flashinfer_bench.bench.runner.workers.kernel_task import (
    KernelMetadata,
    KernelTask,
    SessionTools,
    TurnPlace,
    Waiting,
)
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.bench.runner.workers.stock import check_context
from flashinfer_bench.bench.runner.workers.timed.burst_size import count_burst_calls, count_read_calls
from flashinfer_bench.bench.runner.workers.timed.bursts import BurstTimer
from flashinfer_bench.bench.runner.workers.timed.call_places import (
    FEWEST_CALLS,
    LARGE_SHARE,
    MOST_PLACES,
    CallPlaces,
    check_room,
)
from flashinfer_bench.bench.runner.workers.timed.confirmation import (
    ClaimContradicted,
    Claimed,
    Confirmation,
    settle_by_requests,
)
from flashinfer_bench.bench.runner.workers.timed.gpu_handover import open_desk
from flashinfer_bench.bench.runner.workers.timed.gpu_relay import (
    GpuRelayTimer,
    count_gpu_relay_calls,
    count_relay_reads,
)
from flashinfer_bench.bench.runner.workers.timed.reader import ReadCall, Reader
from flashinfer_bench.bench.runner.workers.timed.readings import (
    ReadingsAsked,
    add_flags,
    check_trial,
    raise_claim,
)
from flashinfer_bench.bench.runner.workers.timed.regime_calls import UNTOUCHED, RegimeCall, RegimeSchedule
from flashinfer_bench.bench.runner.workers.timed.relay import (
    RELAY_READS,
    RELAY_REFUSED_SHARE,
    RelayTimer,
    count_relay_calls,
)
from flashinfer_bench.bench.runner.workers.timed.remote_clock import HeldClock, RemoteClock
from flashinfer_bench.bench.runner.workers.timed.trial import RemoteTrial
from flashinfer_bench.bench.runner.workers.timed.turns import Side
from flashinfer_bench.timing.clocks import ClockLost, Lead
from flashinfer_bench.timing.measurement import KnownCall, Measured, Trial
from flashinfer_bench.timing.progress import Recipe
from flashinfer_bench.timing.recipe import take_trial
from flashinfer_bench.timing.stopping import trial_precision

MEASURED_SHARE: Final = 0.7
"""Share of a solution's remaining time that its measurement plans with: a slow one is timed less, not timed out."""
MEASUREMENTS: Final = 4
"""Measurements, each with bursts of its own, that a solution gets until one is not contradicted. The speed of a busy
machine may change threefold between readings and bursts; a forged claim is contradicted each time."""
FEW_READS: Final = 2
"""Calls of a trial that are compared where they are so large that there is no memory for MOST_PLACES of them."""
HUGE_SHARE: Final = 24
"""Of calls whose inputs and outputs take more than all memory divided by LARGE_SHARE, one of each trial has
inputs of another regime, by this one of a job, in a secret trial: what it was given and gave is kept until it is
judged. For calls of 8 GB with three of them a GPU of 80 GB had no memory. Of these one of a trial is compared."""
TURN_READS: Final = 16
"""Single calls in turns with the reference's that are compared, and as many calls of bursts there: who leaves out a
fifth of either passes once in 35 times."""
SLICE_NS: Final = 1_000_000
"""A GPU that several contexts have work for goes from one to the next every millisecond or so."""
LONG_NS: Final = 100_000_000
"""Longer calls are not timed again: a context, which takes 0.2 s, makes little difference to their median."""
MAKING_UP_S: Final = 0.5
"""No more calls are made up for after so many seconds of a trial."""
QUICK_CALL_NS: Final = 5_000_000
"""Calls up to this are made up for where a trial ended before calls on other regimes were due: some dozens of them."""


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
        """The calls of each timed trial that are to be compared."""
        self.regime_calls: list[RegimeCall] = []
        """Calls on inputs of other regimes."""
        self._held = HeldClock()
        """The worker's clock, on from the first trial to the last."""
        self._turns: RemoteTrial | None = None
        """Calls in turns with the reference's that are not handed over to be compared."""

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Time the solution, one trial per set of inputs; each call gets content of its own.

        Raises:
            SolutionFailure: it failed, or its worker claims readings that the session's own clock rules out.
            SlowContext: the first trial shows that the worker's context makes it slower. The job is to be judged again.
        """
        self._tools.quiesce()
        self._arena.come_back()
        chosen = input_sets[: self.task.plan.trials]
        with self.worker.resting():
            for attempt in range(MEASUREMENTS - 1):
                with suppress(ClaimContradicted):
                    return self._measure(chosen, attempt * len(chosen))
            return self._measure(chosen, (MEASUREMENTS - 1) * len(chosen))

    def _measure(self, chosen: list[list[Any]], first: int) -> Measured:
        """Take all trials and hold the latency against bursts; `first` is the number of the first trial.

        Raises:
            ClaimContradicted: bursts take far longer than the trials say.
        """
        before, start = self._tools.readout.look_before(), self._now()
        self.reads, self.regime_calls, self._held = [], [], HeldClock()
        remote: RemoteTrial | None = None
        trials: list[Trial] = []
        setups_ns: list[float] = []
        costs_ns: list[float] = []
        for at, inputs in enumerate(chosen):
            if trials and self._is_done(trials[-1], remote, chosen, self._now() - start):
                break
            remote = self._prepare_trial(first + at, inputs, trials=len(chosen))
            known = trials[0].known if trials else None
            since, was_starting = self._now(), not trials and self._tools.is_starting()
            trial = self._take_trial(remote, known, trials=len(chosen), left=len(chosen) - at)
            if not trials and _is_moved_by_contexts(trial) and self._was_disturbed(trial, was_starting=was_starting):
                self._begin_again(remote, trials=len(chosen))
                start += self._now() - since  # nothing of it counts
                trial = self._take_trial(remote, trial.known, trials=len(chosen), left=len(chosen) - at)
            trials.append(trial)
            check_context(trials[-1], self._tools.context_of(self.worker))
            if remote.schedule is not None and median(trials[-1].spans_ns) <= QUICK_CALL_NS:
                self._make_up_for_regimes(remote, remote.schedule)
            if self.task.plan.makes_up:
                self._make_up_for_reads(remote)
            self.reads.append(remote.reader.reads("reading"))
            self.regime_calls += self._finish_regimes(remote)
            costs_ns += remote.costs_ns
            if remote.setup_ns is not None:
                setups_ns.append(remote.setup_ns)
        self._held.let_go(self._ask)
        measured = self._tools.readout.measured(trials, before, self.task.plan.precision)
        record = {**measured.record, **(self.task.plan.facts or {})}
        if self.worker.chain_gap_ns:
            record["chain_gap_ns"] = self.worker.chain_gap_ns
        latency_ms, medians_ms = measured.latency_ms, measured.trials
        waits_inside = "waits_inside" in record.get("flags", [])
        if setups_ns:
            setup_ms = fmean(setups_ns) / 1e6
            record |= {"kernel_ms": latency_ms, "setup_ms": setup_ms}
            latency_ms, medians_ms = latency_ms + setup_ms, [value + setup_ms for value in medians_ms]
        if remote is not None and self.task.plan.confirms and self.task.plan.facts is None:
            # A request with setup makes all its calls' setups first, and threads of these may work side by side.
            known_ns = [] if remote.has_setup else costs_ns
            flags = record.get("flags", [])
            claimed = Claimed(latency_ms * 1e6, waits_inside, record.get("operations", 1), "side_stream" in flags)
            found = self._confirm(remote, claimed, known_ns)
            record |= found.to_record()
            least_ns = max(found.least_ns, self._tools.readout.least_call_ns)
            latency_ms = raise_claim(latency_ms, record, self._arena.device.type, least_ns / 1e6)
        known = trials[0].known
        if self.task.beside is not None and waits_inside and known is not None and not self.worker.has_setup:
            lead = Lead(settled=known.settled, resets_lines=known.resets_lines)
            record |= self.task.beside(self, chosen[0], MEASUREMENTS * len(chosen), Waiting(latency_ms, lead))
        if remote is not None:
            add_flags(record, unconfirmed=record.get("confirmed") is False, same_inputs=not remote.contents.differs)
        return Measured(latency_ms, medians_ms, record)

    def _was_disturbed(self, trial: Trial, *, was_starting: bool) -> bool:
        """Wait until nothing disturbs a call of this kind any more; say whether anything did while it was timed."""
        if trial.facts.get("waits_inside"):
            return self._tools.settle() or was_starting
        return self._tools.settle_contexts() or was_starting

    def _begin_again(self, remote: RemoteTrial, *, trials: int) -> None:
        """Have a trial's readings be taken anew: only calls that come now are chosen from, and regimes hide among them.

        Calls on inputs of other regimes that were made are judged, too.
        """
        remote.reader.begin()
        remote.costs_ns.clear()
        remote.setup_samples.clear()
        self.regime_calls += remote.schedule.made if remote.schedule is not None else []
        self._schedule_regimes(remote, 0, trials=trials)

    def _is_done(self, latest: Trial, remote: RemoteTrial | None, chosen: list[list[Any]], spent_s: float) -> bool:
        """Tell whether the time for all trials is spent, or what is known of a slow call will do."""
        plan = self.task.plan
        if plan.total_s is not None and spent_s > plan.total_s:
            return True
        return plan.is_enough(latest) and remote is not None and remote.contents.stands_for(chosen)

    def _prepare_trial(self, number: int, inputs: list[Any], *, trials: int) -> RemoteTrial:
        plan = self.task.plan
        places = self._lay_out(inputs)
        is_huge = places.stride > total_bytes(self._arena.device) // HUGE_SHARE
        reads = min(plan.reads, 1 if is_huge else FEW_READS)
        if len(places) >= MOST_PLACES:
            # The first trial of a slow call may be the only one.
            reads = plan.reads * (trials if number % trials == 0 and self._arena.device.type == "cpu" else 1)
        remote = self._open_trial(number, inputs, places, reads)
        self._schedule_regimes(remote, number, trials=trials)
        return remote

    def _open_trial(self, number: int, inputs: list[Any], places: CallPlaces, reads: int) -> RemoteTrial:
        """Return what calls in these places share, of which so many are kept to be compared."""
        contents = self.task.vary(number, inputs)
        is_idle = not self.task.is_looked_at(self._arena.device.type)
        reader = Reader(places, contents, reads, self._check_inputs_intact, is_idle=is_idle)
        asked = ReadingsAsked(self._arena.device.type, self.task.plan.timing)
        returns = self.style != "dps" and bool(self.task.outputs)
        has_setup, hold = self.worker.has_setup, self.worker.rest_all
        remote = RemoteTrial(places, contents, reader, asked, has_setup, returns=returns, hold_worker=hold)
        remote.may_return_inputs = self.task.may_return_inputs
        if asked.device_type == "cpu":
            remote.guard_pid, remote.worker_pid = self.worker.guard_pid, self.worker.pid
        return remote

    def open_side(self, inputs: list[Any], number: int, lead: Lead, where: TurnPlace) -> Side:
        """Open timed calls for turns with another kernel's. Whoever takes them holds the worker still between them.

        Args:
            inputs: the evaluator's, those of the first trial.
            number: that no trial has.
            lead: what goes before single calls.
            where: the core, and how many calls bursts have.

        Raises:
            SolutionFailure: the worker does not take their places.
        """
        reads = 0 if self.task.is_ours else TURN_READS
        remote = self._open_trial(number, inputs, self._lay_out(inputs, where.single), reads)
        remote.reader.is_idle = False  # what the session does between two turns is the same for both sides
        remote.guard_pid, remote.hold_worker = self.worker.guard_pid, lambda: None
        self._schedule_regimes(remote, number, trials=max(1, len(self.reads)))
        clock = RemoteClock(self._ask, self.worker.clock, remote)
        clock.core = where.core
        self._turns = remote

        def open_bursts() -> BurstTimer:
            self.close_side()
            self._turns = later = replace(remote.moved_to(self._lay_out(inputs, where.calls), reads), schedule=None)
            timer = BurstTimer(self._ask, later, operations=None)
            timer.core, timer.overhead = where.core, where.overhead
            return timer

        return Side(clock, lead, open_bursts, where.calls, self.task.is_ours, where.overhead.request)

    def close_side(self) -> None:
        """Have the latest calls in turns be compared as those of the first trial are.

        Raises:
            SolutionFailure: an output has changed since its call was over, or a call has changed its inputs.
        """
        latest, self._turns = self._turns, None
        if latest is not None and not self.task.is_ours:
            self.reads[0] += latest.reader.reads("turn")
            self.regime_calls += latest.schedule.made if latest.schedule is not None else []

    @property
    def device(self) -> torch.device:
        """Where the calls run."""
        return self._arena.device

    @property
    def left_s(self) -> float:
        """Seconds that are left for its calls."""
        return self._left_s

    def planned_regimes(self, input_sets: Sequence[list[Any]]) -> list[str]:
        """Return the regimes that the trials of so many sets of inputs would have if calls were quick."""
        regimes, trials = self.task.regimes, len(input_sets[: self.task.plan.trials])
        return regimes.plan(trials) if regimes is not None and any(regimes.free) and self.is_meaningful else []

    def _schedule_regimes(self, remote: RemoteTrial, number: int, *, trials: int) -> None:
        """Choose which of a trial's next calls get inputs of other regimes."""
        plan, regimes = self.task.plan, self.task.regimes
        if regimes is not None and any(regimes.free) and self.is_meaningful:
            chosen, memory = regimes.choose(number % trials, trials), total_bytes(self._arena.device)
            if remote.places.stride > memory // LARGE_SHARE:
                chosen = chosen[:1]
            if remote.places.stride > memory // HUGE_SHARE and not self._is_next_chosen(number % trials):
                chosen = []
            remote.schedule = RegimeSchedule(regimes, chosen, plan.warmup_runs + plan.iterations, first=remote.number)

    def _is_next_chosen(self, trial: int) -> bool:
        """Choose whether the one call of a job that is on another regime is a trial's, in place of an earlier one's.

        Nobody knows how many trials there will be: by chance it is any of those that there were.
        """
        if trial and randbelow(trial + 1) == 0:
            self.regime_calls.clear()
        return not self.regime_calls

    def _finish_regimes(self, remote: RemoteTrial) -> list[RegimeCall]:
        """Return the calls on inputs of other regimes.

        A trial of slow calls ends before one is due. Then one call is made after the first such trial, no more.
        """
        schedule = remote.schedule
        if schedule is None:
            return []
        for name in schedule.left[:1] if not self.regime_calls and not schedule.made else []:
            inputs = remote.contents.make(remote.number)
            schedule.regimes.change(name, remote.number, [v if isinstance(v, torch.Tensor) else None for v in inputs])
            remote.number += 1
            schedule.take(name, inputs, self.call_once(inputs))
        return schedule.made

    def _make_up_for_regimes(self, remote: RemoteTrial, schedule: RegimeSchedule) -> None:
        """Where a trial of quick calls was short, since one of them was slow, make timed calls as at its beginning.

        Those on inputs of other regimes that are left are hidden among them.
        """
        if not schedule.left:
            return
        kept = len(remote.costs_ns), len(remote.setup_samples)
        count = len(remote.places)
        first = remote.number + UNTOUCHED
        schedule.hide_among(range(first, first + count * len(schedule.left)))
        with suppress(ClockLost), self._clock(remote) as clock:
            for calls in (*[1] * UNTOUCHED, *[count] * len(schedule.left)):
                clock.sample([remote.supply(index) for index in range(calls)], Lead())
        del remote.costs_ns[kept[0] :], remote.setup_samples[kept[1] :]

    def _make_up_for_reads(self, remote: RemoteTrial) -> None:
        """Where a trial had fewer timed calls than are to be compared, make others like them, while there is time."""
        kept, deadline = (len(remote.costs_ns), len(remote.setup_samples)), self._now() + MAKING_UP_S
        with suppress(ClockLost), self._clock(remote) as clock:
            while remote.reader.missing and self._now() < deadline:
                count = min(remote.reader.missing, len(remote.places))
                clock.sample([remote.supply(index) for index in range(count)], Lead())
        del remote.costs_ns[kept[0] :], remote.setup_samples[kept[1] :]

    def _take_trial(self, remote: RemoteTrial, known: KnownCall | None, *, trials: int, left: int) -> Trial:
        """Take one of the trials, of which some are left, each with its share of the solution's time.

        What the first one found out of the call is known to the others.
        """
        plan = self.task.plan
        budget_s = min(plan.budget_s, MEASURED_SHARE * self._left_s / left)
        recipe = Recipe(
            warmup_runs=plan.warmup_runs,
            iterations=plan.iterations,
            budget_s=max(0.0, budget_s),
            precision=plan.precision if plan.stops_early else trial_precision(plan.precision, trials),
            cuda_graphs=plan.timing.cuda_graphs and not self.worker.has_setup,
            was_called=True,  # to be checked
            stops_early=plan.stops_early,
        )
        trial = take_trial(remote.supply, self._clock(remote), recipe, known=known)
        return check_trial(trial, remote.asked)

    def _clock(self, remote: RemoteTrial) -> RemoteClock:
        """Return the worker's clock for a trial; it stays on when the trial is over."""
        return RemoteClock(self._ask, self.worker.clock, remote, held=self._held)

    def _confirm(self, remote: RemoteTrial, claimed: Claimed, known_ns: Sequence[float]) -> Confirmation:
        """Hold the latency against relays, what requests took, or bursts; some of the calls are compared, too.

        Args:
            remote: the latest trial.
            claimed: what the worker says of the call.
            known_ns: what timed calls took by the session's clock.
        """
        relays = self._open_relays(remote, claimed)
        if relays is not None:
            timer, relayed = relays
            by_relays = timer.confirm(claimed.latency_ns, is_believed=self.task.is_ours)
            self.reads[-1] += relayed.reader.reads("relay")
            remote.number = relayed.number  # no content comes again
            if not timer.leaves_open(max(claimed.latency_ns, by_relays.least_ns)):
                return by_relays
            found = self._confirm_by_bursts(remote, claimed, timer.most_ns, by_relays=by_relays)
            why_not = found.why_not or by_relays.why_not
            return replace(
                by_relays,
                why_not=why_not,
                burst_ns=found.burst_ns,
                resolution_ns=found.resolution_ns,
                calls=found.calls,
            )
        settled = settle_by_requests(claimed.latency_ns, known_ns, self._arena.device.type)
        return settled or self._confirm_by_bursts(remote, claimed)

    def _open_relays(
        self, remote: RemoteTrial, claimed: Claimed
    ) -> tuple[RelayTimer | GpuRelayTimer, RemoteTrial] | None:
        """Return what times relays of the call, and the trial in places of theirs; None where none is run.

        Args:
            remote: the latest trial.
            claimed: what the worker says of the call.
        """
        inputs, size, empty_ns = remote.contents.base, remote.places.stride, self.worker.overhead.relay
        if self._arena.device.type == "cuda":
            desk = open_desk(self._arena.device)
            calls = count_gpu_relay_calls(claimed.latency_ns, size, len(remote.places.outputs(0)))
            if desk is None or not calls:
                return None
            places = self._lay_out(inputs, calls)
            if len(places) < FEWEST_CALLS:
                if not self.task.is_ours:
                    check_room(size, self._arena.device, self._arena.size)
                return None
            remote = remote.moved_to(places, count_relay_reads(len(places), size))
            gap_ns = self._tools.readout.launch_gap_ns
            return GpuRelayTimer(self._ask, remote, desk, claimed, gap_ns=gap_ns), remote
        calls = 0 if empty_ns is None else count_relay_calls(claimed.latency_ns, size)
        if empty_ns is None or not calls:
            return None
        remote = remote.moved_to(self._lay_out(inputs, calls), RELAY_READS)
        return RelayTimer(self._ask, remote, empty_ns), remote

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
            remote: the latest trial.
            claimed: what the worker says of the call.
            most_ns: what a call costs at the most.
            by_relays: what relays say of it, where some were run. They have not refused it.
        """
        inputs, size = remote.contents.base, remote.places.stride
        calls = count_burst_calls(
            claimed.latency_ns, self._arena.device.type, self.worker.overhead, size, claimed.operations
        )
        places = self._lay_out(inputs, calls)
        remote = remote.moved_to(places, count_read_calls(places.stride, self._arena.device.type))
        operations = None if claimed.waits_inside else claimed.operations
        timer = BurstTimer(self._ask, remote, operations=operations, most_ns=most_ns)
        if by_relays is not None:
            timer.refused_share = RELAY_REFUSED_SHARE
        if self.task.work_ahead is not None and self._arena.device.type == "cuda":
            given = [call.inputs for call in self.regime_calls]
            given += [call.inputs for reads in self.reads for call in reads if not call.is_base]
            timer.meanwhile = partial(self.task.work_ahead, iter(given))
        is_believed = self.task.is_ours or (by_relays is not None and by_relays.why_not is None)
        confirmation = timer.confirm(claimed.latency_ns, self.worker.overhead, is_believed=is_believed)
        self.reads[-1] += remote.reader.reads("burst")
        return confirmation

    @property
    def is_meaningful(self) -> bool:
        """Whether its times say anything."""
        return self.task.plan.facts is None
