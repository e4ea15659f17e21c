"""The places of a Ray cluster: an actor for each GPU or, where no node has one, for each node's CPU.

Ray places the actors and tells which are lost. The table looks at Ray's list of nodes every few seconds: a node that
comes gets its actors, and they are places as soon as they have told their facts. What does not fit the run is left
out, with a notice: another version of this package, workers without walls beside workers with walls, a node that cannot
build what the others can.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy
import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flashinfer_bench import __version__
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.runner.client import News
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.cluster.actor import GROUPS, PlaceActor
from flashinfer_bench.cluster.far_session import FarSession
from flashinfer_bench.cluster.joining import connect
from flashinfer_bench.cluster.nodes import choose_kind, count_places, fit_hello, read_sandbox
from flashinfer_bench.cluster.parcels import Packer, TravellingSources
from flashinfer_bench.cluster.ray_post import RayPost
from flashinfer_bench.cluster.settings import ClusterSettings
from flashinfer_bench.cluster.words import PlaceFacts
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import ConfigError

LOOK_S: Final = 2.0
"""Seconds between two looks at Ray's list of nodes."""
FIRST_LIMIT_S: Final = 60.0
"""Seconds in which the first place has to come."""
OTHERS_LIMIT_S: Final = 20.0
"""Seconds for which a run waits for the other places of the cluster before it begins; later ones join it."""
MOST_LOSSES: Final = 3
"""Actors that a node may lose before it is not used any more."""
CLOSE_LIMIT_S: Final = 5.0
"""Seconds that actors may take to remove what they have laid out; then they are killed."""
MOST_SURVEYED: Final = 8192
"""Solutions that a node which comes later is asked about: those that were seen last."""
MOST_ANSWERS: Final = 100_000
"""Solutions of which the table remembers whether the places can build them."""
ASK_LIMIT_S: Final = 20.0
"""Seconds that an actor may take to say what its node can build."""
OFFERED_BYTES: Final = 4 << 30
"""Bytes of blobs that stay in Ray's object store; the oldest go first, and come again where they are needed again."""


@dataclass
class ActorPlace:
    """One actor, and what is known of it."""

    node: str
    """Ray's id of the node."""
    actor: Any
    asked: Any
    """Reference to the facts that it was asked for."""
    post: RayPost
    device: Device | None = None
    """None until its facts have come."""


@dataclass
class _Nodes:
    """What is remembered of nodes."""

    losses: Counter[str] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    """Ray's id → the name that people read."""
    last_words: dict[str, str] = field(default_factory=dict)


class Cluster:
    """The table of a cluster's places. `close` ends their actors; Ray does so where this process ends before.

    Args:
        settings: which cluster, and what for.

    Raises:
        ConfigError: no cluster answers, or it has no place for this run.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._places: list[ActorPlace] = []
        self._nodes = _Nodes()
        self._facts: dict[Device, PlaceFacts] = {}
        """Also of places that are lost: their last verdicts may still be on their way into traces."""
        self._posts: dict[Device, RayPost] = {}
        self._next_look_s = 0.0
        self._last_place_s = time.monotonic()
        """When there was a place that could be used."""
        self._notices: list[str] = []
        self._blobs: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        """Digest → reference and bytes of what is in Ray's object store."""
        self._offering = threading.Lock()
        self._surveying = threading.Lock()
        self._surveyed: dict[str, Solution] = {}
        self._lacks: dict[str, str | None] = {}
        self._mark: str | None = None
        self._is_guest = ray.is_initialized()
        self.sources = TravellingSources()
        self._packer = Packer(self.sources, self._offer, has_shared_blobs=settings.has_shared_blobs)
        if not self._is_guest:
            connect(settings.address)
        self._kind: Literal["cpu", "cuda"] = settings.kind or choose_kind(ray.nodes())
        try:
            self._await_first()
        except BaseException:
            self.close()
            raise

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all places that can be used now."""
        return tuple(place.device for place in self._places if place.device is not None and not place.post.is_lost)

    @property
    def least_shares(self) -> int:
        """Say that a node may come at any time."""
        return 2

    @property
    def machine(self) -> Machine:
        """The cluster as one machine: what is missing on one of its places is missing."""
        languages: dict[str, str | None] = {}
        for device in self.devices:
            for language, reason in self._facts[device].languages.items():
                if languages.get(language) is None:
                    languages[language] = None if reason is None else f"{device.node}: {reason}"
        return Machine(self.devices, languages, self.why_not_buildable, self._mark)

    @property
    def sandbox(self) -> Sandbox:
        """How far workers are confined on its first place; all have walls, or none has."""
        return self.sandbox_of(self.devices[0])

    def sandbox_of(self, device: Device) -> Sandbox:
        """Return how far workers are confined on a place."""
        return read_sandbox(self._facts[device])

    def survey(self, solutions: Iterable[Solution]) -> None:
        """Ask all places at once what they lack for solutions. Usable from any thread."""
        with self._surveying:
            self._survey(solutions)

    def _survey(self, solutions: Iterable[Solution]) -> None:
        unasked = [solution for solution in solutions if solution.digest() not in self._lacks]
        unique = list({solution.digest(): solution for solution in unasked}.values())
        if not unique:
            return
        there = [place for place in self._places if place.device is not None and not place.post.is_lost]
        asked = [self._ask(place, unique) for place in there]
        for place, answer in zip(there, asked, strict=True):
            for solution, reason in zip(unique, self._hear_answer(place, answer), strict=False):
                digest = solution.digest()
                if self._lacks.get(digest) is None:
                    self._lacks[digest] = None if reason is None else f"{self._nodes.names[place.node]}: {reason}"
        self._surveyed.update({solution.digest(): solution for solution in unique})
        forget_first(self._surveyed, MOST_SURVEYED)
        forget_first(self._lacks, MOST_ANSWERS)

    def why_not_buildable(self, solution: Solution) -> str | None:
        """Return what the places lack for a solution; None where all can build it."""
        self.survey([solution])
        return self._lacks.get(solution.digest())

    def look(self) -> News:
        """Say which places have come since the last look."""
        now = time.monotonic()
        if now < self._next_look_s:
            return News()
        self._next_look_s = now + LOOK_S
        if self.devices:
            self._last_place_s = now
        self._forget_lost()
        self._start_actors()
        joined = tuple(self._hear_facts())
        notices, self._notices = tuple(self._notices), []
        return News(joined, notices)

    def has(self, device: Device) -> bool:
        """Tell whether a place is still there."""
        return device in self.devices

    @property
    def expects_more(self) -> bool:
        """Whether an actor is on its way, or one that was lost is to be replaced; but not for longer than a minute."""
        is_coming = any(place.device is None or place.post.is_lost for place in self._places)
        return is_coming and time.monotonic() - self._last_place_s < FIRST_LIMIT_S

    def lock(self, _device: Device, _held: ExitStack) -> Iterator[str | None]:
        """Do nothing: Ray gives a GPU to one actor, and the node takes its lock before the first session."""
        yield from ()

    def open(self, device: Device, hello: Hello) -> FarSession:
        """Start a session on a place."""
        fitted = fit_hello(hello, self._facts[device], self.sandbox_of(device))
        return FarSession(device, fitted, self._posts[device], self._packer.pack)

    def close(self) -> None:
        """End all actors, and leave the cluster where this table has joined it."""
        ending = [place.actor.close.remote() for place in self._places if not place.post.is_lost]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=CLOSE_LIMIT_S)
        for place in self._places:
            with contextlib.suppress(RayError):
                ray.kill(place.actor)
        self._places.clear()
        self._blobs.clear()
        if not self._is_guest and ray.is_initialized():
            ray.shutdown()

    def _await_first(self) -> None:
        """Wait for the first place, and a little for the others that the cluster could have."""
        start = time.monotonic()
        while True:
            self._next_look_s = 0.0
            self.look_for_all()
            waited_s = time.monotonic() - start
            pending = [place for place in self._places if place.device is None]
            if self.devices and (not pending or waited_s > OTHERS_LIMIT_S):
                return
            if not pending or waited_s > FIRST_LIMIT_S:
                reasons = "; ".join(self._notices) or "its actors do not start: is everything in use by others?"
                raise ConfigError(f"cluster: no place for a {self._kind} session: {reasons}")
            ray.wait([place.asked for place in pending], num_returns=1, timeout=LOOK_S)

    def look_for_all(self) -> None:
        """Look once, and keep what is to be told for the next look."""
        news = self.look()
        self._notices.extend(news.notices)

    def _forget_lost(self) -> None:
        for place in [place for place in self._places if place.post.is_lost]:
            self._places.remove(place)
            self._nodes.losses[place.node] += 1
            if self._nodes.losses[place.node] == MOST_LOSSES:
                words = self._nodes.last_words.get(place.node, "its actors are lost again and again")
                self._notices.append(f"node {self._nodes.names[place.node]} is not used any more: {words}")
            with contextlib.suppress(RayError):
                ray.kill(place.actor)

    def _start_actors(self) -> None:
        """Start the actors that are missing: one for each GPU of each node, or one for its CPU."""
        there = Counter(place.node for place in self._places)
        alive = [node for node in ray.nodes() if node["Alive"]]
        for node in alive:
            name = node["NodeID"]
            if name in self._nodes.refused or self._nodes.losses[name] >= MOST_LOSSES:
                continue
            self._name_node(node, alive)
            for _ in range(count_places(node["Resources"], self._kind) - there[name]):
                self._places.append(self._start_actor(node))

    def _start_actor(self, node: Mapping[str, Any]) -> ActorPlace:
        share = {"num_gpus": 1, "num_cpus": 0} if self._kind == "cuda" else {"num_cpus": node["Resources"]["CPU"]}
        pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        remote = ray.remote(concurrency_groups=GROUPS)(PlaceActor).options(
            **share, scheduling_strategy=pinned, max_restarts=0, max_task_retries=0
        )
        settings = self._settings
        actor = remote.remote(self._kind, settings.build_jobs)
        asked = actor.describe.remote(settings.sandbox, settings.cache, list(settings.hidden))
        return ActorPlace(node["NodeID"], actor, asked, RayPost(actor))

    def _name_node(self, node: Mapping[str, Any], alive: Sequence[Mapping[str, Any]]) -> None:
        """Name a node after its host, with the start of its id where several nodes are on one."""
        host, known = node["NodeManagerHostname"], self._nodes.names
        if node["NodeID"] not in known:
            is_alone = sum(other["NodeManagerHostname"] == host for other in alive) == 1 and host not in known.values()
            known[node["NodeID"]] = host if is_alone else f"{host}-{node['NodeID'][:6]}"

    def _hear_facts(self) -> Iterator[Device]:
        """Take up the places whose facts have come, where they fit."""
        pending = [place for place in self._places if place.device is None]
        if not pending:
            return
        ready, _ = ray.wait([place.asked for place in pending], num_returns=len(pending), timeout=0)
        for place in [place for place in pending if place.asked in ready]:
            name = self._nodes.names[place.node]
            try:
                facts = PlaceFacts.model_validate(ray.get(place.asked))
                device = facts.device(name)
                reason = self._why_unfit(place, facts)
            except RayActorError as error:
                self._lose(place, error)  # another one is started, so long as its node has not lost too many
                continue
            except RayError as error:
                facts, device, reason = None, None, str(getattr(error, "cause", None) or error).strip()
            if reason is not None:
                self._notices.append(f"node {name} is not used: {reason}")
                self._nodes.refused.add(place.node)
                self._places.remove(place)
                ray.kill(place.actor)
                continue
            if facts is not None and device is not None:
                place.device, self._facts[device], self._posts[device] = device, facts, place.post
                yield device

    def _why_unfit(self, place: ActorPlace, facts: PlaceFacts) -> str | None:
        """Say why a place cannot be used beside the others."""
        if facts.version != __version__:
            return f"it has flashinfer_bench {facts.version}, and this run is of {__version__}"
        mark = read_sandbox(facts).mark
        if self._mark is not None and mark != self._mark:
            return f"its workers would have {'walls' if mark == 'walls' else 'no walls'}, unlike those of other nodes"
        with self._surveying:
            buildable = [one for digest, one in self._surveyed.items() if self._lacks.get(digest) is None]
        answers = self._hear_answer(place, self._ask(place, buildable)) if buildable else []
        lacks = [reason for reason in answers if reason is not None]
        if lacks:
            return f"it cannot build what the others can: {lacks[0]}"
        self._mark = mark
        return None

    def _ask(self, place: ActorPlace, solutions: list[Solution]) -> Any:
        """Ask a place what it lacks for solutions; `_hear_answer` waits for what it says."""
        return place.actor.why_not_built.remote(
            [solution.model_dump(mode="json", exclude_unset=True) for solution in solutions]
        )

    def _hear_answer(self, place: ActorPlace, asked: Any) -> list[str | None]:
        """Return what a place lacks; nothing where it is lost meanwhile."""
        try:
            answers: list[str | None] = ray.get(asked, timeout=ASK_LIMIT_S)
        except RayError as error:
            self._lose(place, error)
            return []
        return answers

    def _lose(self, place: ActorPlace, error: RayError) -> None:
        place.post.is_lost = True
        self._nodes.last_words[place.node] = str(getattr(error, "cause", None) or error).strip()

    def _offer(self, digest: str, file: Path) -> Any:
        """Have a file in Ray's object store, and let the oldest ones go that no block on its way holds."""
        with self._offering:
            if digest not in self._blobs:
                content = numpy.fromfile(file, dtype=numpy.uint8)
                self._blobs[digest] = ray.put(content), content.nbytes
            self._blobs.move_to_end(digest)
            while len(self._blobs) > 1 and sum(size for _, size in self._blobs.values()) > OFFERED_BYTES:
                self._blobs.popitem(last=False)
            return self._blobs[digest][0]


def forget_first(known: dict[str, Any], most: int) -> None:
    """Keep this many entries at most, those that came last."""
    while len(known) > most:
        del known[next(iter(known))]
