"""Jobs that runs of one set have reserved, so that a second run at the same time leaves them out.

A run writes the digests of its jobs to a file in `.runs/` below the set's root, and holds the file's flock(2) until it
ends. The kernel frees the lock of a run that is killed; the next run removes its file. A set that cannot be written to
has no reservations.

Format of a file: the run's process id, then a job's digest a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, try_lock, wait_for_lock
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.bench.planning.plan import Job

_log = logging.getLogger(__name__)
FOLDER: Final = ".runs"


class Reservation:
    """The jobs that one run has reserved in one set. Empty until `reserve`.

    Args:
        root: folder of the set.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._folder: int | None = None
        self._file: int | None = None

    def reserve(self, jobs: Iterable[Job]) -> dict[int, str]:
        """Reserve the jobs that no other run has reserved.

        Returns:
            The others, as the job's index → the process that judges it.
        """
        wanted = {_digest(job): job.index for job in jobs}
        try:
            return self._reserve(wanted)
        except OSError as error:
            _log.warning("another run of this set at the same time would judge its jobs again: %s", error)
            self.release()
            return {}

    def release(self) -> None:
        """Give the jobs up."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)
        with contextlib.suppress(OSError):
            (self._root / FOLDER).rmdir()  # where no other run has a file in it
        for descriptor in (self._file, self._folder):
            if descriptor is not None:
                os.close(descriptor)
        self._folder = self._file = None

    def _reserve(self, wanted: dict[str, int]) -> dict[int, str]:
        path = self._root / FOLDER
        with open_folder(path, self._root) as folder:
            self._folder = os.open(folder.own_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        wait_for_lock(self._folder, path, USUAL_LIMIT_S)
        try:
            taken = self._read_others()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._name, flags, 0o600, dir_fd=self._folder)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            lines = [str(os.getpid()), *(digest for digest in wanted if digest not in taken)]
            with os.fdopen(os.dup(self._file), "w") as out:
                out.write("\n".join(lines))
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)
        return {wanted[digest]: process for digest, process in taken.items() if digest in wanted}

    def _read_others(self) -> dict[str, str]:
        """Return the digests that runs have reserved, each with the run's process; forget runs that have ended."""
        found: dict[str, str] = {}
        for name in os.listdir(self._folder):  # noqa: PTH208 - pathlib knows no descriptors
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with contextlib.suppress(OSError), os.fdopen(os.open(name, flags, dir_fd=self._folder)) as file:
                if try_lock(file.fileno()):
                    os.unlink(name, dir_fd=self._folder)
                    continue
                process, *digests = file.read().split()
                found |= dict.fromkeys(digests, process)
        return found


def _digest(job: Job) -> str:
    names = (job.definition.name, job.solution.name, job.workload.uuid)
    text = json.dumps([names, sorted(job.fingerprint.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
