"""The loop over the devices: it assigns jobs, passes on results, and replaces lost sessions.

    queue → batch (its solutions are built) → session of a device slot → verdict, fault or notice

A session gets its next batch early, to prepare workers. The session begins the batch at the message `begin`. A batch
that was not begun is taken back if another device would idle, or if the order of the queue has changed. A job with a
lost session runs once more on a fresh session; the second loss is a fault. Compilers run at the same time
(`compile/build_pool.py`); in a run on a CPU they end before the first job begins.

One thread drives the loop with one select. The loop judges nothing, makes no traces, and knows no submissions: see
`harness.py`.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flashinfer_bench.base.files.held_folders import sweep_folders
from flashinfer_bench.bench.events import JobFaulted, JobStarted, Notice
from flashinfer_bench.bench.job_queue import QUANTUM_S, JobQueue, QueueClass
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.first_call import find_first_call
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.client import LocalSlots, SessionClient, SessionLost, SessionTimedOut
from flashinfer_bench.bench.runner.device_lock import POLL_S as LOCK_POLL_S
from flashinfer_bench.bench.runner.known_failures import KnownFailures
from flashinfer_bench.bench.runner.protocol import REFERENCE_PHASE, JobFault, JobVerdict, SessionConfig
from flashinfer_bench.bench.runner.requests import RequestMaker
from flashinfer_bench.data import Evaluation
from flashinfer_bench.errors import DeviceFault, RanOut

if TYPE_CHECKING:
    from flashinfer_bench.cluster.cluster import BatchMaker, Cluster, RemoteSession

    Session: TypeAlias = "SessionClient | RemoteSession"

POLL_S: Final = 1.0
"""Longest wait of one step of the loop, in seconds. A caller of `step` can pass another limit."""
FAILED_STARTS: Final = 2
"""A device is given up after this many sessions that did not start."""


@dataclass(frozen=True)
class Judged:
    """A job has its evaluation."""

    job: Job
    device: Device
    evaluation: Evaluation
    seconds: float
    ran_out: RanOut | None = None
    """The call that ran out of time."""


Happening = JobStarted | Judged | JobFaulted | Notice


@dataclass(frozen=True)
class Rules:
    """The differences between loops. The defaults suit a run of one plan."""

    retry_device_s: float | None = None
    """Seconds after which a lost device is tried again, in a loop with a stream of solutions. None: a lost device is
    not tried again, and a run whose last device stays locked by another run fails."""
    compiles_ahead: bool = False
    """Whether the session of the only device compiles ahead, if a first call would take minutes."""
    one_worker_a_job: bool = False
    """Whether each job gets its own worker, whatever the configuration says."""

    @property
    def is_resident(self) -> bool:
        """Whether sessions stay, because more solutions can come."""
        return self.retry_device_s is not None


@dataclass(eq=False)
class DeviceSlot:
    """One device: its lock, its session, and its jobs."""

    device: Device
    session: Session | None = None
    begun: dict[int, Job] = field(default_factory=dict)
    """Jobs of its batch without an answer yet, in order."""
    ahead: dict[int, Job] = field(default_factory=dict)
    """Jobs of the batch that was sent to the session, which has not begun this batch."""
    current: int | None = None
    """The job that runs or gets its baseline. This job is blamed if the session is lost."""
    started: int | None = None
    """The job whose start was reported last."""
    is_blamed: bool = False
    """Whether the session has already reported the job that is to blame for the session's end."""
    failed_starts: int = 0
    """Number of consecutive sessions that ended before they were ready."""
    asking: Iterator[str | None] | None = None
    """Asks for the lock of the device, and ends once the lock is ours."""
    held: ExitStack = field(default_factory=ExitStack)
    """Releases the lock when it is closed."""
    given_up_at: float | None = None
    """Time at which the device was given up, in monotonic seconds; None while it is in use."""

    @property
    def jobs(self) -> list[Job]:
        """Jobs that the device was given and has not answered."""
        return [*self.begun.values(), *self.ahead.values()]

    def end_session(self) -> None:
        """End its session, which has no jobs any more."""
        session, self.session = self.session, None
        self.begun, self.ahead, self.current, self.started = {}, {}, None, None
        if session is not None:
            session.end()

    def free(self) -> None:
        """Release the lock, or stop asking for it."""
        self.asking = None
        self.held.close()


class Scheduler:
    """Runs jobs on devices. `close` ends its processes.

    Args:
        executors: the table of slots, of this machine or of a cluster.
        session_config_for: returns the settings of a device's session.
        requests: makes the requests of batches; the scheduler ends its build pool.
        rules: the rules of a run, or of a loop with long-lived sessions.
    """

    def __init__(
        self,
        executors: Cluster | LocalSlots | Iterable[Device],
        *,
        session_config_for: Callable[[Device], SessionConfig],
        requests: RequestMaker | BatchMaker,
        rules: Rules = Rules(),
    ) -> None:
        self._executors = LocalSlots(executors) if isinstance(executors, Iterable) else executors
        self.slots = [DeviceSlot(device) for device in self._executors.devices]
        self._session_config_for = session_config_for
        self._requests = requests
        self._build_pool = requests.build_pool
        self._rules = rules
        self._queue = JobQueue(QUANTUM_S) if rules.is_resident else JobQueue()
        self._names: set[str] = {slot.device.name for slot in self.slots}
        """Names of all devices that it has had."""
        self._known = KnownFailures()
        self._notices: list[Notice] = []
        self._last_words = "no device could be used"

    def close(self) -> None:
        """End every session and compiler, and give the devices back."""
        for slot in self.slots:
            slot.end_session()
        self._build_pool.__exit__()
        for slot in self.slots:
            slot.free()
        sweep_folders()

    @property
    def has_open_jobs(self) -> bool:
        """Whether any job has no answer yet."""
        return bool(self._queue.remaining or any(slot.jobs for slot in self.slots))

    def add(self, jobs: list[Job], queue_class: QueueClass = QueueClass()) -> None:  # noqa: B008 - a constant
        """Take further jobs. In a loop with a stream of solutions, solutions that ran out of time are tried again. If
        no device is left, all lost devices are tried again, too.
        """
        solutions = {job.solution_key: job.solution for job in jobs}
        before = self._build_pool.open_builds
        for key in solutions if self._rules.is_resident else ():
            self._known.hung.forget(key)
        self._build_pool.add(solutions.values())
        self._build_pool.poll()
        if self._rules.compiles_ahead:
            self._requests.expect(jobs)
            slow = {key for key, solution in solutions.items() if find_first_call(solution).is_long}
            jobs = sorted(jobs, key=lambda job: job.solution_key in slow)
        self._queue.add(jobs, queue_class)
        count = self._build_pool.open_builds
        if count > before:
            solutions_of = "solution" if count == 1 else "solutions"
            self._notices.append(Notice(f"compiling {count} {solutions_of}, {self._build_pool.jobs} at once"))
        if self._rules.is_resident and not self._has_device:
            for slot in self.slots:
                slot.given_up_at, slot.failed_starts = None, 0

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Remove and return the jobs that no session has begun. All other jobs go on, and get their answers."""
        wanted = set(indices)
        for slot in self.slots:
            if not wanted.isdisjoint(slot.ahead):
                self._take_back(slot)
        removed = self._queue.remove(wanted)
        self._known.forget(job.index for job in removed)
        return removed

    def forget_solution(self, job: Job) -> None:
        """Forget the record of a job's solution, which has no open job."""
        self._build_pool.forget(job.solution)
        self._known.hung.forget(job.solution_key)

    def recall(self) -> None:
        """Take back batches that were not begun, since the order of the queue changes."""
        for slot in self.slots:
            self._take_back(slot)

    def step(self, wake: int | None = None, limit_s: float = POLL_S) -> Iterator[Happening]:
        """Run one step of the loop: give every device work, then wait for an event.

        Args:
            wake: a descriptor that ends the wait when it is readable.
            limit_s: longest wait.

        Raises:
            DeviceFault: another run keeps the lock of the only device of a run.
        """
        notices, self._notices = self._notices, []
        yield from notices
        news = self._executors.poll()
        yield from map(Notice, news.notices)
        for device in news.joined:
            if device not in {slot.device for slot in self.slots}:  # a known device: its loss was not reported yet
                self.slots.append(DeviceSlot(device))
                yield Notice(f"{device.label} ({device.name}) is used from now on")
        yield from self._open_sessions()
        names = {slot.device.name for slot in self.slots if slot.given_up_at is None}
        self._names |= names
        is_less = not names or names < self._names
        if is_less and self.has_open_jobs and not self._executors.expects_more:
            usable = {None, *names} if names else set[str | None]()
            while jobs := self._queue.take(is_ready=lambda job: job.hardware not in usable):
                for job in jobs:
                    yield self._fault(job, f"no device is left to run it: {self._last_words}")
            if not names:
                return
        for slot in self.slots:
            yield from self._keep_busy(slot)
        yield from self._listen(wake, limit_s)
        self._build_pool.poll()

    @property
    def _has_device(self) -> bool:
        return any(slot.given_up_at is None for slot in self.slots)

    def _open_sessions(self) -> Iterator[Happening]:
        """Start the sessions that the open jobs need: one for each job, at most one for each device."""
        retry_s = self._rules.retry_device_s
        needed = self._queue.remaining + sum(len(slot.jobs) - (slot.session is not None) for slot in self.slots)
        for slot in [slot for slot in self.slots if slot.session is None]:
            if needed <= 0:
                if slot.asking is not None:
                    slot.free()
                continue
            if slot.given_up_at is not None:
                if retry_s is None or time.monotonic() - slot.given_up_at < retry_s:
                    continue
                slot.given_up_at, slot.failed_starts = None, FAILED_STARTS - 1
            yield from self._open(slot)
            needed -= slot.session is not None

    def _open(self, slot: DeviceSlot) -> Iterator[Happening]:
        """Start a device's session once its lock is ours."""
        if slot.asking is None:
            slot.asking = self._executors.lock(slot.device, slot.held)
        try:
            for line in slot.asking:
                if line is None:
                    return
                yield Notice(line)
        except DeviceFault as fault:
            if not self._rules.is_resident and not any(other.session for other in self.slots):
                raise
            yield self._drop_device(slot, str(fault))
            return
        slot.session = self._executors.open(slot.device, self._session_config_for(slot.device))

    def _drop_device(self, slot: DeviceSlot, reason: str, last_words: str = "") -> Notice:
        slot.given_up_at, slot.asking = time.monotonic(), None
        self._last_words = last_words or reason
        if not self._rules.is_resident:
            return Notice(f"{slot.device.label} is not used any more: {reason}")
        slot.free()
        return Notice(f"{slot.device.label} is not used for {self._rules.retry_device_s:g} s: {reason}")

    def _keep_busy(self, slot: DeviceSlot) -> Iterator[Happening]:
        """Have a session run its waiting batch, and send it the next batch.

        A starting session gets its first batch, too: its workers start while it makes its own context.
        """
        session = slot.session
        if session is None:
            return
        while session.is_ready and not slot.begun:
            if any(self._known.find(job) for job in slot.ahead.values()):
                self._take_back(slot)
            if not slot.ahead:
                yield from self._send(slot, session)
            if not slot.ahead:
                session.wait_forever()
                return
            slot.begun, slot.ahead, slot.is_blamed = slot.ahead, {}, False
            session.begin()
        if not slot.ahead:
            yield from self._send(slot, session)

    def _send(self, slot: DeviceSlot, session: Session) -> Iterator[JobFaulted]:
        """Send a session the next batch, if there is one.

        An idle session may split a solution, and may also take a batch that another session has not begun.
        """
        waits = slot.device.kind == "cpu" and not self._rules.is_resident and bool(self._build_pool.open_builds)

        def is_ready(job: Job) -> bool:
            return not waits and job.hardware in (None, slot.device.name) and self._build_pool.is_ready(job.solution)

        while not slot.ahead:
            used = [other for other in self.slots if other.session is not None]
            devices = max(len(used), self._executors.least_shares)
            idle = 0 if slot.begun else devices - sum(bool(other.jobs) for other in used)
            jobs = self._queue.take(slot.device.label, devices=devices, is_ready=is_ready, idle=idle)
            if not jobs:
                others = [other for other in self.slots if other is not slot and other.ahead]
                if slot.begun or not others:
                    return
                self._take_back(max(others, key=lambda other: len(other.ahead)))
                continue
            failing = {job.index: fault for job in jobs if (fault := self._known.find(job)) is not None}
            for fault in failing.values():
                self._end(fault.job)
                yield fault
            if left := [job for job in jobs if job.index not in failing]:
                made: tuple[Any, list[tuple[Job, str]]] = self._requests.make(left)
                request, broken = made
                yield from (self._fault(job, message) for job, message in broken)
                sent = {job.index for job in request.jobs}
                slot.ahead = {job.index: job for job in left if job.index in sent}
                if slot.ahead:
                    session.send(request)

    def _take_back(self, slot: DeviceSlot) -> None:
        """Take back the batch that a session has not begun. A session begins a batch only at a message."""
        jobs, slot.ahead = list(slot.ahead.values()), {}
        if jobs:
            self._queue.give_back(jobs)
            if slot.session is not None:
                slot.session.drop()

    def _fault(self, job: Job, message: str) -> JobFaulted:
        self._end(job)
        return self._known.fault(job, message)

    def _end(self, job: Job, seconds: float | None = None) -> None:
        self._known.forget([job.index])
        self._queue.end(job, seconds)

    def _listen(self, wake: int | None, limit_s: float) -> Iterator[Happening]:
        with selectors.DefaultSelector() as selector:
            sessions = [(slot, slot.session) for slot in self.slots if slot.session is not None]
            for slot, session in sessions:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.has_unsent else 0)
                selector.register(session, events, slot)
            wakers: list[Any] = [*self._build_pool.wakers(), *([] if wake is None else [wake])]
            for waker in wakers:
                selector.register(waker, selectors.EVENT_READ)
            limits = [limit_s, *(max(0.0, session.left_s) for _, session in sessions)]
            limits += [LOCK_POLL_S] if any(slot.asking and slot.session is None for slot in self.slots) else []
            result = {key.data: events for key, events in selector.select(min(limits)) if key.data is not None}
        for slot, session in sessions:
            events = result.get(slot, 0)
            try:
                if events & selectors.EVENT_WRITE:
                    session.flush()
                if events & selectors.EVENT_READ:
                    for message in session.messages():
                        yield from self._hear(slot, session, message)
                else:
                    session.check_deadline()
            except SessionLost as lost:
                yield from self._replace(slot, session, lost)

    def _hear(self, slot: DeviceSlot, session: Session, message: dict[str, Any]) -> Iterator[Happening]:
        if "ready" in message:
            slot.failed_starts = 0
        elif "phase" in message:
            index = message["phase"]["job"]
            if index in slot.begun:
                slot.current = index
                if message["phase"]["name"] != REFERENCE_PHASE and index != slot.started:
                    slot.started = index
                    yield JobStarted(slot.begun[index], slot.device)
        elif "verdict" in message:
            verdict = JobVerdict.model_validate(message["verdict"])
            job, slot.current = slot.begun.pop(verdict.job), None
            self._known.hung.note(job.solution_key, job.solution.name, job.workload.uuid, verdict.ran_out)
            self._end(job, verdict.seconds)
            evaluation = Evaluation.model_validate(verdict.evaluation)
            yield Judged(job, slot.device, evaluation, verdict.seconds, verdict.ran_out)
        elif "fault" in message:
            fault = JobFault.model_validate(message["fault"])
            job, slot.current = slot.begun.pop(fault.job), None
            slot.is_blamed = fault.retry
            if fault.is_left_out:
                self._end(job)
                yield JobFaulted(job, fault.message, is_left_out=True)
            else:
                yield from self._retry_or_fault(job, fault.message, session.phase, retry=fault.retry)
        elif "notice" in message:
            yield Notice(str(message["notice"]))

    def _retry_or_fault(self, job: Job, message: str, phase: str, *, retry: bool = True) -> Iterator[Happening]:
        if retry and self._known.may_retry(job, message, phase):
            self._queue.give_back([job])
        else:
            yield self._fault(job, message)

    def _replace(self, slot: DeviceSlot, session: Session, lost: SessionLost) -> Iterator[Happening]:
        """Requeue a lost session's jobs. The next step starts a new session, unless the device is lost or given up."""
        reason, jobs = str(lost), slot.jobs
        suspect = None if slot.current is None else slot.begun.get(slot.current)
        if suspect is None and session.is_ready and not slot.is_blamed:
            suspect = next(iter(slot.begun.values()), None)
        slot.end_session()
        self._queue.give_back([job for job in jobs if job is not suspect])
        yield Notice(f"{reason}; {len(jobs)} of its jobs go back to the queue")
        if suspect is not None and isinstance(lost, SessionTimedOut) and session.phase == REFERENCE_PHASE:
            yield self._fault(suspect, self._known.note_hung_reference(suspect, reason))
        elif suspect is not None:
            yield from self._retry_or_fault(suspect, reason, session.phase)
        slot.failed_starts += 0 if session.is_ready else 1
        if not self._executors.has(slot.device):
            self.slots.remove(slot)
            self._last_words = reason
        elif slot.failed_starts >= FAILED_STARTS:
            yield self._drop_device(slot, "its session does not start", reason)
