"""A session of another machine, seen from the host's loop: it has the same methods as one of this machine.

Two threads stand between the loop and the node: one packs and sends what the loop orders, one waits for what the node
says and puts it into a socket, on which the loop waits.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.client import PHASE_GRACE_S, START_LIMIT_S, SessionLost, SessionTimedOut
from flashinfer_bench.bench.runner.protocol import BlockOrder, Hello
from flashinfer_bench.cluster.words import Lost, Parcel
from flashinfer_bench.sandbox.process_tree import hide_memory

FAR_GRACE_S: Final = 60.0
"""Seconds that the host waits beyond what it would wait for a session of its own: the node gives up first, and says so.
Ray tells of lost nodes; this limit is for one that is there and does nothing."""
LARGEST_BYTES: Final = 1 << 28
"""Bytes of the longest frame."""


Pack = Callable[[BlockOrder], tuple[Parcel, Mapping[str, Any]]]


class PlaceLost(Exception):
    """The place is gone: its node, its actor, or the way there."""


class Post(Protocol):
    """The way to a place. `give` keeps the order; all may be called from any thread."""

    def start(self, hello: dict[str, Any]) -> None:
        """Start a session; the one before has ended."""

    def give(self, order: dict[str, Any], blobs: Mapping[str, Any]) -> None:
        """Give it an order, with what its blobs are got by; returns before it has arrived."""

    def take(self) -> list[dict[str, Any]] | None:
        """Wait a second at most for what it says; None once it has ended. Raises PlaceLost."""

    def end(self) -> None:
        """End it; returns when none of its processes is left, or the place is gone."""


class FarSession:
    """One session on another machine, from its start to its end.

    Args:
        device: the place's.
        hello: the session's settings, fit for the place.
        post: the way there.
        pack: makes the parcel of a block, and digest → what its blobs are got by; it may take long.
    """

    def __init__(self, device: Device, hello: Hello, post: Post, pack: Pack) -> None:
        hide_memory()  # workers of this machine may be processes of the same user
        self.device = device
        self.libs: dict[str, str] = {}
        self.is_ready = False
        self.phase = "starting"
        """The phase that it told of last."""
        self._post = post
        self._pack = pack
        self._set_limit(START_LIMIT_S)
        self._ours, self._theirs = socket.socketpair()
        self._reader = FrameReader(self._ours, max_bytes=LARGEST_BYTES, takes_fds=False)
        self._orders: queue.SimpleQueue[BlockOrder | dict[str, Any] | None] = queue.SimpleQueue()
        self._has_ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_all, args=(hello,), name=f"orders to {device.label}", daemon=True),
            threading.Thread(target=self._hear_all, name=f"words of {device.label}", daemon=True),
        ]
        self._has_started = threading.Event()
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._ours.fileno()

    @property
    def left_s(self) -> float:
        """Seconds until the session is taken for lost."""
        return self._deadline - time.monotonic()

    @property
    def has_unsent(self) -> bool:
        """Say that nothing waits for the descriptor: a thread sends."""
        return False

    def flush(self) -> None:
        """Do nothing: a thread sends."""

    def send(self, block: BlockOrder) -> None:
        """Send the next block."""
        self._orders.put(block)

    def drop(self) -> None:
        """Take back the block that was sent and not begun."""
        self._orders.put({"drop": True})

    def begin(self) -> None:
        """Have the block run that was sent."""
        self._set_limit(START_LIMIT_S)
        self.phase = "beginning a block"
        self._orders.put({"begin": True})

    def wait_forever(self) -> None:
        """Set no deadline: the session has no work."""
        self._deadline = float("inf")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Read once and yield each message that is whole.

        Raises:
            SessionLost: the session or its place is gone.
        """
        try:
            self._reader.pump()
        except WireClosed:
            raise SessionLost(f"the session of {self.device.label} is not heard any more") from None
        while (message := self._reader.pop()) is not None:
            if "lost" in message:
                lost = Lost.model_validate(message["lost"])
                raise (SessionTimedOut if lost.has_timed_out else SessionLost)(lost.message)
            if "patience" in message:
                self.phase = message["patience"]["name"]
                self._set_limit(message["patience"]["limit_s"])
                continue
            if "phase" in message:
                self.phase = message["phase"]["name"]
                self._set_limit(message["phase"]["limit_s"] + PHASE_GRACE_S)
            elif "ready" in message:
                self.is_ready = True
                self.libs = message["ready"]["libs"]
            yield message

    def check_deadline(self) -> None:
        """Raise SessionTimedOut where the node, too, has said nothing for longer than it may."""
        if self.left_s <= 0:
            where = f"the session of {self.device.label} stopped answering in phase {self.phase!r}"
            raise SessionTimedOut(f"{where}, and so did its node")

    def end(self) -> None:
        """End the session and every process below it."""
        if self._has_ended.is_set():
            return
        self._has_ended.set()
        self._orders.put(None)
        self._has_started.wait(FAR_GRACE_S)  # what has not started yet could not be named
        with suppress(PlaceLost):
            self._post.end()
        self._ours.close()  # a thread that writes to the other end is let go
        for thread in self._threads:
            thread.join()
        self._theirs.close()

    def _set_limit(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds + FAR_GRACE_S

    def _send_all(self, hello: Hello) -> None:
        try:
            self._post.start(hello.model_dump())
            self._has_started.set()
            while (order := self._orders.get()) is not None:
                if isinstance(order, BlockOrder):
                    parcel, blobs = self._pack(order)
                    self._post.give({"block": order.model_dump(), "parcel": parcel.model_dump()}, blobs)
                else:
                    self._post.give(order, {})
        except PlaceLost as lost:
            self._lose(str(lost))
        except Exception as error:  # round one place: the loop hears of it and starts another session
            self._lose(f"{type(error).__name__}: {error}")
        finally:
            self._has_started.set()

    def _hear_all(self) -> None:
        self._has_started.wait()
        try:
            while not self._has_ended.is_set() and (said := self._post.take()) is not None:
                for message in said:
                    self._pass_on(message)
        except PlaceLost as lost:
            self._lose(str(lost))
        with suppress(OSError):
            self._theirs.shutdown(socket.SHUT_WR)

    def _lose(self, message: str) -> None:
        self._pass_on({"lost": Lost(message=f"{self.device.label}: {message}").model_dump()})

    def _pass_on(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the loop has ended the session
            send_frame(self._theirs, dict(message))
