"""The worker's side of a gated chain. Each call waits on the GPU for the key to its inputs, and then commits.

All calls are one graph if possible. Otherwise each call is launched separately. If a call uses a stream that does not
wait for the current stream, the host waits for the key before the call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from flashinfer_bench.timing.clocks import CaptureRefused, Launch, capture, see_operations
from flashinfer_bench.worker.calls import CallLaunch
from flashinfer_bench.worker.gated_chain.kernels import BLOCK_BYTES, ChainKernels, ControlBlock, Piece, count_launches

LIMIT_S: Final = 20.0
"""Maximum seconds of waiting for a key."""


class GatedChains:
    """The chain of the current calls, with its control block and the kernels around each call."""

    _block: ControlBlock
    _kernels: ChainKernels
    _calls: list[tuple[CallLaunch, Piece]]
    """The calls in order, each with its inputs."""
    _commits: list[Callable[[Sequence[int]], None]]

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_block = self._has_kernels = self._is_joined = False
        self._launch: Launch | None = None
        """Launches the chain; None until its calls are known."""

    def run(self, request: Mapping[str, Any], fd: int, calls: Sequence[CallLaunch], inputs: int) -> bool:
        """Make the calls of a request in a chain; return whether all of them were one graph.

        Args:
            fd: the memory file of the control block, followed by the kernels' machine code. It is closed.
            calls: the calls in order. They stay the same until `forget`.
            inputs: address of the inputs in the first buffer.
        """
        size = int(request["size"])
        try:
            if not self._has_block:
                self._block = ControlBlock(fd, size)
                self._block.map_to_gpu()
                self._has_block = True
        finally:
            os.close(fd)
        block = self._block
        if not self._has_kernels:
            self._kernels = ChainKernels(block.text(BLOCK_BYTES, size), self._device)
            self._has_kernels = True
            block.give(0, 1)
            self._kernels.warm_up(block.key_at(0))
            block.clear()
        if self._launch is None:
            rows = [Piece(inputs + index * request["stride"], request["inputs"]) for index in request["indices"]]
            self._calls = list(zip(calls, rows, strict=True))
            sizes = [[slot.nbytes for slot in call.slots] for call in calls]
            self._commits = [self._kernels.committer(own, block.digest_at(at)) for at, own in enumerate(sizes)]
            self._launch = self._choose_launch(request["operations"], drains=request["settles"])
        try:
            self._launch()
            block.tell_launched(len(calls))
        except BaseException:
            for at in range(len(calls)):
                block.give_if_missing(at)  # releases the kernels that wait for keys
            with suppress(RuntimeError):
                torch.cuda.synchronize(self._device)
            raise
        torch.cuda.synchronize(self._device)
        return self._is_joined

    def forget(self) -> bool:
        """Forget the calls and their control block; return whether there were any."""
        had_block, self._has_block = self._has_block, False
        self._launch, self._calls, self._commits, self._is_joined = None, [], [], False
        if had_block:
            self._block.release()
        return had_block

    def _choose_launch(self, operations: int | None, *, drains: bool) -> Launch:
        """Return the launch of the calls, as one graph if possible.

        Args:
            operations: number of operations of a call in a graph; None if no graph can hold the call.
            drains: synchronize the device around each call.
        """
        if drains:
            return self._launch_drained
        if operations is not None:
            with suppress(CaptureRefused):
                graph = capture(lambda: self._launch_all(operations))
                self._is_joined = True
                return graph
        return self._launch_all

    def _launch_all(self, captured: int | None = None) -> None:
        """Launch all calls. `captured` is the number of captured operations of a call; None outside a capture."""
        for at, (call, row) in enumerate(self._calls):
            self._kernels.await_and_unmask(self._block.key_at(at), row, self._block.ready_at, at + 1)
            call()
            if at == 0 and captured is not None:
                see_operations(captured + count_launches(row.nbytes))
            self._end(at, call)
            if captured is None:
                self._block.tell_launched(at + 1)

    def _launch_drained(self) -> None:
        for at, (call, row) in enumerate(self._calls):
            torch.cuda.synchronize(self._device)
            self._block.tell_launched(at + 1)
            self._block.tell_ready(at + 1)
            deadline = time.monotonic() + LIMIT_S
            while not self._block.has_key(at) and time.monotonic() < deadline:
                continue
            self._kernels.unmask(row, self._block.key_at(at))
            torch.cuda.synchronize(self._device)
            call()
            torch.cuda.synchronize(self._device)
            self._end(at, call)

    def _end(self, at: int, call: CallLaunch) -> None:
        """Commit to the results of a call and copy them into its slots. If layouts differ, copy first."""
        results = call.plain_results()
        if results is None:
            call.put_away()
        self._commits[at]([one.data_ptr() for one in results or call.slots])
        if results is not None:
            call.put_away()
        call.forget()
