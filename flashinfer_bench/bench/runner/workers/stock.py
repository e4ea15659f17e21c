"""Spare workers: forked ahead, started side by side, and replaced in the background when one is taken.

A worker costs up to a second to start on a GPU, where it makes a context. So a session has several in stock, for the
solutions that come next. The bound of their number is in `limits`: each idle context takes memory of its device, and
on a CPU a worker that starts would disturb a measurement, so it is waited for.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.bench.evaluators.inputs.memory import recently_free_bytes, total_bytes
from flashinfer_bench.bench.runner.workers.process import READY_LIMIT_S, WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.timing.measurement import Trial
from flashinfer_bench.worker.wire import WireError

MOST_CONTEXTS: Final = 4
"""Start at most this many workers to get one with a fast context; then take the last."""
SLOW_CONTEXT: Final = 1.07
"""A context is slow where a chain of empty kernels takes more than this times as long as in the best context. A worker
gets another one only where that matters: for a reference, and for a solution whose calls have several operations."""
GAPS_SHARE: Final = 0.005
"""A solution gets a worker with a fast context where the gaps of a slow one add more than this share to its time."""
MOST_SPARES: Final = 8
"""Most spares of a GPU: a short job in a worker of its own takes about an eighth of what a context takes to make."""
MOST_SPARES_ON_CPU: Final = 4
MOST_STARTING: Final = 4
"""Most spares of all sessions of a machine that make their contexts at once, but one of each: the driver makes them one
after the other, and who measures beside them, or waits for the first, would stand behind all the others."""
FIRST_STARTING: Final = 2
"""As many at once until the first of all is up: it is waited for."""
CORES_PER_START: Final = 4
"""Cores of this machine for each spare that starts: a measurement beside it needs one at once whenever it launches."""
CONTEXT_BYTES: Final = 768 << 20
"""What a spare is taken to hold on a GPU: its context, the timing kernels and the buffer that flushes the L2."""
SPARES_SHARE: Final = 16
"""All spares of a device may hold its memory divided by this."""
FREE_SHARE: Final = 4
"""All spares of a GPU may hold what is free there, and what they hold, divided by this."""
WORKER_BYTES: Final = 256 << 20
"""What a spare on a CPU is taken to hold of the machine's memory beside what all workers share."""


class SlowContext(Exception):
    """The worker's context makes the solution's calls slower, and a faster one can be had."""


@dataclass(frozen=True)
class ContextTraits:
    """What of a worker's context on a GPU could make calls slower."""

    excess_gap_ns: int = 0
    """How much longer each gap between a call's operations is than in the best context."""
    is_narrow: bool = False
    """It has one connection to the GPU, so that the work of several streams could wait for each other."""


@dataclass(frozen=True)
class SolutionFiles:
    """A solution that wants a worker, and where its files are."""

    digest: str
    """The solution's."""
    artifact: Path | None = None
    """The folder of its artifact; None where its sources are still to be written."""
    is_text: bool = False
    """It is its sources, which can be written anywhere."""
    wants_fast: bool = False
    """Its worker is to have a fast context of as many connections as CUDA makes. Another context may be slow, and has
    one connection: it takes half as long to make and to end, and a call on one stream takes the same time in it."""
    is_reference: bool = False
    """It is a reference, which needs nothing of Triton's: its worker may start before that is ready."""


ANY_SOLUTION: Final = SolutionFiles("", wants_fast=True)
UNKNOWN_SOLUTION: Final = SolutionFiles("unknown")
"""One that nobody has sent yet: a spare for it has folders of its own, and serves the next new one that comes."""


class StockLimits:
    """How many spares there may be.

    Args:
        device: "cuda" or "cpu".
        sessions: that judge on GPUs of this machine.
    """

    def __init__(self, device: str, sessions: int = 1) -> None:
        self._is_gpu = device == "cuda"
        self._cores = usable_cores()
        self._sessions = sessions

    def starting(self, *, is_first: bool) -> int:
        """Return how many may start at once; `is_first` where none has started yet."""
        if not self._is_gpu:
            return self.spares(0)
        most = (FIRST_STARTING if is_first else MOST_STARTING) // self._sessions
        return max(1, min(most, self._cores // CORES_PER_START))

    def spares(self, held: int) -> int:
        """Return how many there may be in all, at least one; `held` of them are there."""
        if not self._is_gpu:
            return max(1, min(MOST_SPARES_ON_CPU, self._cores, usable_memory() // SPARES_SHARE // WORKER_BYTES))
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return FIRST_STARTING  # a look at the memory would make the session's own context first
        gpu = torch.device("cuda", torch.cuda.current_device())
        free = recently_free_bytes(gpu)
        room = min(total_bytes(gpu) // SPARES_SHARE, (free + held * CONTEXT_BYTES) // FREE_SHARE)
        return max(1, min(MOST_SPARES, room // CONTEXT_BYTES))


@dataclass(eq=False)
class Spare:
    """A worker that has loaded no solution yet."""

    worker: WorkerProcess
    solution: SolutionFiles
    """What its walls are for; ANY_SOLUTION where it has none."""
    deadline: float
    """When it has to be up."""
    attempt: int = 1
    """Workers that were started to get this one with a fast context."""
    is_awaited: bool = False
    """It is started because somebody waits for it. Where it fails, that is told."""


class Stock:
    """Keeps spares for the solutions that come next.

    Args:
        spawn: starts a worker for a solution, and returns at once.
        retire: ends a worker, and returns at once.
        on_ready: told of each worker once it can take work.
        limits: how many there may be.
        now: monotonic seconds.

    `best_chain_ns` is the shortest `Clock.chain_gap_ns` that is known, `seen_chain_ns` that of this session's workers.
    """

    def __init__(
        self,
        spawn: Callable[[SolutionFiles], WorkerProcess],
        retire: Callable[[WorkerProcess], object],
        *,
        on_ready: Callable[[WorkerProcess], object],
        limits: StockLimits,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawn = spawn
        self._retire = retire
        self._on_ready = on_ready
        self._limits = limits
        self._now = now
        self.best_chain_ns: int | None = None
        self.seen_chain_ns: int | None = None
        self._spares: list[Spare] = []
        self._wanted: list[SolutionFiles] = []
        self._has_started = False
        self._has_failed = False
        """The latest spare that was to start did not. None is started ahead until another has started."""

    @property
    def workers(self) -> list[WorkerProcess]:
        """All spares; what they have told of themselves was heard."""
        for spare in self._spares:
            with suppress(WorkerGone, WireError):  # it will be dropped when somebody looks after the stock
                spare.worker.hear()
        return [spare.worker for spare in self._spares]

    @property
    def is_starting(self) -> bool:
        """Whether any spare is not up yet."""
        return any(not spare.worker.is_ready for spare in self._spares)

    def expect(self, wanted: Sequence[SolutionFiles]) -> None:
        """Keep spares for these, the next one first, from now on. Where nothing is wanted, those that are there stay.

        A spare that nobody wants, or for which there is no room any more, is ended; an early one only for lack of room.
        """
        self._wanted = list(wanted)
        self.tend()

    def has_ready(self, solution: SolutionFiles) -> bool:
        """Whether a spare for a solution is up, as far as was heard."""
        return any(spare.solution == solution and spare.worker.is_ready for spare in self._spares)

    def excess_ns(self, chain_gap_ns: int) -> int:
        """Return how much longer a link of a chain takes in a context than in the best; 0 where it is fast.

        Args:
            chain_gap_ns: what a link takes in the context; 0 where nobody knows.
        """
        return chain_gap_ns - (self.best_chain_ns or 0) if self._is_slow(chain_gap_ns) else 0

    def hear(self) -> bool:
        """Hear who has started, and replace who is slow and should be fast; say whether any is starting."""
        self._hear()
        return self.is_starting

    def tend(self) -> None:
        """Hear who has started, replace who is of no use, start what is missing; wait for nothing."""
        self._hear()
        room = self._limits.spares(len(self._spares))
        missing = self._wanted[:room]
        unwanted = []
        for spare in self._spares if self._wanted else ():
            if spare.solution in missing:
                missing.remove(spare.solution)
            elif not spare.is_awaited:
                unwanted.append(spare)
        for spare in unwanted:
            if spare.solution is not UNKNOWN_SOLUTION or len(self._spares) + len(missing) > room:
                self._drop(spare)
        if self._has_failed:
            return
        starting = sum(not spare.worker.is_ready for spare in self._spares)
        may_start = max(0, self._limits.starting(is_first=not self._has_started) - starting)
        for solution in missing[: min(may_start, max(0, room - len(self._spares)))]:
            self._start(solution)

    def take(self, solution: SolutionFiles) -> WorkerProcess:
        """Return a worker for a solution that is up: a spare, or one that is started now.

        Raises:
            DeviceFault: none starts.
        """
        while True:
            self._hear()
            found = [spare for spare in self._spares if spare.solution == solution]
            for spare in found:
                if spare.worker.is_ready:
                    self._spares.remove(spare)
                    if solution in self._wanted:
                        self._wanted.remove(solution)
                    return spare.worker
            if found:
                self._wait(found)
            else:
                self._start(solution, is_awaited=True)

    def settle(self) -> None:
        """Wait until no spare is starting. One that fails to start is dropped."""
        self._hear()  # what was read from one before has nobody waiting for it: its descriptor stays silent
        while starting := [spare for spare in self._spares if not spare.worker.is_ready]:
            self._wait(starting)
            self._hear()

    def clear(self) -> None:
        """End all spares."""
        for spare in list(self._spares):
            self._drop(spare)

    def _wait(self, spares: Sequence[Spare]) -> None:
        """Wait until one of these has something to tell, or is late."""
        limit_s = max(0.0, min(spare.deadline for spare in spares) - self._now())
        select.select([spare.worker for spare in spares], [], [], limit_s)

    def _start(self, solution: SolutionFiles, **fields: Any) -> None:
        self._spares.append(Spare(self._spawn(solution), solution, self._now() + READY_LIMIT_S, **fields))

    def _drop(self, spare: Spare) -> None:
        self._spares.remove(spare)
        self._retire(spare.worker)

    def _hear(self) -> None:
        """Hear which spares have started; replace those on another GPU, and slow ones that are to be fast.

        A context feeds the GPU fast or slowly from its start to its end. On an H100 and an H200 every second one is
        slow: the gap between two operations is 0.15 to 0.2 us longer there, which says nothing about a solution.

        Raises:
            DeviceFault: one that somebody waits for does not start.
        """
        for spare in [one for one in self._spares if not one.worker.is_ready]:
            worker = spare.worker
            try:
                if not worker.look(spare.deadline):
                    continue
            except (WorkerGone, WorkerLate, WireError) as error:
                self._spares.remove(spare)
                self._has_failed = True
                if spare.is_awaited:
                    raise start_fault(worker, error) from None
                self._retire(worker)
                continue
            self._has_started, self._has_failed = True, False
            if worker.is_on_another_gpu:
                self._replace(spare, spare.attempt)
                continue
            self._on_ready(worker)
            self.see(worker.chain_gap_ns)
        self._replace_slow()

    def _replace_slow(self) -> None:
        """Replace spares that are to be fast and are not, as is known by now."""
        for spare in [one for one in self._spares if one.worker.is_ready and one.solution.wants_fast]:
            if not self._is_slow(spare.worker.chain_gap_ns):
                continue
            if spare.attempt < MOST_CONTEXTS:
                self._replace(spare, spare.attempt + 1)
            else:  # what earlier sessions have seen is not to be had any more
                self.best_chain_ns = self.seen_chain_ns

    def _replace(self, spare: Spare, attempt: int) -> None:
        self._drop(spare)
        self._start(spare.solution, attempt=attempt, is_awaited=spare.is_awaited)

    def remember(self, chain_gap_ns: int | None) -> None:
        """Learn how fast contexts were in earlier sessions; None where nobody knows."""
        known = [one for one in (self.best_chain_ns, chain_gap_ns) if one is not None]
        self.best_chain_ns = min(known, default=None)

    def see(self, chain_gap_ns: int) -> None:
        """Learn how fast a context of this session is; 0 where nobody knows."""
        if chain_gap_ns > 0:
            self.seen_chain_ns = min(self.seen_chain_ns or chain_gap_ns, chain_gap_ns)
            self.best_chain_ns = min(self.best_chain_ns or chain_gap_ns, chain_gap_ns)

    def _is_slow(self, chain_gap_ns: int) -> bool:
        return self.best_chain_ns is not None and chain_gap_ns > self.best_chain_ns * SLOW_CONTEXT


def start_fault(worker: WorkerProcess, error: Exception) -> DeviceFault:
    """End a worker that does not start; return the fault that says so, with what the worker printed."""
    worker.end()
    said = worker.log.take().strip()
    return DeviceFault(f"a new worker did not start: {error or type(error).__name__}\n{said}".rstrip())


def check_context(trial: Trial, context: ContextTraits) -> None:
    """Raise SlowContext where another context would make a call faster.

    That is where gaps that it would not have are a noticeable share of the call's time, and where a call uses several
    streams, or nobody sees how many, in a context of one connection.
    """
    operations = max((sample.operations or 1 for sample in trial.samples), default=1)
    is_unseen = any(sample.operations is None for sample in trial.samples)
    slows = gaps_matter(context.excess_gap_ns, operations, median(trial.spans_ns))
    if slows or (context.is_narrow and (is_unseen or "streams" in trial.facts)):
        raise SlowContext


def gaps_matter(excess_gap_ns: int, operations: int, call_ns: float) -> bool:
    """Tell whether longer gaps between a call's operations are a noticeable share of its time."""
    return bool(excess_gap_ns) and (operations - 1) * excess_gap_ns > GAPS_SHARE * call_ns
