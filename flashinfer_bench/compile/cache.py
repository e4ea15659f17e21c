"""The folder of artifacts on disk. An artifact is moved into `artifacts/` whole, and is checked before it is used.

    $FIB_CACHE_PATH/artifacts/<first two of digest>/<digest>/manifest.json     default: ~/.cache/flashinfer_bench/cache
                                                            /files/…           what a worker loads
                   /jit/<first two>/<digest>/  files that compilers made while a solution ran; digest of the solution
                                   .solution   file beside it with the solution's name; changed at each use
                   /staging/<digest>/          a build under way, or one that was killed
                   /locks/<digest>             locked while an artifact is built
                   /in_use                     locked by each run (shared), and by each process that removes something

A build takes the lock, searches again, and builds in a staging folder. It checks the result and moves it in place.
`kill -9` and a full disk leave at most a staging folder. No entry is removed while a run uses the cache; a new run
waits until the removal has ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, locked_file, try_lock, wait_for_lock
from flashinfer_bench.base.files.reading import open_stream, read_whole
from flashinfer_bench.base.files.trees import remove_tree, walk_files
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.compile.artifact import Kind
from flashinfer_bench.env import CACHE_VARIABLE
from flashinfer_bench.errors import ConfigError

SIZE_VARIABLE: Final = "FIB_CACHE_GB"
DEFAULT_SIZE_GB: Final = 20.0
"""Gigabytes of artifacts to keep if $FIB_CACHE_GB is not set."""
MANIFEST: Final = "manifest.json"
FILES: Final = "files"
IN_USE: Final = "in_use"
JIT_FOLDER: Final = "jit"
NAME_SUFFIX: Final = ".solution"
MOST_NAME_BYTES: Final = 4096
MOST_MANIFEST_BYTES: Final = 16 << 20
"""Maximum bytes of a manifest. A larger manifest means that the artifact is damaged."""
MOST_FILE_BYTES: Final = 4 << 30
"""Maximum bytes of a built file. A larger file is damaged, and is not read to its end, to save the judge's time."""
LOCK_POLL_S: Final = 0.05
"""Seconds between two checks whether a waiting build was cancelled."""


class Manifest(BaseModel):
    """The description of an artifact's files, stored with them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Kind
    entry: str
    language: str
    solution: str
    """The solution that the artifact was first built for. Other solutions with the same sources share the artifact."""
    build_seconds: float
    files: dict[str, str]
    """Path below `files/` → sha256."""
    made_from: dict[str, Any]
    """The values from which the digest is computed."""
    failure: str | None = None
    """The compilers' message if the sources do not compile. Then there are no files."""


@dataclass(frozen=True)
class Entry:
    """One folder of the cache: an artifact, or the files that a solution's compilers made at run time (`is_jit`)."""

    path: Path
    size_bytes: int
    last_used_s: float
    """Seconds since the epoch."""
    is_jit: bool
    is_whole: bool
    """Whether the sizes of all its files could be read."""

    @property
    def digest(self) -> str:
        """Name of the artifact, or digest of the solution."""
        return self.path.name

    @cached_property
    def manifest(self) -> Manifest | None:
        """The artifact's manifest; None if it is missing or cannot be read."""
        return None if self.is_jit else read_manifest(self.path)

    @property
    def solution(self) -> str | None:
        """The solution's name; None if it is not known."""
        if not self.is_jit:
            return self.manifest.solution if self.manifest is not None else None
        with suppress(OSError):
            return read_whole(_note_of(self.path), 4 * MOST_NAME_BYTES).decode("utf-8", "replace")
        return None

    @property
    def has_failed(self) -> bool:
        """Return whether this is the record of sources that do not compile."""
        return self.manifest is not None and self.manifest.failure is not None


def size_limit(environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes of artifacts and JIT folders to keep: $FIB_CACHE_GB, else 20 GB."""
    try:
        gigabytes = float(environment.get(SIZE_VARIABLE, DEFAULT_SIZE_GB))
    except ValueError:
        gigabytes = DEFAULT_SIZE_GB
    return int(max(0.0, gigabytes) * 1e9)


class ArtifactCache:
    """The cache's folder. Any number of processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder_of(self, digest: str) -> Path:
        """Return the location of an artifact, present or not."""
        return self.root / "artifacts" / digest[:2] / digest

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use the cache for a block, during which no entry is removed.

        Raises:
            ConfigError: the folder cannot be made or written to.
        """
        try:
            fd = self._open_in_use()
            wait_for_lock(fd, self.root / IN_USE, USUAL_LIMIT_S, is_shared=True)
        except OSError as error:
            advice = f"name another folder in {CACHE_VARIABLE}"
            raise ConfigError(f"the cache cannot be written to: {error}; {advice}") from None
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough: forks have the file open, too
            os.close(fd)

    @contextmanager
    def unused(self) -> Iterator[bool]:
        """Keep runs from using the cache for a block, and yield True. If a run uses it already, yield False."""
        fd = self._open_in_use()
        try:
            yield try_lock(fd)
        finally:
            os.close(fd)

    def _open_in_use(self) -> int:
        with open_folder(self.root) as folder:
            return folder.open(IN_USE, os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def building(self, digest: str, limit_s: float, check: Callable[[], object]) -> Iterator[None]:
        """Hold the lock under which an artifact is made.

        Args:
            digest: the artifact's name.
            limit_s: seconds to wait for another process that builds the artifact.
            check: called during the wait; it may raise to end the wait.

        Raises:
            TimeoutError: another process held the lock all the time.
        """
        deadline = time.monotonic() + limit_s
        with open_folder(self.root / "locks") as folder, ExitStack() as held:
            while True:
                check()
                try:
                    held.enter_context(locked_file(folder, digest, LOCK_POLL_S))
                    break
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise
            held.callback((folder.path / digest).unlink, missing_ok=True)  # forks may still hold this lock
            yield

    def read(self, digest: str, expected: Mapping[str, str]) -> Manifest | None:
        """Return an artifact's manifest if every file is unchanged, else None. This use is recorded.

        Args:
            digest: the artifact's name.
            expected: path → sha256 of files whose content is known without the manifest.
        """
        folder = self.folder_of(digest)
        manifest = read_manifest(folder)
        if manifest is None or find_change(folder / FILES, {**manifest.files, **expected}) is not None:
            return None
        with suppress(OSError):  # a cache that cannot be written to can still be read
            os.utime(folder / MANIFEST)
        return manifest

    @contextmanager
    def staging(self, digest: str) -> Iterator[Path]:
        """Make an empty folder for a build whose lock the caller holds, and remove it at the end."""
        folder = self.root / "staging" / digest
        remove_tree(folder)
        folder.mkdir(0o700, parents=True)
        try:
            yield folder
        finally:
            remove_tree(folder)

    def publish(self, digest: str, content: Path, manifest: Manifest) -> None:
        """Move a finished artifact to its folder; the caller holds its lock.

        Args:
            digest: its name.
            content: a folder on the cache's file system whose `files/` is complete; it is moved away.
            manifest: has the digests of the files in `content`; it is written there last.

        Raises:
            OSError: the disk is full.
        """
        (content / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
        folder = self.folder_of(digest)
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_tree(folder)  # the existing artifact failed its check
        os.rename(content, folder)  # noqa: PTH104 - Path.rename hides that a folder is never replaced

    def entries(self) -> list[Entry]:
        """Return all artifacts, the most recently used first."""
        return _read_entries(self.root / "artifacts", is_jit=False)

    def jit_folders(self) -> list[Entry]:
        """Return the files that each solution's compilers made at run time, the most recently used first."""
        result = _read_entries(self.root / JIT_FOLDER, is_jit=True)
        return [one for one in result if one.size_bytes or not one.is_whole]

    def verify(self) -> list[tuple[Entry, str]]:
        """Compare every artifact with its manifest; return the changed artifacts, each with the reason."""
        problems = []
        for entry in self.entries():
            manifest = entry.manifest
            problem = find_change(entry.path / FILES, manifest.files) if manifest else "its manifest is unreadable"
            if problem is not None:
                problems.append((entry, problem))
        return problems

    def remove(self, entries: Iterable[Entry]) -> list[Entry]:
        """Remove entries, unless a run uses the cache; return the removed entries."""
        with self.unused() as is_unused:
            return [entry for entry in entries if is_unused and _remove(entry)]

    def clear(self, *others: str) -> bool:
        """Remove all artifacts, all files compiled at run time, and other folders; return False if a run uses them."""
        with self.unused() as is_unused:
            for name in ("staging", "locks", "artifacts", JIT_FOLDER, *others) if is_unused else ():
                remove_tree(self.root / name)
            return is_unused

    def evict(self, limit_bytes: float) -> int:
        """Remove the least recently used entries until at most `limit_bytes` are left; return the bytes freed.

        No entry is removed while a run uses the cache. JIT folders that cannot be counted are removed first.
        """
        freed = 0
        with self.unused() as is_unused:
            if is_unused:
                remove_tree(self.root / "staging")  # left by killed builds
                result = [*self.entries(), *self.jit_folders()]
                excess = sum(one.size_bytes for one in result) - limit_bytes
                for one in sorted(result, key=lambda one: one.last_used_s):
                    if (freed < excess or not one.is_whole) and _remove(one):
                        freed += one.size_bytes
        return freed


def _remove(entry: Entry) -> bool:
    if entry.is_jit:
        for note in entry.path.parent.glob(f"{entry.path.name}.*"):
            remove_tree(note)
    return remove_tree(entry.path)


def read_manifest(folder: Path) -> Manifest | None:
    """Return an artifact's manifest; None if it is missing or cannot be read."""
    try:
        return Manifest.model_validate_json(read_whole(folder / MANIFEST, MOST_MANIFEST_BYTES))
    except (OSError, ValidationError):
        return None


def find_change(folder: Path, files: Mapping[str, str]) -> str | None:
    """Return the first change in the files of a folder (path → sha256) as text, or None."""
    for path, digest in files.items():
        try:
            if digest_file(folder / path) != digest:
                return f"{path} is not what was built"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
    return None


def find_unlisted(folder: Path, files: Iterable[str]) -> str | None:
    """Return a file or link that a folder has and the list lacks, else None. Python could import such a file.

    An unreadable part of the folder counts as such a file.
    """
    known, left_out = {folder / path for path in files}, list[Path]()
    strange = (path for path in walk_files(folder, lambda path, _: left_out.append(path)) if path not in known)
    return next((str(path) for path in (*strange, *left_out)), None)


def digest_file(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal.

    Raises:
        OSError: it cannot be read, is no regular file, or is too large.
    """
    digest, left = hashlib.sha256(), MOST_FILE_BYTES
    with open_stream(path, MOST_FILE_BYTES) as handle:
        while (block := handle.read(1 << 20)) and left >= 0:  # the file may grow while it is read
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def name_jit_folder(folder: Path, solution: str) -> None:
    """Write down the solution that a JIT folder belongs to, and mark the folder as used now."""
    with suppress(OSError):  # without the note, the solution's name is unknown
        folder.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(_note_of(folder), flags, 0o644), "w") as handle:
            handle.write(solution[:MOST_NAME_BYTES])


def _note_of(folder: Path) -> Path:
    return folder.with_name(folder.name + NAME_SUFFIX)


def _read_entries(top: Path, *, is_jit: bool) -> list[Entry]:
    result: list[Entry] = []
    for folder in top.glob("??/*"):
        if is_jit and not folder.is_dir():
            continue
        note, left_out = _note_of(folder) if is_jit else folder / MANIFEST, list[Path]()
        size = size_of_folder(folder, left_out)
        with suppress(OSError):  # it is being removed
            used = (note if note.is_file() else folder).lstat().st_mtime
            result.append(Entry(folder, size, used, is_jit, not left_out))
    return sorted(result, key=lambda entry: -entry.last_used_s)


def size_of_folder(folder: Path, left_out: list[Path] | None = None) -> int:
    """Return the bytes of the files below a folder; 0 if the path is no folder.

    Args:
        left_out: takes the paths that cannot be counted.
    """
    sizes, strange = list[int](), [] if left_out is None else left_out
    if folder.is_dir() and not folder.is_symlink():
        for path in walk_files(folder, lambda path, _: strange.append(path)):
            with suppress(OSError):  # it is being removed
                sizes.append(path.lstat().st_size)
    return sum(sizes)
