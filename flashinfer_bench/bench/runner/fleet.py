"""The host's loop over its device sessions: deal blocks out, pass on what comes back, replace a session that is lost.

`compile/farm.py` compiles solutions meanwhile. A block holds only jobs whose solution is built, so a device waits for a
compiler only when nothing else is left. A session is sent its next block early, and begins it when it is told to; a
block that was not begun is taken back where another device would idle. A job whose session was lost runs once more on a
fresh session; the second time it is a fault. This process has one thread with one select; sessions and compilers do the
work. Nothing here judges.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.events import JobFaulted, JobStarted, Notice
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.client import SessionClient, SessionLost, SessionTimedOut
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.estimates import JobTimes
from flashinfer_bench.bench.runner.protocol import (
    REFERENCE_PHASE,
    BlockJob,
    BlockOrder,
    BlockSolution,
    Hello,
    JobFault,
    JobVerdict,
)
from flashinfer_bench.bench.schedule import Block, BlockQueue
from flashinfer_bench.compile import BuildFarm, BuildFault, Built
from flashinfer_bench.data import Evaluation, Solution

POLL_S: Final = 1.0
TRIES: Final = 2
"""A job whose session is lost is run this many times in all, each time on a new session. Then it is a fault."""
FAILED_STARTS: Final = 2
"""Give a device up after this many sessions that did not start."""
HANGS: Final = 2
"""Give a definition up after its reference ran out of time on this many workloads."""


@dataclass(frozen=True)
class Judged:
    """A job has its evaluation."""

    job: Job
    device: Device
    evaluation: Evaluation
    seconds: float


Happening = JobStarted | Judged | JobFaulted | Notice


@dataclass
class Station:
    """One device's place in the loop."""

    device: Device
    client: SessionClient | None = None
    open_jobs: dict[int, Job] = field(default_factory=dict)
    """Jobs of its block without an answer yet, in order."""
    ahead: dict[int, Job] = field(default_factory=dict)
    """Jobs of the block that its session was sent, and has not begun."""
    current: int | None = None
    """The job that runs, or whose baseline is prepared. It is to blame where the session is lost."""
    started: int | None = None
    """The job whose start was told last."""
    is_blamed: bool = False
    """The session has said which job ends it."""
    failed_starts: int = 0


class Fleet:
    """Runs jobs on all devices of a run; a context manager that leaves no process behind.

    Args:
        devices: the devices, each of which gets a session.
        hello_for: the settings of a device's session.
        blob_root_for: the root of the set that holds a job's workload.
        farm: builds the solutions; the fleet ends it.
        seed_of: gives the seed of a job.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        *,
        hello_for: Callable[[Device], Hello],
        blob_root_for: Callable[[Job], Path],
        farm: BuildFarm,
        seed_of: Callable[[Job], int],
    ) -> None:
        self._stations = [Station(device) for device in devices]
        self._hello_for = hello_for
        self._blob_root_for = blob_root_for
        self._farm = farm
        self._seed_of = seed_of
        self._times = JobTimes()
        self._tries: dict[int, int] = {}
        self._broken: dict[tuple[str, str], str] = {}
        """(definition, workload uuid) → why no device survives its reference."""
        self._hung: dict[str, set[str]] = {}
        """Definition → uuids of the workloads on which its reference ran out of time."""
        self._locks = ExitStack()
        self._last_words = "no device could be used"

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for station in self._stations:
            if station.client is not None:
                station.client.end()
                station.client = None
        self._farm.__exit__()
        self._locks.close()

    def run(self, jobs: Iterable[Job]) -> Iterator[Happening]:
        """Run the jobs; yields each one's fate as it is known. Closing the iterator and the fleet stops everything."""
        listed = list(jobs)
        queue = BlockQueue(listed, self._times.estimate)
        self._farm.add({job.solution.name: job.solution for job in listed}.values())
        self._farm.poll()
        count = self._farm.open_builds
        if count:
            yield Notice(f"compiling {count} {'solution' if count == 1 else 'solutions'}, {self._farm.jobs} at once")
        for station in self._stations[: max(1, queue.remaining)]:
            for message in lock_device(station.device, self._locks):
                yield Notice(message)
            self._start(station)
        while queue.remaining or any(station.open_jobs or station.ahead for station in self._stations):
            if not any(station.client for station in self._stations):
                yield from self._give_up(queue)
                return
            for station in self._stations:
                yield from self._keep_busy(station, queue)
            yield from self._listen(queue)
            self._farm.poll()

    def _start(self, station: Station) -> None:
        station.client = SessionClient(station.device, self._hello_for(station.device))

    def _keep_busy(self, station: Station, queue: BlockQueue) -> Iterator[Happening]:
        """Have a session run the block that it was sent, and send it the next one, which it may prepare for.

        One that is still starting gets its first block, too: its workers start while it makes its own context.
        """
        client = station.client
        if client is None:
            return
        if not client.is_ready:
            if not station.ahead:
                yield from self._send(station, client, queue, splits=True)
            return
        while not station.open_jobs:
            if any(self._known_fault(job) for job in station.ahead.values()):
                take_back(station, queue)
            if not station.ahead:
                yield from self._send(station, client, queue, splits=True)
            if not station.ahead:
                client.wait_forever()
                return
            station.open_jobs, station.ahead, station.is_blamed = station.ahead, {}, False
            client.begin()
        if not station.ahead:
            yield from self._send(station, client, queue, splits=False)

    def _send(
        self, station: Station, client: SessionClient, queue: BlockQueue, *, splits: bool
    ) -> Iterator[JobFaulted]:
        """Send a session the next block, if there is one; one that has nothing else to do may split a solution."""
        while not station.ahead:
            alive = sum(other.client is not None for other in self._stations)
            ready = partial(self._may_run, station.device)
            batch = queue.take(alive, ready, station.device.label, splits=splits)
            if batch is None:
                others = [other for other in self._stations if other is not station and other.ahead]
                if not splits or not others:
                    return
                take_back(max(others, key=lambda other: len(other.ahead)), queue)
                continue
            block, faults = self._prepare(batch)
            yield from faults
            wanted = {job.index for job in block.jobs}
            station.ahead = {job.index: job for job in batch.jobs if job.index in wanted}
            if station.ahead:
                client.send(block)

    def _may_run(self, device: Device, solution: Solution) -> bool:
        """Tell whether a solution is built. On a CPU all have to be built: compilers would disturb the measurement."""
        return self._farm.is_ready(solution) and (device.kind != "cpu" or not self._farm.open_builds)

    def _prepare(self, batch: Block) -> tuple[BlockOrder, list[JobFaulted]]:
        """Make the order for the session; the solutions of the batch are built."""
        solutions: dict[str, BlockSolution] = {}
        faults: list[JobFaulted] = []
        jobs: list[BlockJob] = []
        broken: dict[str, str] = {}
        first = batch.jobs[0]
        for job in batch.jobs:
            known = self._known_fault(job)
            if known is not None:
                faults.append(JobFaulted(job, known, self._ran_out_of_time(job)))
                continue
            name = job.solution.name
            if name not in solutions and name not in broken:
                built = self._farm.built(job.solution)
                if isinstance(built.error, BuildFault):
                    broken[name] = str(built.error)
                else:
                    solutions[name] = describe_solution(built)
            if name in broken:
                faults.append(JobFaulted(job, broken[name]))
                continue
            jobs.append(
                BlockJob(
                    index=job.index,
                    solution=name,
                    workload=job.workload.model_dump(mode="json"),
                    blob_root=str(self._blob_root_for(job)),
                    seed=self._seed_of(job),
                    settings=job.config.beyond(first.config),
                )
            )
        definition, config = first.definition.model_dump(mode="json"), first.config.to_order()
        return BlockOrder(definition=definition, config=config, solutions=solutions, jobs=jobs), faults

    def _listen(self, queue: BlockQueue) -> Iterator[Happening]:
        with selectors.DefaultSelector() as selector:
            clients = [(station, station.client) for station in self._stations if station.client is not None]
            for station, client in clients:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.has_unsent else 0)
                selector.register(client, events, station)
            for process in self._farm.processes():
                selector.register(process, selectors.EVENT_READ)
            limits = [POLL_S, *(max(0.0, client.left_s) for _, client in clients)]
            if self._farm.wait_s is not None:
                limits.append(self._farm.wait_s)
            found = {id(key.data): events for key, events in selector.select(min(limits)) if key.data is not None}
        for station, client in clients:
            try:
                if found.get(id(station), 0) & selectors.EVENT_WRITE:
                    client.flush()
                if found.get(id(station), 0) & selectors.EVENT_READ:
                    for message in client.messages():
                        yield from self._hear(station, queue, message)
                else:
                    client.check_deadline()
            except SessionLost as lost:
                yield from self._replace(station, queue, lost)

    def _hear(self, station: Station, queue: BlockQueue, message: dict[str, Any]) -> Iterator[Happening]:
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
            self._times.add(job, verdict.seconds)
            yield Judged(job, station.device, Evaluation.model_validate(verdict.evaluation), verdict.seconds)
        elif "fault" in message:
            fault = JobFault.model_validate(message["fault"])
            job = station.open_jobs.pop(fault.job)
            station.current = None
            station.is_blamed = fault.retry
            phase = station.client.phase if station.client is not None else ""
            yield from self._retry_or_fault(queue, job, fault.message, retry=fault.retry, phase=phase)
        elif "notice" in message:
            yield Notice(str(message["notice"]))

    def _retry_or_fault(
        self, queue: BlockQueue, job: Job, message: str, *, retry: bool, phase: str
    ) -> Iterator[Happening]:
        self._tries[job.index] = self._tries.get(job.index, 0) + 1
        if retry and self._tries[job.index] < TRIES:
            queue.give_back([job])
            return
        if retry and phase == REFERENCE_PHASE:
            self._broken[job.definition.name, job.workload.uuid] = f"its reference ends the session: {message}"
        yield JobFaulted(job, message)

    def _known_fault(self, job: Job) -> str | None:
        """Say why a job cannot be judged, as far as the run has shown."""
        return self._broken.get((job.definition.name, job.workload.uuid), self._endless(job))

    def _ran_out_of_time(self, job: Job) -> bool:
        return job.workload.uuid in self._hung.get(job.definition.name, ()) or self._endless(job) is not None

    def _endless(self, job: Job) -> str | None:
        """Say why a definition is given up whose reference does not end."""
        hung = self._hung.get(job.definition.name, set())
        if len(hung) < HANGS:
            return None
        return f"reference of {job.definition.name}: it ran out of time on workloads {', '.join(sorted(hung))}"

    def _replace(self, station: Station, queue: BlockQueue, lost: SessionLost) -> Iterator[Happening]:
        """Give a lost session's jobs back and start another, unless its device no longer lets one start."""
        reason = str(lost)
        client, jobs, ahead = station.client, list(station.open_jobs.values()), list(station.ahead.values())
        if client is None:
            return
        client.end()
        station.client, station.open_jobs, station.ahead = None, {}, {}
        current, station.current, station.started = station.current, None, None
        suspect = next((job for job in jobs if job.index == current), None)
        if suspect is None and jobs and client.is_ready and not station.is_blamed:
            suspect = jobs[0]
        queue.give_back([job for job in (*jobs, *ahead) if job is not suspect])
        yield Notice(f"{reason}; {len(jobs) + len(ahead)} of its jobs go back to the queue")
        if suspect is not None and isinstance(lost, SessionTimedOut) and client.phase == REFERENCE_PHASE:
            # A second try would take as long and end the same way.
            name, uuid = suspect.definition.name, suspect.workload.uuid
            self._hung.setdefault(name, set()).add(uuid)
            self._broken[name, uuid] = f"reference of {name}, workload {uuid}: it ran out of time; {reason}"
            yield JobFaulted(suspect, self._broken[name, uuid], is_out_of_time=True)
        elif suspect is not None:
            yield from self._retry_or_fault(queue, suspect, reason, retry=True, phase=client.phase)
        station.failed_starts += 0 if client.is_ready else 1
        if station.failed_starts < FAILED_STARTS:
            self._start(station)
        else:
            yield Notice(f"{station.device.label} is not used any more: its session does not start")
            self._last_words = reason

    def _give_up(self, queue: BlockQueue) -> Iterator[Happening]:
        while (batch := queue.take(1)) is not None:
            for job in batch.jobs:
                yield JobFaulted(job, f"no device is left to run it: {self._last_words}")


def take_back(station: Station, queue: BlockQueue) -> None:
    """Take back the block that a session has not begun: it begins none that the host does not tell it to."""
    jobs, station.ahead = list(station.ahead.values()), {}
    queue.give_back(jobs)
    if station.client is not None:
        station.client.drop()


def describe_solution(built: Built) -> BlockSolution:
    """Tell the session what came of a solution's build."""
    solution, artifact = built.solution, built.artifact
    keeps = artifact is not None and artifact.kind == "python"
    return BlockSolution(
        name=solution.name,
        language=solution.spec.language.value,
        declared_style=solution.spec.declared_style,
        digest=solution.digest(),
        directory=str(artifact.directory) if artifact else None,
        entry=artifact.entry if artifact else "",
        symbol=artifact.symbol if artifact else "",
        kind=artifact.kind if artifact else "python",
        files=dict(artifact.files) if artifact else {},
        sources={source.path: source.content for source in solution.sources} if keeps else {},
        build_error=str(built.error) if built.error else None,
    )
