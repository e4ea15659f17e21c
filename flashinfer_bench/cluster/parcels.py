"""What travels with a block: its solutions whole, since each node builds its own, and digests of its stored inputs."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.runner.protocol import BlockOrder
from flashinfer_bench.cluster.words import Parcel
from flashinfer_bench.compile import Built
from flashinfer_bench.compile.artifact import mark_of
from flashinfer_bench.data import Solution, Workload
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.errors import WorkloadFault

MOST_KEPT: Final = 8192
"""How many solutions the host keeps for sending: twice as many as a block may have jobs."""
READ_BYTES: Final = 1 << 22
"""Bytes of a file that are read at once for its digest."""


class TravellingSources:
    """Stands where a run on one machine has its farm. It builds nothing, and keeps solutions of blocks for sending."""

    def __init__(self) -> None:
        self._solutions: OrderedDict[str, Solution] = OrderedDict()

    @property
    def jobs(self) -> int:
        """Say that no compiler runs here."""
        return 0

    @property
    def open_builds(self) -> int:
        """Say that nothing waits for a compiler here."""
        return 0

    def add(self, solutions: Iterable[Solution]) -> None:
        """Take solutions: they are built where they run."""

    def forget(self, solution: Solution) -> None:
        """Do nothing: a block that holds it may still have to be packed; others push it out."""

    def poll(self) -> list[Built]:
        """Say that nothing was built."""
        return []

    def wakers(self) -> list[Any]:
        """Say that there is nothing to wait on."""
        return []

    def is_ready(self, _solution: Solution) -> bool:
        """Say that a solution can be sent."""
        return True

    def built(self, solution: Solution) -> Built:
        """Keep a solution for the block that it goes into; what comes of its build is the node's to say."""
        digest = solution.digest()
        self._solutions[digest] = solution
        self._solutions.move_to_end(digest)
        while len(self._solutions) > MOST_KEPT:
            self._solutions.popitem(last=False)
        return Built(solution, None, None, 0.0, was_cached=False)

    def find(self, digest: str) -> Solution:
        """Return a solution that was kept."""
        return self._solutions[digest]

    def __enter__(self) -> TravellingSources:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Keep everything: another run may follow."""


class Packer:
    """Makes parcels; usable from several threads.

    Args:
        sources: have the solutions.
        offer: makes the content of a file available to nodes, and returns what they get it by.
        has_shared_blobs: all nodes see the host's files under the same paths, so no blob travels.
    """

    def __init__(
        self, sources: TravellingSources, offer: Callable[[str, Path], Any], *, has_shared_blobs: bool
    ) -> None:
        self._sources = sources
        self._offer = offer
        self._has_shared_blobs = has_shared_blobs
        self._digests: dict[Path, tuple[tuple[int, ...], str]] = {}
        """File → what tells that it is unchanged, and its digest."""
        self._lock = threading.Lock()

    def pack(self, block: BlockOrder) -> tuple[Parcel, dict[str, Any]]:
        """Make the parcel of a block; return it, and digest → what nodes get the file by."""
        found = {key: self._sources.find(one.digest) for key, one in block.solutions.items()}
        # Equal sources may bear several names: the block says which one is meant.
        solutions = {
            key: one.model_copy(update={"name": block.solutions[key].name}).model_dump(mode="json", exclude_unset=True)
            for key, one in found.items()
        }
        blobs: dict[str, dict[str, str]] = {}
        faults: dict[int, str] = {}
        offered: dict[str, Any] = {}
        for job in [] if self._has_shared_blobs else block.jobs:
            workload = Workload.model_validate(job.workload)
            for source in workload.stored_inputs.values():
                try:
                    file = BlobStore(job.blob_root).locate(source.path, workload=workload.uuid)
                    digest = self._digest(file)
                    if digest not in offered:
                        offered[digest] = self._offer(digest, file)
                    blobs.setdefault(job.blob_root, {})[source.path] = digest
                except (WorkloadFault, OSError) as fault:
                    faults[job.index] = str(fault)
        return Parcel(solutions=solutions, blobs=blobs, faults=faults), offered

    def _digest(self, file: Path) -> str:
        with self._lock:  # one thread reads a large file, and the others use what it found
            mark = mark_of(file)
            known = self._digests.get(file)
            if known is None or known[0] != mark:
                known = self._digests[file] = mark, digest_file(file)
            return known[1]


def digest_file(file: Path) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(READ_BYTES):
            digest.update(part)
    return digest.hexdigest()
