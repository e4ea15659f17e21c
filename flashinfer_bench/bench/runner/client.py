"""The sessions of this machine's devices, seen from the host: start one, send it blocks, hear its verdicts, end it.

The session and everything below it hold the write end of a pipe (the lifeline) that nobody writes to: when its read
end reports the end of the stream, no process of the session is left.

The loop over the devices deals batches to places and hears frames. A place can run a device session: a device of this
machine (`LocalPlaces`), or one of a cluster's node (`cluster.Cluster`). Its device names it. A table of places has

    devices         those of all places that can be used now
    least_shares    work is dealt as for this many places at least, so that something is left for one that comes
    expects_more    whether a place may come soon: a loop that has lost all others waits for it
    look()          which places have come since the last look; it is called often, and waits for nothing
    has(device)     whether a place is still there
    lock(device, held)     keeps other runs off a device until `held` is closed; see `device_lock.ask_for_device`
    open(device, hello)    starts a session: a `SessionClient` or a `FarSession`. Only its `end` waits for anything
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Final

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.wire import FrameReader, WireClosed, WireError, encode_frame
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.bench.runner.launcher import launcher_for, read_tail
from flashinfer_bench.bench.runner.protocol import BlockOrder, Hello
from flashinfer_bench.sandbox.process_tree import end_tree, hide_memory, session_members

START_LIMIT_S: Final = 180.0
CLOSE_LIMIT_S: Final = 3.0
FORCE_LIMIT_S: Final = 30.0
PHASE_GRACE_S = 120.0
"""Wait this many seconds beyond a phase's own limit, for comparing and reading blobs, before giving the session up."""


class SessionLost(Exception):
    """The session ended or stopped answering."""


class SessionTimedOut(SessionLost):
    """The session was silent for longer than its phase may take."""


class SessionClient:
    """One device session, from its start to its end. Starting one hides this process's memory, for good.

    Args:
        device: the device that it gets; it sees no other.
        hello: its settings.
    """

    def __init__(self, device: Device, hello: Hello) -> None:
        hide_memory()  # a worker is a process of the same user
        self.device = device
        self.libs: dict[str, str] = {}
        self.is_ready = False
        self._limit_s = START_LIMIT_S
        self._deadline = time.monotonic() + self._limit_s
        self.phase = "starting"
        """The phase that it told of last."""
        self._sock, theirs = socket.socketpair()
        self._lifeline, lifeline_write = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        environment = session_environment(os.environ, device, interpret_triton=hello.needs_triton)
        try:
            launcher = launcher_for(environment)
            self._process = launcher.start(environment, theirs.fileno(), lifeline_write, self._stderr.fileno())
        finally:
            theirs.close()
            os.close(lifeline_write)
        self._reader = FrameReader(self._sock, max_bytes=1 << 28)
        self._unsent = bytearray()
        self._send({"hello": hello.model_dump()})

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    @property
    def left_s(self) -> float:
        """Seconds until the session is taken for lost."""
        return self._deadline - time.monotonic()

    def send(self, block: BlockOrder) -> None:
        """Send the next block; `begin` has the session run it, `drop` takes it back."""
        self._send({"block": block.model_dump()})

    def drop(self) -> None:
        """Take back the block that was sent and not begun."""
        self._send({"drop": True})

    def begin(self) -> None:
        """Have the block run that was sent; the one before has all its answers."""
        self._limit_s = START_LIMIT_S
        self._deadline = time.monotonic() + self._limit_s
        self.phase = "beginning a block"
        self._send({"begin": True})

    def wait_forever(self) -> None:
        """Set no deadline: the session has no work."""
        self._deadline = float("inf")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Read once and yield each message that is whole; call it when the descriptor is readable.

        Raises:
            SessionLost: the session ended; what it printed last is in the message.
        """
        try:
            self._reader.pump()
        except WireClosed:
            self._raise_lost()
        try:
            while (message := self._reader.pop()) is not None:
                if "phase" in message:
                    self._limit_s = message["phase"]["limit_s"] + PHASE_GRACE_S
                    self._deadline = time.monotonic() + self._limit_s
                    self.phase = message["phase"]["name"]
                elif "ready" in message:
                    self.is_ready = True
                    self.libs = message["ready"]["libs"]
                yield message
        except WireError as error:
            raise SessionLost(f"the session of {self.device.label} speaks nonsense: {error}") from None

    def check_deadline(self) -> None:
        """Raise SessionLost once the session has been silent for longer than its phase may take."""
        if self.left_s <= 0:
            where = f"the session of {self.device.label} stopped answering in phase {self.phase!r}"
            raise SessionTimedOut(f"{where}, which may take {self._limit_s:g} s")

    def end(self) -> None:
        """End the session and every process below it; returns when none is left."""
        if self._sock.fileno() < 0:
            return
        self._send({"close": True})
        self._sock.close()
        if not self._process.wait(0.5 if self.is_ready else 0):
            self._process.kill()
        session = self._process.pid
        # One that was never forked holds nothing; the lifeline's end is on its way to its starter.
        is_over = wait([self._lifeline], CLOSE_LIMIT_S if session is not None else 0)
        if not is_over and session is not None:
            for left in session_members([session])[session]:  # the template, which adopts the rest
                end_tree(left, FORCE_LIMIT_S)
        self._process.close()
        os.close(self._lifeline)
        self._stderr.close()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` is to be called once the descriptor takes more: the session does not read while it judges."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what the session takes now, without waiting. Listening to it tells whether it is still there."""
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def _send(self, message: dict[str, Any]) -> None:
        self._unsent += encode_frame(message)
        self.flush()

    def _raise_lost(self) -> None:
        self._process.wait(CLOSE_LIMIT_S)
        said = read_tail(self._stderr) or ("" if self._process.pid else self._process.launcher.last_words())
        raise SessionLost(
            f"the session of {self.device.label} {describe_exit(self._process.code)} in phase {self.phase!r}"
            + (f"; it said last:\n{said}" if said else "")
        )


@dataclass(frozen=True)
class News:
    """What has changed since somebody looked."""

    joined: tuple[Device, ...] = ()
    """Devices of places that can be used from now on."""
    notices: tuple[str, ...] = ()
    """What a person should know."""


class LocalPlaces:
    """The devices of this machine, one place each."""

    least_shares: Final = 1
    expects_more: Final = False

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = tuple(devices)

    def look(self) -> News:
        """Return that nothing has changed: the devices of a machine stay."""
        return News()

    def has(self, device: Device) -> bool:
        """Return whether it has a device; a session that does not start is what tells otherwise."""
        return device in self.devices

    def lock(self, device: Device, held: ExitStack) -> Iterator[str | None]:
        """Take a GPU's lock."""
        return ask_for_device(device, held)

    def open(self, device: Device, hello: Hello) -> SessionClient:
        """Start a session on a device."""
        return SessionClient(device, hello)
