"""Ctrl-C and SIGTERM during a run: the first signal ends the run, later ones do not cut its clean-up short."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def one_interrupt(stderr: int = 2) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal only, so that a second one cannot cut the clean-up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_stopping = False

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        nonlocal is_stopping
        if is_stopping:
            # Not through sys.stderr: the signal may have interrupted a write to it.
            os.write(stderr, b"stopping: waiting for the processes of this run to end\n")
            return
        is_stopping = True
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
