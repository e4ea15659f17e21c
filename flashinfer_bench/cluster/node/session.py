"""One session on a node: what the host sends is made fit for it, what it says goes to the host as it is.

A block comes with its solutions and blobs. It waits here until all solutions are built, so the host's order stays: a
block, then its beginning. On a CPU nothing is compiled while a block runs, since a compiler would disturb it. What
cannot be built is told when the block begins, as the host expects it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.client import SessionClient
from flashinfer_bench.bench.runner.orders import describe_solution
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution, JobFault
from flashinfer_bench.cluster.node.shelf import BlobShelf
from flashinfer_bench.cluster.words import Parcel, Patience
from flashinfer_bench.compile import BuildFarm
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildFault, WorkloadFault

BUILDING_PATIENCE_S: Final = 120.0
"""Seconds for which the host waits after each word of a node that is building; compilers have a limit of their own."""
WORD_S: Final = 10.0
"""Seconds between two such words."""


class NodeSession:
    """A session of this node and the builds of its blocks. It has no thread: its owner calls `advance`.

    Args:
        client: the session.
        device: its device.
        farm: builds; the owner ends it.
        shelf: has the blobs.
    """

    def __init__(self, client: SessionClient, device: Device, farm: BuildFarm, shelf: BlobShelf) -> None:
        self.client = client
        self._device = device
        self._farm = farm
        self._shelf = shelf
        self._orders: deque[dict[str, Any]] = deque()
        """What the host has sent and the session does not have yet; a block and what comes after it."""
        self._faults: list[JobFault] = []
        """Jobs of the block that is begun next which have no verdict to come."""
        self._jobs = 0
        """How many jobs of that block the session has."""
        self._is_busy = False
        self._last_word_s = 0.0

    def obey(self, order: Mapping[str, Any]) -> None:
        """Take an order of the host's."""
        if "block" in order:
            told = order["parcel"]["solutions"]
            solutions = {key: Solution.model_validate(one) for key, one in told.items()}
            self._farm.add(solutions.values())
            self._orders.append({**order, "solutions": solutions})
        elif "drop" in order and self._orders and "block" in self._orders[-1]:
            self._orders.pop()  # the session has not heard of it
        else:
            self._orders.append(dict(order))

    @property
    def wait_s(self) -> float | None:
        """Seconds after which `advance` has something to do."""
        limits = [self.client.left_s] if self.client.left_s < float("inf") else []
        if self._may_build and self._farm.open_builds:
            limits.append(WORD_S)
        return max(0.0, min(limits)) if limits else None

    def wakers(self) -> list[Any]:
        """Return what tells of builds that have ended."""
        return list(self._farm.wakers()) if self._may_build else []

    def hear(self) -> Iterator[dict[str, Any]]:
        """Yield what the session says; call it when its descriptor can be read."""
        for message in self.client.messages():
            if "done" in message:
                self._is_busy = False
                self._farm.release()
            if "ready" in message or "done" in message:
                self.client.wait_forever()  # the next block may have to be built
            yield message

    def advance(self) -> Iterator[dict[str, Any]]:
        """Build on, pass on what the session can have; yields what the host is to hear."""
        self.client.check_deadline()
        if self._may_build:
            self._farm.poll()
        while self._orders:
            order = self._orders[0]
            if "block" in order:
                if not all(map(self._farm.is_ready, order["solutions"].values())):
                    yield from self._ask_for_patience()
                    return
                self._pass_on(order)
            elif "drop" in order:
                self.client.drop()
            elif self._is_busy:
                return  # as the host tells it: a block is begun when the one before has all its answers
            else:
                yield from self._begin()
            self._orders.popleft()

    @property
    def _may_build(self) -> bool:
        return self._device.kind != "cpu" or not self._is_busy

    def _begin(self) -> Iterator[dict[str, Any]]:
        for fault in self._faults:
            yield {"fault": fault.model_dump()}
        self._faults = []
        if self._jobs:
            self._is_busy = True
            if not self._may_build:
                self._farm.hold()  # compilers of a block that was taken back
            self.client.begin()
        else:
            yield {"done": True}

    def _ask_for_patience(self) -> Iterator[dict[str, Any]]:
        now = time.monotonic()
        if not self._is_busy and now - self._last_word_s >= WORD_S:
            self._last_word_s = now
            yield {"patience": Patience(name="building", limit_s=BUILDING_PATIENCE_S).model_dump()}

    def _pass_on(self, order: Mapping[str, Any]) -> None:
        """Give the session a block whose solutions are built, without the jobs that cannot be judged."""
        block, parcel = BlockOrder.model_validate(order["block"]), Parcel.model_validate(order["parcel"])
        solutions, broken = self._describe(order["solutions"])
        roots: dict[str, Path] = {}
        wrong: dict[str, str] = {}
        for root, files in parcel.blobs.items():
            try:
                roots[root] = self._shelf.lay_out(root, files)
            except (WorkloadFault, OSError) as error:
                wrong[root] = f"the blobs of {root} cannot be laid out on this node: {error}"
        jobs: list[BlockJob] = []
        self._faults = []
        for job in block.jobs:
            reason = parcel.faults.get(job.index) or broken.get(job.solution) or wrong.get(job.blob_root)
            if reason is not None:
                self._faults.append(JobFault(job=job.index, message=reason, retry=False))
            else:
                jobs.append(job.model_copy(update={"blob_root": str(roots.get(job.blob_root, job.blob_root))}))
        self._jobs = len(jobs)
        if jobs:
            self.client.send(block.model_copy(update={"solutions": solutions, "jobs": jobs}))

    def _describe(self, solutions: Mapping[str, Solution]) -> tuple[dict[str, BlockSolution], dict[str, str]]:
        """Return what the session needs to know of solutions, and why others cannot be built here."""
        described: dict[str, BlockSolution] = {}
        broken: dict[str, str] = {}
        for key, solution in solutions.items():
            built = self._farm.built(solution)
            if isinstance(built.error, BuildFault):
                broken[key] = str(built.error)
            else:
                described[key] = describe_solution(built)
        return described, broken
