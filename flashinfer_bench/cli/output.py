"""The output streams, exit codes, log, and Ctrl-C of the command line.

Results go to stdout, everything else to stderr.

A reader that closes a pipe early (`| head`) causes no error. A stream that was closed before the start (`>&-`) causes
no error. If stderr cannot be written, the command continues without it. A failed write to stdout is a Fault.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.errors import Fault

RAN: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as in shells. Each error class in `errors` has its own exit code."""
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
USUAL_LEVEL: Final = "WARNING"
HANDLER: Final = logging.StreamHandler()
"""The handler of the log. A handler that the caller of `cli()` has added replaces this handler."""


def write_out(text: str) -> None:
    """Write a result to stdout. On a terminal, control characters are shown as escapes.

    Raises:
        Fault: the result cannot be written, for example on a full disk.
    """
    reason = _write(sys.stdout, _show_lines(text) if sys.stdout.isatty() else text)
    if reason is not None:
        raise Fault(f"stdout cannot be written: {reason}")


def write_json(document: object) -> None:
    """Write a result to stdout as JSON."""
    write_out(json.dumps(document, indent=2, allow_nan=False) + "\n")


def write_err(*lines: str) -> None:
    """Write lines to stderr. Control characters are shown as escapes."""
    for line in lines:
        _write(sys.stderr, _show_lines(line) + "\n")


def write_problems(message: str) -> None:
    """Write each line of a message as a separate error. An indented line belongs to the line above."""
    for line in message.split("\n"):
        if line.strip():
            write_err(line if line[0].isspace() else f"error: {line}")


def open_streams() -> None:
    """Redirect streams that were closed before the start to os.devnull. Without this, the next opened file would become
    stdout.

    Question marks replace characters that the terminal cannot show.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))  # open() takes the lowest free number
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def start_log(argv: Sequence[str]) -> None:
    """Send the package's log to stderr, from `--log-level` upward. The parser reports a wrong level later."""
    named = re.findall(rf"--log[-_]level[ =]({'|'.join(LEVELS)})\b", " ".join(argv), re.IGNORECASE)
    logger = logging.getLogger("flashinfer_bench")
    logger.setLevel(named[-1].upper() if named else USUAL_LEVEL)
    HANDLER.stream = sys.stderr  # an earlier command in this process may have had another stderr
    if not logger.handlers:
        HANDLER.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(HANDLER)


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt only at the first Ctrl-C or SIGTERM, so that a second signal cannot stop the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def wait(*_: object) -> None:
        os.write(2, b"stopping: waiting for the processes of this run to end\n")  # sys.stderr may be locked

    def interrupt(*_: object) -> None:
        for number in before:
            signal.signal(number, wait)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_lines(text: str) -> str:
    """Return text with escapes instead of control characters, except line ends."""
    return "\n".join(map(to_printable, text.split("\n")))


def _write(stream: TextIO, text: str) -> str | None:
    """Write and flush. Return the reason of a failure; None for success, and for a pipe that the reader has closed."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # Otherwise the buffered text would raise again when Python closes the stream.
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.suppress(OSError):
            os.dup2(nowhere.fileno(), stream.fileno())
        return None if isinstance(error, BrokenPipeError) else error.strerror or str(error)
    return None
