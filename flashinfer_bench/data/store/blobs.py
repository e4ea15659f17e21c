"""The stored inputs of workloads: from a blob path to a file that can be opened, fetched by git-lfs where need be.

Paths come from data sets and are not trusted: a file outside the set is never given out. The judge opens them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.locks import locked_folder
from flashinfer_bench.base.files.reading import POINTER_START, open_to_read, refuse_strange
from flashinfer_bench.data.store.checks import is_inside
from flashinfer_bench.data.store.git_lfs import fetch_with_git_lfs
from flashinfer_bench.data.store.layout import BLOB
from flashinfer_bench.data.store.ownership import own_folders
from flashinfer_bench.errors import WorkloadFault

_POINTER_MAX_BYTES: Final = 1024
FETCH_WAIT_S: Final = 3600.0
"""How many seconds to wait while other processes fetch files of the same set, one after the other."""

Fetch = Callable[[Path, str], "str | None"]
"""Fetches one file (root, relative path); returns why it could not, None when it did."""


class BlobStore:
    """The blobs under one root."""

    def __init__(self, root: Path | str, *, fetch: Fetch = fetch_with_git_lfs) -> None:
        self.root = Path(root)
        self._fetch = fetch

    def locate(self, path: str, *, workload: str = "") -> Path:
        """Return the file of a blob path, ready to be opened.

        Args:
            path: as a workload gives it, relative to the root.
            workload: its uuid, for messages.

        Raises:
            WorkloadFault: the path leads out of the set, the file is missing, or it could not be fetched.
        """
        owner = f" of workload {workload}" if workload else ""
        file = self._find(path, owner)
        if _is_pointer(file):
            try:
                with locked_folder(self.root, FETCH_WAIT_S):
                    self._fetch_pointer(file, path, owner)
            except TimeoutError as error:
                raise WorkloadFault(f"blob {file}{owner} cannot be fetched: {self.root}: {error.strerror}") from error
        return file

    def is_missing(self, path: str) -> bool:
        """Tell whether there is nothing at a blob path, which is looked at no further. Nothing is fetched."""
        try:
            return is_inside(path) and not _is_file(self.root / path) and not _is_strange(self.root / path)
        except WorkloadFault:
            return False  # nobody can say

    def is_pointer(self, path: str) -> bool:
        """Tell whether a git-lfs pointer lies at a blob path."""
        try:
            return _is_pointer(self._find(path, ""))
        except WorkloadFault:
            return False

    def why_not_ready(self, path: str) -> str | None:
        """Say why a blob could not be opened as it is now; None where it could. Nothing is fetched."""
        try:
            file = self._find(path, "")
            return f"blob {file} is a git-lfs pointer, not the file; a run fetches it" if _is_pointer(file) else None
        except WorkloadFault as fault:
            return str(fault)

    def _find(self, path: str, owner: str) -> Path:
        if not is_inside(path):
            raise WorkloadFault(f"blob {path!r}{owner} leads out of the set; blob paths are relative to its root")
        file = self.root / path
        if not _is_file(file) and _is_strange(file):
            raise WorkloadFault(f"blob {file}{owner} is a pipe, a device or a socket, and no regular file")
        if not _is_file(file):
            raise WorkloadFault(f"blob {file}{owner} is not there; download the blob/ folder of the data set")
        real = file.resolve()
        if not any(real.is_relative_to(folder) for folder in self._own_folders()):
            raise WorkloadFault(f"blob {file}{owner} is a link to {real}, outside the set; put the file itself there")
        return file

    def _own_folders(self) -> Iterator[Path]:
        """Yield where files of the set may lie: a blob/ folder on another disk and a Hugging Face cache are links."""
        yield from own_folders(self.root)
        yield (self.root / BLOB).resolve()

    def _fetch_pointer(self, file: Path, path: str, owner: str) -> None:
        """Put the file in the place of a pointer; the caller holds the folder's lock."""
        if not _is_pointer(file):  # another process fetched it while we waited
            return
        reason = self._fetch(self.root, str(Path(path)))
        if reason is None and _is_pointer(file):
            reason = "git lfs pull left it as it is; is the set a git clone with its remote?"
        if reason is not None:
            raise WorkloadFault(f"blob {file}{owner} is a git-lfs pointer, not the file: {reason}")


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise WorkloadFault(f"blob {file} cannot be looked up: {error.strerror}") from error


def _is_strange(file: Path) -> bool:
    try:
        refuse_strange(file.stat(), file)
    except OSError as error:
        return error.errno == errno.EINVAL and not file.is_dir()
    return False


def _is_pointer(file: Path) -> bool:
    try:
        if file.stat().st_size > _POINTER_MAX_BYTES:
            return False
        fd = open_to_read(file)
        try:
            return os.read(fd, len(POINTER_START)) == POINTER_START
        finally:
            os.close(fd)
    except OSError as error:
        raise WorkloadFault(f"blob {file} cannot be read: {error.strerror}; check its permissions") from error
