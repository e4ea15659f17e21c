"""What a session does around relays on a GPU: it masks inputs, gives out keys, and times what each call takes.

    span = from a key to what the GPU commits to by it

What that takes where nothing is computed between, the session measures in a relay of its own, in the same places: no
worker has a hand in it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from secrets import randbits
from typing import Final, NamedTuple

import torch

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.timing import driver
from flashinfer_bench.timing.clocks import CaptureRefused, capture, capture_first
from flashinfer_bench.worker.gpu_relay.board import BOARD_BYTES, GpuBoard, MappedBoard
from flashinfer_bench.worker.gpu_relay.kernels import Piece, RelayKernels, piece_of, relay_image, split

LAUNCH_NS: Final = 50_000_000
WAITING_LAUNCH_NS: Final = 300_000
"""A call gets its key when all of it is launched, or after this: one that waits for the GPU inside goes on then."""
PAUSE_NS: Final = 3_000
LONGEST_PAUSE_NS: Final = 10_000_000
"""Between a call that waits and its key passes the first of these, or as long as the call before took, up to the second
of these: a GPU that computes without a pause spends its power and slows down."""
KEY_BITS: Final = 63
FEWEST_CORES: Final = 2
"""Session and worker need a core each."""
EMPTY_RELAYS: Final = 3
FEW_BYTES: Final = 256
EMPTY_LIMIT_S: Final = 1.0
"""They end after so long, also where something holds the GPU up."""

now_ns = time.perf_counter_ns


class Committed(NamedTuple):
    """Of one call of a relay."""

    span_ns: int
    """From its key to what it committed to."""
    digest: list[int]
    """What it committed to."""


def draw_keys(count: int) -> list[int]:
    """Return keys that nobody knows, none of them 0."""
    return [randbits(KEY_BITS) | 1 for _ in range(count)]


def hand_out(
    board: GpuBoard,
    keys: Sequence[int],
    groups: int,
    is_over: Callable[[], bool],
    launch_ns: int = LAUNCH_NS,
) -> list[Committed]:
    """Give calls their keys one by one; return what each took. They are fewer where the worker answers sooner.

    Args:
        board: cleared.
        keys: of each call.
        groups: a call commits to its outputs in so many groups.
        is_over: tells whether the worker has answered, or is gone, or late.
        launch_ns: no call's launch is waited for longer.
    """
    found: list[Committed] = []
    for at, key in enumerate(keys):
        while not board.await_ready(at + 1):
            if is_over():
                return found
        begin = now_ns()
        while not board.is_launched(at + 1) and now_ns() - begin < launch_ns:
            continue
        pause_ns = min(max(PAUSE_NS, found[-1].span_ns if found else 0), LONGEST_PAUSE_NS)
        begin = now_ns()
        while now_ns() - begin < pause_ns:
            continue
        start = now_ns()
        board.give(at, key)
        while not board.await_told(at, groups):
            if is_over() and not board.await_told(at, groups):
                return found
        found.append(Committed(now_ns() - start, board.told(at, groups)))
    return found


@contextmanager
def open_gpu_board() -> Iterator[tuple[GpuBoard, int, int]]:
    """Give a board, its memory file for a worker, and the bytes of that; the kernels' code stands behind the board."""
    image = relay_image()
    size = BOARD_BYTES + -(-len(image) // BOARD_BYTES) * BOARD_BYTES
    fd = open_memory_file(size)
    try:
        os.pwrite(fd, image, BOARD_BYTES)
        yield GpuBoard(fd, size), fd, size
    finally:
        os.close(fd)


class RelayDesk:
    """A session's own kernels and board for relays on a GPU.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels = RelayKernels(relay_image(), device)
        self._empty: dict[tuple[int, ...], int] = {}
        """Bytes of the inputs and of each output to what a call takes that computes nothing."""
        self._least_ns = math.inf
        fd = open_memory_file(BOARD_BYTES)
        try:
            self._board = MappedBoard(fd)
        finally:
            os.close(fd)
        self._board.give(0, 1)
        self._kernels.warm_up(self._board.key_at(0))
        self._board.clear()
        capture_first(device)

    def mask(self, rows: Sequence[Piece], keys: Sequence[int]) -> None:
        """Mask the inputs of each call by its key."""
        told = torch.tensor(keys, dtype=torch.int64).to(self._device)
        for at, row in enumerate(rows):
            self._kernels.unmask(row, told.data_ptr() + at * told.itemsize)
        torch.cuda.synchronize(self._device)

    def digests(self, outputs: Sequence[Sequence[torch.Tensor]]) -> list[list[int]]:
        """Return what a call commits to that left these outputs, for each of some calls."""
        groups = len(split(outputs[0]))
        told = torch.zeros(len(outputs), 2 * groups, dtype=torch.int64).to(self._device)
        for row, own in zip(told, outputs, strict=True):
            self._kernels.commit([piece_of(one) for one in own], row.data_ptr())
        return [[number % (1 << 64) for number in row] for row in told.tolist()]

    def find_empty(self, rows: Sequence[Piece], outputs: Sequence[Sequence[torch.Tensor]]) -> tuple[int, int]:
        """Return the least that a call takes in a relay which computes nothing, in nanoseconds, and one of a few bytes.

        It is measured once for inputs and outputs of some sizes: whatever a worker has left on the GPU makes it longer.
        Both are 0 where something holds the GPU up: then nothing is taken off.

        Args:
            rows: where the inputs of each call lie; they are overwritten.
            outputs: of each call.
        """
        key = (rows[0].nbytes, *(one.nbytes for one in outputs[0]))
        if key not in self._empty:
            few = [Piece(row.address, min(row.nbytes, FEW_BYTES)) for row in rows]
            least = [[one.view(-1)[:1].view(torch.uint8) for one in own[:1]] for own in outputs]
            taken = self._take_empty(few, least), self._take_empty(rows, outputs)
            if not all(taken):
                return 0, 0
            self._least_ns, self._empty[key] = min(self._least_ns, taken[0]), taken[1]
        return self._empty[key], int(self._least_ns)

    def _take_empty(self, rows: Sequence[Piece], outputs: Sequence[Sequence[torch.Tensor]]) -> int:
        """Return the least that a call takes in a relay, in nanoseconds, which unmasks, computes nothing, and commits.

        The least of all calls counts: whatever a worker has left on the GPU makes some of them take longer.

        Args:
            rows: where the inputs of each call lie; they are overwritten.
            outputs: of each call.
        """
        keys, groups = draw_keys(len(rows)), len(split(outputs[0]))
        spans: list[int] = []

        def launch_all() -> None:
            for at, (row, own) in enumerate(zip(rows, outputs, strict=True)):
                self._kernels.await_and_unmask(self._board.key_at(at), row, self._board.ready_at, at + 1)
                self._kernels.commit([piece_of(one) for one in own], self._board.told_at(at))

        try:
            replay = capture(launch_all)  # as the worker's calls are
        except CaptureRefused:
            return 0
        for _ in range(EMPTY_RELAYS):
            self._board.clear()
            replay()
            self._board.tell_launched(len(rows))
            spans += [one.span_ns for one in hand_out(self._board, keys, groups, is_late_after(EMPTY_LIMIT_S))]
            for at, key in enumerate(keys):
                self._board.give(at, key)
            torch.cuda.synchronize(self._device)
        return min(spans) if len(spans) == EMPTY_RELAYS * len(rows) else 0


@cache
def open_desk(device: torch.device) -> RelayDesk | None:
    """Return a session's desk for a GPU; None where this machine cannot run relays there."""
    if usable_cores() < FEWEST_CORES:
        return None
    try:
        torch.cuda.current_stream(device)
        return RelayDesk(device)
    except (OSError, driver.DriverError):
        return None


def is_late_after(limit_s: float) -> Callable[[], bool]:
    """Return what tells, from now on, whether so many seconds have passed."""
    deadline = time.monotonic() + limit_s
    return lambda: time.monotonic() > deadline
