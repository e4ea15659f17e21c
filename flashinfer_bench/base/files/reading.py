"""Opens files to read. A path may lead to a pipe, a device or an endless file.

No function here waits: a pipe or a device is refused, and so is a file that is larger than the reader allows. Errors
are OSErrors whose `strerror` is a sentence. Links are followed, since data sets are often made of links; their targets
are checked. Imports no other module of the package.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

OWN_DESCRIPTORS: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Prefixes of paths to descriptors that the user gave to this process, such as a pipe of a shell's `<(command)`. Files
of any kind are read below these prefixes. No walk over a data set ever makes such a path."""
BLOCK_BYTES: Final = 1 << 20
"""Read at most this many bytes at once."""
POINTER_START: Final = b"version https://git-lfs.github.com/spec/"
"""First bytes of a git-lfs pointer, which stands for a file that was not fetched."""
KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_to_read(path: Path | str) -> int:
    """Open a regular file without waiting; return its descriptor.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    if str(path).startswith(OWN_DESCRIPTORS):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    refuse_strange(Path(path).stat(), path)  # opening a device may have side effects
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        refuse_strange(os.fstat(fd), path)  # another process may have replaced the file
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_whole(path: Path | str, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, is a git-lfs pointer, or holds more than `most_bytes`.
    """
    content = bytearray()
    with open_stream(path, most_bytes) as handle:
        while block := os.read(handle.fileno(), BLOCK_BYTES):
            content += block
            check_size(len(content), path, most_bytes)  # the file may grow while it is read
    refuse_pointer(content, path)
    return bytes(content)


def open_stream(path: Path | str, most_bytes: int) -> BinaryIO:
    """Open a regular file for reading it part by part.

    Raises:
        OSError: it cannot be read, is no regular file, or holds more than `most_bytes`.
    """
    handle = os.fdopen(open_to_read(path), "rb", BLOCK_BYTES)
    try:
        check_size(os.fstat(handle.fileno()).st_size, path, most_bytes)
    except BaseException:
        handle.close()
        raise
    return handle


def refuse_strange(found: os.stat_result, path: Path | str) -> None:
    """Raise OSError unless the file is regular."""
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in KINDS if is_kind(found.st_mode)), "something strange")
        raise OSError(errno.EINVAL, f"this is {kind}, and no regular file", str(path))


def refuse_pointer(start: bytes | bytearray, path: Path | str) -> None:
    """Raise OSError if the file begins like a git-lfs pointer."""
    if start.startswith(POINTER_START):
        said = "this is a git-lfs pointer, not the file; run `git lfs pull` in its repository"
        raise OSError(errno.EINVAL, said, str(path))


def check_size(size: int, path: Path | str, most_bytes: int) -> None:
    """Raise OSError for a size that is larger than allowed."""
    if size > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
