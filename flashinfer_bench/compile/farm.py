"""Compiles the solutions of a run before their jobs begin: several at once, the longest first.

It has no thread: its owner waits on `processes`, then calls `poll`. Solutions in Python need no compiler; they are laid
out when they are asked for. Failures are kept too, so that a run builds nothing twice.

The order follows a guess (`BuildRecipe.guessed_seconds`), not a history: what was built before is in the cache. In
simulated runs of 24 builds, guesses that are off by half made the last build end 0 to 5 % later than known times (14 %
at worst), and an order by chance 3 to 26 % later.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.compile.artifact import Artifact, BuildFailure, Built, mark_of
from flashinfer_bench.compile.builders.native import native_recipe
from flashinfer_bench.compile.building import GIB, Building, Outcome
from flashinfer_bench.compile.cache import ArtifactCache, Lease, size_limit
from flashinfer_bench.compile.header_shelf import HeaderShelf
from flashinfer_bench.compile.recipe import BuildTarget
from flashinfer_bench.compile.step_process import StepLimits, StepProcess
from flashinfer_bench.compile.table import BUILDERS, make_recipe
from flashinfer_bench.compile.toolchain import Toolchain, find_toolchain
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildFault

BUILD_LIMIT_S: Final = 900.0
"""Seconds that all commands of one build may take together. A build that takes longer has failed."""
LOCK_POLL_S: Final = 0.2
"""Seconds between two looks at an artifact that another process is building."""
MEMORY_SHARE: Final = 0.8
"""The share of the machine's memory that all compilers together may take."""
LEAST_MEMORY: Final = 4 * GIB
MOST_MEMORY: Final = 16 * GIB
"""Bytes of address space for one compiler: its part of that share, but at least and at most this."""


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
        self._jobs = jobs or default_jobs()
        self._target = target or BuildTarget()
        self._toolchain = toolchain or find_toolchain()
        self._limits = limits or default_limits(self._jobs)
        self._lease = Lease(root)
        self._headers = HeaderShelf(self._cache, self._lease, self._limits)
        self._built: dict[str, Built] = {}
        """Digest of a compiled solution → its artifact or error."""
        self._failed: dict[tuple[str, str], BuildFailure] = {}
        """Recipe and entry function → why they do not compile. Solutions of several definitions may share sources."""
        self._marks: dict[str, tuple[int, ...]] = {}
        self._waiting: list[Building] = []
        """Builds to come, the longest last."""
        self._blocked: list[Building] = []
        """Builds whose artifact another process is making, or that wait for a precompiled header."""
        self._running: list[Building] = []
        self._has_grown = False
        self.is_held = False
        """Whether compilers are held still, and none is started."""

    def __enter__(self) -> BuildFarm:
        return self

    @property
    def jobs(self) -> int:
        """Return how many compilers run at once."""
        return self._jobs

    def __exit__(self, *exc_info: object) -> None:
        for building in (*self._running, *self._blocked, *self._waiting):
            building.cancel()
        self._headers.cancel()
        self._running, self._blocked, self._waiting = [], [], []
        self._lease.__exit__()
        with contextlib.suppress(OSError):  # a cache that stays too large is worth no error at the end of a run
            if self._has_grown or self._cache.is_over(size_limit()):
                self._cache.evict(size_limit())

    @property
    def open_builds(self) -> int:
        """Return how many solutions are still to be built."""
        return len(self._waiting) + len(self._blocked) + len(self._running)

    @property
    def wait_s(self) -> float | None:
        """Return the seconds after which the owner has to call `poll`; None where it may wait for ever."""
        limits = [process.left_s for process in self.processes()]
        if self._blocked:
            limits.append(LOCK_POLL_S)
        return max(0.0, min(limits)) if limits else None

    def processes(self) -> list[StepProcess]:
        """Return the running processes. When one of them can be read, call `poll`."""
        return [building.process for building in self._all_running() if building.process is not None]

    def _all_running(self) -> list[Building]:
        header = self._headers.building
        return [*self._running, header] if header is not None else self._running

    def add(self, solutions: Iterable[Solution]) -> None:
        """Take solutions. Those in the cache are ready at once, the others are queued. Starts no compiler."""
        listed = (*self._waiting, *self._blocked, *self._running)
        queued = {building.solution.digest() for building in listed if building.solution is not None}
        for solution in solutions:
            digest = solution.digest()
            if is_compiled(solution) and digest not in queued and digest not in self._built:
                building = self._make(solution)
                if isinstance(building, Built):
                    self._built[digest] = building
                elif (found := building.look_up()) is not None:
                    self._keep(building, found)
                else:
                    queued.add(digest)
                    self._waiting.append(building)
        self._waiting.sort(key=lambda building: building.recipe.guessed_seconds)

    def forget(self, solution: Solution) -> None:
        """Forget what came of a solution; where it comes again, it is in the cache."""
        self._built.pop(solution.digest(), None)
        self._marks.pop(solution.digest(), None)

    def is_ready(self, solution: Solution) -> bool:
        """Tell whether `built` answers at once."""
        return not is_compiled(solution) or solution.digest() in self._built

    def built(self, solution: Solution) -> Built:
        """Return the artifact or error of a solution that is ready. An artifact that was changed since is an error."""
        if not is_compiled(solution):
            building = self._make(solution)
            return building if isinstance(building, Built) else describe(solution, building, building.lay_out())
        built = replace(self._built[solution.digest()], solution=solution)  # another's sources may be the same
        artifact = built.artifact
        if artifact is None or mark_of(artifact.directory / artifact.entry) == self._marks[solution.digest()]:
            return built
        message = f"the artifact of {solution.name} was changed while the run used it: {artifact.directory}"
        return Built(solution, None, BuildFault(message), built.seconds, built.was_cached)

    def hold(self) -> None:
        """Hold all compilers still until `release`: something is measured on the cores that they need."""
        self.is_held = True
        for process in self.processes():
            process.hold()

    def release(self) -> None:
        """Let the compilers go on."""
        if self.is_held:
            self.is_held = False
            for process in self.processes():
                process.release()

    def poll(self) -> list[Built]:
        """Read what compilers say, start the next ones, and return the builds that ended. Never waits."""
        finished: list[Built] = []
        if self.is_held:
            self.hold()
        readable = self._readable()
        for building in list(self._running):
            outcome = building.advance() if building in readable else building.check_deadline()
            if outcome is not None:
                self._running.remove(building)
                finished.append(self._keep(building, outcome))
            elif building.process is None:
                self._running.remove(building)
                self._blocked.append(building)
        self._has_grown = self._headers.advance(is_readable=self._headers.building in readable) or self._has_grown
        candidates, held, self._waiting, self._blocked = self._list_candidates(), [], [], []
        if self._free > 0:
            self._headers.begin((building.recipe for building in candidates), self._free)
        while candidates and self._free > 0:
            building = self._choose(candidates)
            is_awaited = self._headers.is_awaited(building.recipe)
            if is_awaited and not building.can_begin_apart:
                held.append(building)
                continue
            known = self._failed.get((building.recipe.digest, building.recipe.symbol))
            parallel = max(1, self._free // (len(candidates) + 1))
            outcome = known or (
                building.begin_apart(parallel)
                if is_awaited
                else building.begin(parallel, self._headers.find(building.recipe))
            )
            if outcome is not None:
                finished.append(self._keep(building, outcome))
            elif building.process is not None:
                self._running.append(building)
            else:
                self._blocked.append(building)
        self._waiting, self._blocked = candidates, [*self._blocked, *reversed(held)]
        if not self.open_builds:  # nothing that is measured from now on has a compiler beside it
            self._headers.cancel()
        return finished

    def _list_candidates(self) -> list[Building]:
        """Return the builds that may begin or go on, the next one last. Begun ones hold locks, so they go first."""
        listed = [*self._blocked, *self._waiting]
        return sorted(listed, key=lambda building: building.is_apart)

    def _choose(self, candidates: list[Building]) -> Building:
        """Take the build that is started next: the longest, but first of all the shortest, so that a GPU has work."""
        is_first = not self._built and not self._running and len(candidates) > self._free > 1
        return candidates.pop(0 if is_first else -1)

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
            self.wait()

    def wait(self) -> None:
        """Sleep until there is something for `poll` to do."""
        with selectors.DefaultSelector() as selector:
            for process in self.processes():
                selector.register(process, selectors.EVENT_READ)
            if self.wait_s is not None:
                selector.select(self.wait_s)

    @property
    def _free(self) -> int:
        return 0 if self.is_held else self._jobs - sum(building.parallel for building in self._all_running())

    def _make(self, solution: Solution) -> Building | Built:
        try:
            recipe = make_recipe(solution, self._toolchain, self._target)
        except BuildFailure as failure:
            return Built(solution, None, failure, 0.0, was_cached=False)
        return Building(solution, recipe, self._cache, self._lease, self._limits)

    def _readable(self) -> set[Building]:
        running = self._all_running()
        if not running:
            return set()
        with selectors.DefaultSelector() as selector:
            for building in running:
                if building.process is not None:
                    selector.register(building.process, selectors.EVENT_READ, building)
            return {key.data for key, _ in selector.select(0)}

    def _keep(self, building: Building, outcome: Outcome) -> Built:
        solution = building.solution
        assert solution is not None  # headers are kept on their shelf
        built = describe(solution, building, outcome)
        digest = solution.digest()
        self._headers.note(building)
        self._built[digest] = built
        self._has_grown = self._has_grown or not built.was_cached
        if isinstance(outcome, BuildFailure):
            self._failed[building.recipe.digest, building.recipe.symbol] = outcome
        if built.artifact is not None:
            self._marks[digest] = mark_of(built.artifact.directory / built.artifact.entry)
        return built


def is_compiled(solution: Solution) -> bool:
    """Tell whether building a solution starts compilers."""
    return BUILDERS[solution.spec.language] is native_recipe


def describe(solution: Solution, building: Building, outcome: Outcome) -> Built:
    """Return a build with its artifact or its error."""
    artifact, error = (outcome, None) if isinstance(outcome, Artifact) else (None, outcome)
    return Built(solution, artifact, error, building.seconds, building.was_cached)


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
