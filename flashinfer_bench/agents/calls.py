"""Calls of tools, each in its own process. A caller can wait for a call in steps, and cancel it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from pkgutil import resolve_name
from threading import Thread
from typing import Any, Final

from flashinfer_bench.base.bounded_log import bound_text
from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.isolated import Isolated, IsolatedFailure

TAIL_BYTES: Final = 5000
"""Bytes kept of an answer's end. The kept beginning and end together have less than 10 kB."""


class Call:
    """A call of a tool, in a process that ends with this one.

    Args:
        tool: a module's function that returns a text.
        limit_s: seconds until the process is ended.
    """

    def __init__(self, tool: Callable[..., str], arguments: dict[str, Any], limit_s: float) -> None:
        self._process = Isolated(__name__, [f"{tool.__module__}:{tool.__name__}", arguments])
        self._started = time.monotonic()
        self.answer: Future[str] = Future()
        Thread(target=self._wait, args=(limit_s,), daemon=True).start()

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._started

    def describe_progress(self) -> str:
        """Return the last line of the call's progress."""
        with contextlib.suppress(OSError, ValueError):  # it has ended, and its log is closed
            return self._process.read_log().rpartition("\n")[2]
        return ""

    def cancel(self) -> None:
        """Kill the process of a call that has not ended."""
        if not self.answer.done():
            self._process.signal(signal.SIGKILL)

    def _wait(self, limit_s: float) -> None:
        try:
            text = self._process.wait(limit_s)
        except IsolatedFailure as failure:
            end = f"took more than {limit_s:g} s" if failure.code is None else describe_exit(failure.code)
            text = f"ERROR: the call {end}\n{failure.log}"
        self._process.end()
        self.answer.set_result(bound_text(text, tail_bytes=TAIL_BYTES))


def answer(request: tuple[str, dict[str, Any]]) -> Any:
    """Call a tool, in the process of a `Call`."""
    name, arguments = request
    try:
        return resolve_name(name)(**arguments)
    except (OSError, ValueError) as error:  # a text is too long, or has a character that no file name allows
        return f"ERROR: {error}"
