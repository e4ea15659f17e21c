"""The sessions of one place, one after another, in one thread: the kernel ends a session's starter with its thread.

Other threads start a session, give it orders, take what it says, and end it. Whoever takes says how long it waits.
"""

from __future__ import annotations

import os
import queue
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.held_folders import sweep_folders, temporary_folder
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.client import SessionClient, SessionLost, SessionTimedOut
from flashinfer_bench.bench.runner.device_lock import POLL_S, ask_for_device
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.cluster.node.session import NodeSession
from flashinfer_bench.cluster.node.shelf import BlobShelf, Fetch
from flashinfer_bench.cluster.words import Lost, Patience
from flashinfer_bench.compile import BuildFarm, BuildTarget, default_jobs

END_LIMIT_S: Final = 60.0
"""Seconds that the end of a session may take. A process that will not die keeps its place no longer than that."""
LOCK_PATIENCE_S: Final = 60.0
"""Seconds for which the host waits after each word of a node that waits for its GPU."""
LOCK_WORD_S: Final = 10.0

Start = Callable[[Device, Hello], SessionClient]


class Unwanted(Exception):
    """The host wants a session no more that waits for its device."""


class NodeSessions:
    """Runs the sessions of a place.

    Args:
        device: the place's.
        fetch: gets blobs by their digest.
        start: starts a session on this machine.
        build_jobs: compilers at once; None for as many as the cores allow.
    """

    def __init__(
        self, device: Device, fetch: Fetch, start: Start = SessionClient, *, build_jobs: int | None = None
    ) -> None:
        self._build_jobs = build_jobs or default_jobs(spared_cores=0 if device.kind == "cpu" else 1)
        self._device = device
        self._start = start
        self._owned = ExitStack()
        self._folder = self._owned.enter_context(temporary_folder("place"))
        self._shelf = BlobShelf(self._folder, fetch)
        self._orders: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._said: deque[dict[str, Any]] = deque()
        self._news = threading.Condition()
        self._number = 0
        """Of the session that is wanted; those before it have ended, or are to."""
        self._is_over = True
        """No session is wanted."""
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._is_closed = False
        self._has_lock = False
        self._thread = threading.Thread(target=self._run, name="sessions", daemon=True)
        self._thread.start()

    def start(self, hello: dict[str, Any]) -> int:
        """Start a session and return its number; the one before has ended."""
        with self._news:
            self._number += 1
            self._is_over = False
            self._said.clear()
            self._is_idle.clear()
            number = self._number
        self._tell(number, {"hello": hello})
        return number

    def give(self, number: int, order: dict[str, Any]) -> None:
        """Give a session an order."""
        self._tell(number, order)

    def take(self, number: int, limit_s: float) -> list[dict[str, Any]] | None:
        """Wait for what a session says and return it; nothing after the limit, None once it has ended."""
        with self._news:
            self._news.wait_for(lambda: self._said or number != self._number or self._is_over, limit_s)
            if number != self._number or (self._is_over and not self._said):
                return None
            said = list(self._said)
            self._said.clear()
            return said

    def end(self, number: int) -> None:
        """End a session; returns when none of its processes is left."""
        with self._news:
            if number == self._number:
                self._is_over = True
                self._said.clear()
                self._news.notify_all()
        self._poke()
        self._is_idle.wait(END_LIMIT_S)

    def close(self) -> None:
        """End everything and remove what was laid out."""
        self._is_closed = True
        self.end(self._number)
        self._poke()
        self._thread.join(END_LIMIT_S)
        self._owned.close()
        sweep_folders()

    def _tell(self, number: int, order: dict[str, Any]) -> None:
        self._orders.put((number, order))
        self._poke()

    def _poke(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def _say(self, message: dict[str, Any]) -> None:
        with self._news:
            if not self._is_over:
                self._said.append(message)
                self._news.notify_all()

    def _run(self) -> None:
        with ExitStack() as held:
            while not self._is_closed:
                number, order = self._next()
                if "hello" in order and not self._is_unwanted(number):
                    self._serve(number, Hello.model_validate(order["hello"]), held)
                if self._is_over:
                    self._is_idle.set()

    def _next(self) -> tuple[int, dict[str, Any]]:
        """Wait for the next order, or for somebody who pokes."""
        while True:
            with suppress(queue.Empty):
                return self._orders.get_nowait()
            if self._is_closed or self._is_over:
                self._is_idle.set()
            if self._is_closed:
                return 0, {}
            os.read(self._woken, 1 << 12)

    def _is_unwanted(self, number: int) -> bool:
        return self._is_closed or self._is_over or number != self._number

    def _serve(self, number: int, hello: Hello, held: ExitStack) -> None:
        """Run one session to its end."""
        capabilities = [self._device.capability] if self._device.capability is not None else []
        try:
            self._take_device(number, held)
            with BuildFarm(Path(hello.cache_root), jobs=self._build_jobs, target=BuildTarget.of(capabilities)) as farm:
                client = self._start(self._device, hello)
                try:
                    self._pass_on(number, NodeSession(client, self._device, farm, self._shelf))
                finally:
                    client.end()
        except Unwanted:
            return
        except SessionLost as lost:
            self._say({"lost": Lost(message=str(lost), has_timed_out=isinstance(lost, SessionTimedOut)).model_dump()})
        except (
            Exception
        ) as error:  # round one place: the host starts another session, and gives the place up in the end
            self._say({"lost": Lost(message=f"{type(error).__name__}: {error}").model_dump()})

    def _pass_on(self, number: int, session: NodeSession) -> None:
        while not self._is_unwanted(number):
            while not self._orders.empty():
                sender, order = self._orders.get()
                if sender == number:
                    session.obey(order)
            for message in session.advance():
                self._say(message)
            for message in self._listen(session):
                self._say(message)

    def _listen(self, session: NodeSession) -> list[dict[str, Any]]:
        """Wait until somebody has something to say; return what the session said."""
        client = session.client
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, "wake")
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.has_unsent else 0)
            selector.register(client, events, "session")
            for waker in session.wakers():
                selector.register(waker, selectors.EVENT_READ)
            found = {key.data: events for key, events in selector.select(session.wait_s)}
        if "wake" in found:
            os.read(self._woken, 1 << 12)
        if found.get("session", 0) & selectors.EVENT_WRITE:
            client.flush()
        return list(session.hear()) if found.get("session", 0) & selectors.EVENT_READ else []

    def _take_device(self, number: int, held: ExitStack) -> None:
        """Take the device's lock, once for all sessions of the place.

        Raises:
            DeviceFault: it was not free in time.
            Unwanted: nobody wants the session any more.
        """
        if self._device.kind == "cpu" or self._has_lock:
            return
        told_s = 0.0

        def nap() -> None:
            nonlocal told_s
            if self._is_unwanted(number):
                raise Unwanted
            if time.monotonic() - told_s > LOCK_WORD_S:
                told_s = time.monotonic()
                self._say({"patience": Patience(name="waiting for its GPU", limit_s=LOCK_PATIENCE_S).model_dump()})
            time.sleep(POLL_S)

        with ExitStack() as own:
            for message in ask_for_device(self._device, own):
                if message is not None:
                    self._say({"notice": message})
                else:
                    nap()
            held.push(own.pop_all())
        self._has_lock = True
