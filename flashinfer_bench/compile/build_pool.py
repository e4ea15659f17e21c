"""Compiles the solutions of a run before their jobs begin, several at once.

Each build runs in a thread, which waits for its compilers. The owner does everything else: it waits for `wakers`, then
calls `poll`, which returns the ended builds. Solutions in Python need no compiler; their files are written on demand.
Failures are stored too, so a run builds nothing twice.

The shortest build begins first, so that a GPU has work, then the longest builds. The order follows a guess
(`BuildRecipe.guessed_seconds`). A header of many builds is precompiled by a build of its own. Builds that begin later
use the precompiled header; earlier builds read the header's text. If precompiling fails, all builds read the text.
"""

from __future__ import annotations

import importlib
import select
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.compile.artifact import Artifact, BuildFailure, BuildRecipe, BuildTarget, Built, StepLimits
from flashinfer_bench.compile.building import GIB, Build, Compilers
from flashinfer_bench.compile.cache import ArtifactCache, size_limit
from flashinfer_bench.compile.toolchain import Toolchain, find_toolchain
from flashinfer_bench.data import Solution

BUILD_LIMIT_S: Final = 900.0
"""Maximum seconds of one compiler; a build that takes longer has failed."""
MEMORY_SHARE: Final = 0.8
"""The share of the machine's memory that all compilers together may take."""
LEAST_MEMORY: Final = 4 * GIB
MOST_MEMORY: Final = 16 * GIB
"""Minimum and maximum of one compiler's address space, in bytes. Within these limits, each compiler gets an equal part
of MEMORY_SHARE."""
LEAST_BUILDS: Final = 3
"""A common header is precompiled if at least this number of builds wait for a core. Precompiling takes one and a half
times as long as a build, and saves each build about half of its time."""


def default_jobs(*, spared_cores: int = 1) -> int:
    """Return the default number of parallel compilers: the cores, minus the cores that sessions need."""
    return max(1, usable_cores() - spared_cores)


def make_recipe(solution: Solution, toolchain: Toolchain, target: BuildTarget) -> BuildRecipe:
    """Return a solution's recipe, from the module in `builders/` that the record of its language names.

    Raises:
        BuildFailure: the solution is at fault.
    """
    builder = importlib.import_module(f"{__package__}.builders.{solution.spec.language.record.builder}")
    recipe: BuildRecipe = builder.make_recipe(solution, toolchain, target)
    return recipe


class BuildPool:
    """Builds solutions; a context manager that leaves no process and no half-made artifact.

    Args:
        root: the cache's folder.
        jobs: number of parallel compilers; None: all cores but one.
        toolchain: the toolchain of the builds; None searches for it.
        limits: the time and memory for one compiler; None derives them from the machine.
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
        self._in_use = ExitStack()
        self._in_use.enter_context(self._cache.used())
        self.jobs: Final = jobs or default_jobs()
        """Maximum number of parallel compilers."""
        self._target = target or BuildTarget()
        self._toolchain = toolchain or find_toolchain()
        memory = min(MOST_MEMORY, max(LEAST_MEMORY, usable_memory() * MEMORY_SHARE / self.jobs))
        self._compilers = Compilers(self.jobs, limits or StepLimits(BUILD_LIMIT_S, int(memory)))
        self._built: dict[str, Built] = {}
        """Digest of a compiled solution → its artifact or error."""
        self._building: dict[str, Future[Built]] = {}
        """Digest of a compiled solution → its artifact or error, once its build has ended."""
        self._headers: set[str] = set()
        """Digests of the headers that this build pool has precompiled, or tried to."""
        self._threads = ThreadPoolExecutor(self.jobs, "build")
        self._woken, self._wake = socket.socketpair()
        """The first socket is readable when a build has ended."""
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._compilers.cancel()
        self._threads.shutdown(cancel_futures=True)
        self._building.clear()
        self._woken.close()
        self._wake.close()
        self._in_use.close()
        with suppress(OSError):  # a run does not fail because its cache stays too large
            self._cache.evict(size_limit())

    @property
    def open_builds(self) -> int:
        """Number of solutions still to be built."""
        return len(self._building)

    def wakers(self) -> list[socket.socket]:
        """Return the sockets to wait on. When one is readable, call `poll`."""
        return [self._woken]

    def add(self, solutions: Iterable[Solution]) -> None:
        """Take solutions. Solutions in the cache are ready at once. All other solutions are queued."""
        new: dict[str, Build] = {}
        for solution in solutions:
            digest = solution.digest()
            if not is_compiled(solution) or digest in {**new, **self._building, **self._built}:
                continue
            build = self._make(solution)
            result = build if isinstance(build, Built) else build.find()
            if result is not None:
                self._built[digest] = result
            elif isinstance(build, Build):
                new[digest] = build
        self._precompile(new.values())
        longest_first = sorted(new.items(), key=lambda item: -item[1].recipe.guessed_seconds)
        for digest, build in (*longest_first[-1:], *longest_first[:-1]):
            self._building[digest] = future = self._threads.submit(build.run)
            future.add_done_callback(self._tell)

    def _precompile(self, builds: Iterable[Build]) -> None:
        """Precompile the headers that many of these new builds share."""
        sharing = defaultdict[str, list[Build]](list)
        for build in builds:
            if build.recipe.header is not None:
                sharing[build.recipe.header.digest].append(build.of_header(build.recipe.header))
        for digest, headers in sharing.items():
            if len(headers) - self.jobs >= LEAST_BUILDS and digest not in self._headers:
                self._headers.add(digest)
                self._threads.submit(headers[0].run)

    def forget(self, solution: Solution) -> None:
        """Forget the outcome of a solution; the cache still has it."""
        self._built.pop(solution.digest(), None)

    def is_ready(self, solution: Solution) -> bool:
        """Return whether `built` answers at once."""
        return not is_compiled(solution) or solution.digest() in self._built

    def built(self, solution: Solution) -> Built:
        """Return the artifact or error of a solution that is ready."""
        if is_compiled(solution):
            return replace(self._built[solution.digest()], solution=solution)  # solutions may have the same sources
        build = self._make(solution)
        return build if isinstance(build, Built) else build.run()

    def poll(self) -> None:
        """Take the builds that ended. Never waits for a compiler."""
        with suppress(BlockingIOError):
            self._woken.recv(1 << 12)
        for digest in [digest for digest, future in self._building.items() if future.done()]:
            self._built[digest] = self._building.pop(digest).result()

    def build_all(self, solutions: Iterable[Solution]) -> Iterator[Built]:
        """Build solutions. Yield each solution with its artifact or error as soon as its build has ended. Ready
        solutions come first."""
        left = list(solutions)
        self.add(left)
        while left:
            ready = [self.built(solution) for solution in left if self.is_ready(solution)]
            left = [solution for solution in left if not self.is_ready(solution)]
            yield from ready
            if left:
                self.wait()
                self.poll()

    def wait(self) -> None:
        """Sleep until a build has ended."""
        select.select([self._woken], [], [])

    def _tell(self, *_: object) -> None:
        with suppress(OSError):  # the socket is readable already, or no thread waits any more
            self._wake.send(b"\0")

    def _make(self, solution: Solution) -> Build | Built:
        try:
            recipe = make_recipe(solution, self._toolchain, self._target)
        except BuildFailure as failure:
            return Built(solution, None, failure, 0.0, was_cached=False)
        return Build(solution, recipe, self._cache, self._compilers)


def is_compiled(solution: Solution) -> bool:
    """Return whether building a solution starts compilers."""
    return solution.spec.language.record.is_compiled


def build_solution(solution: Solution, root: Path, *, target: BuildTarget | None = None) -> Artifact:
    """Build one solution, or find its artifact in the cache.

    Args:
        root: the cache's folder.
        target: the target of the build; None for the default of a machine without a GPU.

    Raises:
        BuildFailure: the solution is at fault.
        BuildFault: this machine is at fault.
    """
    with BuildPool(root, target=target) as build_pool:
        built = next(build_pool.build_all([solution]))
    if built.artifact is None:
        assert built.error is not None  # a build has an artifact or an error
        raise built.error
    return built.artifact
