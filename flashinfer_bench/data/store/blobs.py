"""The stored inputs of workloads: from a blob path to a file that can be opened. Nothing is fetched.

Paths come from data sets and are not trusted: a file outside the set is never given out. The judge opens them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import POINTER_START, open_to_read, refuse_strange
from flashinfer_bench.data.store.checks import is_inside
from flashinfer_bench.data.store.layout import BLOB, own_folders
from flashinfer_bench.errors import WorkloadFault

_POINTER_MAX_BYTES: Final = 1024


class BlobStore:
    """The blobs under one root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def locate(self, path: str, *, workload: str = "") -> Path:
        """Return the file of a blob path, ready to be opened.

        Args:
            path: as a workload gives it, relative to the root.
            workload: its uuid, for messages.

        Raises:
            WorkloadFault: the path leads out of the set, or the file is missing, strange or a git-lfs pointer.
        """
        owner = f" of workload {workload}" if workload else ""
        if not is_inside(path):
            raise WorkloadFault(f"blob {path!r}{owner} leads out of the set; blob paths are relative to its root")
        file = self.root / path
        what = f"blob {file}{owner}"
        try:
            refuse_strange(file.stat(), file)
            is_pointer = _is_pointer(file)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                raise WorkloadFault(f"{what} is not there; download the blob/ folder of the data set") from error
            raise WorkloadFault(f"{what} cannot be read: {error.strerror}; check its permissions") from error
        real = file.resolve()
        folders = (*own_folders(self.root), (self.root / BLOB).resolve())  # blob/ may be a link to another disk
        if not any(real.is_relative_to(folder) for folder in folders):
            raise WorkloadFault(f"{what} is a link to {real}, outside the set; put the file itself there")
        if is_pointer:
            command = f"git lfs pull --include {path!r}"
            raise WorkloadFault(f"{what} is a git-lfs pointer, not the file; run in {self.root}: {command}")
        return file

    def is_missing(self, path: str) -> bool:
        """Tell whether there is nothing at a blob path, or a git-lfs pointer."""
        return is_inside(path) and (not _is_file(self.root / path) or self.is_pointer(path))

    def is_pointer(self, path: str) -> bool:
        """Tell whether a git-lfs pointer lies at a blob path."""
        try:
            return is_inside(path) and _is_pointer(self.root / path)
        except OSError:
            return False

    def why_not_ready(self, path: str) -> str | None:
        """Say why a blob could not be opened as it is now; None if it could."""
        try:
            self.locate(path)
        except WorkloadFault as fault:
            return str(fault)
        return None


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False


def _is_pointer(file: Path) -> bool:
    if file.stat().st_size > _POINTER_MAX_BYTES:
        return False
    fd = open_to_read(file)
    try:
        return os.read(fd, len(POINTER_START)) == POINTER_START
    finally:
        os.close(fd)
