"""The worker's end of a gated chain: each call waits on the GPU for the key to its inputs, and then commits.

Where a graph can hold the calls, one has all of them. Where none can, each is launched; where nothing waits for the
streams that a call uses, its key is waited for here, before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import torch

from flashinfer_bench.timing.clocks import CaptureRefused, Launch, capture, see_operations
from flashinfer_bench.worker.gpu_relay.board import BOARD_BYTES, MappedBoard
from flashinfer_bench.worker.gpu_relay.kernels import Piece, RelayKernels, count_launches

LIMIT_S: Final = 20.0
"""Nobody waits longer for a key."""


class RelayedCall(Protocol):
    """A call that is relayed."""

    @property
    def result(self) -> Any:
        """What it returned."""

    @result.setter
    def result(self, value: Any) -> None: ...

    def __call__(self) -> None:
        """Make it."""

    def put_away(self) -> object:
        """Bring what it returned into its output slots."""

    @property
    def slots(self) -> list[torch.Tensor]:
        """Its output slots."""

    def plain_results(self) -> list[torch.Tensor] | None:
        """Return what it returned, where that lies as the slots do; None where it does not, or where it filled them."""


class GpuRelays:
    """Relays of the calls that are laid out, all of them with one board.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._board: MappedBoard | None = None
        self._kernels: RelayKernels | None = None
        self._replay: Launch | None = None
        self._refused = False
        self._commits: list[Callable[[Sequence[int]], None]] = []
        """What commits to the outputs of each call."""

    def relay(self, request: Mapping[str, Any], fd: int, calls: Sequence[RelayedCall], inputs: int) -> dict[str, Any]:
        """Answer a request for a relay.

        Args:
            request: its fields.
            fd: the memory file of the board; behind it stands the kernels' machine code. It is closed.
            calls: in order.
            inputs: where those of the first place lie.
        """
        try:
            if self._board is None:
                self._board = MappedBoard(fd, int(request["size"]))
        finally:
            os.close(fd)
        if self._kernels is None:
            self._kernels = RelayKernels(self._board.text(BOARD_BYTES, int(request["size"])), self._device)
            self._board.give(0, 1)
            self._kernels.warm_up(self._board.key_at(0))
            self._board.clear()
        if not self._commits:
            for at, call in enumerate(calls):
                sizes = [slot.nbytes for slot in call.slots]
                self._commits.append(self._kernels.committer(sizes, self._board.told_at(at)))
        rows = [Piece(inputs + index * request["stride"], request["inputs"]) for index in request["indices"]]
        operations = None if request["settles"] else request["operations"]
        if operations is not None and self._replay is None and not self._refused:
            try:
                self._replay = capture(lambda: self._launch_all(calls, rows, operations, None))
            except CaptureRefused:
                self._refused = True
        try:
            if request["settles"]:
                self._run_settled(calls, rows)
            elif self._replay is not None:
                self._replay()
                self._board.tell_launched(len(calls))
            else:
                self._launch_all(calls, rows, 0, self._board)
        except BaseException:
            for at in range(len(calls)):
                self._board.give_if_missing(at)  # kernels wait for them, which nobody gives any more
            with suppress(RuntimeError):
                torch.cuda.synchronize(self._device)
            raise
        torch.cuda.synchronize(self._device)
        return {"relayed": len(calls), "joined": self._replay is not None}

    def forget(self) -> bool:
        """Forget the calls and their board; say whether there were any."""
        board, self._board, self._replay, self._refused = self._board, None, None, False
        self._commits.clear()
        if board is not None:
            board.release()
        return board is not None

    def _launch_all(
        self, calls: Sequence[RelayedCall], rows: Sequence[Piece], operations: int, told: MappedBoard | None
    ) -> None:
        """Launch all calls; `told` is the board that is told of each, None while they are captured."""
        assert self._board is not None  # opened by the request
        assert self._kernels is not None
        for at, (call, row) in enumerate(zip(calls, rows, strict=True)):
            self._kernels.await_and_unmask(self._board.key_at(at), row, self._board.ready_at, at + 1)
            call()
            if at == 0 and told is None:
                see_operations(operations + count_launches(row.nbytes))
            self._end(at, call)
            if told is not None:
                told.tell_launched(at + 1)

    def _run_settled(self, calls: Sequence[RelayedCall], rows: Sequence[Piece]) -> None:
        assert self._board is not None  # opened by the request
        assert self._kernels is not None
        for at, (call, row) in enumerate(zip(calls, rows, strict=True)):
            torch.cuda.synchronize(self._device)
            self._board.tell_launched(at + 1)
            self._board.tell_ready(at + 1)
            deadline = time.monotonic() + LIMIT_S
            while not self._board.has_key(at) and time.monotonic() < deadline:
                continue
            self._kernels.unmask(row, self._board.key_at(at))
            torch.cuda.synchronize(self._device)
            call()
            torch.cuda.synchronize(self._device)
            self._end(at, call)

    def _end(self, at: int, call: RelayedCall) -> None:
        """Commit to what a call gave, and bring it into its slots: before, where it lies otherwise than they do."""
        results = call.plain_results()
        if results is None:
            call.put_away()
        self._commits[at]([one.data_ptr() for one in results or call.slots])
        if results is not None:
            call.put_away()
        call.result = None
