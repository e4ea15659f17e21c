"""Which worker serves which solution: one for each solution (persistent), or one for each workload (isolated).

No worker serves two solutions, and nothing waits for the end of the worker before: it ends in the background. `quiesce`
waits for what would disturb a measurement. That is what is ending, and on a CPU also what is starting; on a GPU a
context that is made beside a measurement moves calls of more than a millisecond only, which wait for it.

A worker costs up to a second to start on a GPU, where it makes a context. So the session tells the pool which solutions
and references come next (`expect`), and the pool keeps warm workers for these: forked ahead, side by side. Each is made
for one solution from its start, since a sandbox cannot be changed, and has to stand before a context starts threads.
A solution's context has one connection to the GPU, if it need not be fast: it takes half as long to make and to end.
If the solution uses several streams, it is judged again in a usual one.
A context feeds the GPU fast or slowly from its start to its end, which says nothing about a solution. A warm worker for
calls of several operations is replaced if its context is slower than the best so far. If the longer gaps of a slow
context prove to matter to another solution, it is judged again in a fast one.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import select
import socket
import tempfile
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
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers.artifacts import place_of
from flashinfer_bench.bench.runner.workers.process import READY_LIMIT_S, WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.bench.runner.workers.sandbox_policy import PolicyMaker
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead, touch
from flashinfer_bench.compile import Artifact
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.worker.fork_server import hear_ready

MOST_ENDING: Final = 4
"""At most this many workers may be ending at once; each still holds descriptors, and a context on a GPU."""
MOST_CONTEXTS: Final = 4
"""Start at most this many workers to get one with a fast context; then take the last."""
SLOW_CONTEXT: Final = 1.07
"""A context is slow if a chain of empty kernels takes more than this times as long as in the session's best one."""
GAPS_SHARE: Final = 0.005
"""Longer gaps of a slow context matter if they add more than this share to the time of a call."""
MOST_WARM: Final = {"cuda": 8, "cpu": 4}
"""Most warm workers: a short job in a worker of its own takes about an eighth of what a context takes to make."""
MOST_STARTING, FIRST_STARTING = 4, 2
"""Workers of all sessions of a machine that make contexts at once, but one of each: the driver makes one after the
other. There are fewer until the first is up, which is waited for."""
CORES_PER_START: Final = 4
"""Cores of this machine for each worker that starts: a measurement beside it needs one at once whenever it launches."""
WARM_BYTES: Final = {"cuda": 768 << 20, "cpu": 256 << 20}
"""Memory that a warm worker is taken to hold: on a GPU its context, the timing kernels and the L2's flush buffer."""
WARM_SHARE, FREE_SHARE = 16, 4
"""All warm workers may hold the memory of their device divided by the first; on a GPU also no more than what is free
there, and what they hold, divided by the second."""
MEMORY_SHARE: Final = 0.6
"""Without a limit in the configuration the workers of all sessions together may hold this share of the machine's
memory."""
CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
"""CUDA's variable for the connections of a context, which streams share."""
NOT_PRECOMPILED: Final = ("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Folders of other compilers: a worker that precompiles has them in its home, which goes with it."""

Precompiled = tuple[Artifact, dict[str, Any]]
"""The artifact of a solution that is precompiled, and what else `worker/jit/precompile.py` wants to know."""


class SlowContext(Exception):
    """The worker's context makes the solution's calls slower, and a faster one can be had."""


@dataclass(frozen=True)
class SolutionFiles:
    """A solution that wants a worker, and where its files are."""

    digest: str
    """The solution's."""
    artifact: Path | None = None
    """The folder of its artifact; None if its sources are still to be written."""
    is_reference: bool = False
    """It needs nothing of Triton's: its worker may start before that is ready."""
    wants_fast: bool = False
    """Its worker is to have a fast context: its calls may launch several operations."""


def reference_files(definition_digest: str) -> SolutionFiles:
    """Return what the worker of a definition's reference is made for: it has a digest and folders as a solution has."""
    digest = hashlib.sha256(f"reference of {definition_digest}".encode()).hexdigest()
    return SolutionFiles(digest, is_reference=True, wants_fast=True)


NEW: Final = SolutionFiles("new")
"""One that nobody has sent yet. What is compiled in its worker goes with that."""
MOST_NEW: Final = {"cuda": 2, "cpu": 1}
"""Warm workers that are made for these in a resident engine."""


@dataclass(eq=False)
class Made:
    """A worker, and what it was made for."""

    worker: WorkerProcess
    files: SolutionFiles
    deadline: float
    """When it has to be up."""
    is_awaited: bool = False
    """It is started because somebody waits for it: if it does not start, that is a fault."""
    is_narrow: bool = False
    """Its context has one connection to the GPU."""
    attempt: int = 1
    """Workers that were started to get this one with a fast context."""


class WorkerPool:
    """Hands out workers of one device; a context manager that begins to end them all. Their server waits for it.

    Args:
        server: the fork server's socket.
        run_directory: each worker gets a folder in it.
        hello: the session's settings.
        policies: makes the folders and sandbox policies of workers.
        on_ready: told of each worker once it can take work.

    `timing_image` is the machine code of the timing kernels, which workers then need not assemble. If workers are to
    precompile, `precompiling` is the server that these are forked from.
    """

    def __init__(
        self,
        server: socket.socket,
        run_directory: Path,
        hello: Hello,
        policies: PolicyMaker,
        *,
        on_ready: Callable[[WorkerProcess], object],
    ) -> None:
        self.server, self._run_directory, self._hello = server, run_directory, hello
        self.policies, self._on_ready = policies, on_ready
        self.timing_image: bytes | None = None
        self.sees_streams = False
        """The clock tells whether a solution uses several streams."""
        self.precompiling: socket.socket | None = None
        self._precompiles: bool | None = None
        """What `hear_ready` told of that server."""
        self._is_gpu = hello.device == "cuda"
        self._gpu_index = hello.gpu_index
        self._numbers = itertools.count(1)
        self._warm: list[Made] = []
        self._wanted: list[SolutionFiles] = []
        self._has_started = self._has_failed = False
        """A worker has started; the latest to start did not. Then none is started ahead until another has started."""
        self._want_fast: set[str] = set()
        """Digests of solutions that a slow context has made slower."""
        self._best_gap_ns = 0
        """Time of a link of a chain of empty kernels in the best context so far; 0 if nobody knows."""
        self._held: dict[bool, Made] = {}
        """The worker that holds a solution (False), and that of a reference (True)."""
        self._has_rested = False
        """The worker that holds a reference maps nothing of the session's."""
        self._ending: list[WorkerProcess] = []
        self._least_overhead: BatchOverhead | None = None
        """The least that empty bursts took in any worker so far."""

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()
        self.end_reference()
        for warm in list(self._warm):
            self._drop(warm)
        self.server.close()
        self.end_precompiling()

    # Whose worker it is now.

    def worker_for(self, files: SolutionFiles) -> tuple[WorkerProcess, bool]:
        """Return the worker of a solution or a reference, ready, and whether it is a fresh one that has loaded nothing.

        Raises:
            DeviceFault: no worker can be started.
        """
        held, files = self._held.get(files.is_reference), self._made_for(files)
        is_fresh = held is None or held.files.digest != files.digest or held.worker.has_ended
        if held is None or is_fresh:
            self._end(is_reference=files.is_reference)
            held = self._held[files.is_reference] = self._take(files)
            self.tend()
        self._has_rested = self._has_rested and not files.is_reference
        return held.worker, is_fresh

    def rest_reference(self) -> None:
        """Have the worker that holds a reference give up the session's memory: a solution is to get that.

        On a GPU it is kept for the next batch of baselines, since another one would cost a context. One that has no
        sandbox, or does not answer, is ended.
        """
        if True in self._held and not self._has_rested:
            may_rest = self._hello.has_walls and self._is_gpu
            self._has_rested = may_rest and self._held[True].worker.does("unbind")
            if not self._has_rested:
                self.end_reference()

    def end_reference(self) -> None:
        """Begin to end the worker that holds a reference."""
        self._end(is_reference=True)

    def discard(self) -> None:
        """Begin to end the current worker and all that it started."""
        self._end(is_reference=False)

    def _end(self, *, is_reference: bool) -> None:
        held = self._held.pop(is_reference, None)
        if held is not None:
            self._retire(held.worker)
            self._reap()
            self.finish_ending(leave=MOST_ENDING)

    def recover(self) -> bool:
        """Make the current worker fit for its solution's next job after an error; say whether it is."""
        return False in self._held and self._held[False].worker.does("recover")

    def take_output(self) -> str:
        """Return what the current worker printed since the last call."""
        return self._held[False].worker.take_output() if False in self._held else ""

    def process_ids(self) -> list[int]:
        """Return the ids of all workers that may hold a context on the device."""
        self._hear()
        held = [one.worker for one in (*self._held.values(), *self._warm)]
        return [worker.pid for worker in (*self._ending, *held) if worker.pid is not None]

    # Waiting for what starts and ends.

    def quiesce(self) -> None:
        """Wait until earlier workers are gone, and on a CPU until all warm ones are up: a measurement begins."""
        if not self._is_gpu:
            self.settle()
        self.finish_ending()

    def settle(self) -> bool:
        """Wait until no worker is starting; say whether any was. One that fails to start is dropped."""
        was_starting = self.is_starting()
        while self.is_starting():
            self._wait([warm for warm in self._warm if not warm.worker.is_ready])
        return was_starting

    def is_starting(self) -> bool:
        """Say whether any worker is starting."""
        self._hear()
        return any(not warm.worker.is_ready for warm in self._warm)

    def await_writers(self) -> None:
        """Wait for earlier workers if they could change files of others: those that have no sandbox."""
        if not self._hello.has_walls:
            self.finish_ending()

    @property
    def has_readers(self) -> bool:
        """Whether earlier workers that have not ended may use the arena's memory: on a GPU, where they map it."""
        self._reap()
        return self._is_gpu and bool(self._ending)

    def await_readers(self) -> None:
        """Wait for earlier workers if the arena's memory is used again: they map it, and their kernels run on."""
        if self._is_gpu:
            self.finish_ending()

    def finish_ending(self, *, leave: int = 0) -> None:
        """Wait until at most `leave` of the ending workers are left."""
        while len(self._ending) > leave:
            self._ending.pop(0).end()

    def _reap(self) -> None:
        """Clean up behind the workers that have ended."""
        for worker in [one for one in self._ending if one.has_ended]:
            self._ending.remove(worker)
            worker.end()

    def _retire(self, worker: WorkerProcess) -> None:
        worker.begin_end()
        self._ending.append(worker)

    # Warm workers.

    def expect(self, solutions: Sequence[SolutionFiles], *, adopts: SolutionFiles | None = None) -> None:
        """Learn which solutions will want workers, the next one first; keep warm ones for them.

        If nothing is wanted, those that are there stay. A worker that nobody wants, or for which there is no room any
        more, is ended.

        Args:
            solutions: those.
            adopts: one of them that may take a worker that was made for a new one.
        """
        held = [one.files.digest for one in self._held.values()]
        self._wanted = [*map(self._made_for, solutions)]
        while self._wanted and self._wanted[0].digest in held:
            held.remove(self._wanted.pop(0).digest)
        if adopts in self._wanted:
            self._adopt(adopts)
        self._wanted += [NEW] * (MOST_NEW[self._hello.device] if self._hello.expects_new else 0)
        self.tend()
        self._reap()

    def _adopt(self, files: SolutionFiles) -> None:
        """Let a solution have a worker that was made for a new one, unless it was here before, or has one."""
        made = [warm for warm in self._warm if warm.files == NEW]
        is_known = files.digest in self._want_fast or any(warm.files == files for warm in self._warm)
        if made and not is_known and not self.policies.folder(files.digest).exists():
            max(made, key=lambda warm: warm.worker.is_ready).files = files

    def tend(self) -> None:
        """Hear who has started, end who is of no use, start what is missing; wait for nothing."""
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
        return max(1, min(most // self._hello.sessions, usable_cores() // CORES_PER_START))

    def _most_warm(self) -> int:
        kind = self._hello.device
        if self._is_gpu and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return FIRST_STARTING  # a look at the memory would make the session's own context first
        device, size = torch.device(kind), WARM_BYTES[kind]
        most = MOST_WARM[kind] if self._is_gpu else usable_cores()
        if self._is_gpu:
            most = min(most, (recently_free_bytes(device) + len(self._warm) * size) // FREE_SHARE // size)
        return max(1, min(MOST_WARM[kind], most, total_bytes(device) // WARM_SHARE // size))

    def make_room(self) -> None:
        """End the warm workers that a GPU has no memory for, now that a solution is to get what it needs."""
        if self._is_gpu and len(self._warm) > self._most_warm():
            self.tend()
            self.finish_ending()

    def _take(self, files: SolutionFiles) -> Made:
        """Return a worker that is up and has loaded nothing; one for a GPU is known by what empty bursts take in it."""
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
        """Wait until one of these has something to tell, or is late."""
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
        """Hear which workers have started; replace those on another GPU, and those with a slow context.

        Raises:
            DeviceFault: one that somebody waits for does not start.
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
                self._gpu_index = None  # CUDA counts GPUs in another way here: they are named by UUID from now on
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
        """Learn how fast a context of this session is; 0 if nobody knows."""
        if chain_gap_ns > 0:
            self._best_gap_ns = min(self._best_gap_ns or chain_gap_ns, chain_gap_ns)

    def excess_ns(self, chain_gap_ns: int) -> int:
        """Return how much longer a link of a chain takes in a context than in the best; 0 if it is fast.

        Args:
            chain_gap_ns: time of a link in the context; 0 if nobody knows.
        """
        is_slow = self._best_gap_ns > 0 and chain_gap_ns > self._best_gap_ns * SLOW_CONTEXT
        return chain_gap_ns - self._best_gap_ns if is_slow else 0

    def is_slowed(self, worker: WorkerProcess, operations: int, call_ns: float, uses_streams: bool) -> bool:
        """Tell whether the context of a solution's worker makes its call slower, and a better one is to be had.

        Args:
            worker: the solution's.
            operations: that the call launches.
            call_ns: its time.
            uses_streams: it launches them on several streams.
        """
        held = self._held.get(False)
        if held is None or held.worker is not worker:
            return False
        excess_ns = 0 if held.files.wants_fast else self.excess_ns(worker.ready.chain_gap_ns)
        return gaps_matter(excess_ns, operations, call_ns) or (uses_streams and held.is_narrow)

    def end_slow(self) -> None:
        """End the current worker; those of its solution have fast contexts from now on."""
        if False in self._held:
            self._want_fast.add(self._held[False].files.digest)
            self.discard()

    def _made_for(self, files: SolutionFiles) -> SolutionFiles:
        return replace(files, wants_fast=True) if files.digest in self._want_fast else files

    # Files of a worker, and how it is started.

    def make_folder(self, worker: WorkerProcess) -> Path:
        """Return a new folder, which lasts as long as the session; the worker reads it."""
        folder = Path(tempfile.mkdtemp(dir=worker.given or self._run_directory))
        folder.chmod(0o755)  # a worker may be of another user; nobody else comes through the folders above
        return folder

    def _spawn(
        self, files: SolutionFiles, precompiled: Precompiled | None = None, *, is_narrow: bool = False
    ) -> WorkerProcess:
        number = next(self._numbers)
        home, given = self._run_directory / f"worker-{number}", self._run_directory / f"given-{number}"
        own = self._run_directory / f"own-{number}" if files == NEW else None
        server = self.server if precompiled is None else self.precompiling or self.server
        try:
            order = self.order_for(files, home, given, precompiled, own)
            order["environment"] |= {CONNECTIONS: "1"} if is_narrow else {}
            return WorkerProcess(server, order, home, given=given if self._hello.has_walls else None, own=own)
        except OSError as error:
            message = f"the fork server of workers is gone, or a worker's folders cannot be made: {error}"
            raise DeviceFault(message) from None

    def order_for(
        self,
        files: SolutionFiles,
        home: Path,
        given: Path,
        precompiled: Precompiled | None = None,
        own: Path | None = None,
    ) -> dict[str, Any]:
        """Return the spawn order of a worker. One that precompiles has no GPU, and ends then."""
        index, image = (self._gpu_index, self.timing_image) if precompiled is None else (None, None)
        order = make_order(self._hello, home, gpu_index=index, image=image) | {"is_reference": files.is_reference}
        policy = self.policies.make_policy(files.digest, files.artifact, given, own)
        if policy is None:
            return order
        order["environment"] |= self.policies.environment(files.digest, own)
        policy = replace(policy, writable=(str(home), *policy.writable))
        if precompiled is not None:
            policy = policy.without_gpu()
            order["precompile"] = {**place_of(self.policies.hand_over(precompiled[0], given)), **precompiled[1]}
            # Of what it leaves half done, Triton's cache and what ninja makes alone take no harm: ninja knows what is
            # not finished, and the lock on a module goes with the process, or with the next worker.
            folders = {name: str(home / name.lower()) for name in NOT_PRECOMPILED}
            order["environment"] |= {"CUDA_VISIBLE_DEVICES": "", **folders}
        return order | {"sandbox": policy.to_json(), "shared_modules": str(self.policies.shared_modules)}

    # Workers that precompile.

    def start_precompiling(self, solution: SolutionFiles, artifact: Artifact, words: dict[str, Any]) -> WorkerProcess:
        """Start a worker in a sandbox and without a GPU that compiles a solution's kernels, and then ends.

        Args:
            solution: its policy is for this one.
            artifact: the solution's.
            words: what else `worker/jit/precompile.py` wants to know.
        """
        worker = self._spawn(solution, (artifact, words))
        worker.deafen()
        return worker

    def may_precompile(self) -> bool:
        """Tell whether workers that precompile can be started: their server has said that it is ready.

        It imports for a second or more. Orders that waited in its socket would fill that, and hold this process up.
        """
        if self.precompiling is not None and not self._precompiles:
            self._precompiles = hear_ready(self.precompiling)
            if self._precompiles is False:  # it is gone
                self.end_precompiling()
        return self.precompiling is not None and bool(self._precompiles)

    def end_precompiling(self) -> None:
        """End the server of such workers."""
        if self.precompiling is not None:
            self.precompiling.close()
            self.precompiling = None


def make_order(hello: Hello, home: Path, *, gpu_index: int | None = None, image: bytes | None = None) -> dict[str, Any]:
    """Return the spawn order of a worker without a sandbox.

    Args:
        hello: the session's settings.
        home: the worker's folder.
        gpu_index: its GPU's number as CUDA counts; None to go by what the session sees.
        image: machine code of the timing kernels, which it then need not assemble.
    """
    environment = worker_environment(os.environ, Path(hello.cache_root)) | {"HOME": str(home), "TMPDIR": str(home)}
    if gpu_index is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu_index)
    return {
        "environment": environment,
        "gpu_uuid": hello.gpu_uuid if gpu_index is not None else None,
        "device": "cuda:0" if hello.device == "cuda" else "cpu",
        "threads": usable_cores(),
        "memory_limit_bytes": hello.worker_memory_bytes or int(usable_memory() * MEMORY_SHARE / hello.sessions),
        "timing": {
            "l2_cache": hello.timing.l2_cache,
            "clock": hello.timing.clock,
            "image": "" if image is None else base64.b64encode(image).decode(),
        },
    }


def _start_fault(worker: WorkerProcess, error: Exception) -> DeviceFault:
    """End a worker that does not start; return the fault that says so, with what the worker printed."""
    worker.end()
    said = worker.log.take().strip()
    return DeviceFault(f"a new worker did not start: {error or type(error).__name__}\n{said}".rstrip())


def gaps_matter(excess_gap_ns: int, operations: int, call_ns: float) -> bool:
    """Tell whether longer gaps between a call's operations are a noticeable share of its time."""
    return bool(excess_gap_ns) and (operations - 1) * excess_gap_ns > GAPS_SHARE * call_ns
