"""Waits for one descriptor, whatever its number: select(2) takes none above 1023, and a server has more connections."""

from __future__ import annotations

import selectors
from typing import Protocol


class HasDescriptor(Protocol):
    """A socket, a file, or another thing with a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


def wait_readable(source: HasDescriptor | int, limit_s: float | None = None) -> bool:
    """Wait until something can be read, or the other end is closed; say whether that came before the limit."""
    with selectors.PollSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(limit_s))
