"""One build, from its lock to its location in the cache, and its compilers.

`Build.run` takes as long as its compilers do. It takes the lock and searches the cache. If the artifact is missing, it
runs the compilers in a new folder. If they fail, it decides whether the solution or the machine is to blame. It checks
the files that they have read, and publishes the products. Sources that compile nowhere are published too, as a manifest
with the failure.

`Compilers` limits the number of parallel compilers of a build pool, each in a process of its own (`run_compiler.py`).
Any other thread may cancel all of them.

No macro hides a file from the list of files that a compiler has read. If the kernel has Landlock, the compiler cannot
read other files at all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S
from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.host import count_memory_kills
from flashinfer_bench.base.isolated import Isolated, IsolatedFailure
from flashinfer_bench.compile.artifact import (
    HEADERS,
    LINK,
    READ_LIST,
    Artifact,
    BuildFailure,
    BuildRecipe,
    BuildStep,
    Built,
    Stages,
    StepLimits,
    StepReport,
)
from flashinfer_bench.compile.cache import FILES, MOST_FILE_BYTES, ArtifactCache, Manifest, digest_file
from flashinfer_bench.compile.diagnostics import (
    OUT_OF_MEMORY,
    describe_failure,
    fails_everywhere,
    first_error,
    is_no_plain_error,
    other_architecture,
    why_machine,
)
from flashinfer_bench.compile.requirements import find_lacked
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildFault

RUNNER: Final = Path(__file__).with_name("run_compiler.py")
SYSTEM_FOLDERS: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store")
SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/dev/urandom")
"""Paths that every compiler may read, if the kernel has Landlock."""
PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH")
"""The only variables of the environment that a compiler sees. So no variable adds a flag or a folder of headers."""
MOST_LIST_BYTES: Final = 16 << 20
"""Maximum bytes of a compiler's list of the files that it read; a longer list is refused."""
LOCK_LIMIT_S: Final = 3600.0
"""Seconds to wait for another process that runs the same build. A few compilers in a row may take their full time
limit."""
GIB: Final = 1 << 30
LEAST_FREE_BYTES: Final = GIB
"""Bytes of free disk that compilers need. With less left, a build may have failed because the disk was full."""
REMEMBERED: Final = (
    "It did not compile before, so it was not compiled again; `flashinfer-bench cache clear --failed` forgets that."
)


class Compilers:
    """The compilers of a build pool.

    Args:
        most: maximum number of parallel compilers.
        limits: the limits of each compiler.
    """

    def __init__(self, most: int, limits: StepLimits) -> None:
        self.limits: Final = limits
        self._cores = threading.Semaphore(most)
        self._lock = threading.Lock()
        self._running: set[Isolated] = set()
        self._is_cancelled = False

    def cancel(self) -> None:
        """Kill all compilers, and start no more."""
        with self._lock:
            self._is_cancelled = True
            for process in self._running:
                process.signal(signal.SIGKILL)

    def check(self) -> None:
        """Raise BuildFault if the compilers were cancelled."""
        if self._is_cancelled:
            raise BuildFault("its build was cancelled")

    def run(self, step: BuildStep, folder: Path, readable: Iterable[Path]) -> StepReport:
        """Wait for a free core, run a command, and return how it ended.

        Args:
            folder: the build's own folder with `src`, `obj`, `tmp`; commands run in `src`.
            readable: folders that compilers may read besides the system's.

        Raises:
            BuildFailure: the command took too long.
            BuildFault: the process that runs the command failed, or all compilers were cancelled.
        """
        private, limits = str(folder / "tmp"), self.limits
        request = {
            "argv": step.argv,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": MOST_FILE_BYTES,
            "readable": [*SYSTEM_FOLDERS, *SYSTEM_FILES, *map(str, readable)],
            "writable": [str(folder)],
        }
        environment = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
        environment |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": private, "TMPDIR": private}
        with self._cores, self._start(request, environment, folder / "src") as process:
            try:
                return StepReport(step.name, **process.wait(limits.seconds))
            except IsolatedFailure as failure:
                self.check()
                if failure.code is None:
                    message = f"error: compiling was still going on after {limits.seconds:g} s, and was ended"
                    raise BuildFailure(message) from None
                raise BuildFault(f"the process that runs the compilers failed:\n{failure.log}") from None

    @contextmanager
    def _start(self, request: object, environment: dict[str, str], folder: Path) -> Iterator[Isolated]:
        with self._lock:
            self.check()
            process = Isolated(RUNNER, request, environment=environment, folder=folder)
            self._running.add(process)
        try:
            yield process
        finally:
            with self._lock:
                process.end()
                self._running.discard(process)


class Build:
    """One build. A finished build holds neither lock nor process.

    Args:
        solution: the solution. For a precompiled header: a solution that includes the header.
        cache: the cache for the artifact. The caller keeps the cache in use (`ArtifactCache.used`).
    """

    def __init__(self, solution: Solution, recipe: BuildRecipe, cache: ArtifactCache, compilers: Compilers) -> None:
        self.solution = solution
        self.recipe = recipe
        self._is_header = recipe.kind == "header"
        self._name = recipe.entry if self._is_header else solution.name
        self._seconds = 0.0
        """Seconds of its compilers."""
        self._cache = cache
        self._compilers = compilers
        self._folder = Path()

    def of_header(self, recipe: BuildRecipe) -> Build:
        """Return the build of a precompiled header."""
        return Build(self.solution, recipe, self._cache, self._compilers)

    def run(self) -> Built:
        """Find the artifact, or build it."""
        limit_s = LOCK_LIMIT_S if self.recipe.stages else USUAL_LIMIT_S
        try:
            with self._cache.building(self.recipe.digest, limit_s, self._compilers.check):
                return self.find() or self._make()
        except (BuildFailure, BuildFault) as error:
            return self._fail(error.with_traceback(None))
        except OSError as error:
            advice = "; free some, or clear the cache" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            return self._fail(BuildFault(f"solution {self._name} cannot be built here: {error}{advice}"))

    def find(self) -> Built | None:
        """Return the outcome in the cache; None if the cache has none, or if its files were changed."""
        recipe = self.recipe
        sources = {} if recipe.stages else recipe.sources
        known = {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()}
        manifest = self._cache.read(recipe.digest, known)
        if manifest is None or (manifest.failure is None and set(manifest.files) != set(recipe.products)):
            return None
        if manifest.failure is not None:
            return Built(self.solution, None, BuildFailure(f"{manifest.failure}\n{REMEMBERED}"), 0.0, was_cached=True)
        return replace(self._finish(manifest), was_cached=True)

    def _make(self) -> Built:
        recipe = self.recipe
        with self._cache.staging(recipe.digest) as self._folder:
            artifact = self._folder / "artifact"
            for name in ("src", "obj", "tmp"):
                (self._folder / name).mkdir()
            for path in recipe.products:
                (artifact / FILES / path).parent.mkdir(parents=True, exist_ok=True)
            write_files(self._folder / "src" if recipe.stages else artifact / FILES, recipe.sources)
            failure = self._compile() if recipe.stages else None
            if failure is not None:
                remove_tree(artifact / FILES)
                artifact.joinpath(FILES).mkdir()
            manifest = Manifest(
                kind=recipe.kind,
                entry=recipe.entry,
                language="c++ header" if self._is_header else self.solution.spec.language.value,
                solution=self._name,
                build_seconds=self._seconds,
                files={} if failure else {path: digest_file(artifact / FILES / path) for path in recipe.products},
                made_from=dict(recipe.made_from),
                failure=failure,
            )
            self._cache.publish(recipe.digest, artifact, manifest)
        return self._finish(manifest) if failure is None else self._fail(BuildFailure(failure))

    def _compile(self) -> str | None:
        """Run the compilers, and check the files that they have read; return a failure to store in the cache.

        Raises:
            BuildFailure: the solution is at fault, but a later attempt may succeed, so the failure is not cached.
            BuildFault: this machine is at fault.
        """
        recipe, kills, header = self.recipe, count_memory_kills(), self._find_header()
        failed = self._run(recipe.stages, header)
        if failed is not None and header and is_no_plain_error(failed):
            header = ()
            failed = self._run(recipe.stages)
        if failed is not None:
            return self._blame(failed, count_memory_kills() - kills)
        allowed = [*map(Path, SYSTEM_FOLDERS), *recipe.readable, *header, self._folder]
        check_read_files((self._folder / "obj").glob("*.d"), self._folder / "src", allowed)
        return None

    def _find_header(self) -> tuple[Path, ...]:
        """Return the folder of the precompiled header; empty if this build cannot use it. If a source has the same name
        as a file of the header, compilers could read the source instead, so the build does not use the header."""
        if self.recipe.header is None:
            return ()
        result = self.of_header(self.recipe.header).find()
        if result is None or result.artifact is None:
            return ()
        folder = result.artifact.directory
        names = {Path(path).name for path in read_list(folder / READ_LIST)}
        return () if any(Path(path).name in names for path in self.recipe.sources) else (folder,)

    def _run(self, stages: Stages, header: tuple[Path, ...] = ()) -> StepReport | None:
        """Run all steps; return the first failed step."""
        link = self._folder / "src" / HEADERS
        link.unlink(missing_ok=True)
        for folder in header:
            link.symlink_to(folder)
        run = partial(self._compilers.run, folder=self._folder, readable=(*self.recipe.readable, *header))
        for stage in stages:
            with ThreadPoolExecutor(len(stage)) as pool:
                reports = list(pool.map(run, stage))
            self._seconds += sum(report.seconds for report in reports)
            for report in reports:
                if report.code != 0:
                    return report
        return None

    def _blame(self, failed: StepReport, memory_kills: int) -> str | None:
        """Return a failure's message if the same sources always fail here, else raise the failure. To decide, compile a
        short source of ours.

        Args:
            memory_kills: processes that the kernel killed during the build because memory ran out.
        """
        recipe = self.recipe
        lacked = find_lacked(failed.output, recipe.toolkit) if recipe.toolkit else None
        reason = why_machine(failed, disk_is_full=is_full(self._folder), memory_kills=memory_kills)
        reason = reason or (lacked[1] if lacked and failed.name == LINK else None)
        if reason is not None:
            raise BuildFault(f"{failed.name}: {reason}\n{describe_failure(failed)}")
        needs = other_architecture(failed)
        if needs is not None and not recipe.chooses_architecture:
            raise BuildFault(f"the code needs another GPU or CUDA toolkit than is here: {needs}")
        message = describe_failure(failed, recipe.note)
        if OUT_OF_MEMORY.search(failed.output):
            limit = self._compilers.limits.memory_bytes / GIB
            message = f"error: the compiler needed more than {limit:.1f} GiB of memory\n{message}"
        is_elsewhere = (first_error(failed.output) or "").startswith("/")  # in a header outside the solution
        header = lacked[0] if lacked else recipe.main_header if is_elsewhere else None
        lead = f"#include <{header}>\n".encode() if header else b""
        remove_tree(self._folder / "src")  # else the probe could include the solution's headers
        write_files(self._folder / "src", {path: lead + text for path, text in recipe.probe_sources.items()})
        try:
            broken = self._run(recipe.probe)
        except BuildFailure:
            raise BuildFault("the compiler does not come to an end on a source of ours") from None
        if broken is not None:
            reason = lacked[1] if lacked else why_machine(broken, disk_is_full=True, memory_kills=0)
            reason = reason or "the compiler of this machine fails on a source of ours"
            raise BuildFault(f"{reason}:\n{describe_failure(broken)}")
        if fails_everywhere(failed):
            return message
        raise BuildFailure(message)

    def _fail(self, error: BuildFailure | BuildFault) -> Built:
        return Built(self.solution, None, error, self._seconds, was_cached=False)

    def _finish(self, manifest: Manifest) -> Built:
        """Return the artifact, if the entry function is in it."""
        recipe, error = self.recipe, None
        files = self._cache.folder_of(recipe.digest) / FILES
        if recipe.needs_symbol is not None:
            content = read_whole(files / recipe.entry, MOST_FILE_BYTES)
            if f"\0{recipe.needs_symbol}\0".encode() not in content:
                error = BuildFailure(f"error: {recipe.lacks_symbol}")
        artifact = Artifact(files, recipe.entry, recipe.symbol, recipe.kind, tuple(manifest.files.items()))
        return Built(self.solution, None if error else artifact, error, manifest.build_seconds, was_cached=False)


def is_full(folder: Path) -> bool:
    """Return whether a folder's disk is full or nearly full, or the user's quota on the disk is used up."""
    try:
        room = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError:
        return True
    return room.f_bavail * room.f_frsize < LEAST_FREE_BYTES


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files (relative path → content) below a folder."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def check_read_files(dependency_files: Iterable[Path], sources: Path, allowed: Iterable[Path]) -> None:
    """Check the lists of files that the compilers read.

    Args:
        dependency_files: the lists that `-MD -MF` wrote, in make's syntax; paths are relative to `sources`.
        sources: the folder that the compilers ran in.
        allowed: folders of the toolchain.

    Raises:
        BuildFailure: a compiler read a file that is neither the solution's nor the toolchain's.
    """
    roots = [sources.resolve(), *(folder.resolve() for folder in allowed)]
    for dependency_file in dependency_files:
        for name in read_list(dependency_file):
            real = (sources / name).resolve()
            if not any(real.is_relative_to(root) for root in roots):
                raise BuildFailure(f"error: {real} was read, which is neither a source nor part of the toolchain")


def read_list(dependency_file: Path) -> list[str]:
    """Return the files that a compiler read, from the list that it wrote in make's syntax."""
    text = read_whole(dependency_file, MOST_LIST_BYTES).decode(errors="replace").replace("\\\n", " ")
    return [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", text.partition(":")[2].strip()) if name]
