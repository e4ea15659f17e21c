"""The limits of a server: what one request, one submitter and all of them together may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True)
class ServeLimits:
    """Every limit; a request beyond one is refused with a status that says which."""

    body_bytes: int = 8 * MIB
    """A larger body is refused (413). The rest is read and dropped, never kept."""
    all_bodies_bytes: int = 256 * MIB
    """Bytes that bodies hold at once while they are read; a request beyond is asked to come again (503)."""
    sources: int = 64
    """A solution with more source files is refused (413)."""
    source_bytes: int = 4 * MIB
    """A solution whose sources have more bytes together is refused (413)."""
    open_tasks: int = 10_000
    """Tasks that are not over; one more is refused (503) until some are."""
    open_tasks_each: int = 2_000
    """The same for one submitter (429)."""
    poll_s: float = 60.0
    """A long poll is answered after this time at the latest, whatever it asks for."""
    polls: int = 3_000
    """Requests that wait for tasks at once, streams of events too; one more is refused (429)."""
    listed: int = 1_000
    """Most entries of a list of tasks, the latest first."""
    drain_s: float = 60.0
    """On SIGTERM jobs that run have this time to end; then their tasks go back to the store."""
    keep_days: float = 7.0
    """A task that is over is forgotten after this time. Its traces stay in the set."""
