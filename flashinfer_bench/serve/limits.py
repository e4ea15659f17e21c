"""The limits of a server: for one request, for one submitter, and for all submitters together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True)
class ServeLimits:
    """All limits. A request beyond a limit is refused with the HTTP status in brackets."""

    body_bytes: int = 8 * MIB
    """Largest body, in bytes (413). The rest of a larger body is read and dropped."""
    all_bodies_bytes: int = 256 * MIB
    """Largest total of the bodies being read, in bytes. Further requests must retry later (503)."""
    sources: int = 64
    """Largest number of source files of a solution (413)."""
    source_bytes: int = 4 * MIB
    """Largest total size of a solution's sources, in bytes (413)."""
    open_tasks: int = 10_000
    """Largest number of open tasks. Further tasks are refused (503) until some end."""
    open_tasks_each: int = 2_000
    """Largest number of open tasks of one submitter (429)."""
    poll_s: float = 60.0
    """Longest duration of a long poll, in seconds. A longer requested timeout is shortened."""
    polls: int = 3_000
    """Largest number of concurrent waiting requests, including event streams. Further requests are refused (429)."""
    listed: int = 1_000
    """Largest number of entries in a list of tasks, the latest first."""
    drain_s: float = 60.0
    """Seconds for running jobs to end after SIGTERM. Then their tasks go back to the store."""
    keep_days: float = 7.0
    """Time after which an ended task is deleted. Its traces stay in the set."""
