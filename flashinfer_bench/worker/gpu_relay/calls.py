"""The worker's end of a gated chain: each call waits on the GPU for the key to its inputs, and then commits.

If a graph can hold the calls, one has all of them. If none can, each is launched; if nothing waits for the
streams that a call uses, its key is waited for here, before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from flashinfer_bench.timing.clocks import CaptureRefused, Launch, capture, see_operations
from flashinfer_bench.worker.calls import CallLaunch
from flashinfer_bench.worker.gpu_relay.board import BOARD_BYTES, MappedBoard
from flashinfer_bench.worker.gpu_relay.kernels import ChainKernels, Piece, count_launches

LIMIT_S: Final = 20.0
"""A key is waited for no longer."""


class GpuChains:
    """Gated chains of the calls that are laid out, all of them with one board.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._board: MappedBoard | None = None
        self._kernels: ChainKernels | None = None
        self._chain: CallChain | None = None

    def run(self, request: Mapping[str, Any], fd: int, calls: Sequence[CallLaunch], inputs: int) -> dict[str, Any]:
        """Answer a request for a chain.

        Args:
            request: its fields.
            fd: the memory file of the board; behind it stands the kernels' machine code. It is closed.
            calls: in order; the same ones until they are forgotten.
            inputs: the address of those of the first place.
        """
        try:
            board = self._board = self._board or MappedBoard(fd, int(request["size"]))
        finally:
            os.close(fd)
        if self._kernels is None:
            self._kernels = ChainKernels(board.text(BOARD_BYTES, int(request["size"])), self._device)
            board.give(0, 1)
            self._kernels.warm_up(board.key_at(0))
            board.clear()
        if self._chain is None:
            rows = [Piece(inputs + index * request["stride"], request["inputs"]) for index in request["indices"]]
            chain = self._chain = CallChain(self._device, board, self._kernels, list(zip(calls, rows, strict=True)))
            chain.choose_launch(request["operations"], is_settled=request["settles"])
        try:
            self._chain.launch()
            board.tell_launched(len(calls))
        except BaseException:
            for at in range(len(calls)):
                board.give_if_missing(at)  # kernels wait for them, which nobody gives any more
            with suppress(RuntimeError):
                torch.cuda.synchronize(self._device)
            raise
        torch.cuda.synchronize(self._device)
        return {"relayed": len(calls), "joined": self._chain.is_joined}

    def forget(self) -> bool:
        """Forget the calls and their board; say whether there were any."""
        board, self._board, self._chain = self._board, None, None
        if board is not None:
            board.release()
        return board is not None


class CallChain:
    """The chain of some calls.

    Args:
        device: the GPU.
        board: gives keys, and is told what calls commit to.
        kernels: go around each call.
        calls: in order, each with where its inputs lie.
    """

    def __init__(
        self, device: torch.device, board: MappedBoard, kernels: ChainKernels, calls: list[tuple[CallLaunch, Piece]]
    ) -> None:
        self._device = device
        self._board = board
        self._kernels = kernels
        self._calls = calls
        self._commits = [
            kernels.committer([slot.nbytes for slot in call.slots], board.told_at(at))
            for at, (call, _) in enumerate(calls)
        ]
        self.launch: Launch = self._launch_all
        self.is_joined = False
        """All calls are one graph."""

    def choose_launch(self, operations: int | None, *, is_settled: bool) -> None:
        """Choose how the calls are launched: as one graph if they can be.

        Args:
            operations: that a graph has to hold of a call; None if no graph can hold it.
            is_settled: the device is waited for around each call.
        """
        if is_settled:
            self.launch = self._launch_settled
        elif operations is not None:
            with suppress(CaptureRefused):
                self.launch, self.is_joined = capture(lambda: self._launch_all(operations)), True

    def _launch_all(self, captured: int | None = None) -> None:
        """Launch all calls; `captured` are the operations of one that are captured, None if they run."""
        for at, (call, row) in enumerate(self._calls):
            self._kernels.await_and_unmask(self._board.key_at(at), row, self._board.ready_at, at + 1)
            call()
            if at == 0 and captured is not None:
                see_operations(captured + count_launches(row.nbytes))
            self._end(at, call)
            if captured is None:
                self._board.tell_launched(at + 1)

    def _launch_settled(self) -> None:
        for at, (call, row) in enumerate(self._calls):
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

    def _end(self, at: int, call: CallLaunch) -> None:
        """Commit to what a call gave, and bring it into its slots: before, if it lies otherwise than they do."""
        results = call.plain_results()
        if results is None:
            call.put_away()
        self._commits[at]([one.data_ptr() for one in results or call.slots])
        if results is not None:
            call.put_away()
        call.result = None
