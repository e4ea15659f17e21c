"""Whose turn it is with the session's shared memory: no worker sees what another, or the session, has left there."""

from __future__ import annotations

from typing import Final

from flashinfer_bench.bench.evaluators.inputs.memory import recently_free_bytes, total_bytes
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.bench.runner.workers.process import WorkerProcess

LARGE_ARENA_BYTES: Final = 1 << 30
"""A larger arena is freed before a block of another definition, whose reference may need its memory."""
KEPT_ARENA_SHARE: Final = 8
"""One that takes more than the GPU's memory divided by this is freed before each block."""
ROOMY_SHARE: Final = 0.75
"""A solution is called beside the end of the worker before only where more of the GPU's memory than this is free."""


class ArenaTurns:
    """Gives the arena to one worker after the other.

    Args:
        arena: the session's shared memory.
        pool: knows which workers may still read it.
    """

    def __init__(self, arena: SharedArena, pool: WorkerPool) -> None:
        self._arena = arena
        self._pool = pool
        self._holder: WorkerProcess | None = None
        """The worker that holds a solution and has written to the arena, or may have."""
        self._definition = ""
        """Digest of the definition of the latest block."""

    def open_block(self, definition: str) -> None:
        """Free a large arena before a block of another definition, a very large one before each.

        Jobs of one definition need about as much each time, and to make the arena anew takes 8 ms a job.

        Args:
            definition: digest of the block's.
        """
        is_other, self._definition = definition != self._definition, definition
        held = self._arena.largest
        if held > LARGE_ARENA_BYTES and (is_other or held > total_bytes(self._arena.device) // KEPT_ARENA_SHARE):
            self._pool.discard()  # the worker maps the arena
            self.release()

    def clear(self) -> None:
        """Leave nothing in the arena that a solution's worker has put there: a reference's gets it now."""
        if self._holder is not None:
            self._renew()
            self._holder = None

    def hand_over(self, worker: WorkerProcess, size: int) -> None:
        """Renew the arena for another worker, which must not see what the last one or the session has left there.

        Where the last one has not ended, the new one, whose calls need `size` bytes, gets other memory until it is
        measured; but where the last one may hold what the new one needs, its end is waited for.
        """
        if self._holder is worker:
            return
        may_step_aside = self._pool.has_readers and self._arena.may_step_aside(size)
        device = self._arena.device
        if may_step_aside and recently_free_bytes(device) > ROOMY_SHARE * total_bytes(device):
            self._arena.step_aside()
        else:
            self._renew()
        self._holder = worker

    def release(self) -> None:
        """Give the memory back; no worker maps it any more."""
        self._arena.release()
        self._holder = None

    def _renew(self) -> None:
        self._pool.await_readers()
        self._arena.come_back()
        self._arena.renew()
