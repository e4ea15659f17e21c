"""One build, from its lock to its place in the cache: `Build.run`, which takes as long as the compilers do.

It takes the lock and looks into the cache. If the artifact is missing, it runs the compilers in a folder of their own,
finds out who is to blame if they fail, checks what they have read, and publishes the products.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S
from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.host import count_memory_kills
from flashinfer_bench.compile.artifact import Artifact, BuildFailure
from flashinfer_bench.compile.cache import FILES, MOST_FILE_BYTES, ArtifactCache, Manifest, digest_file
from flashinfer_bench.compile.compilers import SYSTEM_FOLDERS, Compilers, StepLimits, StepReport
from flashinfer_bench.compile.diagnostics import (
    KILLED,
    describe_failure,
    fails_everywhere,
    first_error,
    is_no_plain_error,
    other_architecture,
    ran_out_of_memory,
    why_machine,
)
from flashinfer_bench.compile.headers import Header
from flashinfer_bench.compile.includes import check_read_files
from flashinfer_bench.compile.recipe import LINK, BuildRecipe
from flashinfer_bench.compile.toolkit import find_lacked
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildFault

PROBE_LIMIT_S: Final = 120.0
"""Seconds for compiling a source of one line. A compiler that takes longer is broken: the machine is at fault."""
LOCK_POLL_S: Final = 0.05
"""Seconds between two tries for the lock of an artifact that another process is building."""
GIB: Final = 1 << 30
LEAST_ROOM: Final = GIB
"""Bytes of a disk for what compilers write meanwhile; with less, it may have been full."""
REMEMBERED: Final = (
    "It did not compile before, so it was not compiled again; `flashinfer-bench cache clear --failed` forgets that."
)

Outcome = Artifact | BuildFailure | BuildFault


class Build:
    """One build. A finished build holds neither lock nor process.

    Args:
        solution: what is built; None for a header of ours.
        recipe: how it is built.
        cache: where the artifact goes. The caller holds a lease on it.
        limits: the time and memory that its compilers may take.
    """

    def __init__(
        self, solution: Solution | None, recipe: BuildRecipe, cache: ArtifactCache, limits: StepLimits
    ) -> None:
        self.solution = solution
        self.recipe = recipe
        self.compilers = Compilers(limits)
        self.parallel = 1
        """How many of them may run at once."""
        self.was_cached = False
        self._cached_s = 0.0
        self._cache = cache
        self._folder = Path()

    @property
    def seconds(self) -> float:
        """Seconds that its compilers took, now or when the artifact in the cache was made."""
        return self._cached_s or self.compilers.seconds

    def look_up(self) -> Outcome | None:
        """Return what the cache has; None if it must be built, or another process builds it."""
        lock = self._cache.lock(self.recipe.digest)
        try:
            return self._find() if lock.take() else None
        except OSError as error:
            return self._disk_fault(error)
        finally:
            lock.release()

    def run(self, header: Header | None = None) -> Outcome:
        """Find the artifact, or build it. Compilers may take the precompiled header."""
        try:
            with self._locked():
                return self._find() or self._make(header)
        except (BuildFailure, BuildFault) as error:
            return error.with_traceback(None)
        except OSError as error:
            return self._disk_fault(error)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the artifact's lock for a block."""
        lock, since = self._cache.lock(self.recipe.digest), time.monotonic()
        limit_s = USUAL_LIMIT_S
        if self.recipe.stages:
            limit_s += 2 * self.compilers.limits.seconds + PROBE_LIMIT_S  # a header may be tried, too
        while not lock.take():
            self.compilers.check()
            if time.monotonic() - since > limit_s:
                raise BuildFault(f"another process has held the lock of its build for {limit_s:g} s: {lock.path}")
            time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            lock.release()

    def _find(self) -> Artifact | BuildFailure | None:
        known = {}
        if not self.recipe.stages:
            known = {path: hashlib.sha256(content).hexdigest() for path, content in self.recipe.sources.items()}
        manifest = self._cache.read(self.recipe.digest, expected=known)
        if manifest is None or (manifest.failure is None and set(manifest.files) != set(self.recipe.products)):
            return None
        self.was_cached = True
        if manifest.failure is not None:
            return BuildFailure(f"{manifest.failure}\n{REMEMBERED}")
        self._cached_s = manifest.build_seconds
        return self._finish(manifest)

    @property
    def _products(self) -> Path:
        return self._folder / "artifact" / FILES

    def _make(self, header: Header | None) -> Artifact | BuildFailure:
        recipe = self.recipe
        with self._cache.staging(recipe.digest) as self._folder:
            for folder in (*(self._folder / name for name in ("src", "obj", "tmp")), self._products):
                folder.mkdir(parents=True)
            for path in recipe.products:
                (self._products / path).parent.mkdir(parents=True, exist_ok=True)
            write_files(self._folder / "src" if recipe.stages else self._products, recipe.sources)
            if recipe.stages:
                self._compile(header)
            manifest = self._manifest({path: digest_file(self._products / path) for path in recipe.products})
            self._cache.publish(recipe.digest, self._folder / "artifact", manifest)
        return self._finish(manifest)

    def _compile(self, header: Header | None) -> None:
        """Run the steps, and check the files that they have read.

        Raises:
            BuildFailure: the solution is at fault.
            BuildFault: this machine is.
        """
        kills, was_repeated = count_memory_kills(), False
        while (failed := self._run_steps(header)) is not None:
            lacked = find_lacked(failed.output, self.recipe.toolkit) if self.recipe.toolkit else None
            kills_since, is_full = count_memory_kills() - kills, has_no_room(self._folder)
            reason = why_machine(failed, disk_is_full=is_full, memory_kills=kills_since)
            reason = reason or (lacked[1] if lacked and failed.name == LINK else None)
            if reason is not None:
                raise BuildFault(f"{failed.name}: {reason}\n{describe_failure(failed)}")
            if KILLED.search(failed.output) and not was_repeated:
                was_repeated = True
            elif header is not None and is_no_plain_error(failed):
                header = None
            else:
                self._blame(failed, lacked)
        allowed = [*map(Path, SYSTEM_FOLDERS), *self.recipe.readable, self._folder]
        allowed += [header.directory] if header is not None else []
        check_read_files((self._folder / "obj").glob("*.d"), self._folder / "src", allowed)

    def _run_steps(self, header: Header | None) -> StepReport | None:
        """Run all steps; return the one that failed."""
        link = self._folder / "headers"
        link.unlink(missing_ok=True)
        readable = self.recipe.readable
        if header is not None:
            link.symlink_to(header.directory)
            readable = (*readable, header.directory)
        limit_s = self.compilers.limits.seconds
        left_s = max(0.0, limit_s - self.compilers.seconds)
        cores, stages = self.parallel, self.recipe.stages
        reports = self.compilers.run(stages, self._folder, left_s, parallel=cores, readable=readable)
        if reports is None:
            raise BuildFailure(f"error: compiling was still going on after {limit_s:g} s, and was ended")
        return find_failed(reports)

    def _blame(self, failed: StepReport, lacked: tuple[str, str] | None) -> NoReturn:
        """Compile a short source of ours before the solution is blamed: it shows whether the compilers work.

        Args:
            failed: the step.
            lacked: the header of the toolkit that it says is missing, and the message if our source misses it, too.
        """
        recipe, limits = self.recipe, self.compilers.limits
        needs = other_architecture(failed)
        if needs is not None and (self.solution is None or not _chooses_architecture(self.solution)):
            raise BuildFault(f"the code needs another GPU than is here: {needs}")
        message = describe_failure(failed, recipe.note)
        if ran_out_of_memory(failed):
            message = f"error: the compiler needed more than {limits.memory_bytes / GIB:.1f} GiB of memory\n{message}"
        if recipe.probe:
            is_elsewhere = (first_error(failed.output) or "").startswith("/")  # in a header that is not the solution's
            header, lacks = lacked or (recipe.main_header if is_elsewhere else None, None)
            lead = f"#include <{header}>\n".encode() if header else b""
            remove_tree(self._folder / "src")  # the probe could include a header of the solution, not the system's
            write_files(self._folder / "src", {path: lead + text for path, text in recipe.probe_sources.items()})
            seconds = limits.seconds if header else PROBE_LIMIT_S
            reports = self.compilers.run(recipe.probe, self._folder, seconds, readable=recipe.readable)
            if reports is None:
                raise BuildFault("the compiler does not come to an end on a source of ours")
            broken = find_failed(reports)
            if broken is not None:
                reason = lacks or why_machine(broken, disk_is_full=True, memory_kills=0)
                reason = reason or "the compiler of this machine fails on a source of ours"
                raise BuildFault(f"{reason}:\n{describe_failure(broken)}")
            if fails_everywhere(failed):
                self._remember(message)
        raise BuildFailure(message)

    def _remember(self, failure: str) -> None:
        """Put a failure in the place of the artifact, so that the next run does not compile the same again."""
        with contextlib.suppress(OSError):  # what cannot be kept is compiled again
            remove_tree(self._products)
            self._products.mkdir()
            self._cache.publish(self.recipe.digest, self._folder / "artifact", self._manifest({}, failure))

    def _manifest(self, files: dict[str, str], failure: str | None = None) -> Manifest:
        recipe = self.recipe
        return Manifest(
            kind=recipe.kind,
            entry=recipe.entry,
            language=self.solution.spec.language.value if self.solution else "c++ header",
            solution=self._name,
            build_seconds=self.seconds,
            files=files,
            made_from=dict(recipe.made_from),
            failure=failure,
        )

    @property
    def _name(self) -> str:
        return self.solution.name if self.solution else self.recipe.entry

    def _disk_fault(self, error: OSError) -> BuildFault:
        advice = "; free some, or clear the cache" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return BuildFault(f"solution {self._name} cannot be built here: {error}{advice}")

    def _finish(self, manifest: Manifest) -> Artifact | BuildFailure:
        """Check that the entry function is in the artifact."""
        recipe = self.recipe
        files = self._cache.place(recipe.digest) / FILES
        missing = find_missing_entry(recipe, files / recipe.entry)
        return missing or Artifact(files, recipe.entry, recipe.symbol, recipe.kind, tuple(manifest.files.items()))


def find_failed(reports: Sequence[StepReport]) -> StepReport | None:
    """Return the first step that failed, None if all is well."""
    return next((report for report in reports if report.code != 0), None)


def find_missing_entry(recipe: BuildRecipe, library: Path) -> BuildFailure | None:
    """Return why a library lacks the entry function; None where it exports it."""
    if recipe.needs_symbol is None:
        return None
    content = read_whole(library, MOST_FILE_BYTES)
    if b"\0" + recipe.needs_symbol.encode() + b"\0" in content:
        return None
    if recipe.kind == "torch":
        return BuildFailure("error: no module is defined; bind with PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)")
    names = sorted({name.decode() for name in re.findall(rb"\0__tvm_ffi_([A-Za-z]\w*)(?=\0)", content)})
    return BuildFailure(
        f"error: the library exports no function {recipe.symbol!r}; it has: {', '.join(names[:20]) or 'none'}; "
        f"export it with TVM_FFI_DLL_EXPORT_TYPED_FUNC({recipe.symbol}, your_function)"
    )


def has_no_room(folder: Path) -> bool:
    """Tell whether the disk of a folder is full, or nearly so, or its user's quota is."""
    try:
        room = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError:
        return True
    return room.f_bavail * room.f_frsize < LEAST_ROOM


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files (relative path → content) below a folder."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _chooses_architecture(solution: Solution) -> bool:
    options = solution.spec.compile_options
    return any("arch" in flag or "gencode" in flag for flag in (options.cuda_cflags if options else ()))
