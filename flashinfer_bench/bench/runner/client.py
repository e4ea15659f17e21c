"""The host's handle on the sessions of this machine's devices: start, send requests, read verdicts, end.

The scheduler's loop gives batches to slots and reads frames. A slot can run one device session, on a device of this
machine (`LocalSlots`) or of a cluster's node (`cluster.Cluster`). A table of slots has these members:

    devices         the devices of all usable slots
    least_shares    batches are sized for at least this many devices, so that a slot that joins later gets work
    expects_more    whether a slot may join soon; if so, a loop that has lost all slots waits
    poll()          the slots that have joined since the last call; called often, never waits
    has(device)     whether a slot still exists
    lock(device, held)     keeps other runs off a device until `held` is closed; see `device_lock.ask_for_device`
    open(device, session_config)     starts a `SessionClient` or a `RemoteSession`. Only the session's `end` blocks
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.wire import FrameReader, WireClosed, WireError, encode_frame
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.bench.runner.launcher import CLOSE_LIMIT_S, launcher_for, read_tail
from flashinfer_bench.bench.runner.protocol import SessionConfig, SessionRequest
from flashinfer_bench.sandbox.process_tree import hide_memory

START_LIMIT_S: Final = 180.0
PHASE_GRACE_S = 120.0
"""Seconds added to a phase's limit, for comparisons and for reading blobs. A session that is silent beyond this counts
as lost."""


class SessionLost(Exception):
    """The session ended or stopped answering."""


class SessionTimedOut(SessionLost):
    """The session was silent beyond the limit of its phase."""


class SessionClient:
    """One device session, from its start to its end. The start hides this process's memory from other processes.

    Args:
        device: the session's device, and the only device that it sees.
    """

    def __init__(self, device: Device, session_config: SessionConfig) -> None:
        hide_memory()  # workers may run as the same user
        self.device = device
        self.libs: dict[str, str] = {}
        self.is_ready = False
        self._limit_s = START_LIMIT_S
        self._deadline = time.monotonic() + self._limit_s
        self.phase = "starting"
        """The phase that the session reported last."""
        self._sock, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        environment = session_environment(os.environ, device, interpret_triton=session_config.needs_triton)
        try:
            launcher = launcher_for(environment)
            self._process = launcher.start(environment, theirs.fileno(), self._stderr.fileno())
        finally:
            theirs.close()
        self._reader = FrameReader(self._sock, max_bytes=1 << 28)
        self._unsent = bytearray()
        self._send({"config": session_config.model_dump()})

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    @property
    def left_s(self) -> float:
        """Seconds until the session counts as lost."""
        return self._deadline - time.monotonic()

    def send(self, request: SessionRequest) -> None:
        """Send the next request. `begin` starts it; `drop` takes it back."""
        self._send({"request": request.model_dump()})

    def drop(self) -> None:
        """Take back the request that was sent and has not begun."""
        self._send({"drop": True})

    def begin(self) -> None:
        """Start the request that was sent. Call it only when the previous request has all its answers."""
        self._limit_s = START_LIMIT_S
        self._deadline = time.monotonic() + self._limit_s
        self.phase = "beginning a request"
        self._send({"begin": True})

    def wait_forever(self) -> None:
        """Remove the deadline, because the session has no work."""
        self._deadline = float("inf")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Read once and yield each complete message. Call it when the descriptor is readable.

        Raises:
            SessionLost: the session ended. The error's message contains the session's last output.
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
        """Raise SessionLost if the session has been silent beyond the limit of its phase."""
        if self.left_s <= 0:
            where = f"the session of {self.device.label} stopped answering in phase {self.phase!r}"
            raise SessionTimedOut(f"{where}, which may take {self._limit_s:g} s")

    def end(self) -> None:
        """End the session and every process below it; return when all have ended."""
        if self._sock.fileno() < 0:
            return
        self._sock.close()
        self._process.end(0.5 if self.is_ready else 0.0)
        self._stderr.close()

    @property
    def has_unsent(self) -> bool:
        """Whether unsent data is left. A session does not read while it judges, so the socket may be full. Call
        `flush` when the socket is writable."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send all data that the session accepts, without waiting. If the session has ended, `messages` reports it."""
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
    """Changes of the slots since the last `poll`."""

    joined: tuple[Device, ...] = ()
    """Devices of new slots."""
    notices: tuple[str, ...] = ()
    """Messages for the user."""


class LocalSlots:
    """The devices of this machine, one slot each."""

    least_shares: Final = 1
    expects_more: Final = False

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = tuple(devices)

    def poll(self) -> News:
        """Return no news, since the devices of a machine do not change."""
        return News()

    def has(self, device: Device) -> bool:
        """Return whether this machine has the device. A lost device still counts, but its session does not start."""
        return device in self.devices

    def lock(self, device: Device, held: ExitStack) -> Iterator[str | None]:
        """Take a GPU's lock."""
        return ask_for_device(device, held)

    def open(self, device: Device, session_config: SessionConfig) -> SessionClient:
        """Start a session on a device."""
        return SessionClient(device, session_config)
