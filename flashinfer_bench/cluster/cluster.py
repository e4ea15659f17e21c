"""The host's side of a Ray cluster: its slots, and their sessions in the host's scheduler.

A slot is an actor. Each GPU of each node has a slot. If no node has a GPU, each node's CPU has a slot. `Cluster.poll`
reads Ray's list of nodes every few seconds and starts the missing actors. An actor becomes a slot when its metadata
arrives. Ray restarts a lost actor twice. A slot that does not fit the run is skipped, with a notice.

For each batch, a `RemoteSession` makes one call of its actor, which judges the batch and returns the verdicts one by
one. The batch is sent when the scheduler begins it; its solutions are built before.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flashinfer_bench import __version__
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.client import News, SessionLost
from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.cluster.actor import JUDGING, Batch, Blob, SlotActor, SlotMetadata
from flashinfer_bench.cluster.settings import ClusterSettings
from flashinfer_bench.compile import BuildPool
from flashinfer_bench.compile.artifact import stat_key
from flashinfer_bench.data import Solution
from flashinfer_bench.data.store.blobs import locate_blob
from flashinfer_bench.errors import ConfigError, WorkloadFault

LOG: Final = logging.getLogger(__name__)
POLL_S: Final = 2.0
"""Seconds between two reads of Ray's list of nodes."""
FIRST_LIMIT_S: Final = 60.0
"""Seconds that a run waits for its first slot, and for a new slot after it has lost all slots."""
OTHERS_LIMIT_S: Final = 20.0
"""Seconds that a run waits for further slots before it begins. Slots that come later join the run."""
MOST_RESTARTS: Final = 2
END_LIMIT_S: Final = 70.0
"""Seconds that an actor can take to end a session; after that it is killed together with the session."""
CLOSE_LIMIT_S: Final = 5.0
"""Seconds that actors can take to remove their files of stored inputs; after that they are killed."""
ASK_LIMIT_S: Final = 20.0
"""Seconds that an actor can take to report which solutions its node can build."""
OFFERED_BYTES: Final = 4 << 30
"""Bytes of stored inputs cached in Ray's object store. The oldest inputs are dropped first, and stored again when
needed."""


class NoBuilds(BuildPool):
    """Takes the place of the host's build pool and builds nothing: nodes build their own solutions."""

    def add(self, solutions: Iterable[Solution]) -> None:
        """Do nothing."""

    def is_ready(self, solution: Solution) -> bool:
        """Return True: a solution can always be sent."""
        del solution
        return True


@dataclass
class BatchMaker:
    """Makes batches for slots."""

    build_pool: BuildPool
    blob_root_for: Callable[[Job], Path]
    """Returns the folder with the stored inputs of a job."""
    seed_of: Callable[[Job], int]

    def make(self, jobs: Sequence[Job]) -> tuple[Batch, list[tuple[Job, str]]]:
        """Return the batch and no build errors: the node builds the solutions."""
        roots = {job.index: str(self.blob_root_for(job)) for job in jobs}
        return Batch(jobs, {job.index: self.seed_of(job) for job in jobs}, roots), []

    def expect(self, jobs: Iterable[Job]) -> None:
        """Do nothing: no node compiles ahead."""


@dataclass(eq=False)
class ActorSlot:
    """One actor, and the slot's metadata once it is known."""

    node: str
    """Ray's id of the node."""
    name: str
    """The node's name in messages."""
    actor: Any
    asked: Any = None
    """Reference to the requested metadata; None once it has arrived."""
    metadata: SlotMetadata | None = None
    """None while the slot cannot be used."""


class Cluster:
    """The table of a cluster's slots. `close` ends their actors. If this process ends without `close`, Ray ends the
    actors.

    Args:
        settings: the cluster's address, and the settings of its slots.

    Raises:
        ConfigError: no cluster answers, or it has no slot for this run.
    """

    batch_maker: Final = BatchMaker
    no_builds: Final = NoBuilds
    least_shares: Final = 2
    """Batches are sized for at least this many devices, so that a node that joins later gets jobs."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._slots: list[ActorSlot] = []
        """All slots. Slots that are no longer used stay here, so that no other actor is started for their device."""
        self._names: dict[str, str] = {}
        self._sandboxes: dict[Device, Sandbox] = {}
        """Device → sandbox of its workers. Lost slots stay here, because their last verdicts may not be recorded
        yet."""
        self._next_poll_s = 0.0
        self._last_slot_s = time.monotonic()
        """Latest time at which a usable slot existed."""
        self._notices: list[str] = []
        self._numbers = itertools.count()
        self._blobs: dict[Path, Blob] = {}
        self._offering = threading.Lock()
        self._lacks: Mapping[str, str | None] = {}
        """The result of the latest survey."""
        self._is_guest = ray.is_initialized()
        if not self._is_guest:
            connect(settings.address)
        has_gpus = any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in ray.nodes())
        self._kind = settings.kind or ("cuda" if has_gpus else "cpu")
        try:
            self._await_first()
        except BaseException:
            self.close()
            raise

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all slots that can be used now."""
        return tuple(slot.metadata.device for slot in self._slots if slot.metadata is not None)

    @property
    def machine(self) -> Machine:
        """The cluster as one machine: a language is missing if any slot lacks it."""
        languages: dict[str, str | None] = {}
        for slot in self._slots:
            for language, reason in slot.metadata.languages.items() if slot.metadata is not None else ():
                if languages.get(language) is None:
                    languages[language] = None if reason is None else f"{slot.name}: {reason}"
        return Machine(self.devices, languages, self.why_not_buildable, self.sandbox.fingerprint_key)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of workers on the first slot. Either all slots have a sandbox, or no slot has."""
        return next(iter(self._sandboxes.values()))

    def sandbox_of(self, device: Device) -> Sandbox:
        """Return the sandbox of workers on a slot."""
        return self._sandboxes[device]

    def survey(self, solutions: Iterable[Solution]) -> Mapping[str, str | None]:
        """Ask all slots at once what they lack to build solutions: digest → what is missing; None if nothing is.

        Usable from any thread.
        """
        asked = {one.digest(): one for one in solutions}
        lacks: dict[str, str | None] = dict.fromkeys(asked)
        slots = [slot for slot in self._slots if slot.metadata is not None]
        answers = [slot.actor.why_not_built.remote(list(asked.values())) for slot in slots]
        for slot, answer in zip(slots, answers, strict=True):
            with contextlib.suppress(RayError):  # the slot is lost: its next batch reports that
                found = zip(asked, ray.get(answer, timeout=ASK_LIMIT_S), strict=True)
                lacks |= {digest: f"{slot.name}: {reason}" for digest, reason in found if reason is not None}
        self._lacks = lacks
        return lacks

    def why_not_buildable(self, solution: Solution) -> str | None:
        """Return what the slots lack to build a solution; None if all can build it."""
        digest, lacks = solution.digest(), self._lacks
        return (lacks if digest in lacks else self.survey([solution]))[digest]

    def poll(self) -> News:
        """Return the slots that have come since the last call."""
        now = time.monotonic()
        if now < self._next_poll_s:
            return News()
        self._next_poll_s = now + POLL_S
        if self.devices:
            self._last_slot_s = now
        self._start_actors()
        joined = tuple(self._receive_metadata())
        notices, self._notices = tuple(self._notices), []
        return News(joined, notices)

    def has(self, device: Device) -> bool:
        """Return whether a device's slot is still there."""
        return device in self.devices

    @property
    def expects_more(self) -> bool:
        """Whether an actor is starting or restarting. After a minute without any usable slot this is False."""
        is_coming = any(slot.asked is not None for slot in self._slots)
        return is_coming and time.monotonic() - self._last_slot_s < FIRST_LIMIT_S

    def lock(self, _device: Device, _held: ExitStack) -> Iterator[str | None]:
        """Do nothing: Ray gives a GPU to one actor, and the actor takes the GPU's lock on its node."""
        yield from ()

    def open(self, device: Device, session_config: SessionConfig) -> RemoteSession:
        """Start a session on a slot."""
        slot = next(slot for slot in self._slots if slot.metadata is not None and slot.metadata.device == device)
        return RemoteSession(self, slot, next(self._numbers), session_config)

    def close(self) -> None:
        """End all actors. Leave the cluster if this object has joined it."""
        ending = [slot.actor.close.remote() for slot in self._slots if slot.asked is None]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=CLOSE_LIMIT_S)
        for slot in self._slots:
            with contextlib.suppress(RayError):
                ray.kill(slot.actor)
        self._slots.clear()
        self._blobs.clear()
        if not self._is_guest and ray.is_initialized():
            ray.shutdown()

    def lose(self, slot: ActorSlot, error: RayError) -> str:
        """Stop using a slot; return the reason. If its actor was lost, the slot is used again once Ray has restarted
        the actor."""
        slot.metadata = None
        if not isinstance(error, RayActorError):
            return _reason(error)
        slot.asked = slot.actor.describe.remote()
        return f"its node or its actor is lost ({type(error).__name__})"

    def offer(self, batch: Batch) -> tuple[Batch, dict[int, str]]:
        """Put a batch's stored inputs into Ray's object store.

        Returns: the batch with its stored inputs, and index of a job → why the job's stored inputs cannot be read. The
            returned batch omits these jobs.
        """
        blobs, broken = dict[tuple[str, str], Blob](), dict[int, str]()
        for job in [] if self._settings.has_shared_blobs else batch.jobs:
            root = batch.roots[job.index]
            for source in job.workload.stored_inputs.values():
                try:
                    if (root, source.path) not in blobs:
                        file = locate_blob(Path(root), source.path, workload=job.workload.uuid)
                        blobs[root, source.path] = self._put(file)
                except (WorkloadFault, OSError) as fault:
                    broken[job.index] = str(fault)
        return replace(batch, jobs=[job for job in batch.jobs if job.index not in broken], blobs=blobs), broken

    def _put(self, file: Path) -> Blob:
        """Put a file into Ray's object store, and drop the oldest files. A batch in flight keeps its own references."""
        with self._offering:
            state, known = stat_key(file), self._blobs.pop(file, None)
            if known is None or known[0] != state:
                known = state, ray.put(numpy.fromfile(file, dtype=numpy.uint8))
            self._blobs[file] = known
            while len(self._blobs) > 1 and sum(size for (_, size, *_), _ in self._blobs.values()) > OFFERED_BYTES:
                del self._blobs[next(iter(self._blobs))]
            return known

    def _await_first(self) -> None:
        """Wait for the first slot, and at most OTHERS_LIMIT_S for further slots."""
        start = time.monotonic()
        while True:
            self._next_poll_s = 0.0
            notices = self.poll().notices
            self._notices += notices
            waited_s = time.monotonic() - start
            pending = [slot.asked for slot in self._slots if slot.asked is not None]
            if self.devices and (not pending or waited_s > OTHERS_LIMIT_S):
                return
            if not pending or waited_s > FIRST_LIMIT_S:
                reasons = "; ".join(self._notices) or "its actors do not start: is everything in use by others?"
                raise ConfigError(f"cluster: no slot for a {self._kind} session: {reasons}")
            ray.wait(pending, num_returns=1, timeout=POLL_S)

    def _start_actors(self) -> None:
        """Start the missing actors: one for each GPU of each node, or one for each node's CPU."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        self._alive = {node["NodeID"] for node in alive}
        hosts = Counter(node["NodeManagerHostname"] for node in alive)
        there = Counter(slot.node for slot in self._slots)
        for node in alive:
            uuid, host, resources = node["NodeID"], node["NodeManagerHostname"], node["Resources"]
            is_alone = hosts[host] == 1 and host not in self._names.values()
            name = self._names.setdefault(uuid, host if is_alone else f"{host}-{uuid[:6]}")
            cpus, gpus = resources.get("CPU", 0), int(resources.get("GPU", 0))
            share = {"num_gpus": 1, "num_cpus": 0} if self._kind == "cuda" else {"num_cpus": cpus}
            for _ in range((gpus if self._kind == "cuda" else int(cpus >= 1)) - there[uuid]):
                remote = ray.remote(concurrency_groups={JUDGING: 1})(SlotActor).options(
                    **share,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(uuid, soft=False),
                    max_restarts=MOST_RESTARTS,
                    max_task_retries=0,
                )
                actor = remote.remote(name, self._kind, __version__, self._settings)
                self._slots.append(ActorSlot(uuid, name, actor, actor.describe.remote()))

    def _receive_metadata(self) -> Iterator[Device]:
        """Yield the device of each slot whose metadata has arrived and fits the run; note why other slots do not
        fit."""
        pending = {slot.asked: slot for slot in self._slots if slot.asked is not None}
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0) if pending else ([], [])
        for asked in ready:
            slot = pending[asked]
            slot.asked = None
            try:
                metadata: SlotMetadata = ray.get(asked)
            except ActorUnavailableError:  # Ray restarts it
                slot.asked = slot.actor.describe.remote()
                continue
            except RayError as error:
                reason = _reason(error)
            else:
                if not self._sandboxes or metadata.sandbox.fingerprint_key == self.sandbox.fingerprint_key:
                    slot.metadata, self._sandboxes[metadata.device] = metadata, metadata.sandbox
                    yield metadata.device
                    continue
                own = "a sandbox" if metadata.sandbox.is_sandboxed else "no sandbox"
                reason = f"its workers would have {own}, unlike those of other nodes"
            notice = f"node {slot.name} is not used: {reason}"
            if slot.node in self._alive and notice not in self._notices:
                self._notices.append(notice)


class RemoteSession:
    """The session of a slot in the host's scheduler.

    Args:
        number: the session's number, unique in the cluster.
        session_config: the settings of the session; the node adapts them to itself.
    """

    has_unsent, phase, left_s = False, "solution", float("inf")  # nodes enforce time limits; Ray watches the nodes

    def __init__(self, cluster: Cluster, slot: ActorSlot, number: int, session_config: SessionConfig) -> None:
        assert slot.metadata is not None
        self._cluster, self._slot, self._number, self._session_config = cluster, slot, number, session_config
        self.device = slot.metadata.device
        self.is_ready = True
        self._sent: Batch | None = None
        self._frames: queue.SimpleQueue[dict[str, Any] | RayError] = queue.SimpleQueue()
        self._ours, self._theirs = socket.socketpair()
        """The first socket is readable when a frame has arrived."""
        self._theirs.setblocking(False)
        self._thread = ThreadPoolExecutor(1, self.device.label)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._ours.fileno()

    def send(self, batch: Batch) -> None:
        """Store the next batch, and have its solutions built."""
        self._sent = batch
        self._slot.actor.expect.remote([job.solution for job in batch.jobs])

    def drop(self) -> None:
        """Forget the batch that was sent and not begun."""
        self._sent = None

    def begin(self) -> None:
        """Start judging the batch that was sent. Call it only when all verdicts of the previous batch have arrived."""
        assert self._sent is not None
        batch, self._sent = self._sent, None
        self._thread.submit(self._judge, batch)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the frames that have arrived.

        Raises:
            SessionLost: the slot is lost, or cannot be used.
        """
        self._ours.recv(1 << 12)
        while not self._frames.empty():
            frame = self._frames.get()
            if isinstance(frame, RayError):
                self.is_ready = isinstance(frame, RayActorError)  # errors of other types are not caused by a job
                raise SessionLost(f"{self.device.label}: {self._cluster.lose(self._slot, frame)}")
            yield frame

    def wait_forever(self) -> None:
        """Do nothing."""

    def check_deadline(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """End the session and every process below it; kill the actor if it does not end them."""
        try:
            if self._slot.metadata is not None:
                ray.get(self._slot.actor.end.remote(self._number), timeout=END_LIMIT_S)
        except RayError as error:
            LOG.debug("a session does not end", exc_info=error)
            with contextlib.suppress(RayError):
                ray.kill(self._slot.actor, no_restart=False)
        self._thread.shutdown()
        self._ours.close()
        self._theirs.close()

    def _judge(self, batch: Batch) -> None:
        try:
            offered, broken = self._cluster.offer(batch)
            for index, why in broken.items():
                self._put_frame({"fault": {"job": index, "message": why, "retry": False}})
            judge = self._slot.actor.judge.options(num_returns="streaming", concurrency_group=JUDGING)
            for frame in judge.remote(self._number, self._session_config, offered) if offered.jobs else ():
                self._put_frame(ray.get(frame))
        except RayError as error:
            self._put_frame(error)
        except Exception as error:  # after a bug of ours, other slots take the jobs
            self._put_frame(RayError(f"{type(error).__name__}: {error}"))

    def _put_frame(self, frame: dict[str, Any] | RayError) -> None:
        self._frames.put(frame)
        with contextlib.suppress(BlockingIOError):  # the first socket is readable already
            self._theirs.send(b"\0")


def connect(address: str | None) -> None:
    """Join a running cluster, and send Ray's output to the log: stdout is for the result of the run.

    Raises:
        ConfigError: no cluster answers at the address.
    """
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            "cluster: run this on a node of the cluster (by `ray job submit`, for example), not through ray://"
        )
    with contextlib.suppress(ImportError):  # a version of Ray without this module may print
        worker: Any = importlib.import_module("ray._private.worker")
        worker.print_to_stdstream = lambda data, *_, **__: LOG.debug("ray: %s", data.get("lines"))
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"cluster: no Ray cluster answers at {address or 'this machine'}: {why}") from None


def _reason(error: RayError) -> str:
    """Return the reason of an actor's error: its cause, else the last line of Ray's text."""
    return str(getattr(error, "cause", None) or str(error).strip().splitlines()[-1])
