"""What the host has asked a session for: the block that runs, and the one that it has sent ahead.

A block that was sent is begun when the host says so. Until then the host may take it back without asking, and give it
to another device. So no job is done twice. The session knows meanwhile for which solutions to have workers ready.
"""

from __future__ import annotations

import select
import socket

from flashinfer_bench.base.wire import FrameReader, WireClosed
from flashinfer_bench.bench.runner.protocol import Announced, BlockOrder


class Orders:
    """Reads the host's orders.

    Args:
        host: they come from it.
        reader: reads them; nobody else does.
    """

    def __init__(self, host: socket.socket, reader: FrameReader) -> None:
        self._host = host
        self._reader = reader
        self._is_begun = False
        self.ahead: BlockOrder | None = None
        """The block that was sent and not begun."""
        self.announced: list[Announced] = []
        """All that was announced with the blocks so far, those that were taken back too."""

    def look(self, limit_s: float = 0.0) -> None:
        """Take what has come, or comes within some seconds.

        Raises:
            WireClosed: the host is gone, or wants no more.
        """
        self._take()
        while select.select([self._host], [], [], limit_s)[0]:
            self._reader.pump()
            self._take()
            limit_s = 0.0

    def next_block(self) -> BlockOrder:
        """Wait until the next block is begun, and return it.

        Raises:
            WireClosed: the host is gone, or wants no more.
        """
        self._take()
        while not self._is_begun or self.ahead is None:
            self._reader.pump()
            self._take()
        block, self.ahead, self._is_begun = self.ahead, None, False
        return block

    def _take(self) -> None:
        while not self._is_begun and (message := self._reader.pop()) is not None:
            if "close" in message:
                raise WireClosed
            if "block" in message:
                self.ahead = BlockOrder.model_validate(message["block"])
                self.announced += self.ahead.announced
            elif "drop" in message:
                self.ahead = None
            elif "begin" in message:
                self._is_begun = self.ahead is not None
