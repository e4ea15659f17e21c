"""The pool of workers: one worker for each solution (persistent), or one for each job (isolated).

No worker serves two solutions. A finished worker ends in the background, and the next one starts without waiting for
it. `await_quiet` waits for processes that would disturb a measurement: ending workers, and on a CPU starting workers
too. On a GPU a starting context delays only calls longer than a millisecond, and only such calls wait for it.

A worker on a GPU needs up to a second to start, because it makes a context. So the session announces the next solutions
and references (`expect`), and the pool forks warm workers for them ahead. Each warm worker belongs to one solution from
its start: a sandbox cannot be changed, and must exist before a context starts threads. The context of a solution with
few operations has one connection to the GPU, since such a context starts and ends faster. A solution that uses several
streams is judged again in a usual context.

A context launches fast or slowly from its start to its end, whatever the solution is. A slow context leaves longer gaps
between operations. So a slow warm worker for calls of several operations is replaced. A solution whose worker was not
replaced is judged again in a fast context if the gaps matter.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.base.wire import WireError
from flashinfer_bench.bench.evaluators.inputs.memory import recently_free_bytes, total_bytes
from flashinfer_bench.bench.runner.environments import worker_environment
from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.bench.runner.workers.artifacts import location_of
from flashinfer_bench.bench.runner.workers.sandbox_policy import PolicyMaker
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead, touch
from flashinfer_bench.bench.runner.workers.worker_handle import READY_LIMIT_S, WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.compile import Artifact
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.errors import DeviceFault

MOST_ENDING: Final = 4
"""Maximum number of workers that are ending at once. An ending worker still holds descriptors, and a context on a
GPU."""
MOST_CONTEXTS: Final = 4
"""Maximum number of attempts to get a worker with a fast context. The last worker is kept in any case."""
SLOW_CONTEXT: Final = 1.07
"""A context is slow if a chain of empty kernels takes this many times as long as in the session's best context."""
GAPS_SHARE: Final = 0.005
"""Longer gaps of a slow context matter if they add more than this share to the time of a call."""
MOST_WARM: Final = {"cuda": 8, "cpu": 4}
"""Maximum number of warm workers. Making a context takes about eight times as long as a short job."""
MOST_STARTING, FIRST_STARTING = 4, 2
"""Maximum number of workers that start a context at once, counted over all sessions of the machine. Each session may
start one worker in any case. The driver makes contexts one after another. FIRST_STARTING holds until a session's first
worker is ready."""
CORES_PER_START: Final = 4
"""Number of cores of this machine for each starting worker. A measurement needs a free core whenever it launches."""
WARM_BYTES: Final = {"cuda": 768 << 20, "cpu": 256 << 20}
"""Estimated bytes of a warm worker. On a GPU: its context, the timing kernels and the flush buffer of the L2."""
WARM_SHARE, FREE_SHARE = 16, 4
"""Warm workers together take at most 1/WARM_SHARE of the device's memory. On a GPU they also take at most 1/FREE_SHARE
of the free memory, and their own memory counts as free."""
MEMORY_SHARE: Final = 0.6
"""Share of the machine's memory for the workers of all sessions together, if the configuration sets no limit."""
CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
"""CUDA's variable for the connections of a context, which streams share."""
NOT_PRECOMPILED: Final = ("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Variables of other compilers' cache folders. A worker that precompiles has these folders in its home, which is
removed."""

Precompiled = tuple[Artifact, dict[str, Any]]
"""The artifact of a solution that is precompiled, and the further fields that `worker/jit/precompile.py` needs."""


class SlowContext(Exception):
    """The worker's context makes the solution's calls slower, and a faster context is available."""


@dataclass(frozen=True)
class SolutionFiles:
    """A solution that needs a worker, and the location of its files."""

    digest: str
    artifact: Path | None = None
    """Folder of its artifact; None if its sources are not written yet."""
    is_reference: bool = False
    """A reference does not use Triton, so its worker can start before Triton's files are ready."""
    wants_fast: bool = False
    """The worker needs a fast context, since the solution's calls may launch several operations."""


def reference_files(definition_digest: str) -> SolutionFiles:
    """Return the files of a definition's reference, which has a digest and folders like a solution."""
    digest = hashlib.sha256(f"reference of {definition_digest}".encode()).hexdigest()
    return SolutionFiles(digest, is_reference=True, wants_fast=True)


NEW: Final = SolutionFiles("new")
"""Placeholder for a solution that no client has sent yet. Kernels compiled in its worker are removed at the worker's
end."""
MOST_NEW: Final = {"cuda": 2, "cpu": 1}
"""Number of warm workers for unknown solutions (NEW) in a resident engine."""


@dataclass(eq=False)
class Made:
    """A worker, and the solution that it was made for."""

    worker: WorkerProcess
    files: SolutionFiles
    deadline: float
    """Time by which the worker must be ready."""
    is_awaited: bool = False
    """Whether a job waits for the worker. If so, a failed start is a fault."""
    is_narrow: bool = False
    """Whether the worker's context has only one connection to the GPU."""
    attempt: int = 1
    """Number of workers started so far to get a fast context, including this worker."""


class WorkerPool:
    """Workers of one device. A pool is a context manager, at whose exit all workers begin to end.

    Args:
        server: the fork server's socket.
        run_directory: parent of each worker's folder.
        policies: makes the folders and sandbox policies of workers.
        on_ready: called with each worker that is ready for work.

    `timing_image` is the machine code of the timing kernels, so that workers need not assemble them. `precompiling` is
    the fork server of workers that precompile; None if there are no such workers.
    """

    def __init__(
        self,
        server: socket.socket,
        run_directory: Path,
        session_config: SessionConfig,
        policies: PolicyMaker,
        *,
        on_ready: Callable[[WorkerProcess], object],
    ) -> None:
        self.server, self._run_directory, self._session_config = server, run_directory, session_config
        self.policies, self._on_ready = policies, on_ready
        self.timing_image: bytes | None = None
        self.sees_streams = False
        """Whether the clock detects the use of several streams."""
        self.precompiling: socket.socket | None = None
        self._is_gpu = session_config.device == "cuda"
        self._gpu_index = session_config.gpu_index
        self._numbers = itertools.count(1)
        self._warm: list[Made] = []
        self._wanted: list[SolutionFiles] = []
        self._has_started = self._has_failed = False
        """Whether a worker has started, and whether the latest start failed. After a failure no worker starts ahead
        until a worker for a waiting job has started."""
        self._want_fast: set[str] = set()
        """Digests of solutions that a slow context has made slower."""
        self._best_gap_ns = 0
        """Nanoseconds per kernel in a chain of empty kernels, in the best context so far; 0 if it is unknown."""
        self._held: dict[bool, Made] = {}
        """Whether a worker holds a reference, and no solution → the worker."""
        self._is_unbound = False
        """Whether the worker that holds a reference maps no memory of the session."""
        self._ending: list[WorkerProcess] = []
        self._least_overhead: BatchOverhead | None = None
        """Least duration of empty batches in any worker so far."""

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()
        self.end_reference()
        for warm in list(self._warm):
            self._drop(warm)
        self.server.close()
        if self.precompiling is not None:
            self.precompiling.close()

    # Which solution has which worker.

    def worker_for(self, files: SolutionFiles) -> tuple[WorkerProcess, bool]:
        """Return the ready worker of a solution or a reference, and whether it is fresh: it has loaded no code.

        Raises:
            DeviceFault: no worker can be started.
        """
        held, files = self._held.get(files.is_reference), self._made_for(files)
        is_fresh = held is None or held.files.digest != files.digest or held.worker.has_ended
        if held is None or is_fresh:
            self._end(is_reference=files.is_reference)
            held = self._held[files.is_reference] = self._take(files)
            self.tend()
        self._is_unbound = self._is_unbound and not files.is_reference
        return held.worker, is_fresh

    def unbind_reference(self) -> None:
        """Have the reference's worker release the session's memory, because a solution will use it.

        On a GPU the worker is kept for the next baselines, since a new worker would cost a context. A worker that has
        no sandbox, or does not answer, is ended.
        """
        if True in self._held and not self._is_unbound:
            can_unbind = self._session_config.is_sandboxed and self._is_gpu
            self._is_unbound = can_unbind and self._held[True].worker.does("unbind")
            if not self._is_unbound:
                self.end_reference()

    def end_reference(self) -> None:
        """Begin to end the reference's worker."""
        self._end(is_reference=True)

    def discard(self) -> None:
        """Begin to end the current worker and all its processes."""
        self._end(is_reference=False)

    def _end(self, *, is_reference: bool) -> None:
        held = self._held.pop(is_reference, None)
        if held is not None:
            self._retire(held.worker)
            self._reap()
            self.finish_ending(leave=MOST_ENDING)

    def recover(self) -> bool:
        """Reset the current worker after an error; return whether it can serve its solution's next job."""
        return False in self._held and self._held[False].worker.does("recover")

    def take_output(self) -> str:
        """Return the output of the current worker since the last call."""
        return self._held[False].worker.take_output() if False in self._held else ""

    def process_ids(self) -> list[int]:
        """Return the ids of all workers that can hold a context on the device."""
        self._hear()
        held = [one.worker for one in (*self._held.values(), *self._warm)]
        return [worker.pid for worker in (*self._ending, *held) if worker.pid is not None]

    # Waiting for workers that start or end.

    def await_quiet(self) -> None:
        """Wait until earlier workers have ended, and on a CPU until all warm workers are ready."""
        if not self._is_gpu:
            self.settle()
        self.finish_ending()

    def settle(self) -> bool:
        """Wait until no worker is starting; return whether any was. A worker that fails to start is dropped."""
        was_starting = self.is_starting()
        while self.is_starting():
            self._wait([warm for warm in self._warm if not warm.worker.is_ready])
        return was_starting

    def is_starting(self) -> bool:
        """Return whether any worker is starting."""
        self._hear()
        return any(not warm.worker.is_ready for warm in self._warm)

    def await_writers(self) -> None:
        """If there is no sandbox, wait until earlier workers have ended, because they could change files of other
        workers."""
        if not self._session_config.is_sandboxed:
            self.finish_ending()

    @property
    def has_readers(self) -> bool:
        """Whether earlier workers that have not ended can use the arena's memory; False on a CPU."""
        self._reap()
        return self._is_gpu and bool(self._ending)

    def await_readers(self) -> None:
        """Wait for earlier workers before the arena's memory is reused: their kernels may still run."""
        if self._is_gpu:
            self.finish_ending()

    def finish_ending(self, *, leave: int = 0) -> None:
        """Wait until at most `leave` workers are still ending."""
        while len(self._ending) > leave:
            self._ending.pop(0).end()

    def _reap(self) -> None:
        """Clean up after the workers that have ended."""
        for worker in [one for one in self._ending if one.has_ended]:
            self._ending.remove(worker)
            worker.end()

    def _retire(self, worker: WorkerProcess) -> None:
        worker.begin_end()
        self._ending.append(worker)

    # Warm workers.

    def expect(self, solutions: Sequence[SolutionFiles], *, adopts: SolutionFiles | None = None) -> None:
        """Set the solutions that will need workers, the next solution first; keep warm workers for them.

        If the list is empty, warm workers stay. If not, warm workers for solutions outside the list, or beyond the
        limits, are ended.

        Args:
            adopts: one of these solutions, which may take a warm worker of an unknown solution.
        """
        held = [one.files.digest for one in self._held.values()]
        self._wanted = [*map(self._made_for, solutions)]
        while self._wanted and self._wanted[0].digest in held:
            held.remove(self._wanted.pop(0).digest)
        if adopts in self._wanted:
            self._adopt(adopts)
        self._wanted += [NEW] * (MOST_NEW[self._session_config.device] if self._session_config.expects_new else 0)
        self.tend()
        self._reap()

    def _adopt(self, files: SolutionFiles) -> None:
        """Give a solution a warm worker of an unknown solution (NEW), unless the solution has run before or has a warm
        worker."""
        made = [warm for warm in self._warm if warm.files == NEW]
        is_known = files.digest in self._want_fast or any(warm.files == files for warm in self._warm)
        if made and not is_known and not self.policies.folder(files.digest).exists():
            adopted = max(made, key=lambda warm: warm.worker.is_ready)
            adopted.files, adopted.worker.is_adopted = files, True

    def tend(self) -> None:
        """Check which workers have started, end useless workers, start missing workers. Do not wait."""
        self._hear()
        room = self._most_warm()
        missing = self._wanted[:room]
        for warm in list(self._warm) if self._wanted else ():
            if warm.files in missing:
                missing.remove(warm.files)
            elif not warm.is_awaited:
                self._drop(warm)
        starting = sum(not warm.worker.is_ready for warm in self._warm)
        may_start = min(self._most_starting(room) - starting, room - len(self._warm))
        for files in missing[: max(0, may_start)] if not self._has_failed else ():
            self._start(files)

    def _most_starting(self, room: int) -> int:
        if not self._is_gpu:
            return room
        most = MOST_STARTING if self._has_started else FIRST_STARTING
        return max(1, min(most // self._session_config.sessions, usable_cores() // CORES_PER_START))

    def _most_warm(self) -> int:
        kind = self._session_config.device
        if self._is_gpu and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return FIRST_STARTING  # querying the memory would make the session's own context first
        device, size = torch.device(kind), WARM_BYTES[kind]
        most = MOST_WARM[kind] if self._is_gpu else usable_cores()
        if self._is_gpu:
            most = min(most, (recently_free_bytes(device) + len(self._warm) * size) // FREE_SHARE // size)
        return max(1, min(MOST_WARM[kind], most, total_bytes(device) // WARM_SHARE // size))

    def make_room(self) -> None:
        """If a GPU's memory is short, end warm workers, because a solution needs the memory."""
        if self._is_gpu and len(self._warm) > self._most_warm():
            self.tend()
            self.finish_ending()

    def _take(self, files: SolutionFiles) -> Made:
        """Return a ready worker that has loaded no code. On a GPU its empty batches are timed first."""
        while True:
            self._hear()
            found = [warm for warm in self._warm if warm.files == files]
            taken = next((warm for warm in found if warm.worker.is_ready), None)
            if taken is not None:
                break
            if found:
                self._wait(found)
            else:
                self._start(files, is_awaited=True)
        self._warm.remove(taken)
        if files in self._wanted:
            self._wanted.remove(files)
        if self._is_gpu:
            worker = taken.worker
            try:
                worker.time_empty_bursts(partial(touch, torch.device("cuda")), self._least_overhead)
            except (WorkerGone, WorkerLate, WireError) as error:
                raise _start_fault(worker, error) from None
            least = self._least_overhead or worker.overhead
            self._least_overhead = min(worker.overhead, least, key=lambda one: one.request)
        return taken

    def _wait(self, starting: Sequence[Made]) -> None:
        """Wait until one of these workers sends a message, or is late."""
        limit_s = max(0.0, min(warm.deadline for warm in starting) - time.monotonic())
        select.select([warm.worker for warm in starting], [], [], limit_s)

    def _start(self, files: SolutionFiles, *, is_awaited: bool = False, attempt: int = 1) -> None:
        is_narrow = self.sees_streams and not files.wants_fast and CONNECTIONS not in os.environ
        worker, deadline = self._spawn(files, is_narrow=is_narrow), time.monotonic() + READY_LIMIT_S
        self._warm.append(Made(worker, files, deadline, is_awaited, is_narrow, attempt))

    def _drop(self, warm: Made) -> None:
        self._warm.remove(warm)
        self._retire(warm.worker)

    def _hear(self) -> None:
        """Check which workers have started; replace workers on another GPU and workers with a slow context.

        Raises:
            DeviceFault: a worker that a job waits for does not start.
        """
        for warm in [one for one in self._warm if not one.worker.is_ready]:
            worker = warm.worker
            try:
                if not worker.poll(warm.deadline):
                    continue
            except (WorkerGone, WorkerLate, WireError) as error:
                self._has_failed = True
                self._drop(warm)
                if warm.is_awaited:
                    raise _start_fault(worker, error) from None
                continue
            self._has_started, self._has_failed = True, False
            if worker.is_on_another_gpu:
                self._gpu_index = None  # CUDA counts GPUs differently here: use the UUID from now on
                self._replace(warm, warm.attempt)
            else:
                self._on_ready(worker)
                self.see_context(worker.ready.chain_gap_ns)
        for warm in [one for one in self._warm if one.worker.is_ready and one.files.wants_fast]:
            if self.excess_ns(warm.worker.ready.chain_gap_ns) and warm.attempt < MOST_CONTEXTS:
                self._replace(warm, warm.attempt + 1)

    def _replace(self, warm: Made, attempt: int) -> None:
        self._drop(warm)
        self._start(warm.files, is_awaited=warm.is_awaited, attempt=attempt)

    def see_context(self, chain_gap_ns: int) -> None:
        """Record the chain gap of a context of this session; 0 if it is unknown."""
        if chain_gap_ns > 0:
            self._best_gap_ns = min(self._best_gap_ns or chain_gap_ns, chain_gap_ns)

    def excess_ns(self, chain_gap_ns: int) -> int:
        """Return the extra nanoseconds per kernel of a chain, compared with the best context; 0 if the context is fast.

        Args:
            chain_gap_ns: nanoseconds per kernel of a chain in the context; 0 if it is unknown.
        """
        is_slow = self._best_gap_ns > 0 and chain_gap_ns > self._best_gap_ns * SLOW_CONTEXT
        return chain_gap_ns - self._best_gap_ns if is_slow else 0

    def is_slowed(self, worker: WorkerProcess, operations: int, call_ns: float, uses_streams: bool) -> bool:
        """Return whether the context of a solution's worker makes its call slower, and a better context is available.

        Args:
            worker: the solution's worker.
            operations: number of operations that the call launches.
            call_ns: duration of the call.
            uses_streams: the call launches on several streams.
        """
        held = self._held.get(False)
        if held is None or held.worker is not worker:
            return False
        excess_ns = 0 if held.files.wants_fast else self.excess_ns(worker.ready.chain_gap_ns)
        return gaps_matter(excess_ns, operations, call_ns) or (uses_streams and held.is_narrow)

    def end_slow(self) -> None:
        """End the current worker. Later workers of its solution get fast contexts."""
        if False in self._held:
            self._want_fast.add(self._held[False].files.digest)
            self.discard()

    def _made_for(self, files: SolutionFiles) -> SolutionFiles:
        return replace(files, wants_fast=True) if files.digest in self._want_fast else files

    # The start of a worker.

    def _spawn(
        self, files: SolutionFiles, precompiled: Precompiled | None = None, *, is_narrow: bool = False
    ) -> WorkerProcess:
        home = self._run_directory / f"worker-{next(self._numbers)}"
        server = self.server if precompiled is None else self.precompiling or self.server
        try:
            order = self.order_for(files, home, precompiled)
            order["environment"] |= {CONNECTIONS: "1"} if is_narrow else {}
            return WorkerProcess(server, order, home)
        except OSError as error:
            message = f"the fork server of workers is gone, or a worker's folders cannot be made: {error}"
            raise DeviceFault(message) from None

    def order_for(self, files: SolutionFiles, home: Path, precompiled: Precompiled | None = None) -> dict[str, Any]:
        """Return the spawn order of a worker. A worker that precompiles has no GPU, and ends after its work."""
        config, index, image = self._session_config, self._gpu_index, self.timing_image or b""
        if precompiled is not None:
            index, image = None, b""
        owner, folder = files.digest, self.policies.folder(files.digest)
        if files == NEW:
            owner, folder = digest_of(str(home)), home
        environment = worker_environment(os.environ, Path(config.cache_root)) | self.policies.environment(folder)
        environment |= {"HOME": str(home), "TMPDIR": str(home)}
        if index is not None:  # else the GPU that the session sees
            environment["CUDA_VISIBLE_DEVICES"] = str(index)
        order: dict[str, Any] = {
            "environment": environment,
            "is_reference": files.is_reference,
            "gpu_uuid": config.gpu_uuid if index is not None else None,
            "device": "cuda:0" if config.device == "cuda" else "cpu",
            "threads": usable_cores(),
            "memory_limit_bytes": config.worker_memory_bytes or int(usable_memory() * MEMORY_SHARE / config.sessions),
            "timing": {
                "l2_cache": config.timing.l2_cache,
                "clock": config.timing.clock,
                "image": base64.b64encode(image).decode(),  # empty to have the worker assemble it
            },
        }
        policy = self.policies.make_policy(owner, folder, files.artifact)
        if policy is None:
            return order
        policy = replace(policy, writable=sorted({str(home), *policy.writable}))
        if precompiled is not None:
            policy = policy.without_gpu()
            order["precompile"] = {**location_of(self.policies.hand_over(precompiled[0], home)), **precompiled[1]}
            # A killed worker can leave Triton's cache and ninja's outputs unfinished. This is safe: ninja knows
            # unfinished files. A module's lock ends with the process, or the next worker removes it.
            folders = {name: str(home / name.lower()) for name in NOT_PRECOMPILED}
            environment |= {"CUDA_VISIBLE_DEVICES": "", **folders}
        return order | {"sandbox": policy.to_json(), "shared_modules": str(self.policies.shared_modules)}

    # Workers that precompile.

    def start_precompiling(self, solution: SolutionFiles, artifact: Artifact, words: dict[str, Any]) -> WorkerProcess:
        """Start a worker, in a sandbox without a GPU, that compiles a solution's kernels and then ends.

        Args:
            solution: the solution whose policy applies.
            words: further fields for `worker/jit/precompile.py`.
        """
        worker = self._spawn(solution, (artifact, words))
        worker.deafen()
        return worker

    def may_precompile(self) -> bool:
        """Return whether workers that precompile can be started: their fork server has sent that it is ready.

        The server imports for a second or more. Until then, waiting requests would fill the socket and block this
        process.
        """
        return self.precompiling is not None and bool(select.select([self.precompiling], [], [], 0)[0])


def _start_fault(worker: WorkerProcess, error: Exception) -> DeviceFault:
    """End a worker that does not start; return the fault with the worker's output."""
    worker.end()
    said = worker.log.take().strip()
    return DeviceFault(f"a new worker did not start: {error or type(error).__name__}\n{said}".rstrip())


def gaps_matter(excess_gap_ns: int, operations: int, call_ns: float) -> bool:
    """Return whether longer gaps between a call's operations are a noticeable share of its time."""
    return bool(excess_gap_ns) and (operations - 1) * excess_gap_ns > GAPS_SHARE * call_ns
