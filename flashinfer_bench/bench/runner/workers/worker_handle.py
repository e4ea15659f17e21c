"""The session's handle on one worker: send requests, wait for answers up to a limit, end it, report how it ended.

While it waits, it reads the worker's output and the supervisor's reports. So the death of a worker is noticed at once,
and endless output fills no memory. A tool of `inspect` can run in place of a worker. A tool sends no answers, so none
are read (`deafen`), and it ends by itself.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.host import usable_memory
from flashinfer_bench.base.wire import FrameReader, WireClosed, WireError, send_frame, send_frame_by
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead, take_overhead
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.sandbox.process_tree import (
    catches,
    descendants,
    end_tree,
    hidden_memory,
    is_exiting,
    resident_memory,
)
from flashinfer_bench.worker.protocol import (
    STACK_FILE,
    STACK_SIGNAL,
    Called,
    Claim,
    ClockTraits,
    Failed,
    WorkerReady,
    check_answer,
)

MAX_ANSWER_BYTES: Final = 8 << 20
PIPE_READ_BYTES: Final = 1 << 20
MAX_DRAINS: Final = 64
"""Maximum number of consecutive reads of a worker's output. A solution may print without end."""
READY_LIMIT_S: Final = 60.0
"""Seconds for a new worker to start."""
END_LIMIT_S, FORCE_LIMIT_S = 5.0, 60.0
"""Seconds for the supervisor to end its worker, then seconds for the session to end both processes. A large context on
a GPU takes seconds to end."""
RECOVER_LIMIT_S: Final = 2.0
"""Seconds for a worker to recover from an error; then another worker replaces it."""
PAUSE_LIMIT_S: Final = 5.0
"""Seconds for stopping all processes of a worker. This takes milliseconds, unless the worker keeps starting
processes."""
SENT_BY_OTHERS: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT},
)
"""Signals with which the kernel, a service of the machine or a person ends a process. A crash raises none of them."""
MACHINE_POLL_S: Final = 0.5
"""Seconds between two checks of the machine's memory during a request to a worker."""
FREED_S, POLL_FREED_S = 5.0, 0.05
"""Seconds to wait until the kernel has freed an ended worker's memory, and seconds between two checks."""
MACHINE_SHARE, MOST_NOISE_BYTES = 64, 2 << 30
"""Memory outside all processes may always grow by this much: 1/MACHINE_SHARE of the machine's memory, at most
MOST_NOISE_BYTES. Drivers and other programs use such memory, too."""
STACK_LIMIT_S, STACK_POLL_S = 0.5, 0.01
"""Seconds for a worker to write its stack, and seconds between two checks."""
MOST_STACK_BYTES: Final = 64 << 10
REMOVE_LIMIT_S: Final = 20.0
"""Seconds for removing a worker's home. Remaining files are removed with the session's folder."""
NO_CLOCK: Final = ClockTraits(method="wall", cache_state="warm", fills_queue=False, sees_operations=False)
NOT_READY: Final = WorkerReady(id=0, ready=True, launch_gap_ns=0, chain_gap_ns=0, clock=NO_CLOCK)
"""Placeholder for the ready message of a worker."""

Answer = TypeVar("Answer", bound=Claim)
Meanwhile: TypeAlias = Callable[[Callable[[], bool]], object]
"""Called during a wait. The argument is a function that returns whether the wait is over."""


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended, as reported by its supervisor."""

    code: int | None
    """The exit code, or the negative number of a signal; None if the end was not observed."""
    over_memory: bool = False
    over_machine: bool = False
    """The worker was ended because the machine's memory was full. The memory of all processes does not explain it."""

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None if it ended by itself."""
        return -self.code if self.code is not None and self.code < 0 else None

    def __str__(self) -> str:
        if self.over_memory:
            return "it was ended because it took more host memory than a worker may (see worker_memory_gb)"
        if self.over_machine:
            return (
                "it was ended because memory that no process shows (Shmem, Slab in /proc/meminfo) grew on this machine "
                "by more than a worker may have (see worker_memory_gb)"
            )
        if self.signal is not None:
            name = signal.Signals(self.signal).name if self.signal in set(signal.Signals) else str(self.signal)
            hint = "; the system may have run out of memory" if self.signal == signal.SIGKILL else ""
            return f"it was killed by {name}{hint}"
        return f"it ended with exit code {self.code}"


class WorkerGone(Exception):
    """The worker's process ended while an answer was due."""

    def __init__(self, ended: WorkerExit | None) -> None:
        super().__init__(str(ended or "it closed its end of the channel"))
        self.ended = ended


class WorkerLate(Exception):
    """The deadline passed before the answer came."""


class WorkerProcess:
    """One worker, from its spawn order to its end. Use it as a context manager, or call end().

    Args:
        server: the socket of the fork server.
        order: environment, device, threads, memory limit and sandbox of the worker; `home` is added.
        home: a private folder of the worker, created here if it is missing, and removed at the worker's end.
        log: receives the worker's output.
    """

    def __init__(
        self,
        server: socket.socket,
        order: dict[str, Any],
        home: Path,
        *,
        log: BoundedLog | None = None,
    ) -> None:
        self.home = home
        self.is_adopted = False
        """The worker was started for no particular solution. So it cannot read the artifact, and its compiled files are
        in its home."""
        self.compiles_to = [Path(one) for one in (order.get("sandbox") or {}).get("writable", (str(home),))]
        """Folders in which compilers cache files for its solution."""
        self._request_id = 0
        self._is_ending = False
        """The worker was asked to end."""
        self.log = log or BoundedLog()
        self.exit: WorkerExit | None = None
        self.pid: int | None = None
        self.supervisor_pid: int | None = None
        self.ready = NOT_READY
        """The worker's ready message, sent before a solution is loaded."""
        self._stopped: list[int] = []
        """Stopped processes below the supervisor."""
        self.overhead = BatchOverhead()
        """Overhead of batches, measured before a solution is loaded."""
        self._wanted_gpu: str | None = order.get("gpu_uuid")
        limit = order["memory_limit_bytes"] or math.inf
        self._most_hidden = max(limit, min(usable_memory() // MACHINE_SHARE, MOST_NOISE_BYTES))
        self._least_hidden = (math.inf, math.inf)
        self._next_check = -math.inf
        self.solution_folder: Path | None = None
        """Folder of the loaded solution's files."""
        self.solution_entry = ""
        """Name of the loaded solution's entry function."""
        self.has_setup = False
        """The loaded solution exports `setup`."""
        self.mapped: tuple[object, int] | None = None
        """The session's memory that the worker maps, and the generation of that memory. Mapping takes milliseconds."""
        home.mkdir(parents=True, exist_ok=True)
        user = (order.get("sandbox") or {}).get("user")
        if user is not None:
            os.chown(home, user, user)
        self._sock, worker_end = socket.socketpair()
        self._supervisor, supervisor_end = socket.socketpair()
        self._pipe, printed = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            ends = [worker_end.fileno(), printed, supervisor_end.fileno()]
            send_frame(server, {"spawn": {**order, "home": str(home)}}, ends)
        finally:
            worker_end.close()
            supervisor_end.close()
            os.close(printed)
        self._reader = FrameReader(self._sock, max_bytes=MAX_ANSWER_BYTES, takes_fds=False)
        self._reports = FrameReader(self._supervisor, takes_fds=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sock, selectors.EVENT_READ, self._on_answer)
        self._selector.register(self._supervisor, selectors.EVENT_READ, self._on_report)
        self._selector.register(self._pipe, selectors.EVENT_READ, self.drain)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    # Start.

    def make_folder(self) -> Path:
        """Return a new folder in the worker's home, which the worker can read."""
        folder = Path(tempfile.mkdtemp(dir=self.home))
        folder.chmod(0o755)  # the worker may have another user id
        return folder

    @property
    def is_ready(self) -> bool:
        """Whether it is ready for work."""
        return self.ready is not NOT_READY

    @property
    def clock(self) -> ClockTraits:
        """The worker's clock; known before a solution is loaded."""
        return self.ready.clock

    @property
    def is_on_another_gpu(self) -> bool:
        """Whether it found another GPU than the requested GPU."""
        return self.is_ready and self._wanted_gpu not in (None, self.ready.gpu_uuid)

    def poll(self, deadline: float) -> bool:
        """Return whether the worker is ready for work. Do not wait.

        Raises:
            WorkerGone: it has ended.
            WorkerLate: it is not ready, and the deadline has passed.
            WireError: it sent an invalid frame.
        """
        if not self.is_ready:
            self.hear()
            message = self._pop()
            if message is not None:
                ready = check_answer(message, 0, WorkerReady)
                if isinstance(ready, Failed):
                    raise WireError("a new worker did not say that it is ready")
                self.ready = ready
            elif time.monotonic() >= deadline:
                raise WorkerLate
        return self.is_ready

    def time_empty_bursts(self, touch_device: Callable[[], object], least: BatchOverhead | None = None) -> None:
        """Time batches of empty calls on a GPU. Call it before a solution is loaded.

        Args:
            touch_device: uses the device in this process, as writing a batch's inputs does.
            least: least overhead of such batches in another worker.

        Raises:
            WorkerGone, WorkerLate: the worker does not answer. No solution has caused this.
        """

        def time_burst(calls: int) -> float:
            fields: dict[str, Any] = {"first": calls, "part": "nothing"}
            start = time.perf_counter_ns()
            self.ask("burst", Called, READY_LIMIT_S, **fields, together=self.clock.fills_queue, operations=0)
            return float(time.perf_counter_ns() - start)

        self.overhead = take_overhead(time_burst, touch_device).near(least)

    # Requests.

    def ask(
        self,
        method: str,
        expected: type[Answer],
        limit_s: float,
        *,
        fds: Sequence[int] = (),
        meanwhile: Meanwhile | None = None,
        is_stuck: Callable[[], bool] = lambda: False,
        **fields: Any,
    ) -> Answer | Failed:
        """Send a request and wait for its answer.

        Args:
            method: name of the request.
            expected: type of the answer. The answer is checked against this type.
            limit_s: maximum seconds until the answer.
            fds: descriptors for the worker.
            meanwhile: called after the request is sent.
            is_stuck: called during the wait; True ends the wait.

        Raises:
            WorkerGone: the process ended first.
            WorkerLate: `limit_s` seconds passed first, or the worker is stuck.
            WireError: the message is no answer to this request.
        """
        self._watch_machine()
        deadline = time.monotonic() + limit_s
        self._request_id += 1
        self.resume()
        try:
            is_sent = send_frame_by(deadline, self._sock, {"verb": method, "id": self._request_id, **fields}, fds)
        except OSError:
            self._await_exit(min(deadline, time.monotonic() + END_LIMIT_S))
            raise WorkerGone(self.exit) from None
        if not is_sent:  # the worker reads nothing
            raise WorkerLate
        if meanwhile is not None:
            meanwhile(lambda: self._is_over(deadline))
            self.hear()  # an answer that has already come is in time, even if `meanwhile` ran past the deadline
        while (message := self._pop()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or is_stuck():
                raise WorkerLate
            self._read_events(min(left_s, MACHINE_POLL_S))
            self._watch_machine()
        return check_answer(message, self._request_id, expected)

    def does(self, method: str) -> bool:
        """Send `recover` or `unbind`; return whether the worker has done it."""
        self.mapped = None if method == "unbind" else self.mapped
        try:
            return not isinstance(self.ask(method, Claim, RECOVER_LIMIT_S), Failed)
        except (WorkerGone, WorkerLate, WireError):
            return False

    def hear(self) -> None:
        """Read messages and output of the worker and its supervisor. Do not wait."""
        if self._selector.get_map():
            self._read_events(0)

    def deafen(self) -> None:
        """Stop reading answers, so that unread messages of the worker do not fill memory."""
        self._selector.unregister(self._sock)
        self._sock.shutdown(socket.SHUT_RD)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a message or output arrives."""
        return self._selector.fileno()

    def take_output(self) -> str:
        """Return the worker's output since the last call. Do not wait."""
        if self.exit is None:
            self.drain()
        else:
            self.end()
        return self.log.take()

    def read_stack(self) -> str:
        """Have the worker write its Python stack; return the stack, or "" if the worker does not write it."""
        path = self.home / STACK_FILE
        if self.pid is None or not catches(self.pid, STACK_SIGNAL):
            return ""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with suppress(OSError), os.fdopen(os.open(path, flags), "rb") as file:
            start = file.seek(0, os.SEEK_END)
            os.kill(self.pid, STACK_SIGNAL)
            deadline, seen = time.monotonic() + STACK_LIMIT_S, start
            while time.monotonic() < deadline and not start < seen == file.seek(0, os.SEEK_END):
                seen = file.tell()
                time.sleep(STACK_POLL_S)
            file.seek(start)
            return file.read(MOST_STACK_BYTES).decode(errors="replace")
        return ""

    def drain(self, _: object = None) -> None:
        """Read the worker's output so far. Do not wait."""
        with suppress(BlockingIOError):
            for _ in range(MAX_DRAINS):
                if not (data := os.read(self._pipe, PIPE_READ_BYTES)):
                    if self._pipe in self._selector.get_map():
                        self._selector.unregister(self._pipe)
                    break
                self.log.add(data)

    # The machine's memory.

    def _watch_machine(self) -> None:
        """End the worker if memory outside all processes has grown by more than a worker may hold.

        A check runs every MACHINE_POLL_S seconds.

        Raises:
            WorkerGone: the worker was ended.
        """
        now = time.monotonic()
        if not self.is_ready or now < self._next_check:
            return
        self._next_check = now + MACHINE_POLL_S
        if self._hidden_growth() > self._most_hidden:
            self.begin_end()
            while self._hidden_growth() > self._most_hidden / 8 and time.monotonic() < now + FREED_S:
                time.sleep(POLL_FREED_S)  # otherwise the next worker would start before this memory is free
            raise WorkerGone(WorkerExit(-signal.SIGKILL, over_machine=True))

    def _hidden_growth(self) -> float:
        """Return the growth of the memory that belongs to no process, in bytes above its lowest value so far. The
        arena does not count."""
        arena = resident_memory(os.getpid()).shared
        taken, counted = (one - arena for one in hidden_memory())
        least_taken, least_counted = self._least_hidden
        self._least_hidden = min(taken, least_taken), min(counted, least_counted)
        return max(taken - self._least_hidden[0], counted - self._least_hidden[1])

    def was_killed(self, ended: WorkerExit) -> bool:
        """Return whether the worker may have been ended by the kernel, the machine or a person, and not by the
        solution."""
        is_ours = self._is_ending or ended.over_memory
        return ended.over_machine or (ended.signal in SENT_BY_OTHERS and not is_ours)

    # Stop and resume.

    def pause(self) -> None:
        """Stop every process below the supervisor until the next request, including new processes.

        A process that ends may resume another, so its end is awaited. A worker that uses a GPU is not stopped, since
        its work there would continue. A worker that keeps starting or ending processes is ended, and the next request
        to it fails.
        """
        if self.clock.fills_queue or self._is_ending or self.supervisor_pid is None:
            return
        deadline, at_rest = time.monotonic() + PAUSE_LIMIT_S, False
        while not at_rest:
            if time.monotonic() > deadline:
                self.begin_end()
                break
            found = descendants(self.supervisor_pid)
            at_rest = {*found} <= {*self._stopped} and not any(map(is_exiting, found))
            self._stopped = found
            self._signal_stopped(signal.SIGSTOP)  # a process that still ran may have resumed another process

    def resume(self) -> None:
        """Resume the stopped processes."""
        self._signal_stopped(signal.SIGCONT)
        self._stopped = []

    def _signal_stopped(self, number: int) -> None:
        for pid in self._stopped:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    # End.

    @property
    def has_ended(self) -> bool:
        """Whether the worker and all its processes are known to have ended. If so, `end` does not wait."""
        if self.exit is None:
            with suppress(WorkerGone):
                self.hear()
        return self.exit is not None

    def begin_end(self) -> None:
        """Have the supervisor end the worker and all its processes; return at once. `end` waits."""
        if self.exit is None and not self._is_ending:
            self._is_ending = True
            with suppress(OSError):  # it has ended: its last report can still be read
                self._supervisor.send(b"x")

    def end(self) -> WorkerExit | None:
        """End the worker and all its processes; return how it ended.

        Raises:
            DeviceFault: one of its processes is still running.
        """
        if self._selector.get_map() is None:
            return self.exit
        try:
            self.begin_end()
            self._await_exit(time.monotonic() + END_LIMIT_S)
            self.drain()
            if self.exit is None:  # a solution's processes must end before the next solution runs
                if self.supervisor_pid is None or not end_tree(self.supervisor_pid, FORCE_LIMIT_S):
                    raise DeviceFault("a worker, or something that it started, does not end")
                self.exit = WorkerExit(-signal.SIGKILL)
            if self.supervisor_pid is not None and self.exit.code is None:
                raise DeviceFault("a worker's supervisor ended first: something that the worker started may still run")
        finally:
            self._selector.close()
            self._sock.close()
            self._supervisor.close()
            os.close(self._pipe)
            remove_tree(self.home, REMOVE_LIMIT_S)
        return self.exit

    # Incoming messages.

    def _pop(self) -> dict[str, Any] | None:
        """Return the worker's next message, including messages sent before its end; None if none has arrived yet.

        Raises:
            WorkerGone: it has ended, and no message is left.
        """
        if self.exit is not None:
            self._sock.setblocking(False)
            with suppress(BlockingIOError, WireClosed):
                while not self._reader.has_frame:
                    self._reader.pump()
        message = self._reader.pop()
        if message is None and self.exit is not None:
            raise WorkerGone(self.exit)
        return message

    def _is_over(self, deadline: float) -> bool:
        """Read messages of the worker and its supervisor; return whether `ask` would return without waiting."""
        self._read_events(0)
        self._watch_machine()
        return self._reader.has_frame or self.exit is not None or time.monotonic() >= deadline

    def _read_events(self, limit_s: float) -> None:
        for key, _ in self._selector.select(limit_s):
            key.data(key.fileobj)

    def _await_exit(self, deadline: float) -> None:
        while self.exit is None and time.monotonic() < deadline:
            self._read_events(max(0.0, deadline - time.monotonic()))

    def _on_answer(self, sock: socket.socket) -> None:
        if self._is_ending:
            self._selector.unregister(sock)  # answers and the closing of the socket are ignored
            return
        try:
            self._reader.pump()
        except WireClosed:
            self._selector.unregister(sock)  # the supervisor will report how the worker ended
            self._await_exit(time.monotonic() + END_LIMIT_S)
            if self.exit is None:
                raise WorkerGone(None) from None

    def _on_report(self, sock: socket.socket) -> None:
        try:
            self._reports.pump()
        except WireClosed:
            self._selector.unregister(sock)
            self.exit = self.exit or WorkerExit(None)
            return
        while (message := self._reports.pop()) is not None:
            if "started" in message:
                self.pid, self.supervisor_pid = message["started"], message["supervisor"]
            elif "exit" in message:
                self.exit = WorkerExit(**message["exit"])
