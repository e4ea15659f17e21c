"""The way to an actor: calls that Ray carries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from flashinfer_bench.cluster.far_session import PlaceLost

LOG: Final = logging.getLogger(__name__)
END_LIMIT_S: Final = 70.0
"""Seconds that an actor may take to end a session; then it is killed, and the session with it."""


class RayPost:
    """The way to one actor.

    Args:
        actor: its handle.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._number = 0
        self.is_lost = False

    def start(self, hello: dict[str, Any]) -> None:
        """Start a session."""
        self._number = self._get(self._actor.start.remote(hello))

    def give(self, order: dict[str, Any], blobs: Mapping[str, Any]) -> None:
        """Give it an order, with references to the blobs of its block."""
        self._actor.give.remote(self._number, order, dict(blobs))

    def take(self) -> list[dict[str, Any]] | None:
        """Wait for what it says."""
        found: list[dict[str, Any]] | None = self._get(self._actor.take.remote(self._number))
        return found

    def end(self) -> None:
        """End it; an actor that does not is killed."""
        if self.is_lost:
            return
        try:
            ray.get(self._actor.end.remote(self._number), timeout=END_LIMIT_S)
        except GetTimeoutError:
            self.is_lost = True
            ray.kill(self._actor)
        except RayError as error:
            self._lose(error)

    def _get(self, answer: Any) -> Any:
        try:
            return ray.get(answer)
        except RayActorError as error:
            self._lose(error)

    def _lose(self, error: RayError) -> None:
        self.is_lost = True
        LOG.debug("a place is lost", exc_info=error)
        raise PlaceLost(f"its node or its actor is lost ({type(error).__name__})") from None
