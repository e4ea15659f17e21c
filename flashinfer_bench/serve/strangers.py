"""Connections before the gate: how long one may stay without a request, and how many an address may have.

A connection is a stranger's until the head of a request is whole and tells the token (where there is one), and again
when that request is answered. A stranger is given up after a time, whatever it has sent by then. Where an address has
too many of them, the longest ones there are given up: whoever says at once what is wanted is let in beside them.
Requests that are let in are no strangers', however long they take: long polls, streams of events, bodies on their way.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from flashinfer_bench.serve.gate import Admission, read_headers

_log = logging.getLogger(__name__)
GRACE_S: Final = 0.25
"""An address may have more strangers for so long: of many that come at once each has sent its head by then."""


class Strangers:
    """All of one server.

    Args:
        limit_s: after so many seconds one is given up.
        each: an address may have so many.
        admission: knows the token.
    """

    def __init__(self, limit_s: float, each: int, admission: Admission) -> None:
        self.limit_s = limit_s
        self.admission = admission
        self._each = each
        self._found: dict[str, dict[WatchedProtocol, None]] = {}
        """By address, the longest ones there first."""

    def add(self, peer: str, connection: WatchedProtocol) -> None:
        """Count one. Those that are too many are given up soon."""
        found = self._found.setdefault(peer, {})
        found[connection] = None
        if len(found) == self._each + 1:
            connection.loop.call_later(GRACE_S, self._thin, peer)

    def remove(self, peer: str, connection: WatchedProtocol) -> None:
        """Count it no more."""
        found = self._found[peer]
        del found[connection]
        if not found:
            del self._found[peer]

    def protocol(self) -> type[H11Protocol]:
        """Return what speaks with the connections of this server."""
        return type("Watched", (WatchedProtocol,), {"strangers": self})

    def _thin(self, peer: str) -> None:
        found = self._found.get(peer, {})
        surplus = list(islice(found, max(0, len(found) - self._each)))
        for connection in surplus:
            connection.give_up()
        if surplus:
            _log.info("%d connections from %s closed: too many without a request", len(surplus), peer)


class WatchedProtocol(H11Protocol):
    """uvicorn's protocol, which has no limit for the time of a head: its own is for what is idle after an answer."""

    strangers: ClassVar[Strangers]
    _timer: asyncio.TimerHandle | None = None
    """Runs while the connection is a stranger's."""
    _was_known: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()
        self._look()  # the head of the next request may have been there already

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_be()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close it; an answer on its way to somebody who is known is still sent."""
        self._let_be()
        if self._was_known:
            self.transport.close()
        else:
            self.transport.abort()

    def _watch(self) -> None:
        self._let_be()
        self._timer = self.loop.call_later(self.strangers.limit_s, self.give_up)
        self.strangers.add(self._peer(), self)

    def _look(self) -> None:
        """Let it be where a request of somebody who is known is being answered."""
        cycle = self.cycle
        if self._timer is None or cycle is None or cycle.response_complete:
            return
        if self.strangers.admission.knows_token(dict(read_headers(cycle.scope["headers"]))):
            self._was_known = True
            self._let_be()

    def _let_be(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.strangers.remove(self._peer(), self)

    def _peer(self) -> str:
        return self.client[0] if self.client else "-"
