"""An open task, as the server's requests see it: what happened so far, and a way to wait for more.

All of it belongs to the event loop's thread. A thousand waiting requests are a thousand waiters of one asyncio event;
none has a thread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from flashinfer_bench.serve.door import EngineTask
from flashinfer_bench.serve.ledger import TaskRow

PENDING: Final = "pending"
RUNNING: Final = "running"
CANCELLED: Final = "cancelled"


@dataclass
class LiveTask:
    """A task that is not over."""

    row: TaskRow
    missing: list[str]
    """Workloads without a recorded verdict."""
    handle: EngineTask | None = None
    """None until the engine has it."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """What happened; at most two more than it has workloads."""
    ended: TaskRow | None = None
    """The row as it is when the task is over. The task stays here until the ledger has that, too."""
    is_given_back: bool = False
    """The server ends; the next one goes on with the task."""
    follower: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change; then there is another one."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to the task."""
        return self.ended is not None

    @property
    def status(self) -> str:
        """Pending or running, as the engine has it."""
        if self.handle is not None and self.handle.state == RUNNING:
            return RUNNING
        return RUNNING if self.events else PENDING

    def tell(self, event: dict[str, Any]) -> None:
        """Keep an event, and wake who waits."""
        self.events.append(event)
        self.wake()

    def wake(self) -> None:
        """Let every waiter look again."""
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()
