"""How the calls of a relay get their inputs one by one, and how long each then takes.

The session keeps what the calls are given to itself, brings it into the places one by one, and keeps what a call gave
as soon as the board (`worker/relay_board.py`) says that it is over. Session and worker look at the board without a
pause, each on a processor of its own, so a handover takes a microsecond or two.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import torch

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.worker.relay_board import BOARD_BYTES, RelayBoard, has_order

RELAY_CALLS: Final = 33
"""Calls of a relay. The median counts, so who wants to gain has to leave out half of them."""
EMPTY_RELAYS: Final = 4
EMPTY_BYTES: Final = 64
"""Bytes that are moved before and after an empty call, as inputs and outputs are."""

OWN_MOVES: Final = 5
SLOWER_MOVES: Final = 1.5
MOVE_SLACK_NS: Final = 500
"""What is taken off for a move of inputs or outputs is no more than SLOWER_MOVES times what the least of OWN_MOVES
within this process takes, and this."""
MOST_LOOKS: Final = 2
PAUSE_S: Final = 0.00005
"""After so many looks of some 0.1 ms each the session pauses between them: threads of a call may need its core."""
SIBLINGS: Final = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
PROCESSOR_FIELD: Final = 36
"""Of `/proc/PID/stat`, counted from the one behind the name."""

chance = random.SystemRandom()
now_ns = time.perf_counter_ns


class Along(NamedTuple):
    """What goes along with a request."""

    fds: Sequence[int] = ()
    """Descriptors for the worker."""
    meanwhile: Callable[[Callable[[], bool]], object] | None = None
    """Called once the request is sent, with what tells whether an answer has come, or none will."""


@contextmanager
def open_board() -> Iterator[tuple[RelayBoard, int]]:
    """Give a board of the session's own, and the descriptor that goes to the worker."""
    fd = open_memory_file(BOARD_BYTES)
    try:
        yield RelayBoard(fd), fd
    finally:
        os.close(fd)


def can_relay() -> bool:
    """Say whether this machine can run relays: session and worker need a core each, beside its other processors."""
    if sys.platform != "linux" or usable_cores() < 2 or not has_order():
        return False
    return len({frozenset(processors_beside(one)) for one in os.sched_getaffinity(0)}) > 1


@dataclass(frozen=True)
class Handover:
    """How a call gets what it is given, and what it gave is kept: addresses and sizes of what is moved.

    Args:
        given: from where to where the inputs of each call go.
        given_bytes: of each.
        left: from where to where its outputs go.
        left_bytes: of each.
    """

    given: Sequence[tuple[int, int]]
    given_bytes: int
    left: Sequence[tuple[int, int]]
    left_bytes: int

    def run(self, board: RelayBoard, worker_pid: int | None, is_over: Callable[[], bool]) -> list[int]:
        """Give calls out one by one; return the nanoseconds of each. They are fewer where the worker answers sooner.

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

            return self._run(board, is_over_apart)

    def _run(self, board: RelayBoard, is_over: Callable[[], bool]) -> list[int]:
        move = ctypes.memmove
        times: list[tuple[int, int, int, int]] = []
        most_ns = longest_move(self.given_bytes), longest_move(self.left_bytes)
        firsts = [chance.randrange(self.left_bytes + 1) for _ in self.left]
        calls = zip(self.given, self.left, firsts, strict=True)
        for count, ((source, place), (slots, kept), first) in enumerate(calls, 1):
            before = now_ns()
            move(place, source, self.given_bytes)
            start = now_ns()
            board.give(count)
            for look in itertools.count():
                if board.is_done(count):
                    break
                if is_over() and not board.is_done(count):
                    return to_spans(times, most_ns)
                if look > MOST_LOOKS:
                    time.sleep(PAUSE_S)
            end = now_ns()
            # Who writes on behind his word would have to be ahead of a copy that begins somewhere.
            move(kept + first, slots + first, self.left_bytes - first)
            move(kept, slots, first)
            times.append((before, start, end, now_ns()))
        return to_spans(times, most_ns)


def longest_move(size: int) -> float:
    """Return the nanoseconds that may be taken off for a move of so many bytes, by moves within this process.

    A worker can make moves from and to its places slow, by giving their pages back for one, and compute meanwhile.
    """
    return SLOWER_MOVES * own_move(size) + MOVE_SLACK_NS


def own_move(size: int) -> int:
    """Return the nanoseconds that it takes at the least to move so many bytes within this process."""
    source, target = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    taken = []
    for _ in range(OWN_MOVES):
        start = now_ns()
        ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
        taken.append(now_ns() - start)
    return min(taken)


def to_spans(times: Sequence[tuple[int, int, int, int]], most_ns: tuple[float, float]) -> list[int]:
    """Return what each call took, from before its inputs moved until its outputs had, less the least of both moves.

    So what counts is also the time that the session was held up beside a move, by a thread of the solution say: the
    inputs are there then, or the outputs not yet looked at.

    Args:
        times: of each call when its inputs began to come, when they were there, when it was over, and when its outputs
            were kept.
        most_ns: no more is taken off for a move of inputs, and of outputs.
    """
    if not times:
        return []
    least_ns = min(start - before for before, start, _, _ in times), min(after - end for _, _, end, after in times)
    least = int(sum(min(pair) for pair in zip(least_ns, most_ns, strict=True)))
    return [after - before - least for before, _, _, after in times]


def take_empty_relay(relay: Callable[[Handover, int], list[int]]) -> float:
    """Return what a call takes in a relay that computes nothing and gives back one number, in nanoseconds.

    Args:
        relay: runs a relay of so many empty calls.
    """
    scratch = torch.zeros(4, EMPTY_BYTES, dtype=torch.uint8)
    at = [scratch[row].data_ptr() for row in range(4)]
    moves = Handover([(at[0], at[1])] * RELAY_CALLS, EMPTY_BYTES, [(at[2], at[3])] * RELAY_CALLS, EMPTY_BYTES)
    return min(median(relay(moves, RELAY_CALLS)) for _ in range(EMPTY_RELAYS))


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


@lru_cache
def processors_beside(processor: int) -> frozenset[int]:
    """Return the processors of the same core, this one among them."""
    with suppress(OSError, ValueError):
        return read_list(Path(SIBLINGS.format(processor)).read_text()) | {processor}
    return frozenset({processor})


def read_list(text: str) -> frozenset[int]:
    """Read a list of processors as the system writes it: 0-3,8.

    Raises:
        ValueError: it is none.
    """
    ends = [part.partition("-") for part in text.strip().split(",")]
    return frozenset(one for first, _, last in ends for one in range(int(first), int(last or first) + 1))


def processor_of(stat: str) -> int | None:
    """Return the number of the processor that a thread ran on last, by a file of the system; None where it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(stat).read_bytes().rsplit(b")", 1)[1].split()[PROCESSOR_FIELD])
    return None


def addresses(rows: torch.Tensor) -> list[int]:
    """Return where each row of a matrix of bytes begins."""
    return [rows.data_ptr() + at * rows.stride(0) for at in range(rows.shape[0])]
