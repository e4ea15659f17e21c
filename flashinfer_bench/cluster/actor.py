"""What runs on a node: one actor for one place. It passes calls on to the sessions of its process.

Ray starts it, in a process of its own, and ends it with the program that asked for it or with its node. Then the kernel
ends the sessions of that process with everything below them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import ray

from flashinfer_bench.cluster.node.facts import describe_place, find_device, why_not_built_here
from flashinfer_bench.cluster.node.sessions import NodeSessions
from flashinfer_bench.data import Solution

GROUPS: Final = {"orders": 1, "words": 1}
"""Threads of an actor: orders keep their order, and waiting for words holds up no order."""
TAKE_S: Final = 1.0
"""Seconds that one call waits for what the session says."""

KEPT_ORDERS: Final = 4
"""Blocks whose blobs an actor can still get: one may be built while the next one is there already."""


Method = TypeVar("Method", bound=Callable[..., Any])


def in_group(name: str) -> Callable[[Method], Method]:
    """Have a method of an actor run in the threads of a group."""
    decorate: Callable[[Method], Method] = ray.method(concurrency_group=name)
    return decorate


class PlaceActor:
    """One place of a cluster.

    Args:
        kind: "cpu" or "cuda"; Ray has given this process one GPU.
        build_jobs: compilers at once; None for the node's default.
    """

    def __init__(self, kind: str, build_jobs: int | None) -> None:
        self._kind = kind
        self._build_jobs = build_jobs
        self._held: NodeSessions | None = None
        self._blobs: deque[Mapping[str, Any]] = deque(maxlen=KEPT_ORDERS)
        """Digest → reference to what is in Ray's object store, of each of the last orders."""

    @in_group("orders")
    def describe(self, level: Any, cache: str | None, hidden: list[str]) -> dict[str, Any]:
        """Find the place's device, and return the place's facts; this is called first, and once."""
        gpus = ray.get_gpu_ids()
        if self._kind == "cuda":
            os.environ.pop("OMP_NUM_THREADS", None)  # Ray's; a session beside a GPU computes as it does without Ray
        self._device = find_device(self._kind, int(gpus[0]) if gpus and str(gpus[0]).isdigit() else None)
        self._held = NodeSessions(self._device, self._fetch, build_jobs=self._build_jobs)
        return describe_place(self._device, level, cache, hidden).model_dump()

    @in_group("orders")
    def why_not_built(self, solutions: list[dict[str, Any]]) -> list[str | None]:
        """Return what this node lacks for each solution."""
        return why_not_built_here(self._device, map(Solution.model_validate, solutions))

    @in_group("orders")
    def start(self, hello: dict[str, Any]) -> int:
        """Start a session; return its number."""
        return self._sessions.start(hello)

    @in_group("orders")
    def give(self, number: int, order: dict[str, Any], blobs: Mapping[str, Any]) -> None:
        """Give a session an order, with references to the blobs that it needs."""
        if blobs:
            self._blobs.append(blobs)
        self._sessions.give(number, order)

    @in_group("words")
    def take(self, number: int) -> list[dict[str, Any]] | None:
        """Return what a session has said, once it has said something."""
        return self._sessions.take(number, TAKE_S)

    @in_group("orders")
    def end(self, number: int) -> None:
        """End a session; returns when none of its processes is left."""
        self._sessions.end(number)

    @in_group("orders")
    def close(self) -> None:
        """End everything, and remove what was laid out."""
        if self._held is not None:
            self._held.close()

    @property
    def _sessions(self) -> NodeSessions:
        assert self._held is not None  # the host asks for facts first
        return self._held

    def _fetch(self, digest: str) -> Any:
        """Get a blob from Ray's object store."""
        return ray.get(next(blobs[digest] for blobs in reversed(self._blobs) if digest in blobs))
