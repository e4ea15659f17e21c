"""The stored inputs of workloads: resolves a blob path to a file that can be opened. This module downloads no file.

Blob paths come from untrusted data sets, so a file outside the set is refused. The judge opens the files.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

from flashinfer_bench.base.files.reading import POINTER_START, open_to_read
from flashinfer_bench.data.store.fetch_record import missing_command
from flashinfer_bench.data.store.layout import BLOB, own_folders
from flashinfer_bench.errors import WorkloadFault


class BlobMissing(WorkloadFault):
    """A blob path has no file, or only a git-lfs pointer."""


class BlobPointer(BlobMissing):
    """A blob path has only a git-lfs pointer."""


def locate_blob(root: Path, path: str, *, workload: str = "") -> Path:
    """Return the file of a blob path.

    Args:
        root: the root of the workload's set.
        path: the path in the workload, relative to the root.
        workload: the uuid of the workload, for messages.

    Raises:
        WorkloadFault: the path leads out of the set, or the file is missing, not regular, or a git-lfs pointer.
    """
    owner = f" of workload {workload}" if workload else ""
    if not is_inside(path):
        raise WorkloadFault(f"blob {path!r}{owner} leads out of the set; blob paths are relative to its root")
    file = root / path
    what = f"blob {file}{owner}"
    try:
        with os.fdopen(open_to_read(file), "rb") as handle:
            is_pointer = handle.read(len(POINTER_START)) == POINTER_START
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise BlobMissing(f"{what} is not there; run: {missing_command(root)}") from error
        raise WorkloadFault(f"{what} cannot be read: {error.strerror}; check its permissions") from error
    real = file.resolve()
    folders = (*own_folders(root), (root / BLOB).resolve())  # blob/ may be a link to another disk
    if not any(real.is_relative_to(folder) for folder in folders):
        raise WorkloadFault(f"{what} is a link to {real}, outside the set; put the file itself there")
    if is_pointer:
        command = f"git lfs pull --include {path!r}"
        raise BlobPointer(f"{what} is a git-lfs pointer, not the file; run in {root}: {command}")
    return file


def why_missing(root: Path, path: str) -> str | None:
    """Return why a blob is missing: the file does not exist, or is only a git-lfs pointer. Return None if the blob
    exists."""
    try:
        locate_blob(root, path)
    except BlobMissing as fault:
        return str(fault)
    except WorkloadFault:
        pass  # the judge reports it
    return None


def is_inside(path: str) -> bool:
    """Return whether a blob path, as text, stays below the root."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path
