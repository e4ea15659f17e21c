"""Lines of JSON on disk: reading them with their numbers, appending one whole, writing a file whole.

An append takes the file's lock, makes sure that the file ends with a newline, and writes the line in one call. A last
line that was cut off, because a process was killed while it wrote, is moved to `<file>.torn` first. A last line that is
whole but lacks its newline gets one.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import get_ident
from typing import BinaryIO, Final

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, open_locked
from flashinfer_bench.base.files.reading import BLOCK_BYTES, check_size, open_new, open_stream, open_to_append
from flashinfer_bench.data.store.json_text import MOST_JSON_BYTES
from flashinfer_bench.errors import Fault

_BLOCK: Final = 65536
_BOM: Final = b"\xef\xbb\xbf"
_STAGED: Final = 180
"""A staging name begins with this many characters of the file's name."""
MOST_LINES_BYTES: Final = 1 << 30
"""A file of lines with more bytes is refused: its traces would not fit in memory."""
MOST_LINES: Final = 10_000_000
"""The lines of a file beyond this number are not read, blank ones among them."""


def read_lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number (from 1), bytes and whether a newline ends it, of each line that is not blank.

    Raises:
        OSError: the file cannot be read, is no regular file, or it or a line of it is too large.
    """
    number = 0
    with open_stream(path, MOST_LINES_BYTES) as handle:
        for lines, is_ended in _split(handle, path):
            for line in lines:
                number += 1
                if len(line) + is_ended > MOST_JSON_BYTES:
                    raise OSError(errno.EFBIG, f"line {number} has more than {MOST_JSON_BYTES:,} bytes", str(path))
                text = line.strip().removeprefix(_BOM) if number == 1 else line.strip()
                if text:
                    yield number, text, is_ended
            if number > MOST_LINES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_LINES:,} lines", str(path))


def _split(handle: BinaryIO, path: Path) -> Iterator[tuple[list[bytes], bool]]:
    """Yield lines, and whether a newline ends each; of a line that is too long as much as shows it."""
    rest = b""
    total = 0
    while block := handle.read(BLOCK_BYTES):
        total += len(block)
        check_size(total, path, MOST_LINES_BYTES)  # it may grow while it is read
        lines, start = [], 0
        while (end := block.find(b"\n", start)) >= 0:  # `split` looks at each byte, and takes ten times as long
            lines.append(rest + block[start:end])
            rest, start = b"", end + 1
        yield lines, True
        rest += block[start:]
        if len(rest) > MOST_JSON_BYTES:
            break
    if rest:
        yield [rest], False


def append_line(path: Path, line: str) -> None:
    """Append one line, whole or not at all; other processes may append at the same time.

    Raises:
        Fault: the file cannot be written; it is as it was.
    """
    append_lines(path, [line])


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines, all or none of them; other processes may append at the same time."""
    data = b"".join(line.encode() + b"\n" for line in lines)
    if not data:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_locked(path, USUAL_LIMIT_S, flags=os.O_RDWR | os.O_APPEND, mode=0o644)
        try:
            _append(file, path, data)
        finally:
            os.close(file)
    except TimeoutError as error:
        raise Fault(f"cannot append to {path}: {error.strerror}; wait for that process, or end it") from error
    except OSError as error:
        raise Fault(f"cannot append to {path}: {error.strerror}; free space or check the permissions") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file of text so that a reader sees the old one or the new one, never half."""
    write_whole_bytes(path, text.encode())


def write_whole_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name[:_STAGED]}.{os.getpid()}.{get_ident()}.tmp")
    try:
        with os.fdopen(open_new(staging), "wb") as handle:
            handle.write(content)
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def _append(file: int, path: Path, data: bytes) -> None:
    size = os.fstat(file).st_size
    start = _line_start(file, size)
    if size - start > MOST_JSON_BYTES:
        raise OSError(errno.EFBIG, f"its last line has more than {MOST_JSON_BYTES:,} bytes")
    tail = os.pread(file, size - start, start)
    if tail and _is_whole(tail):
        data = b"\n" + data
    elif tail:
        _keep_torn(path, tail)
        os.ftruncate(file, start)
        size = start
    if os.write(file, data) != len(data):
        os.ftruncate(file, size)
        raise OSError(0, "the disk took only part of the line")


def _line_start(file: int, size: int) -> int:
    """Find where the text after the last newline starts; equal to the size when there is none."""
    end = size
    while end > 0:
        if size - end > MOST_JSON_BYTES:
            return end  # too far away: the caller refuses such a line
        begin = max(0, end - _BLOCK)
        newline = os.pread(file, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _is_whole(tail: bytes) -> bool:
    try:
        return isinstance(json.loads(tail), dict)
    except (ValueError, RecursionError):
        return False


def _keep_torn(path: Path, tail: bytes) -> None:
    with os.fdopen(open_to_append(path.with_name(f"{path.name}.torn")), "ab") as torn:
        torn.write(tail + b"\n")
