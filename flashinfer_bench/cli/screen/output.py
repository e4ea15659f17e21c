"""The two streams of the command line: results to stdout, everything else to stderr.

A reader that goes away (`| head`) is no error, nor is a stream that was closed before the start (`>&-`). If stderr
cannot be written, the work goes on without it. If stdout cannot be written, that is a fault.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Final, TextIO

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.errors import Fault

STDOUT: Final = 1
STDERR: Final = 2


def write_out(text: str) -> None:
    """Write a result to stdout; on a terminal control characters in it are shown as escapes.

    Raises:
        Fault: it cannot be written, as on a full disk.
    """
    reason = _write(sys.stdout, _show_lines(text) if sys.stdout.isatty() else text)
    if reason is not None:
        raise Fault(f"stdout cannot be written: {reason}")


def write_err(line: str) -> None:
    """Write one line to stderr; control characters in it are shown as escapes."""
    _write(sys.stderr, _show_lines(line) + "\n")


def write_problems(message: str, *, label: str = "error") -> None:
    """Write each line of a message as a problem of its own. An indented line belongs to the line above."""
    for line in message.split("\n"):
        if line.strip():
            write_err(line if line[0].isspace() else f"{label}: {line}")


def open_closed_streams() -> None:
    """Open streams that were closed before the start on os.devnull. Else the next opened file would become stdout."""
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def tolerate_narrow_encodings() -> None:
    """Write a question mark for a character that the terminal cannot show, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _show_lines(text: str) -> str:
    """Return text that steers no terminal, in its lines."""
    return "\n".join(map(to_printable, text.split("\n")))


def _write(stream: TextIO, text: str) -> str | None:
    """Write and flush. Return the reason of a failure, but None where only the reader has gone away."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # What is still buffered would raise again when Python closes the stream.
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.suppress(OSError):
            os.dup2(nowhere.fileno(), stream.fileno())
        return None if isinstance(error, BrokenPipeError) else error.strerror or str(error)
    return None
