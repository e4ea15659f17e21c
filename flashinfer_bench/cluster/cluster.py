"""The host's side of a Ray cluster: its slots, and their sessions in the host's scheduler.

A slot is an actor. There is one for each GPU of each node. If no node has a GPU, there is one for each node's CPU.
`Cluster.poll` reads Ray's list of nodes every few seconds and starts the missing actors. An actor becomes a slot when
its metadata arrives. Ray restarts a lost actor twice. A slot that does not fit the run is skipped, with a notice.

A `RemoteSession` has one call of its actor judge a batch, and gets the verdicts one by one. It sends a batch when the
scheduler begins it, and has the solutions built before that.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.cluster.actor import JUDGING, Batch, Blob, SlotActor, SlotMetadata
from flashinfer_bench.cluster.settings import ClusterSettings
from flashinfer_bench.compile import BuildFarm
from flashinfer_bench.compile.artifact import mark_of
from flashinfer_bench.data import Solution
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.errors import ConfigError, WorkloadFault

LOG: Final = logging.getLogger(__name__)
POLL_S: Final = 2.0
"""Seconds between two looks at Ray's list of nodes."""
FIRST_LIMIT_S: Final = 60.0
"""Seconds in which the first slot has to come, and another one where the last is lost."""
OTHERS_LIMIT_S: Final = 20.0
"""Seconds for which a run waits for the other slots of the cluster before it begins; later ones join it."""
MOST_RESTARTS: Final = 2
END_LIMIT_S: Final = 70.0
"""Seconds that an actor may take to end a session; then it is killed, and the session with it."""
CLOSE_LIMIT_S: Final = 5.0
"""Seconds that actors may take to remove what they have laid out; then they are killed."""
ASK_LIMIT_S: Final = 20.0
"""Seconds that an actor may take to say what its node can build."""
MOST_ANSWERS: Final = 100_000
"""Solutions of which the table remembers whether the slots can build them."""
OFFERED_BYTES: Final = 4 << 30
"""Bytes of stored inputs that are kept in Ray's object store; the oldest go first, and come again if they have to."""


class NoBuilds(BuildFarm):
    """Stands where a run on one machine has its compilers: solutions are built where they run."""

    def add(self, solutions: Iterable[Solution]) -> None:
        """Do nothing."""

    def is_ready(self, solution: Solution) -> bool:
        """Return that it can be sent."""
        del solution
        return True


@dataclass
class BatchMaker:
    """Makes batches for slots."""

    farm: BuildFarm
    blob_root_for: Callable[[Job], Path]
    """Returns the folder with the stored inputs of a job."""
    seed_of: Callable[[Job], int]

    def make(self, jobs: Sequence[Job]) -> tuple[Batch, list[tuple[Job, str]]]:
        """Return the batch; whether its solutions can be built is the node's to say."""
        roots = {job.index: str(self.blob_root_for(job)) for job in jobs}
        return Batch(jobs, {job.index: self.seed_of(job) for job in jobs}, roots), []

    def expect(self, jobs: Iterable[Job]) -> None:
        """Do nothing: no node compiles ahead."""


@dataclass(eq=False)
class ActorSlot:
    """One actor, and what is known of it."""

    node: str
    """Ray's id of the node."""
    name: str
    """The name that people read."""
    actor: Any
    asked: Any = None
    """Reference to the metadata that it was asked for; None once they have come."""
    metadata: SlotMetadata | None = None
    """None while it cannot be used."""


class Cluster:
    """The table of a cluster's slots. `close` ends their actors; Ray does so where this process ends before.

    Args:
        settings: which cluster, and what for.

    Raises:
        ConfigError: no cluster answers, or it has no slot for this run.
    """

    batch_maker: Final = BatchMaker
    no_builds: Final = NoBuilds
    least_shares: Final = 2
    """A node may come at any time."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._slots: list[ActorSlot] = []
        """Also those that are not used any more, so that no others are started in their slot."""
        self._names: dict[str, str] = {}
        self._sandboxes: dict[Device, Sandbox] = {}
        """Also of slots that are lost: their last verdicts may still be on their way into traces."""
        self._next_poll_s = 0.0
        self._last_slot_s = time.monotonic()
        """When there was a slot that could be used."""
        self._notices: list[str] = []
        self._numbers = itertools.count()
        self._blobs: dict[Path, Blob] = {}
        self._offering = threading.Lock()
        self._surveying = threading.Lock()
        self._lacks: dict[str, str | None] = {}
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
        """The cluster as one machine: what is missing on one of its slots is missing."""
        languages: dict[str, str | None] = {}
        for slot in self._slots:
            for language, reason in slot.metadata.languages.items() if slot.metadata is not None else ():
                if languages.get(language) is None:
                    languages[language] = None if reason is None else f"{slot.name}: {reason}"
        return Machine(self.devices, languages, self.why_not_buildable, self.sandbox.mark)

    @property
    def sandbox(self) -> Sandbox:
        """How far workers are confined on its first slot; all have walls, or none has."""
        return next(iter(self._sandboxes.values()))

    def sandbox_of(self, device: Device) -> Sandbox:
        """Return how far workers are confined on a slot."""
        return self._sandboxes[device]

    def survey(self, solutions: Iterable[Solution]) -> None:
        """Ask all slots at once what they lack for solutions. Usable from any thread."""
        with self._surveying:
            unasked = {digest: one for one in solutions if (digest := one.digest()) not in self._lacks}
            if not unasked:
                return
            if len(self._lacks) > MOST_ANSWERS:
                self._lacks.clear()
            self._lacks |= dict.fromkeys(unasked)
            slots = [slot for slot in self._slots if slot.metadata is not None]
            asked = [slot.actor.why_not_built.remote(list(unasked.values())) for slot in slots]
            for slot, answer in zip(slots, asked, strict=True):
                with contextlib.suppress(RayError):  # it is lost: what it runs next will tell
                    for digest, reason in zip(unasked, ray.get(answer, timeout=ASK_LIMIT_S), strict=True):
                        if reason is not None:
                            self._lacks[digest] = f"{slot.name}: {reason}"

    def why_not_buildable(self, solution: Solution) -> str | None:
        """Return what the slots lack for a solution; None where all can build it."""
        self.survey([solution])
        return self._lacks.get(solution.digest())

    def poll(self) -> News:
        """Say which slots have come since the last look."""
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
        """Tell whether a slot is still there."""
        return device in self.devices

    @property
    def expects_more(self) -> bool:
        """Whether an actor is on its way, or one that was lost comes back; but not for longer than a minute."""
        is_coming = any(slot.asked is not None for slot in self._slots)
        return is_coming and time.monotonic() - self._last_slot_s < FIRST_LIMIT_S

    def lock(self, _device: Device, _held: ExitStack) -> Iterator[str | None]:
        """Do nothing: Ray gives a GPU to one actor, which takes its lock on the node."""
        yield from ()

    def open(self, device: Device, hello: Hello) -> RemoteSession:
        """Start a session on a slot."""
        slot = next(slot for slot in self._slots if slot.metadata is not None and slot.metadata.device == device)
        return RemoteSession(self, slot, next(self._numbers), hello)

    def close(self) -> None:
        """End all actors, and leave the cluster where this table has joined it."""
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
        """Use a slot no more: until Ray has restarted its actor, or for good if it cannot be used. Return why."""
        slot.metadata = None
        if not isinstance(error, RayActorError):
            return _reason(error)
        slot.asked = slot.actor.describe.remote()
        return f"its node or its actor is lost ({type(error).__name__})"

    def offer(self, batch: Batch) -> tuple[Batch, dict[int, str]]:
        """Put a batch's stored inputs into Ray's object store; return the batch that has them, and what is missing.

        Returns: the batch; the index of each job whose stored inputs cannot be read, which it leaves out, and why.
        """
        blobs, broken = dict[tuple[str, str], Blob](), dict[int, str]()
        for job in [] if self._settings.has_shared_blobs else batch.jobs:
            root = batch.roots[job.index]
            for source in job.workload.stored_inputs.values():
                try:
                    if (root, source.path) not in blobs:
                        file = BlobStore(root).locate(source.path, workload=job.workload.uuid)
                        blobs[root, source.path] = self._put(file)
                except (WorkloadFault, OSError) as fault:
                    broken[job.index] = str(fault)
        return replace(batch, jobs=[job for job in batch.jobs if job.index not in broken], blobs=blobs), broken

    def _put(self, file: Path) -> Blob:
        """Have a file in Ray's object store, and let the oldest ones go that no batch on its way holds."""
        with self._offering:
            state, known = mark_of(file), self._blobs.pop(file, None)
            if known is None or known[0] != state:
                known = state, ray.put(numpy.fromfile(file, dtype=numpy.uint8))
            self._blobs[file] = known
            while len(self._blobs) > 1 and sum(size for (_, size, *_), _ in self._blobs.values()) > OFFERED_BYTES:
                del self._blobs[next(iter(self._blobs))]
            return known

    def _await_first(self) -> None:
        """Wait for the first slot, and a little for the others that the cluster could have."""
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
        """Start the actors that are missing: one for each GPU of each node, or one for its CPU."""
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
        """Take up the slots whose metadata have come, where they fit."""
        pending = {slot.asked: slot for slot in self._slots if slot.asked is not None}
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0) if pending else ([], [])
        for asked in ready:
            slot = pending[asked]
            slot.asked = None
            try:
                metadata: SlotMetadata = ray.get(asked)
            except ActorUnavailableError:  # it is restarted just now
                slot.asked = slot.actor.describe.remote()
                continue
            except RayError as error:
                reason = _reason(error)
            else:
                if not self._sandboxes or metadata.sandbox.mark == self.sandbox.mark:
                    slot.metadata, self._sandboxes[metadata.device] = metadata, metadata.sandbox
                    yield metadata.device
                    continue
                own = "walls" if metadata.sandbox.has_walls else "no walls"
                reason = f"its workers would have {own}, unlike those of other nodes"
            notice = f"node {slot.name} is not used: {reason}"
            if slot.node in self._alive and notice not in self._notices:
                self._notices.append(notice)


class RemoteSession:
    """A session of a slot, as the host's scheduler has it.

    Args:
        cluster: of the slot.
        slot: where it runs.
        number: no other session of the cluster has it.
        hello: its settings; the node fits them to itself.
    """

    has_unsent, phase, left_s = False, "solution", float("inf")  # its node watches its times, and Ray its node

    def __init__(self, cluster: Cluster, slot: ActorSlot, number: int, hello: Hello) -> None:
        assert slot.metadata is not None
        self._cluster, self._slot, self._number, self._hello = cluster, slot, number, hello
        self.device = slot.metadata.device
        self.is_ready = True
        self._sent: Batch | None = None
        self._said: queue.SimpleQueue[dict[str, Any] | RayError] = queue.SimpleQueue()
        self._ours, self._theirs = socket.socketpair()
        """The first can be read when something was said."""
        self._theirs.setblocking(False)
        self._thread = ThreadPoolExecutor(1, self.device.label)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._ours.fileno()

    def send(self, batch: Batch) -> None:
        """Have the solutions of the next batch built."""
        self._sent = batch
        self._slot.actor.expect.remote([job.solution for job in batch.jobs])

    def drop(self) -> None:
        """Take back the batch that was sent and not begun."""
        self._sent = None

    def begin(self) -> None:
        """Have the batch judged that was sent; the one before has all its answers."""
        assert self._sent is not None
        batch, self._sent = self._sent, None
        self._thread.submit(self._judge, batch)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what was said.

        Raises:
            SessionLost: the slot is lost, or cannot be used.
        """
        self._ours.recv(1 << 12)
        while not self._said.empty():
            said = self._said.get()
            if isinstance(said, RayError):
                self.is_ready = isinstance(said, RayActorError)  # else no job is to blame
                raise SessionLost(f"{self.device.label}: {self._cluster.lose(self._slot, said)}")
            yield said

    def wait_forever(self) -> None:
        """Do nothing."""

    def check_deadline(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """End the session and every process below it; an actor that does not is killed."""
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
                self._say({"fault": {"job": index, "message": why, "retry": False}})
            judge = self._slot.actor.judge.options(num_returns="streaming", concurrency_group=JUDGING)
            for said in judge.remote(self._number, self._hello, offered) if offered.jobs else ():
                self._say(ray.get(said))
        except RayError as error:
            self._say(error)
        except Exception as error:  # round one slot: its jobs go to others
            self._say(RayError(f"{type(error).__name__}: {error}"))

    def _say(self, said: dict[str, Any] | RayError) -> None:
        self._said.put(said)
        with contextlib.suppress(BlockingIOError):  # it can be read already
            self._theirs.send(b"\0")


def connect(address: str | None) -> None:
    """Join a running cluster, and have Ray log what it would print on stdout, where a run's result goes.

    Raises:
        ConfigError: none answers there.
    """
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            "cluster: run this on a node of the cluster (by `ray job submit`, for example), not through ray://"
        )
    with contextlib.suppress(ImportError):  # of another version of Ray, which is not told here how to be quiet
        worker: Any = importlib.import_module("ray._private.worker")
        worker.print_to_stdstream = lambda data, *_, **__: LOG.debug("ray: %s", data.get("lines"))
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"cluster: no Ray cluster answers at {address or 'this machine'}: {why}") from None


def _reason(error: RayError) -> str:
    """Return what an actor's error says; the last line of what Ray says of its end."""
    return str(getattr(error, "cause", None) or str(error).strip().splitlines()[-1])
