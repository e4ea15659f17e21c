"""Jobs that runs of one set have reserved, so that a second run at the same time skips them.

A run writes the digests of its jobs to a file in `.runs/` below the set's root, and holds the file's flock(2) until it
ends. The kernel frees the lock of a killed run; the next run removes its file. A set that cannot be written has no
reservations. Workloads are reserved, too, so that only one run confirms the best of a workload.

Format of a file: the run's process id, then one line for each job or workload, with its digest.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, locked_folder, try_lock
from flashinfer_bench.base.files.writing import OpenFolder, open_folder
from flashinfer_bench.bench.confirm import Scope, scope_of
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data import Solution
from flashinfer_bench.data.digest import digest_of

_log = logging.getLogger(__name__)
FOLDER: Final = ".runs"


class Reservation:
    """The jobs that one run has reserved.

    Args:
        jobs: the jobs of the run.
        done: recorded jobs. The run may confirm their winners.
        root_of: returns the folder of a solution's set; None for a set in memory.
    """

    def __init__(self, jobs: Sequence[Job], done: Sequence[Job], root_of: Callable[[Solution], Path | None]) -> None:
        self._held = contextlib.ExitStack()
        self.taken: dict[int | Scope, str] = {}
        """Index of a job, or a workload, that another run has reserved → that run's process."""
        wanted: defaultdict[Path, dict[str, int | Scope]] = defaultdict(dict)
        for job in jobs:
            if (root := root_of(job.solution)) is not None:
                wanted[root][_digest(job)] = job.index
        for root, scope in dict.fromkeys((root_of(job.solution), scope_of(job)) for job in (*jobs, *done)):
            if root is not None:
                wanted[root][digest_of(["best", *scope])[:32]] = scope
        for root, digests in wanted.items():
            try:
                self._reserve(root, digests)
            except OSError as error:
                _log.warning("another run of this set at the same time would judge its jobs again: %s", error)

    def release(self) -> None:
        """Release the jobs."""
        self._held.close()

    def _reserve(self, root: Path, wanted: dict[str, int | Scope]) -> None:
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        folder = self._held.enter_context(open_folder(root / FOLDER, root))

        def leave() -> None:
            with contextlib.suppress(OSError):  # the folder stays while another run has a file in it
                os.unlink(name, dir_fd=folder.fd)
                folder.path.rmdir()

        self._held.callback(leave)
        with locked_folder(folder.path, USUAL_LIMIT_S):
            others = _read_others(folder)
            file = self._held.enter_context(os.fdopen(folder.open_new(name, 0o600), "w"))
            try_lock(file.fileno())
            file.write("\n".join([str(os.getpid()), *(digest for digest in wanted if digest not in others)]))
            file.flush()
        self.taken |= {wanted[digest]: process for digest, process in others.items() if digest in wanted}


def _read_others(folder: OpenFolder) -> dict[str, str]:
    """Return the digests that runs have reserved, each with the run's process; forget runs that have ended."""
    result: dict[str, str] = {}
    for name in (path.name for path in folder.own_path.iterdir()):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with contextlib.suppress(OSError), os.fdopen(os.open(name, flags, dir_fd=folder.fd)) as file:
            if try_lock(file.fileno()):
                os.unlink(name, dir_fd=folder.fd)
                continue
            process, *digests = file.read().split()
            result |= dict.fromkeys(digests, process)
    return result


def _digest(job: Job) -> str:
    names = [job.definition.name, job.solution.name, job.workload.uuid]
    return digest_of([names, sorted(job.fingerprint.items())])[:32]
