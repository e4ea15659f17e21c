"""One build, from its lock to its place in the cache. No call waits longer than reading a file takes.

`begin` takes the lock and looks into the cache again. Where the artifact is missing, it starts the compilers in a
process of their own. `begin_apart` starts only those that need not wait for a header, and `begin` the others later. The
caller waits on that process's descriptor and calls `advance`, which reads what the process says. After its end
`advance` checks the products and publishes them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S
from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.host import count_memory_kills
from flashinfer_bench.compile.artifact import Artifact, BuildFailure
from flashinfer_bench.compile.cache import FILES, MOST_FILE_BYTES, ArtifactCache, Lease, Manifest, digest_file
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
from flashinfer_bench.compile.flags import count_threads
from flashinfer_bench.compile.headers import Header
from flashinfer_bench.compile.includes import check_read_files
from flashinfer_bench.compile.recipe import LINK, BuildRecipe, BuildStep
from flashinfer_bench.compile.step_process import SYSTEM_FOLDERS, RunnerReport, StepLimits, StepProcess
from flashinfer_bench.compile.toolkit import describe_missing, find_lacked
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildFault

PROBE_LIMIT_S: Final = 120.0
"""Seconds for compiling a source of one line. A compiler that takes longer is broken: the machine is at fault."""
GIB: Final = 1 << 30
LEAST_ROOM: Final = GIB
"""Bytes of a disk for what compilers write meanwhile; with less, it may have been full."""
MOST_LOG_BYTES: Final = 64 << 20
"""A log of the process that runs the compilers is not told where it has more bytes."""
REMEMBERED: Final = (
    "It did not compile before, so it was not compiled again; `flashinfer-bench cache clear --failed` forgets that."
)

Outcome = Artifact | BuildFailure | BuildFault


class Building:
    """One build. Call `cancel` to give it up. A finished build holds neither lock nor process.

    Args:
        solution: what is built; None for a header of ours.
        recipe: how it is built.
        cache: where the artifact goes.
        lease: gets the artifact's digest before its lock is given back.
        limits: the time and memory that its compilers may take.
    """

    def __init__(
        self, solution: Solution | None, recipe: BuildRecipe, cache: ArtifactCache, lease: Lease, limits: StepLimits
    ) -> None:
        self.solution = solution
        self.recipe = recipe
        self.process: StepProcess | None = None
        self.header: Header | None = None
        """The precompiled header that its compilers may take."""
        self.is_apart = False
        """Only the steps that take no header run, or have run."""
        self.parallel = 1
        self.seconds = 0.0
        self.was_cached = False
        self._cache = cache
        self._lease = lease
        self._limits = limits
        self._held = ExitStack()
        self._folder = Path()
        self._failure: BuildFailure | None = None
        self._lacks: str | None = None
        """What the failure says that the toolkit lacks; the probe includes it."""
        self._was_repeated = False
        self._memory_kills = count_memory_kills()
        self._stays = False
        """Its failure is worth remembering."""
        self._blocked_since = 0.0

    def look_up(self) -> Outcome | None:
        """Return the artifact if it is in the cache; None where it must be built, or another process builds it."""
        try:
            return self._find() if self._lock() else None
        except OSError as error:
            return self._give_up(self._disk_fault(error))
        finally:
            self._held.close()

    def begin(self, parallel: int = 1, header: Header | None = None) -> Outcome | None:
        """Take the lock and find the artifact, or start the compilers.

        Args:
            parallel: how many compilers may run at once.
            header: the precompiled header that they may take.

        Returns:
            The outcome where it is known at once. None: `process` is set and runs, or another process holds the lock
            and `begin` should be called again later.
        """
        self.header = header
        try:
            if self.is_apart:
                self._go_on(parallel)
                return None
            return (self._find() or self._start(parallel)) if self._lock() else self._check_wait()
        except OSError as error:
            return self._give_up(self._disk_fault(error))

    @property
    def can_begin_apart(self) -> bool:
        """Whether `begin_apart` would find something to do."""
        return not self.is_apart and bool(self.recipe.apart)

    def begin_apart(self, parallel: int = 1) -> Outcome | None:
        """Begin as `begin` does, but run only the steps that take no header.

        After their end `process` is None again, and `begin` runs the others. The lock is kept meanwhile.
        """
        try:
            if not self._lock():
                return self._check_wait()
            self.is_apart = True
            return self._find() or self._start(parallel)
        except OSError as error:
            return self._give_up(self._disk_fault(error))

    def lay_out(self) -> Outcome:
        """Find or make an artifact that needs no compiler. Waits where another process makes it."""
        try:
            self._lock(wait=True)
            outcome = self._find() or self._start(1)
        except OSError as error:
            outcome = self._give_up(self._disk_fault(error))
        assert outcome is not None  # there are no commands to wait for
        return outcome

    def advance(self) -> Outcome | None:
        """Read what the compilers say; return the outcome after their end. Call it when `process` is readable."""
        if self.process is None or self.process.pump():
            return None
        report = self.process.end()
        self.seconds += time.monotonic() - self.process.started
        self.process = None
        try:
            return self._conclude(report)
        except OSError as error:
            return self._give_up(self._disk_fault(error))

    def check_deadline(self) -> Outcome | None:
        """End a build that takes too long, and return its outcome; None while there is time left."""
        if self.process is None or self.process.left_s > 0:
            return None
        self.process.end()
        self.process = None
        if self._failure is not None:  # the probe ran: the compilers of this machine hang
            return self._give_up(BuildFault("the compiler does not come to an end on a source of ours"))
        limit_s = self._limits.seconds
        return self._give_up(BuildFailure(f"error: compiling was still going on after {limit_s:g} s, and was ended"))

    def cancel(self) -> None:
        """End the compilers and leave nothing behind."""
        if self.process is not None:
            self.process.end()
            self.process = None
        self._held.close()

    def _check_wait(self) -> Outcome | None:
        """Return a fault where another process has held the lock for longer than a build may take."""
        now = time.monotonic()
        self._blocked_since = self._blocked_since or now
        limit_s = 2 * self._limits.seconds + PROBE_LIMIT_S + USUAL_LIMIT_S  # a header may be tried, too
        if now - self._blocked_since <= limit_s:
            return None
        path = self._cache.lock(self.recipe.digest).path
        return self._give_up(BuildFault(f"another process has held the lock of its build for {limit_s:g} s: {path}"))

    def _lock(self, *, wait: bool = False) -> bool:
        lock = self._cache.lock(self.recipe.digest)
        if wait:
            lock.wait(USUAL_LIMIT_S)
        elif not lock.take():
            return False
        self._held.callback(lock.release)
        return True

    @property
    def _products(self) -> Path:
        return self._folder / "artifact" / FILES

    def _find(self) -> Artifact | BuildFailure | None:
        known = {}
        if not self.recipe.stages:
            known = {path: hashlib.sha256(content).hexdigest() for path, content in self.recipe.sources.items()}
        manifest = self._cache.read(self.recipe.digest, expected=known)
        if manifest is not None and manifest.failure is not None:
            return self._find_failure(manifest.failure)
        if manifest is None or set(manifest.files) != set(self.recipe.products):
            return None
        self.was_cached = True
        self.seconds = manifest.build_seconds
        return self._finish(manifest)

    def _start(self, parallel: int) -> Outcome | None:
        self._folder = self._held.enter_context(self._cache.staging())
        for folder in (*(self._folder / name for name in ("src", "obj", "tmp")), self._products):
            folder.mkdir(parents=True)
        recipe = self.recipe
        write_files(self._folder / "src" if recipe.stages else self._products, recipe.sources)
        if not recipe.stages:
            return self._publish()
        for path in recipe.products:
            (self._products / path).parent.mkdir(parents=True, exist_ok=True)
        self._compile((recipe.apart,) if self.is_apart else recipe.stages, parallel)
        return None

    def _go_on(self, parallel: int) -> None:
        """Run what `begin_apart` left."""
        self.is_apart = False
        first, *later = self.recipe.stages
        self._compile((tuple(step for step in first if step not in self.recipe.apart), *later), parallel)

    def _compile(self, stages: Sequence[Sequence[BuildStep]], parallel: int) -> None:
        if self.header is not None:
            (self._folder / "headers").symlink_to(self.header.directory)
        wanted = (sum(count_threads(step.argv, parallel) for step in stage) for stage in stages)
        self.parallel = min(parallel, max(wanted))
        limits = replace(self._limits, seconds=max(0.0, self._limits.seconds - self.seconds))
        readable = (*self.recipe.readable, *([self.header.directory] if self.header else []))
        self.process = StepProcess(stages, self._folder, limits, parallel=self.parallel, readable=readable)

    def _conclude(self, report: RunnerReport | None) -> Outcome | None:
        """Return the outcome that follows from the compilers' report; None where the probe has to decide."""
        if report is None:
            log = read_whole(self._folder / "tmp" / "step_runner.log", MOST_LOG_BYTES).decode(errors="replace")
            return self._give_up(BuildFault(f"the process that runs the compilers failed:\n{log.strip()[-2000:]}"))
        if self._failure is not None:
            return self._conclude_probe(report)
        failed = report.failed
        if failed is None:
            return None if self.is_apart else self._accept()
        kills = count_memory_kills() - self._memory_kills
        reason = why_machine(failed, disk_is_full=has_no_room(self._folder), memory_kills=kills)
        lacked = find_lacked(failed.output) if self.recipe.toolkit is not None else None
        lacks = describe_missing(lacked, self.recipe.toolkit) if lacked and self.recipe.toolkit else None
        if failed.name == LINK:
            reason = reason or lacks
        if reason is not None:
            return self._give_up(BuildFault(f"{failed.name}: {reason}\n{describe_failure(failed)}"))
        if KILLED.search(failed.output) and not self._was_repeated:
            self._was_repeated = True
            self._compile(self.recipe.stages, self.parallel)
            return None
        if self.header is not None and is_no_plain_error(failed):
            (self._folder / "headers").unlink()
            self.header = None
            self._compile(self.recipe.stages, self.parallel)
            return None
        needs = other_architecture(failed)
        if needs is not None and (self.solution is None or not _chooses_architecture(self.solution)):
            return self._give_up(BuildFault(f"the code needs another GPU than is here: {needs}"))
        message = describe_failure(failed, self.recipe.note)
        if ran_out_of_memory(failed):
            gib = self._limits.memory_bytes / GIB
            message = f"error: the compiler needed more than {gib:.1f} GiB of memory\n{message}"
        self._stays = fails_everywhere(failed)
        self._lacks = lacks
        is_elsewhere = (first_error(failed.output) or "").startswith("/")  # in a header that is not the solution's
        header = lacked if lacks else self.recipe.main_header if is_elsewhere else None
        return self._probe(BuildFailure(message), header)

    def _probe(self, failure: BuildFailure, header: str | None) -> Outcome | None:
        """Compile a short source of ours before the solution is blamed: it shows whether the compilers work."""
        if not self.recipe.probe:
            return self._give_up(failure)
        self._failure = failure
        remove_tree(self._folder / "src")  # the probe could include a header of the solution in place of the system's
        lead = f"#include <{header}>\n".encode() if header else b""
        write_files(self._folder / "src", {path: lead + text for path, text in self.recipe.probe_sources.items()})
        seconds = self._limits.seconds if header else PROBE_LIMIT_S
        limits = StepLimits(seconds, self._limits.memory_bytes, self._limits.file_bytes)
        self.process = StepProcess(self.recipe.probe, self._folder, limits, readable=self.recipe.readable)
        return None

    def _conclude_probe(self, report: RunnerReport) -> Outcome:
        failed = report.failed
        if failed is None:
            assert self._failure is not None  # the probe runs for it
            if self._stays:
                self._remember(str(self._failure))
            return self._give_up(self._failure)
        reason = self._lacks or why_machine(failed, disk_is_full=True, memory_kills=0)
        reason = reason or "the compiler of this machine fails on a source of ours"
        return self._give_up(BuildFault(f"{reason}:\n{describe_failure(failed)}"))

    def _accept(self) -> Outcome:
        """Check the files that the compilers read, then publish the products."""
        allowed = [*map(Path, SYSTEM_FOLDERS), *self.recipe.readable, self._folder]
        allowed += [self.header.directory] if self.header is not None else []
        try:
            check_read_files((self._folder / "obj").glob("*.d"), self._folder / "src", allowed)
        except BuildFailure as failure:
            return self._give_up(failure)
        return self._publish()

    def _publish(self) -> Artifact | BuildFailure:
        manifest = self._manifest({path: digest_file(self._products / path) for path in self.recipe.products})
        self._cache.publish(self.recipe.digest, self._folder / "artifact", manifest)
        return self._finish(manifest)

    def _remember(self, failure: str) -> None:
        """Put a failure in the place of the artifact, so that the next run does not compile the same again."""
        with contextlib.suppress(OSError):  # what cannot be kept is compiled again
            remove_tree(self._products)
            self._products.mkdir()
            self._cache.publish(self.recipe.digest, self._folder / "artifact", self._manifest({}, failure))

    def _find_failure(self, failure: str) -> BuildFailure:
        self.was_cached = True
        self._held.close()
        return BuildFailure(f"{failure}\n{REMEMBERED}")

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
        """Count the artifact as used, give the lock back, and check that the entry function is in it."""
        recipe = self.recipe
        self._lease.add(recipe.digest)
        self._held.close()
        files = self._cache.place(recipe.digest) / FILES
        missing = find_missing_entry(recipe, files / recipe.entry)
        built = tuple(manifest.files.items())
        return missing or Artifact(files, recipe.entry, recipe.symbol, recipe.kind, built)

    def _give_up(self, error: BuildFailure | BuildFault) -> BuildFailure | BuildFault:
        with contextlib.suppress(OSError):  # the caller needs `error`, not what goes wrong in cleaning up
            self.cancel()
        return error


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
