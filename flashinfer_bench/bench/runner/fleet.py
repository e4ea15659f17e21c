"""The host's loop over its device sessions: deal blocks out, pass on what comes back, replace a session that is lost.

`compile/farm.py` compiles solutions meanwhile. A block holds only jobs whose solution is built, so a device waits for a
compiler only when nothing else is left. A session is sent its next block early, and begins it when it is told to; a
block that was not begun is taken back where another device would idle. A job whose session was lost runs once more on a
fresh session; the second time it is a fault. This process has one thread with one select; sessions and compilers do the
work. Nothing here judges.

A run gives all its jobs at the start (`run`). The resident engine adds and removes jobs between two turns of the loop
(`add`, `remove`, `turn`). A device has a session from the first job that it is needed for.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from flashinfer_bench.base.files.held_folders import sweep_folders
from flashinfer_bench.bench.events import JobFaulted, JobStarted, Notice
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.client import SessionClient, SessionLost, SessionTimedOut
from flashinfer_bench.bench.runner.device_lock import POLL_S as LOCK_POLL_S
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.estimates import JobTimes
from flashinfer_bench.bench.runner.host.announcing import Announcer
from flashinfer_bench.bench.runner.host.block_orders import OrderMaker
from flashinfer_bench.bench.runner.host.retries import Retries
from flashinfer_bench.bench.runner.host.station import Station
from flashinfer_bench.bench.runner.host.turns import BuildTurns
from flashinfer_bench.bench.runner.hung_solutions import HungSolutions
from flashinfer_bench.bench.runner.places import LocalPlaces, Places, Session
from flashinfer_bench.bench.runner.protocol import REFERENCE_PHASE, Hello, JobFault, JobVerdict
from flashinfer_bench.bench.schedule import Block, BlockQueue, IsReady
from flashinfer_bench.data import Evaluation, Solution
from flashinfer_bench.errors import DeviceFault

POLL_S: Final = 1.0
"""The longest that one turn of the loop waits, in seconds, unless its caller says otherwise."""
NEARLY_DONE: Final = 2
"""A device of a run that has no more jobs than this left may take a part of a solution ahead: a worker for it takes as
long to start as two short jobs do. One that would idle takes it back."""
FAILED_STARTS: Final = 2
"""Give a device up after this many sessions that did not start."""


@dataclass(frozen=True)
class Judged:
    """A job has its evaluation."""

    job: Job
    device: Device
    evaluation: Evaluation
    seconds: float


Happening = JobStarted | Judged | JobFaulted | Notice


class JobQueue(Protocol):
    """The jobs that are to be dealt out: of a plan (`BlockQueue`), or of many submitters (`resident/fair_queue.py`)."""

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""

    def add(self, jobs: Iterable[Job]) -> None:
        """Take further jobs."""

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that nobody has taken, and return them."""

    def has_ready(self, is_ready: IsReady | None) -> bool:
        """Tell whether any open job's solution is built."""

    def take(
        self, device_count: int, is_ready: IsReady | None = None, device: str = "", *, splits: bool = True
    ) -> Block | None:
        """Take the next block for a device; see `BlockQueue.take`."""

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs back in front that were taken."""

    def forget(self, indices: Iterable[int]) -> None:
        """Forget jobs that were taken and have ended."""


@dataclass(frozen=True)
class FleetRules:
    """In what the loop of a resident engine differs from that of a run."""

    make_queue: Callable[[JobTimes], JobQueue] = lambda times: BlockQueue((), times.estimate)
    retry_device_s: float | None = None
    """Try a device that was given up again after this many seconds; None: never, and where none is left, a lock that
    another run holds too long is an error."""
    build_turn_s: float | None = None
    """On a CPU compilers and jobs have turns of this many seconds; None: all builds end before the first job."""
    compiles_ahead: bool = False
    """The session of the only device compiles ahead what would take minutes at a first call."""
    nearly_done: int = NEARLY_DONE
    """A device with so many jobs left, or fewer, may split a solution for what it is sent ahead."""
    one_worker_a_job: bool = False
    """Each job gets a worker of its own, whatever the configuration says."""


class Fleet:
    """Runs jobs on all devices of a run; a context manager that leaves no process behind.

    Args:
        places: where sessions run, one on each; devices are places of this machine.
        hello_for: the settings of a device's session.
        orders: makes the orders of blocks; its farm builds the solutions, and the fleet ends it.
        rules: what the loop of a resident engine does otherwise.
    """

    def __init__(
        self,
        places: Places | Iterable[Device],
        *,
        hello_for: Callable[[Device], Hello],
        orders: OrderMaker,
        rules: FleetRules | None = None,
    ) -> None:
        if isinstance(places, Iterable):
            places = LocalPlaces(places, ask_for_device, SessionClient)
        self._places = places
        self._stations = [Station(device) for device in places.devices]
        self._hello_for = hello_for
        self._orders = orders
        self._farm = orders.farm
        self._rules = rules or FleetRules()
        self.times = JobTimes()
        self.queue = self._rules.make_queue(self.times)
        self._announcer = Announcer(self._farm) if self._rules.compiles_ahead else None
        self._retries = Retries()
        self._hung = HungSolutions()
        self._turns = BuildTurns(self._farm, self._rules.build_turn_s)
        self._notices: list[Notice] = []
        self._last_words = "no device could be used"

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for station in self._stations:
            station.end_session()
        self._farm.__exit__()
        for station in self._stations:
            station.free()
        sweep_folders()

    @property
    def stations(self) -> tuple[Station, ...]:
        """The place of each device, to be read."""
        return tuple(self._stations)

    @property
    def has_open_jobs(self) -> bool:
        """Whether any job has no answer yet."""
        return bool(self.queue.remaining or any(station.jobs for station in self._stations))

    def run(self, jobs: Iterable[Job]) -> Iterator[Happening]:
        """Run the jobs; yields each one's fate as it is known. Closing the iterator and the fleet stops everything."""
        self.add(list(jobs))
        while self.has_open_jobs:
            yield from self.turn()

    def add(self, jobs: list[Job]) -> None:
        """Take further jobs. Where no device is left, each is tried again; so is a solution that ran out of time."""
        for key in {job.solution_key for job in jobs}:
            self._hung.forget(key)
        before = self._farm.open_builds
        self._turns.begin_builds(is_busy=any(one.open_jobs for one in self._stations if one.device.kind == "cpu"))
        self._farm.add({job.solution_key: job.solution for job in jobs}.values())
        self._farm.poll()
        self.queue.add(jobs)
        if self._announcer is not None:
            self._announcer.add(jobs)
        count = self._farm.open_builds
        if count > before:
            solutions = "solution" if count == 1 else "solutions"
            self._notices.append(Notice(f"compiling {count} {solutions}, {self._farm.jobs} at once"))
        if self._rules.retry_device_s is not None and not self._usable():
            for station in self._stations:
                station.given_up_at, station.failed_starts = None, 0

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out jobs that no session has begun; return those. The others go on, and are answered."""
        wanted = set(indices)
        self.recall(lambda job: job.index in wanted)
        removed = self.queue.remove(wanted)
        self._retries.forget_jobs(job.index for job in removed)
        return removed

    def forget_solution(self, job: Job) -> None:
        """Forget what is known of a job's solution, of which no job is open."""
        self._farm.forget(job.solution)
        self.times.forget(job)
        self._hung.forget(job.solution_key)

    def recall(self, is_meant: Callable[[Job], bool]) -> None:
        """Take blocks back that hold such a job and were not begun, since the order of the queue has changed."""
        for station in self._stations:
            if any(map(is_meant, station.ahead.values())):
                take_back(station, self.queue)

    def turn(self, wake: int | None = None, limit_s: float = POLL_S) -> Iterator[Happening]:
        """Go once round the loop: give every device work, then wait until something happens.

        Args:
            wake: a descriptor that ends the wait where it can be read.
            limit_s: wait no longer than this.
        """
        notices, self._notices = self._notices, []
        yield from notices
        yield from self._welcome()
        yield from self._open_stations()
        if self.has_open_jobs and not self._usable() and not self._places.expects_more:
            yield from self._give_up()
            return
        self._share_processor()
        for station in self._stations:
            yield from self._keep_busy(station)
        yield from self._listen(wake, limit_s)
        self._farm.poll()

    def _share_processor(self) -> None:
        """Give the processors of a CPU device to compilers or to jobs."""
        on_cpu = [station for station in self._stations if station.device.kind == "cpu"]
        if not on_cpu or not self._farm.open_builds:
            self._turns.update(is_busy=False, is_waiting=False)
            return
        is_waiting = any(station.ahead for station in on_cpu) or self.queue.has_ready(self._farm.is_ready)
        self._turns.update(is_busy=any(station.open_jobs for station in on_cpu), is_waiting=is_waiting)
        if not self._turns.may_measure:
            for station in on_cpu:
                if station.ahead:
                    take_back(station, self.queue)

    def _usable(self) -> list[Station]:
        return [station for station in self._stations if station.given_up_at is None]

    def _welcome(self) -> Iterator[Notice]:
        """Take up the places that have come meanwhile."""
        news = self._places.look()
        for message in news.notices:
            yield Notice(message)
        known = {station.device for station in self._stations}
        for device in news.joined:
            if device in known:
                continue  # an actor of a place that was lost, before its session has told so: it is started anew
            self._stations.append(Station(device))
            yield Notice(f"{device.label} ({device.name}) is used from now on")

    def _open_stations(self) -> Iterator[Happening]:
        """Start the sessions that the open jobs need: as many as jobs, at most one for each device."""
        retry_s = self._rules.retry_device_s
        needed = self.queue.remaining + sum(len(station.jobs) for station in self._stations)
        needed -= sum(station.client is not None for station in self._stations)
        for station in self._stations:
            if station.client is not None:
                continue
            if needed <= 0:
                station.stop_asking()
                continue
            if station.given_up_at is not None:
                if retry_s is None or time.monotonic() - station.given_up_at < retry_s:
                    continue
                station.given_up_at, station.failed_starts = None, FAILED_STARTS - 1
            yield from self._open(station)
            needed -= station.client is not None

    def _open(self, station: Station) -> Iterator[Happening]:
        """Start a device's session once its lock is ours."""
        try:
            while not station.is_locked:
                station.asking = station.asking or self._places.lock(station.device, station.held)
                line = next(station.asking, "")
                if line is None:
                    return
                station.is_locked = line == ""
                if line:
                    yield Notice(line)
        except DeviceFault as fault:
            self._last_words = str(fault)
            if self._rules.retry_device_s is None and not any(other.client for other in self._stations):
                raise
            yield self._drop_device(station, str(fault))
            return
        station.asking = None
        station.client = self._places.open(station.device, self._hello_for(station.device))

    def _drop_device(self, station: Station, reason: str) -> Notice:
        station.given_up_at, station.asking = time.monotonic(), None
        self._last_words = reason
        if self._rules.retry_device_s is None:
            return Notice(f"{station.device.label} is not used any more: {reason}")
        station.free()
        return Notice(f"{station.device.label} is not used for {self._rules.retry_device_s:g} s: {reason}")

    def _keep_busy(self, station: Station) -> Iterator[Happening]:
        """Have a session run the block that it was sent, and send it the next one, which it may prepare for.

        One that is still starting gets its first block, too: its workers start while it makes its own context.
        """
        client = station.client
        if client is None:
            return
        if not client.is_ready:
            if not station.ahead:
                yield from self._send(station, client)
            return
        while not station.open_jobs:
            if any(self._known_fault(job) for job in station.ahead.values()):
                take_back(station, self.queue)
            if not station.ahead:
                yield from self._send(station, client)
            if not station.ahead:
                client.wait_forever()
                return
            station.open_jobs, station.ahead, station.is_blamed = station.ahead, {}, False
            client.begin()
        if not station.ahead:
            yield from self._send(station, client)

    def _send(self, station: Station, client: Session) -> Iterator[JobFaulted]:
        """Send a session the next block, if there is one.

        One that is nearly done may split a solution; one that has nothing to do takes what another has not begun, too.
        """
        splits = len(station.open_jobs) <= self._rules.nearly_done
        while not station.ahead:
            alive = sum(other.client is not None for other in self._stations)
            alive = max(alive, self._places.least_shares)
            ready = partial(self._may_run, station.device)
            batch = self.queue.take(alive, ready, station.device.label, splits=splits)
            if batch is None:
                others = [other for other in self._stations if other is not station and other.ahead]
                if station.open_jobs or not others:
                    return
                take_back(max(others, key=lambda other: len(other.ahead)), self.queue)
                continue
            known = {job.index: fault for job in batch.jobs if (fault := self._known_fault(job)) is not None}
            for job in batch.jobs:
                if job.index in known:
                    self._forget(job)
                    yield known[job.index]
            left = tuple(job for job in batch.jobs if job.index not in known)
            if not left:
                continue
            order, faults = self._orders.make(Block(batch.definition, left))
            yield from (self._fault(job, message) for job, message in faults)
            wanted = {job.index for job in order.jobs}
            station.ahead = {job.index: job for job in left if job.index in wanted}
            if station.ahead:
                announced = self._announcer.take() if self._announcer is not None else []
                client.send(order.model_copy(update={"announced": announced}))

    def _may_run(self, device: Device, solution: Solution) -> bool:
        """Tell whether a solution is built. On a CPU compilers would disturb the measurement."""
        return self._farm.is_ready(solution) and (device.kind != "cpu" or self._turns.may_measure)

    def _known_fault(self, job: Job) -> JobFaulted | None:
        """Return what is told of a job that cannot be judged, or is left out, as far as has been seen."""
        fault, left_out = self._retries.known_fault(job), self._hung.reason(job.solution_key)
        if fault is not None:
            return JobFaulted(job, fault, is_out_of_time=self._retries.ran_out_of_time(job))
        return None if left_out is None else JobFaulted(job, left_out, is_left_out=True)

    def _fault(self, job: Job, message: str) -> JobFaulted:
        self._forget(job)
        return JobFaulted(job, message, is_out_of_time=self._retries.ran_out_of_time(job))

    def _forget(self, job: Job) -> None:
        """Forget a job that has its answer."""
        self._retries.forget_jobs([job.index])
        self.queue.forget([job.index])

    def _listen(self, wake: int | None, limit_s: float) -> Iterator[Happening]:
        with selectors.DefaultSelector() as selector:
            clients = [(station, station.client) for station in self._stations if station.client is not None]
            for station, client in clients:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.has_unsent else 0)
                selector.register(client, events, station)
            for waker in self._farm.wakers():
                selector.register(waker, selectors.EVENT_READ)
            if wake is not None:
                selector.register(wake, selectors.EVENT_READ)
            limits = [limit_s, *(max(0.0, client.left_s) for _, client in clients)]
            limits += [LOCK_POLL_S] if any(station.asking for station in self._stations) else []
            found = {id(key.data): events for key, events in selector.select(min(limits)) if key.data is not None}
        for station, client in clients:
            try:
                if found.get(id(station), 0) & selectors.EVENT_WRITE:
                    client.flush()
                if found.get(id(station), 0) & selectors.EVENT_READ:
                    for message in client.messages():
                        yield from self._hear(station, message)
                else:
                    client.check_deadline()
            except SessionLost as lost:
                yield from self._replace(station, lost)

    def _hear(self, station: Station, message: dict[str, Any]) -> Iterator[Happening]:
        if "ready" in message:
            station.failed_starts = 0
        elif "phase" in message:
            index = message["phase"]["job"]
            if index in station.open_jobs:
                station.current = index
                if message["phase"]["name"] != REFERENCE_PHASE and index != station.started:
                    station.started = index
                    yield JobStarted(station.open_jobs[index], station.device)
        elif "verdict" in message:
            verdict = JobVerdict.model_validate(message["verdict"])
            job = station.open_jobs.pop(verdict.job)
            station.current = None
            self.times.add(job, verdict.seconds)
            self._hung.note(job.solution_key, job.solution.name, job.workload.uuid, verdict.ran_out)
            self._forget(job)
            yield Judged(job, station.device, Evaluation.model_validate(verdict.evaluation), verdict.seconds)
        elif "fault" in message:
            fault = JobFault.model_validate(message["fault"])
            job = station.open_jobs.pop(fault.job)
            station.current = None
            station.is_blamed = fault.retry
            phase = station.client.phase if station.client is not None else ""
            if fault.is_left_out:
                self._forget(job)
                yield JobFaulted(job, fault.message, is_left_out=True)
                return
            yield from self._retry_or_fault(job, fault.message, retry=fault.retry, phase=phase)
        elif "notice" in message:
            yield Notice(str(message["notice"]))

    def _retry_or_fault(self, job: Job, message: str, *, retry: bool, phase: str) -> Iterator[Happening]:
        if retry and self._retries.may_retry(job, message, phase=phase):
            self.queue.give_back([job])
        else:
            yield self._fault(job, message)

    def _replace(self, station: Station, lost: SessionLost) -> Iterator[Happening]:
        """Give a lost session's jobs back; the next turn starts another, unless its device lets none start."""
        reason = str(lost)
        client, jobs, ahead = station.client, list(station.open_jobs.values()), list(station.ahead.values())
        if client is None:
            return
        current = station.current
        station.end_session()
        suspect = next((job for job in jobs if job.index == current), None)
        if suspect is None and jobs and client.is_ready and not station.is_blamed:
            suspect = jobs[0]
        self.queue.give_back([job for job in (*jobs, *ahead) if job is not suspect])
        yield Notice(f"{reason}; {len(jobs) + len(ahead)} of its jobs go back to the queue")
        if suspect is not None and isinstance(lost, SessionTimedOut) and client.phase == REFERENCE_PHASE:
            yield self._fault(suspect, self._retries.give_up_hung(suspect, reason))
        elif suspect is not None:
            yield from self._retry_or_fault(suspect, reason, retry=True, phase=client.phase)
        station.failed_starts += 0 if client.is_ready else 1
        if not self._places.has(station.device):
            self._stations.remove(station)
            self._last_words = reason
        elif station.failed_starts >= FAILED_STARTS:
            yield self._drop_device(station, "its session does not start")
            self._last_words = reason

    def _give_up(self) -> Iterator[Happening]:
        while (batch := self.queue.take(1)) is not None:
            for job in batch.jobs:
                yield self._fault(job, f"no device is left to run it: {self._last_words}")


def take_back(station: Station, queue: JobQueue) -> None:
    """Take back the block that a session has not begun: it begins none that the host does not tell it to."""
    jobs, station.ahead = list(station.ahead.values()), {}
    queue.give_back(jobs)
    if station.client is not None:
        station.client.drop()
