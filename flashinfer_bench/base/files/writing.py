"""Opens files to write. Below a root with untrusted content, no link leads a write out of the root.

A trace set may come from a stranger. Its root and the folders above it may be links, since the user named them. Below
the root, each folder is opened relative to its parent's descriptor, and no link is followed. So no write leaves the
root even if a folder is replaced by a link meanwhile. A file is refused if it is not regular, or has further names
(hard links). A refusal is a `WriteRefused`; its `strerror` names the target of the link. Every writer below a root
opens its files here.

This is no sandbox: it does not limit other programs. A folder that is moved away while open still receives the writes.
Reading follows links, see `reading.py`. Without a root, the path is the user's own choice, and links are followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import refuse_strange

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_PLAIN: Final = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class WriteRefused(OSError):
    """A write would leave its root, or change a file that has other names."""


@dataclass(frozen=True)
class OpenFolder:
    """A folder in which files are written."""

    path: Path
    """Its path, for messages."""
    fd: int
    root: Path | None
    """No link is followed below this folder. None: links are followed."""

    @property
    def own_path(self) -> Path:
        """A path of the open folder, for libraries that take paths; valid while the folder is open."""
        return Path(f"/proc/self/fd/{self.fd}")

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Open a regular file of the folder without waiting, and return its descriptor.

        Raises:
            OSError: it cannot be opened, or is no regular file.
            WriteRefused: it is a link, or has further names.
        """
        self._refuse(self.find(name), name)
        flags |= _PLAIN if self.root is None else _PLAIN | os.O_NOFOLLOW
        try:
            fd = os.open(name, flags, mode, dir_fd=self.fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from None
        try:
            self._refuse(os.fstat(fd), name)  # another process may have replaced the file
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_new(self, name: str, mode: int = 0o666) -> int:
        """Make a new file and return its descriptor; an existing file of this name is removed."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a file of the folder.

        Raises:
            OSError: it is missing, or cannot be removed.
            WriteRefused: it is a link, and there is a root.
        """
        self.find(name)
        os.unlink(name, dir_fd=self.fd)

    def find(self, name: str) -> os.stat_result | None:
        """Return the `stat` of a file; None if it is missing.

        Raises:
            WriteRefused: it is a link, and there is a root.
        """
        try:
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=self.root is None)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(found.st_mode):
            raise _refuse_link(self.path / name, self.root, "file")
        return found

    def is_file(self, name: str, fd: int) -> bool:
        """Return whether an open file still has this name."""
        found = self.find(name)
        return found is not None and os.path.samestat(os.fstat(fd), found)

    def _refuse(self, found: os.stat_result | None, name: str) -> None:
        if found is None:
            return
        refuse_strange(found, self.path / name)
        if self.root is not None and found.st_nlink > 1:
            said = f"it is one file with {found.st_nlink} names (hard links), of which others may lie outside"
            raise WriteRefused(errno.EMLINK, f"{said}; put a copy in its place", str(self.path / name))


@contextmanager
def open_folder(
    folder: Path, root: Path | None = None, *, makes: bool = True, mode: int = 0o777
) -> Iterator[OpenFolder]:
    """Open a folder for a block.

    Args:
        folder: the path of the folder; if a root is given, it is below the root.
        root: links below this folder are not followed.
        makes: make missing folders.
        mode: the mode of new folders.

    Raises:
        OSError: it cannot be opened or made.
        WriteRefused: a link below the root is on the path.
    """
    top = folder if root is None else root
    if makes:
        top.mkdir(parents=True, exist_ok=True, mode=mode)
    current, here = os.open(top, _FOLDER), top
    try:
        for part in folder.relative_to(top).parts:
            here /= part
            below = _open_part(current, here, root, mode if makes else None)
            os.close(current)
            current = below
        yield OpenFolder(folder, current, root)
    finally:
        os.close(current)


def _open_part(parent: int, path: Path, root: Path | None, mode: int | None) -> int:
    if path.name == "..":
        raise WriteRefused(errno.EINVAL, "it leads up", str(path))
    if mode is not None:
        with suppress(FileExistsError):
            os.mkdir(path.name, mode, dir_fd=parent)
    try:
        return os.open(path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if isinstance(error, NotADirectoryError) and path.is_symlink():
            raise _refuse_link(path, root, "folder") from None
        raise OSError(error.errno, error.strerror, str(path)) from None


def _refuse_link(path: Path, root: Path | None, kind: str) -> WriteRefused:
    said = f"{path} is a link to {os.path.realpath(path)}, and no write below {root} follows a link"
    return WriteRefused(errno.ELOOP, f"{said}; put the {kind} itself there", str(path))


def check_location(path: Path, root: Path | None) -> None:
    """Raise if a file could not be written at a path. Make and write no file.

    Raises:
        OSError: the existing file, or the deepest existing folder above it, cannot be written.
        WriteRefused: a link below the root is on the path, or the file is a link.
    """
    above = next(folder for folder in path.parents if os.path.lexists(folder))
    below = root if root is not None and above.is_relative_to(root) else None
    with open_folder(above, below, makes=False) as folder:
        if above == path.parent and folder.find(path.name) is not None:
            os.close(folder.open(path.name, os.O_WRONLY))
        elif not os.access(folder.own_path, os.W_OK):
            raise PermissionError(errno.EACCES, f"nothing can be written into {above}", str(above))


def open_new(path: Path, mode: int = 0o666) -> int:
    """Make a new file and return its descriptor; an existing file of this name is removed.

    Raises:
        OSError: it cannot be made.
    """
    with open_folder(path.parent, makes=False) as folder:
        return folder.open_new(path.name, mode)


def open_to_replace(path: Path, *, root: Path | None = None) -> int:
    """Open a file for replacing its content; return its descriptor. A missing file and its folders are made.

    Without a root, the path may lead to a device or a pipe.

    Raises:
        OSError: it cannot be opened.
        WriteRefused: a link below the root is on the path, or the file is a link.
    """
    with open_folder(path.parent, root) as folder:
        if root is None:
            return os.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666, dir_fd=folder.fd)
        fd = folder.open(path.name, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(fd, 0)
        return fd
