"""Compiles the solutions of a run before their jobs begin: several at once, the longest first.

Each build runs in a thread, which waits for its compilers. Everything else is the owner's: it waits for `wakers`, then
calls `poll`, which starts builds and returns those that ended. Solutions in Python need no compiler; they are laid out
when they are asked for. Failures are kept too, so that a run builds nothing twice.

A header that many builds read is precompiled by a build of its own, one at a time, beside them. Those that begin when
it is there take it; the others read its text. If it cannot be compiled, all read the text, and nobody is told.

The order follows a guess (`BuildRecipe.guessed_seconds`), not a history: what was built before is in the cache.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Final

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.compile.artifact import Artifact, BuildFailure, Built
from flashinfer_bench.compile.building import GIB, Build, Outcome
from flashinfer_bench.compile.cache import ArtifactCache, Lease, size_limit
from flashinfer_bench.compile.compilers import StepLimits
from flashinfer_bench.compile.flags import count_threads
from flashinfer_bench.compile.headers import Header
from flashinfer_bench.compile.recipe import BuildRecipe, BuildTarget
from flashinfer_bench.compile.table import make_recipe
from flashinfer_bench.compile.toolchain import Toolchain, find_toolchain
from flashinfer_bench.data import Solution

BUILD_LIMIT_S: Final = 900.0
"""Seconds that all commands of one build may take together. A build that takes longer has failed."""
MEMORY_SHARE: Final = 0.8
"""The share of the machine's memory that all compilers together may take."""
LEAST_MEMORY: Final = 4 * GIB
MOST_MEMORY: Final = 16 * GIB
"""Bytes of address space for one compiler: its part of that share, but at least and at most this."""
LEAST_BUILDS: Final = 3
"""A header is precompiled if at least this many builds wait for it that find no core free. It takes one and a half
times as long as one of them, and saves each about half of its time."""


def default_jobs(*, spared_cores: int = 1) -> int:
    """Return the default number of compilers at once: one for each core, less those that are spared for sessions."""
    return max(1, usable_cores() - spared_cores)


def default_limits(jobs: int) -> StepLimits:
    """Return the time and memory for one build where `jobs` compilers run at once."""
    memory = usable_memory() * MEMORY_SHARE / jobs
    return StepLimits(BUILD_LIMIT_S, int(min(MOST_MEMORY, max(LEAST_MEMORY, memory))))


class BuildFarm:
    """Builds solutions; a context manager that leaves no process and no half-made artifact.

    Args:
        root: the cache's folder.
        jobs: how many compilers run at once; None for one less than there are cores.
        target: what to build for.
        toolchain: what to build with; None looks for it.
        limits: the time and memory for one build; None derives them from the machine.
    """

    def __init__(
        self,
        root: Path,
        *,
        jobs: int | None = None,
        target: BuildTarget | None = None,
        toolchain: Toolchain | None = None,
        limits: StepLimits | None = None,
    ) -> None:
        self._cache = ArtifactCache(root)
        self.jobs: Final = jobs or default_jobs()
        """How many compilers run at once."""
        self._target = target or BuildTarget()
        self._toolchain = toolchain or find_toolchain()
        self._limits = limits or default_limits(self.jobs)
        self._lease = Lease(root)
        self._built: dict[str, Built] = {}
        """Digest of a compiled solution → its artifact or error."""
        self._headers: dict[str, Header | None] = {}
        """Digest → the precompiled header, or None if it cannot be compiled."""
        self._waiting: list[Build] = []
        """Builds to come, the longest last."""
        self._running: dict[Build, Future[Outcome]] = {}
        self._threads = ThreadPoolExecutor(self.jobs, "build")
        self._woken, self._wake = socket.socketpair()
        """The first can be read when a build has ended."""
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._has_grown = False
        self.is_held = False
        """Whether compilers are held still, and none is started."""

    def __enter__(self) -> BuildFarm:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for build in self._running:
            build.compilers.cancel()
        self._threads.shutdown()
        self._running, self._waiting = {}, []
        self._woken.close()
        self._wake.close()
        self._lease.__exit__()
        with contextlib.suppress(OSError):  # a cache that stays too large is worth no error at the end of a run
            if self._has_grown or self._cache.is_over(size_limit()):
                self._cache.evict(size_limit())

    @property
    def open_builds(self) -> int:
        """Return how many solutions are still to be built."""
        return len(self._waiting) + sum(build.solution is not None for build in self._running)

    def wakers(self) -> list[socket.socket]:
        """Return what to wait on. When it can be read, call `poll`."""
        return [self._woken]

    def add(self, solutions: Iterable[Solution]) -> None:
        """Take solutions. Those in the cache are ready at once, the others are queued. Starts no compiler."""
        listed = (*self._waiting, *self._running)
        queued = {build.solution.digest() for build in listed if build.solution is not None}
        for solution in solutions:
            digest = solution.digest()
            if is_compiled(solution) and digest not in queued and digest not in self._built:
                build = self._make(solution)
                if isinstance(build, Built):
                    self._built[digest] = build
                elif (found := build.look_up()) is not None:
                    self._keep(build, found)
                else:
                    queued.add(digest)
                    self._waiting.append(build)
                    self._find_header(build.recipe.header)
        self._waiting.sort(key=lambda build: build.recipe.guessed_seconds)

    def forget(self, solution: Solution) -> None:
        """Forget what came of a solution; where it comes again, it is in the cache."""
        self._built.pop(solution.digest(), None)

    def is_ready(self, solution: Solution) -> bool:
        """Tell whether `built` answers at once."""
        return not is_compiled(solution) or solution.digest() in self._built

    def built(self, solution: Solution) -> Built:
        """Return the artifact or error of a solution that is ready."""
        if is_compiled(solution):
            return replace(self._built[solution.digest()], solution=solution)  # another's sources may be the same
        build = self._make(solution)
        return build if isinstance(build, Built) else describe(solution, build, build.run())

    def hold(self) -> None:
        """Hold all compilers still until `release`: something is measured on the cores that they need."""
        self.is_held = True
        for build in self._running:
            build.compilers.hold()

    def release(self) -> None:
        """Let the compilers go on."""
        self.is_held = False
        for build in self._running:
            build.compilers.release()

    def poll(self) -> list[Built]:
        """Start what can be started, and return the builds that ended. Never waits for a compiler."""
        if self.is_held:
            self.hold()
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1 << 12)
        finished: list[Built] = []
        for ended in [build for build, future in self._running.items() if future.done()]:
            outcome = self._running.pop(ended).result()
            if ended.solution is None:
                self._keep_header(ended, outcome)
            else:
                finished.append(self._keep(ended, outcome))
        self._begin_header()
        while (build := self._choose()) is not None:
            self._waiting.remove(build)
            header = self._headers.get(build.recipe.header.digest) if build.recipe.header is not None else None
            self._start(build, header if header is not None and header.fits(build.recipe) else None)
        if not self.open_builds:  # nothing that is measured from now on has a compiler beside it
            for one in self._running:
                one.compilers.cancel()
            wait(self._running.values())
            self._running.clear()
        return finished

    def _choose(self) -> Build | None:
        """Return the build that is started next: the longest, but first of all the shortest, so that a GPU has work."""
        if self._free <= 0:
            return None
        begun = {build.recipe.digest for build in self._running}
        ready = [build for build in self._waiting if build.recipe.digest not in begun]
        is_first = not self._built and self.open_builds == len(self._waiting) and len(ready) > self._free > 1
        return ready[0 if is_first else -1] if ready else None

    def _start(self, build: Build, header: Header | None = None) -> None:
        parallel = max(1, self._free // (len(self._waiting) + 1))
        wanted = (sum(count_threads(step.argv, parallel) for step in stage) for stage in build.recipe.stages)
        build.parallel = min(parallel, max(wanted))
        self._running[build] = future = self._threads.submit(build.run, header)
        future.add_done_callback(self._tell)

    def _tell(self, _: object) -> None:
        with contextlib.suppress(BlockingIOError):  # then it can be read already
            self._wake.send(b"\0")

    def _begin_header(self) -> None:
        """Start compiling the header that most builds wait for, if enough of them find no core free."""
        if self._free <= 0 or any(build.solution is None for build in self._running):
            return
        headers = [build.recipe.header for build in self._waiting if build.recipe.header is not None]
        wanted = Counter(header.digest for header in headers if header.digest not in self._headers)
        for digest, count in wanted.most_common(1):
            if count - self._free >= LEAST_BUILDS:
                recipe = next(header for header in headers if header.digest == digest)
                self._start(Build(None, recipe, self._cache, self._limits))

    def _find_header(self, recipe: BuildRecipe | None) -> None:
        """Find a precompiled header in the cache."""
        if recipe is not None and recipe.digest not in self._headers:
            build = Build(None, recipe, self._cache, self._limits)
            outcome = build.look_up()
            if outcome is not None:
                self._keep_header(build, outcome)

    def _keep_header(self, build: Build, outcome: Outcome) -> None:
        recipe = build.recipe
        self._headers[recipe.digest] = None
        if isinstance(outcome, Artifact):
            self._has_grown = self._has_grown or not build.was_cached
            with contextlib.suppress(OSError):
                self._headers[recipe.digest] = Header.of(outcome, recipe)

    def build_all(self, solutions: Iterable[Solution]) -> Iterator[Built]:
        """Build solutions, and yield each with its artifact or error when it is known. Ready ones come first."""
        listed = list(solutions)
        self.add(listed)
        waited: dict[str, list[Solution]] = {}
        for solution in listed:
            if self.is_ready(solution):
                yield self.built(solution)
            else:
                waited.setdefault(solution.digest(), []).append(solution)
        while self.open_builds:
            for built in self.poll():
                for solution in waited.pop(built.solution.digest(), []):
                    yield replace(built, solution=solution)
            if self.open_builds:
                self.wait()

    def wait(self) -> None:
        """Sleep until a build has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.select()

    @property
    def _free(self) -> int:
        return 0 if self.is_held else self.jobs - sum(build.parallel for build in self._running)

    def _make(self, solution: Solution) -> Build | Built:
        try:
            recipe = make_recipe(solution, self._toolchain, self._target)
        except BuildFailure as failure:
            return Built(solution, None, failure, 0.0, was_cached=False)
        return Build(solution, recipe, self._cache, self._limits)

    def _keep(self, build: Build, outcome: Outcome) -> Built:
        solution = build.solution
        assert solution is not None  # headers are kept apart
        self._built[solution.digest()] = built = describe(solution, build, outcome)
        self._has_grown = self._has_grown or not built.was_cached
        return built


def is_compiled(solution: Solution) -> bool:
    """Tell whether building a solution starts compilers."""
    return solution.spec.language.record.is_compiled


def describe(solution: Solution, build: Build, outcome: Outcome) -> Built:
    """Return a build with its artifact or its error."""
    artifact, error = (outcome, None) if isinstance(outcome, Artifact) else (None, outcome)
    return Built(solution, artifact, error, build.seconds, build.was_cached)


def build_solution(
    solution: Solution, root: Path, *, target: BuildTarget | None = None, toolchain: Toolchain | None = None
) -> Artifact:
    """Build one solution, or find it built.

    Args:
        solution: what to build.
        root: the cache's folder.
        target: what to build for; None for the default of a machine without a GPU.
        toolchain: what to build with; None looks for it.

    Raises:
        BuildFailure: the solution is at fault.
        BuildFault: this machine is.
    """
    with BuildFarm(root, target=target, toolchain=toolchain) as farm:
        built = next(farm.build_all([solution]))
    if built.artifact is None:
        assert built.error is not None  # a build has an artifact or an error
        raise built.error
    return built.artifact
