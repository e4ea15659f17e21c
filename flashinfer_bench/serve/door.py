"""What the server needs of an engine. `flashinfer_bench.Engine` has it; tests have a small one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from flashinfer_bench.bench.confirm import Confirm
from flashinfer_bench.data import Solution, Trace


class EngineTask(Protocol):
    """A solution that was submitted to an engine."""

    @property
    def state(self) -> str:
        """One of pending, running, completed, failed, cancelled."""

    @property
    def faults(self) -> Sequence[Any]:
        """Its jobs that have no verdict; each has a `message`."""

    def cancel(self) -> Any:
        """Give up what is not judged yet."""

    def __aiter__(self) -> AsyncIterator[Trace]:
        """Yield its traces as they come."""


class ServedEngine(Protocol):
    """An engine."""

    def submit(
        self,
        solution: Solution,
        workloads: Sequence[str] | None = None,
        *,
        priority: int = 0,
        submitter: str = "",
        save_results: bool = True,
        confirm: Confirm = "if_best",
    ) -> EngineTask:
        """Take a solution, without waiting for anything."""

    def state(self) -> Any:
        """Return what the engine does now."""

    def subscribe(self, callback: Callable[[Any], None]) -> Any:
        """Call this with each event."""

    def close(self) -> None:
        """End everything."""
