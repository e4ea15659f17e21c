"""The session's handle on one worker: ask it, wait no longer than allowed, end it, know how it ended.

While it waits for an answer it reads what the worker prints, and listens to the supervisor. So it notices at once that
a worker has died, and a worker that prints without end fills no memory. A program in a worker's place, a tool of
`inspect`, answers nothing: it is deafened, and ends by itself.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
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
from flashinfer_bench.sandbox.process_tree import catches, descendants, end_tree, hidden_memory, resident_memory
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
"""Read a worker's output at most this many times in a row: a solution may print without end."""
READY_LIMIT_S: Final = 60.0
"""Seconds that a new worker may take to start."""
END_LIMIT_S, FORCE_LIMIT_S = 5.0, 60.0
"""Seconds that the supervisor may take to end its worker. Then the session ends both, and waits for the second limit: a
large context on a GPU takes seconds to go."""
RECOVER_LIMIT_S: Final = 2.0
"""Seconds that a worker may take to be ready again after an error; then another takes its place."""
REST_LIMIT_S: Final = 5.0
"""Seconds that stopping all processes of a worker may take: it takes milliseconds, if these do not start new ones all
the time."""
SENT_BY_OTHERS: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT},
)
"""Signals by which the kernel, a service of the machine or a person ends a process. A crash raises none of them."""
MACHINE_POLL_S: Final = 0.5
"""Seconds between two checks of the machine's memory while a worker serves a request."""
FREED_S, POLL_FREED_S = 5.0, 0.05
"""Seconds for which a worker's end waits for the kernel to free its memory, and seconds between two checks."""
MACHINE_SHARE, MOST_NOISE_BYTES = 64, 2 << 30
"""Memory that no process shows may always grow by the smaller of the machine's memory divided by MACHINE_SHARE, and
MOST_NOISE_BYTES: drivers and other programs move it, too."""
STACK_LIMIT_S, STACK_POLL_S = 0.5, 0.01
"""Seconds that a worker has to write its stack, and seconds between two checks."""
MOST_STACK_BYTES: Final = 64 << 10
REMOVE_LIMIT_S: Final = 20.0
"""Seconds for removing a worker's home. What is left goes with the session's folder, and holds no other job up."""
NO_CLOCK: Final = ClockTraits(method="wall", cache_state="warm", fills_queue=False, sees_operations=False)
NOT_READY: Final = WorkerReady(id=0, ready=True, launch_gap_ns=0, chain_gap_ns=0, clock=NO_CLOCK)
"""Stands for what a worker says when it can take work."""

Answer = TypeVar("Answer", bound=Claim)
Meanwhile: TypeAlias = Callable[[Callable[[], bool]], object]
"""Takes a function that tells whether an answer has come, or none will."""


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended, as its supervisor saw it."""

    code: int | None
    signal: int | None
    leftover: int
    """Processes that it left behind; they were killed."""
    over_memory: bool
    over_machine: bool = False
    """It was ended because memory that no process shows grew on the machine."""

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
    """One worker, from the spawn order to its end. Use it as a context manager, or call end().

    Args:
        server: the socket of the fork server.
        order: environment, device, threads, memory limit and sandbox of the worker; `home` is added.
        home: a folder of the worker's own, created here and removed at its end.
        given: a folder that the worker alone reads; None where it reads all that its user may.
        own: its folder for what is compiled in it; None if that is its solution's.
        log: takes what it prints.
    """

    def __init__(
        self,
        server: socket.socket,
        order: dict[str, Any],
        home: Path,
        *,
        given: Path | None = None,
        own: Path | None = None,
        log: BoundedLog | None = None,
    ) -> None:
        self._home, self.given, self.own = home, given, own
        self.compiles_to = [Path(one) for one in (order.get("sandbox") or {}).get("writable", (str(home),))]
        """Folders in which compilers keep what they make for its solution."""
        self._request_id = 0
        self._is_ending = False
        """It was told to end."""
        self.log = log or BoundedLog()
        self.exit: WorkerExit | None = None
        self.pid: int | None = None
        self.supervisor_pid: int | None = None
        self.ready = NOT_READY
        """What it said when it could take work, before a solution was loaded."""
        self._stopped: list[int] = []
        """Processes below the supervisor that are stopped."""
        self.overhead = BatchOverhead()
        """What bursts take of themselves, measured before a solution is loaded."""
        self._wanted_gpu: str | None = order.get("gpu_uuid")
        limit = order["memory_limit_bytes"] or math.inf
        self._most_hidden = max(limit, min(usable_memory() // MACHINE_SHARE, MOST_NOISE_BYTES))
        self._least_hidden = (math.inf, math.inf)
        self._next_check = -math.inf
        self.solution_folder: Path | None = None
        """The files of the solution that it has loaded."""
        self.has_setup = False
        """The solution that was loaded exports `setup`."""
        self.mapped: tuple[object, int] | None = None
        """The session's memory that it maps, and which generation of it. To map it takes the driver 1 to 4 ms."""
        home.mkdir(parents=True)
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

    # Its start.

    @property
    def is_ready(self) -> bool:
        """Whether it can take work."""
        return self.ready is not NOT_READY

    @property
    def clock(self) -> ClockTraits:
        """The clock that it uses; known before a solution is loaded."""
        return self.ready.clock

    @property
    def is_on_another_gpu(self) -> bool:
        """Whether the GPU that it found is not the one that it was to find."""
        return self.is_ready and self._wanted_gpu not in (None, self.ready.gpu_uuid)

    def wait_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until the worker can take work; no solution code has run in it yet. For the errors see `poll`."""
        deadline = time.monotonic() + limit_s
        while not self.poll(deadline):
            self._turn(max(0.0, deadline - time.monotonic()))

    def poll(self, deadline: float) -> bool:
        """Say whether the worker can take work; wait for nothing.

        Raises:
            WorkerGone: it has ended.
            WorkerLate: it cannot, and the deadline has passed.
            WireError: what it sent is no frame of the protocol.
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
        """Time bursts of calls that compute nothing, on a GPU; call it before a solution is loaded.

        Args:
            touch_device: uses the device in this process, as writing the inputs of a burst does.
            least: the least that such bursts took in another worker.

        Raises:
            WorkerGone, WorkerLate: the worker does not answer; that is our fault or the machine's.
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
        verb: str,
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
            verb: names the request.
            expected: the answer is checked as this.
            limit_s: seconds that it may take.
            fds: descriptors for the worker.
            meanwhile: called once the request is sent.
            is_stuck: called while the answer is due; True ends the wait.
            **fields: of the request.

        Raises:
            WorkerGone: the process ended first.
            WorkerLate: `limit_s` seconds passed first, or it is stuck.
            WireError: what came is no answer to this request.
        """
        self._watch_machine()
        deadline = time.monotonic() + limit_s
        self._request_id += 1
        self.resume()
        try:
            is_sent = send_frame_by(deadline, self._sock, {"verb": verb, "id": self._request_id, **fields}, fds)
        except OSError:
            self._await_exit(min(deadline, time.monotonic() + END_LIMIT_S))
            raise WorkerGone(self.exit) from None
        if not is_sent:  # it reads nothing
            raise WorkerLate
        if meanwhile is not None:
            meanwhile(lambda: self._is_over(deadline))
            self.hear()  # an answer that has come is in time, also if that took until after the deadline
        while (message := self._pop()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or is_stuck():
                raise WorkerLate
            self._turn(min(left_s, MACHINE_POLL_S))
            self._watch_machine()
        return check_answer(message, self._request_id, expected)

    def does(self, verb: str) -> bool:
        """Ask for `recover` or `unbind`; say whether the worker has done it."""
        self.mapped = None if verb == "unbind" else self.mapped
        try:
            return not isinstance(self.ask(verb, Claim, RECOVER_LIMIT_S), Failed)
        except (WorkerGone, WorkerLate, WireError):
            return False

    def hear(self) -> None:
        """Take what the worker and its supervisor have sent and printed; wait for nothing."""
        if self._selector.get_map():
            self._turn(0)

    def deafen(self) -> None:
        """Take no answer from here on: whoever wants none would keep all that the worker sends."""
        self._selector.unregister(self._sock)
        self._sock.shutdown(socket.SHUT_RD)

    def fileno(self) -> int:
        """Return a descriptor that is readable if there is something to hear."""
        return self._selector.fileno()

    def take_output(self) -> str:
        """Return what the worker printed since the last call, without waiting."""
        if self.exit is None:
            self.drain()
        else:
            self.end()
        return self.log.take()

    def read_stack(self) -> str:
        """Have the worker write its Python stack; return it, or nothing if it does not."""
        path = self._home / STACK_FILE
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
        """Read what the worker printed so far, without waiting."""
        with suppress(BlockingIOError):
            for _ in range(MAX_DRAINS):
                if not (data := os.read(self._pipe, PIPE_READ_BYTES)):
                    if self._pipe in self._selector.get_map():
                        self._selector.unregister(self._pipe)
                    break
                self.log.add(data)

    # The machine's memory.

    def _watch_machine(self) -> None:
        """End the worker if memory that no process shows has grown by more than a worker may have since the first
        check.

        It checks every MACHINE_POLL_S seconds.

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
                time.sleep(POLL_FREED_S)  # else the next worker would begin with what this one has held
            raise WorkerGone(WorkerExit(None, signal.SIGKILL, 0, over_memory=False, over_machine=True))

    def _hidden_growth(self) -> float:
        """Return the bytes by which memory that no process shows, without the arena, is above the least so far."""
        arena = resident_memory(os.getpid()).shared
        taken, counted = (one - arena for one in hidden_memory())
        least_taken, least_counted = self._least_hidden
        self._least_hidden = min(taken, least_taken), min(counted, least_counted)
        return max(taken - self._least_hidden[0], counted - self._least_hidden[1])

    def was_killed(self, ended: WorkerExit) -> bool:
        """Tell whether something else than the solution may have ended the worker."""
        is_ours = self._is_ending or ended.over_memory
        return ended.over_machine or (ended.signal in SENT_BY_OTHERS and not is_ours)

    # Stopping it.

    def pause(self) -> None:
        """Stop every process below the supervisor, those too that are started meanwhile, until the next request.

        A worker that uses a GPU is not stopped, since its work there would go on. A worker that starts processes
        without end is ended: then the next request to it fails.
        """
        if self.clock.fills_queue or self._is_ending or self.supervisor_pid is None:
            return
        deadline = time.monotonic() + REST_LIMIT_S
        while {*(found := descendants(self.supervisor_pid))} - {*self._stopped}:
            if time.monotonic() > deadline:
                self.begin_end()
                break
            self._stopped = found
            self._signal_stopped(signal.SIGSTOP)  # the earlier ones again: one that ran until now may have woken them

    def resume(self) -> None:
        """Let what is stopped go on."""
        self._signal_stopped(signal.SIGCONT)
        self._stopped = []

    def _signal_stopped(self, number: int) -> None:
        for pid in self._stopped:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    # Its end.

    @property
    def has_ended(self) -> bool:
        """Whether the worker and everything that it started are known to be gone: `end` waits for nothing."""
        if self.exit is None:
            with suppress(WorkerGone):
                self.hear()
        return self.exit is not None

    def begin_end(self) -> None:
        """Have the supervisor end the worker and everything it started; return at once. `end` waits."""
        if self.exit is None and not self._is_ending:
            self._is_ending = True
            with suppress(OSError):  # it has ended: what it said last is there to be heard
                self._supervisor.send(b"x")

    def end(self) -> WorkerExit | None:
        """End the worker and everything it started; return how it ended.

        Raises:
            DeviceFault: something of it is still there.
        """
        if self._selector.get_map() is None:
            return self.exit
        try:
            self.begin_end()
            self._await_exit(time.monotonic() + END_LIMIT_S)
            self.drain()
            if self.exit is None:  # no process of one solution may live when the next one runs
                if self.supervisor_pid is None or not end_tree(self.supervisor_pid, FORCE_LIMIT_S):
                    raise DeviceFault("a worker, or something that it started, does not end")
                self.exit = WorkerExit(None, signal.SIGKILL, 0, over_memory=False)
            if self.supervisor_pid is not None and self.exit.code is self.exit.signal is None:
                raise DeviceFault("a worker's supervisor ended first: something that the worker started may still run")
        finally:
            self._selector.close()
            self._sock.close()
            self._supervisor.close()
            os.close(self._pipe)
            for folder in filter(None, (self._home, self.given, self.own)):
                remove_tree(folder, REMOVE_LIMIT_S)
        return self.exit

    # What arrives.

    def _pop(self) -> dict[str, Any] | None:
        """Return the next message of the worker's, also one that it sent before it ended; None if more may come.

        Raises:
            WorkerGone: it has ended, and nothing more comes.
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
        """Hear the worker and its supervisor; say whether `ask` would wait for nothing."""
        self._turn(0)
        self._watch_machine()
        return self._reader.has_frame or self.exit is not None or time.monotonic() >= deadline

    def _turn(self, limit_s: float) -> None:
        for key, _ in self._selector.select(limit_s):
            key.data(key.fileobj)

    def _await_exit(self, deadline: float) -> None:
        while self.exit is None and time.monotonic() < deadline:
            self._turn(max(0.0, deadline - time.monotonic()))

    def _on_answer(self, sock: socket.socket) -> None:
        if self._is_ending:
            self._selector.unregister(sock)  # nobody wants an answer, nor hears how it closes its end
            return
        try:
            self._reader.pump()
        except WireClosed:
            self._selector.unregister(sock)  # the supervisor will report how it ended
            self._await_exit(time.monotonic() + END_LIMIT_S)
            if self.exit is None:
                raise WorkerGone(None) from None

    def _on_report(self, sock: socket.socket) -> None:
        try:
            self._reports.pump()
        except WireClosed:
            self._selector.unregister(sock)
            self.exit = self.exit or WorkerExit(None, None, 0, over_memory=False)
            return
        while (message := self._reports.pop()) is not None:
            if "started" in message:
                self.pid, self.supervisor_pid = message["started"], message["supervisor"]
            elif "exit" in message:
                self.exit = WorkerExit(**message["exit"])
