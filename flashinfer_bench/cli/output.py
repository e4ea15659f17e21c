"""The two streams of the command line: results to stdout, everything else to stderr.

A reader that goes away (`| head`) is no error.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO


def write_out(text: str) -> None:
    """Write a result to stdout."""
    _write(sys.stdout, text)


def write_err(line: str) -> None:
    """Write one line to stderr."""
    _write(sys.stderr, line + "\n")


def write_problems(message: str, *, label: str = "error") -> None:
    """Write each line of a message as a problem of its own; indented lines belong to the one above."""
    for line in message.splitlines():
        if line.strip():
            write_err(line if line[0].isspace() else f"{label}: {line}")


def tolerate_narrow_encodings() -> None:
    """Let a terminal that cannot show a character show a question mark instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # What is still buffered would raise again when Python closes the stream.
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
