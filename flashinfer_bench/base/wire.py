"""Frames: the messages between our processes.

A frame is a 4-byte big-endian length, followed by its bytes of UTF-8 JSON holding one object. File descriptors may
travel with the first byte of a frame (SCM_RIGHTS). Nothing is ever unpickled. A frame over the reader's limit, or a
frame that is not a JSON object, is a WireError. The reader trusts no length from the sender.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

HEADER: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 16 << 20
READ_BYTES: Final = 1 << 16
MAX_FDS: Final = 8
LEAST_WAIT_S: Final = 0.001
"""Minimum timeout of a send, in seconds. So a frame is sent even after its deadline, if the socket has room."""


class WireError(Exception):
    """The other side sent bytes that are no frame."""


class WireClosed(Exception):
    """The other side closed its end."""


def encode_frame(message: dict[str, Any]) -> bytes:
    """Return the bytes of one frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


def send_frame(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one frame on a blocking socket. The descriptors `fds` travel with the frame's first byte."""
    data = encode_frame(message)
    sent = socket.send_fds(sock, [data], list(fds)) if fds else 0
    sock.sendall(data[sent:])


def send_frame_by(deadline: float, sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> bool:
    """Send one frame to a process that may have stopped reading; return whether all of it was sent before the deadline.

    After False, a part may have been sent, so no other frame can follow on this socket.
    """
    before = sock.gettimeout()
    sock.settimeout(max(LEAST_WAIT_S, deadline - time.monotonic()))
    try:
        send_frame(sock, message, fds)
    except TimeoutError:
        return False
    finally:
        sock.settimeout(before)
    return True


class FrameReader:
    """Cuts the bytes of one socket into frames; keeps an incomplete frame for later.

    Args:
        sock: a connected stream socket. No other reader may use it.
        max_bytes: frames that claim to be longer are refused.
        takes_fds: whether descriptors may arrive. If none may arrive, the kernel drops them.
    """

    def __init__(self, sock: socket.socket, *, max_bytes: int = MAX_FRAME_BYTES, takes_fds: bool = True) -> None:
        self._sock = sock
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._has_lost_fds = False
        self._takes_fds = takes_fds

    def pump(self) -> None:
        """Read the available bytes once.

        Raises:
            WireClosed: the other side has closed its end.
        """
        try:
            if self._takes_fds:
                data, fds, flags, _ = socket.recv_fds(self._sock, READ_BYTES, MAX_FDS)
                self._fds.extend(fds)
                self._has_lost_fds = self._has_lost_fds or bool(flags & socket.MSG_CTRUNC)
            else:
                data = self._sock.recv(READ_BYTES)
        except ConnectionResetError as reset:
            raise WireClosed from reset
        if not data:
            raise WireClosed
        self._buffer += data

    @property
    def has_frame(self) -> bool:
        """Whether `pop` would return a frame or raise, instead of returning None."""
        if len(self._buffer) < HEADER.size:
            return False
        (length,) = HEADER.unpack_from(self._buffer)
        return bool(length > self._max_bytes or len(self._buffer) >= HEADER.size + length)

    def pop(self) -> dict[str, Any] | None:
        """Return the next whole frame, or None if more must be read first.

        Raises:
            WireError: the bytes are no valid frame.
        """
        if not self.has_frame:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        if length > self._max_bytes:
            raise WireError(f"a frame of {length} bytes is over the limit of {self._max_bytes}")
        body = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"a frame is not JSON: {error}") from error
        if not isinstance(message, dict):
            raise WireError("a frame is not a JSON object")
        return message

    def take_fds(self, most: int = MAX_FDS) -> list[int]:
        """Hand over the first file descriptors that have arrived, at most `most`; the caller closes them. Descriptors
        of later frames may have arrived, too.

        Raises:
            OSError: a descriptor was lost, since this process has no free descriptors.
        """
        if self._has_lost_fds:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fds, self._fds = self._fds[:most], self._fds[most:]
        return fds

    def close(self) -> None:
        """Close the socket, and the descriptors that nobody has taken."""
        self._sock.close()
        for fd in self._fds:
            os.close(fd)

    def read(self) -> dict[str, Any]:
        """Block until one whole frame is there and return it."""
        while (message := self.pop()) is None:
            self.pump()
        return message
