"""What goes along with a request to a worker: descriptors, and what the session does until the answer comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Meanwhile: TypeAlias = Callable[[Callable[[], bool]], object]
"""Called once a request is sent, with a function that tells whether an answer has come, or none will."""


class Along(NamedTuple):
    """What goes along with a request."""

    fds: Sequence[int] = ()
    """Descriptors for the worker."""
    meanwhile: Meanwhile | None = None
