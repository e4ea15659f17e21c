"""Text, and the output of a process, in bounded memory: the head and the tail, with the cut marked."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 4096
TAIL_BYTES: Final = 8192


def bound_text(text: str, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> str:
    """Return the first and the last bytes of a text, with the cut marked."""
    log = BoundedLog(head_bytes=head_bytes, tail_bytes=tail_bytes)
    log.add(text.encode())
    return log.take()


class BoundedLog:
    """Takes any number of bytes; keeps the first HEAD_BYTES and the last TAIL_BYTES."""

    def __init__(self, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = self._tail = b""
        self._total = 0

    def add(self, data: bytes) -> None:
        """Take bytes that were read from the stream."""
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self._tail_bytes :]
        self._total += len(data)

    def take(self) -> str:
        """Return the output kept since the last call, and forget it."""
        cut = self._total - len(self._head) - len(self._tail)
        middle = f"\n[... {cut} bytes cut ...]\n".encode() if cut > 0 else b""
        text = (self._head + middle + self._tail).decode("utf-8", "replace")
        self._head = self._tail = b""
        self._total = 0
        return text
