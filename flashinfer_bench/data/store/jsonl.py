"""Lines of JSON on disk: reading lines with their numbers, atomic appends, and atomic writes of a file.

An append takes the file's lock and writes the line in one call. If the file ends without a newline, the append writes a
newline first. So a truncated line stays a separate line, which readers report.
"""

from __future__ import annotations

import codecs
import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Final

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, locked_file
from flashinfer_bench.base.files.reading import (
    POINTER_START,
    check_size,
    open_stream,
    open_to_read,
    refuse_pointer,
)
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.files.writing import WriteRefused, check_location, open_folder
from flashinfer_bench.errors import DataSetError, Fault

_STAGED: Final = 180
"""Maximum characters that the name of a temporary file takes from the target's name."""
MOST_JSON_BYTES: Final = 32 << 20
"""Largest JSON file or line, in bytes."""
MOST_LINES_BYTES: Final = 1 << 30
"""Largest file of lines, in bytes. The traces of a larger file would not fit in memory."""
MOST_LINES: Final = 10_000_000
"""Largest number of lines that are read, including blank lines."""


def read_lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield each line that is not blank: the number (from 1), the bytes, and whether the line ends with a newline.

    Raises:
        OSError: the file cannot be read or is not regular, or the file or a line is too large.
    """
    number = total = 0
    with open_stream(path, MOST_LINES_BYTES) as handle:
        refuse_pointer(os.pread(handle.fileno(), len(POINTER_START), 0), path)
        while line := handle.readline(MOST_JSON_BYTES + 1):
            number, total = number + 1, total + len(line)
            check_size(total, path, MOST_LINES_BYTES)  # the file may grow during reading
            if len(line) > MOST_JSON_BYTES:
                raise OSError(errno.EFBIG, f"line {number} has more than {MOST_JSON_BYTES:,} bytes", str(path))
            if number > MOST_LINES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_LINES:,} lines", str(path))
            text = line.removeprefix(codecs.BOM_UTF8).strip()  # concatenated files may contain a byte order mark
            if text:
                yield number, text, line.endswith(b"\n")


def append_lines(path: Path, lines: Iterable[str], *, root: Path | None = None) -> None:
    """Append all lines or none. Other processes may append concurrently.

    Args:
        path: the file. Missing folders are made.
        lines: the lines without their newlines.
        root: folder below which no link is followed.

    Raises:
        Fault: the file cannot be written, and is unchanged.
    """
    data = b"".join(line.encode() + b"\n" for line in lines)
    if not data:
        return
    with (
        _faults(f"cannot append to {path}"),
        open_folder(path.parent, root) as folder,
        locked_file(folder, path.name, USUAL_LIMIT_S) as file,
    ):
        _append(file, path, data)


def remove_lines(path: Path, is_unwanted: Callable[[bytes], bool], *, root: Path | None = None) -> int:
    """Remove lines atomically, and return the number of removed lines. A file without remaining lines is deleted. Other
    processes may append concurrently.

    Args:
        is_unwanted: takes a line without its newline; returns whether the line is removed.
        root: folder below which no link is followed.

    Raises:
        Fault: the file cannot be read or written, and is unchanged.
    """
    with _faults(f"cannot remove lines of {path}"):
        if not (path.exists() and any(is_unwanted(line) for _, line, _ in read_lines(path))):
            return 0
        with open_folder(path.parent, root) as folder, locked_file(folder, path.name, USUAL_LIMIT_S):
            lines = [(line, b"\n" if is_ended else b"") for _, line, is_ended in read_lines(path)]
            kept = [line + end for line, end in lines if not is_unwanted(line)]
            if kept:
                write_whole(path, b"".join(kept), root=root)
            else:
                folder.remove(path.name)
    return len(lines) - len(kept)


@contextmanager
def _faults(what: str) -> Iterator[None]:
    """Turn an OSError into a Fault with a hint."""
    try:
        yield
    except OSError as error:
        hints = {WriteRefused: "", TimeoutError: "; wait for that process, or end it"}
        hint = hints.get(type(error), "; free space or check the permissions")
        raise Fault(f"{what}: {error.strerror}{hint}") from error


def check_append(path: Path, root: Path) -> None:
    """Refuse a file that cannot be appended to.

    Raises:
        DataSetError: the file or a folder cannot be written, or a path below the root contains a link.
    """
    try:
        check_location(path, root)
        if path.is_file():
            with os.fdopen(open_to_read(path), "rb") as handle:
                refuse_pointer(handle.read(len(POINTER_START)), path)
    except OSError as error:
        raise DataSetError(f"nothing can be appended to {path}: {error.strerror}") from error


def write_whole(path: Path, content: str | bytes, *, root: Path | None = None) -> None:
    """Write a file atomically, so that a reader gets the old or the new content. Missing folders are made.

    Args:
        path: the file. A link with this name is never followed. It is replaced without a root, and refused with a root.
        root: folder below which no link is followed.

    Raises:
        OSError: the file cannot be written, and is unchanged.
    """
    staging = f".{path.name[:_STAGED]}.{os.getpid()}.{get_ident()}.tmp"
    with open_folder(path.parent, root) as folder:
        folder.find(path.name)  # raises for a link
        try:
            with os.fdopen(folder.open_new(staging), "wb") as handle:
                handle.write(content.encode() if isinstance(content, str) else content)
            os.replace(staging, path.name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(staging, dir_fd=folder.fd)


@contextmanager
def new_folder(folder: Path, root: Path | None = None) -> Iterator[Path]:
    """Yield a staging folder, which gets the name of `folder` when it is complete.

    Args:
        folder: a new or empty folder.
        root: folder below which no link is followed.

    Raises:
        DataSetError: the folder exists and is not empty.
        OSError: the folder cannot be written.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise DataSetError(f"{folder} is there already, and not empty; give a new or empty folder")
    with open_folder(folder.absolute().parent, root) as above:
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name[:60]}.", dir=above.own_path))
        try:
            yield staging
            staging.chmod(0o755)
            os.rename(staging, above.own_path / folder.name)  # noqa: PTH104 - hides that no full folder is replaced
        finally:
            remove_tree(staging)


def _append(file: int, path: Path, data: bytes) -> None:
    refuse_pointer(os.pread(file, len(POINTER_START), 0), path)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        data = b"\n" + data
    if os.write(file, data) != len(data):
        os.ftruncate(file, size)
        raise OSError(0, "the disk took only part of the line")
