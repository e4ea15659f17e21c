"""How the calls of a relay get their inputs one by one, and how long each then takes.

The session keeps what the calls are given to itself, brings it into the places one by one, and looks at what a call
gave as soon as the board (`worker/relay_board.py`) says that it is over. Session and worker look at the board without a
pause, each on a processor of its own, so a handover takes a microsecond or two. Or the session waits for a bell, and
leaves its processor to threads of the call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import torch

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.base.quiet_cores import processors_beside
from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.bench.runner.workers.timed.glances import OutputGlances
from flashinfer_bench.worker.relay_board import BOARD_BYTES, SPINS, RelayBoard, has_order

RELAY_CALLS: Final = 33
"""Calls of a relay. The median counts, so who wants to gain has to leave out half of them."""
EMPTY_RELAYS: Final = 4
EMPTY_BYTES: Final = 64
"""Bytes of what an empty call is given, and of its outputs."""

OWN_MOVES: Final = 5
SLOWER_MOVES: Final = 1.5
MOVE_SLACK_NS: Final = 500
"""What is taken off for a move of inputs is no more than SLOWER_MOVES times what the least of OWN_MOVES within this
process takes, and this."""
LOOK_NS: Final = 1_000
"""What is taken off for a look at outputs is no more than this."""
PROCESSOR_FIELD: Final = 36
"""Of `/proc/PID/stat`, counted from the one behind the name."""

now_ns = time.perf_counter_ns


class Along(NamedTuple):
    """What goes along with a request."""

    fds: Sequence[int] = ()
    """Descriptors for the worker."""
    meanwhile: Callable[[Callable[[], bool]], object] | None = None
    """Called once the request is sent, with what tells whether an answer has come, or none will."""


NOTHING_ALONG: Final = Along()


class Times(NamedTuple):
    """Of one call, in nanoseconds of the session's clock."""

    before: int
    """Its inputs began to come."""
    start: int
    """They were there."""
    end: int
    """It was told as over."""
    after: int
    """Its outputs had been looked at."""


class CallSpan(NamedTuple):
    """What a call took, in nanoseconds."""

    call: int
    """From when its inputs began to come until its outputs had been looked at, less what these two take."""
    move: int
    """What was taken off for the move of its inputs, less what moving nothing takes: somebody may compute along."""


@contextmanager
def open_board() -> Iterator[tuple[RelayBoard, list[int]]]:
    """Give a board of the session's own, and the descriptors that go to the worker: of its memory, and of its bell."""
    memory = open_memory_file(BOARD_BYTES)
    rung, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield RelayBoard(memory, rung), [memory, ring]
    finally:
        for fd in (memory, rung, ring):
            os.close(fd)


def can_relay() -> bool:
    """Say whether this machine can run relays: session and worker need a core each, beside its other processors."""
    if sys.platform != "linux" or usable_cores() < 2 or not has_order():
        return False
    return len({frozenset(processors_beside(one)) for one in os.sched_getaffinity(0)}) > 1


class Handover:
    """How calls get what they are given one by one, and when what they gave is looked at.

    Args:
        given: what the calls are given, a row of bytes for each; memory of this process's own.
        places: where it goes, a row for each.
        glances: looks at the outputs of each call.
        scratch: some rows of the size of those of `given`, of this process's own.
        waits: wait for the worker's bell and leave the processor to its threads, in place of looking at the board
            without a pause.
    """

    def __init__(
        self,
        given: torch.Tensor,
        places: torch.Tensor,
        glances: OutputGlances,
        scratch: torch.Tensor,
        *,
        waits: bool = False,
    ) -> None:
        self._moves = list(zip(addresses(places), addresses(given), strict=True))
        self._held = given, places, scratch
        self._size = given.shape[1]
        self._glances = glances
        self._waits = waits
        self._longest_move_ns = SLOWER_MOVES * own_move_ns(given, scratch) + MOVE_SLACK_NS  # while the worker rests

    def run(self, board: RelayBoard, worker_pid: int | None, is_over: Callable[[], bool]) -> list[CallSpan]:
        """Give calls out one by one; return what each took. They are fewer where the worker answers sooner.

        Args:
            board: cleared.
            worker_pid: the worker.
            is_over: tells whether the worker has answered, or is gone, or late.
        """
        with staying_apart(worker_pid) as stay_apart:
            stay_apart()

            def is_over_apart() -> bool:
                stay_apart()
                return is_over()

            return [to_span(times, self._longest_move_ns) for times in self._run(board, is_over_apart)]

    def _run(self, board: RelayBoard, is_over: Callable[[], bool]) -> list[Times]:
        move, size, waits = ctypes.memmove, self._size, self._waits
        look_ahead, look = self._glances.look_ahead, self._glances.look
        looks = 1 if waits else SPINS
        if waits:
            board.listen()
        found: list[Times] = []
        for at, (place, source) in enumerate(self._moves):
            look_ahead(at)
            before = now_ns()
            move(place, source, size)
            start = now_ns()
            board.give(at + 1)
            if waits:
                board.await_bell()
            while not board.is_done(at + 1, looks):
                if is_over() and not board.is_done(at + 1, looks):
                    return found
                if waits:
                    board.await_bell()
            end = now_ns()
            look(at)
            found.append(Times(before, start, end, now_ns()))
        return found


def own_move_ns(given: torch.Tensor, scratch: torch.Tensor) -> int:
    """Return what it takes at the least to move a row of bytes within this process.

    Args:
        given: the rows that are moved.
        scratch: rows of the same size, no more than those.
    """
    taken = []
    for target, source in zip(addresses(scratch), addresses(given), strict=False):
        start = now_ns()
        ctypes.memmove(target, source, given.shape[1])
        taken.append(now_ns() - start)
    return min(taken)


def to_span(times: Times, longest_move_ns: float) -> CallSpan:
    """Return what a call took.

    For moving inputs and looking at outputs no more is taken off than that takes where no worker has its hands in it.
    So what counts is also the time that the session was held up beside it, by a thread of the solution say, or because
    a worker has given the pages back that inputs go to: they are there then, or the outputs not yet looked at.

    Args:
        times: of the call.
        longest_move_ns: no more is taken off for the move of the inputs.
    """
    move_ns = int(min(times.start - times.before, longest_move_ns))
    call_ns = times.after - times.before - move_ns - min(times.after - times.end, LOOK_NS)
    return CallSpan(call_ns, max(0, move_ns - MOVE_SLACK_NS))


def take_empty_relay(relay: Callable[[Handover, int], list[CallSpan]]) -> float:
    """Return what a call takes in a relay that computes nothing and gives back one number, in nanoseconds.

    Args:
        relay: runs a relay of so many empty calls.
    """
    given, places, slots = torch.ones(3, RELAY_CALLS, EMPTY_BYTES, dtype=torch.uint8)
    scratch = torch.ones_like(given[:OWN_MOVES])

    def take_one() -> float:
        moves = Handover(given, places, OutputGlances(slots, [(0, EMPTY_BYTES)]), scratch)
        return median(span.call for span in relay(moves, RELAY_CALLS))

    return min(take_one() for _ in range(EMPTY_RELAYS))


@contextmanager
def staying_apart(worker_pid: int | None) -> Iterator[Callable[[], None]]:
    """Give what moves this thread to another core where the worker has the same one; at the end it may have any.

    Where other programs have the other processors, the system may leave both on one, and each would wait until the
    other's time is over. On two processors of one core each would slow the other down.
    """
    allowed = os.sched_getaffinity(0)

    def stay_apart() -> None:
        theirs = processor_of(f"/proc/{worker_pid}/stat")
        if theirs is None:
            return
        ours, beside = processor_of("/proc/thread-self/stat"), processors_beside(theirs)
        if ours == theirs or (ours in beside and allowed - beside):
            os.sched_setaffinity(0, allowed - beside or allowed - {theirs} or allowed)

    try:
        yield stay_apart if worker_pid is not None else lambda: None
    finally:
        if os.sched_getaffinity(0) != allowed:
            os.sched_setaffinity(0, allowed)


def processor_of(stat: str) -> int | None:
    """Return the number of the processor that a thread ran on last, by a file of the system; None where it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(stat).read_bytes().rsplit(b")", 1)[1].split()[PROCESSOR_FIELD])
    return None


def addresses(rows: torch.Tensor) -> list[int]:
    """Return where each row of a matrix of bytes begins."""
    return [rows.data_ptr() + at * rows.stride(0) for at in range(rows.shape[0])]
