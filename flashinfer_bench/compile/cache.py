"""The folder of artifacts on disk. Each is moved into `artifacts/` whole, and is checked before it is used.

    $FIB_CACHE_PATH/artifacts/<first two of digest>/<digest>/manifest.json     default: ~/.cache/flashinfer_bench/cache
                                                            /files/…           what a worker loads
                   /jit/<first two>/<digest>/  what compilers of a solution made when it ran; the digest is its own
                                   .solution   beside it: the solution's name; its time is that of the latest use
                   /staging/<digest>/          a build under way; a later build removes what a killed one left
                   /locks/<digest>             held while an artifact is looked up, built or removed; a staging folder
                                               whose lock is free belongs to a dead build
                   /leases/<random>            held by a run; nobody removes an artifact that was used since it began

A build takes the lock, looks again, stages, checks and moves in place. `kill -9` and a full disk leave no more than a
staging folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, FileLock
from flashinfer_bench.base.files.reading import open_stream, read_whole
from flashinfer_bench.base.files.trees import remove_tree, walk_files
from flashinfer_bench.compile.artifact import Kind
from flashinfer_bench.env import CACHE_VARIABLE
from flashinfer_bench.errors import ConfigError

SIZE_VARIABLE: Final = "FIB_CACHE_GB"
DEFAULT_SIZE_GB: Final = 20.0
"""Gigabytes of artifacts that are kept where $FIB_CACHE_GB says nothing."""
MANIFEST: Final = "manifest.json"
FILES: Final = "files"
JIT_FOLDER: Final = "jit"
NAME_SUFFIX: Final = ".solution"
MOST_NAME_BYTES: Final = 4096
MOST_FAILURES: Final = 2000
"""Failures that are kept at most, each of some kilobytes; the oldest are forgotten."""
MOST_MANIFEST_BYTES: Final = 16 << 20
"""A manifest of more bytes cannot be read: its artifact is damaged."""
MOST_FILE_BYTES: Final = 4 << 30
"""A built file of more bytes is damaged. It is not read to its end, which would take the judge's time."""


class Manifest(BaseModel):
    """What is written beside an artifact's files."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Kind
    entry: str
    language: str
    solution: str
    """The solution that it was first built for; others with the same sources share it."""
    build_seconds: float
    files: dict[str, str]
    """Path below `files/` → sha256."""
    made_from: dict[str, Any]
    """The values of which the digest is made."""
    failure: str | None = None
    """Why the sources do not compile: the compilers' message. Then there are no files."""


@dataclass(frozen=True)
class Entry:
    """One folder of the cache: an artifact, or what a solution's compilers made when it ran (`is_jit`)."""

    digest: str
    """Name of the artifact, or digest of the solution."""
    path: Path
    size_bytes: int
    last_used_s: float
    """Seconds since the epoch."""
    solution: str | None
    """None if it is not known."""
    manifest: Manifest | None = None
    """None if it cannot be read, or there is none."""
    is_jit: bool = False
    is_whole: bool = True
    """All of it could be counted."""

    @property
    def has_failed(self) -> bool:
        """Tell whether this is the memory of sources that do not compile."""
        return self.manifest is not None and self.manifest.failure is not None


def size_limit(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes of artifacts and JIT folders are kept: $FIB_CACHE_GB, else 20 GB."""
    try:
        gigabytes = float(environment.get(SIZE_VARIABLE, DEFAULT_SIZE_GB))
    except ValueError:
        gigabytes = DEFAULT_SIZE_GB
    return int(max(0.0, gigabytes) * 1e9)


class ArtifactCache:
    """The cache's folder. Any number of processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def place(self, digest: str) -> Path:
        """Return where an artifact lies, or would lie."""
        return self.root / "artifacts" / digest[:2] / digest

    def lock(self, digest: str) -> FileLock:
        """Return the lock under which an artifact is made or removed."""
        return FileLock(self.root / "locks" / digest)

    def read(self, digest: str, *, expected: Mapping[str, str] | None = None) -> Manifest | None:
        """Return an artifact's manifest if every file is as it was made, else None. This counts as a use.

        Args:
            digest: the artifact's name.
            expected: path → sha256 of files whose content is known without the manifest.
        """
        place = self.place(digest)
        manifest = read_manifest(place)
        if manifest is None or find_change(place / FILES, {**manifest.files, **(expected or {})}) is not None:
            return None
        with contextlib.suppress(OSError):  # a cache that cannot be written to can still be read
            os.utime(place / MANIFEST)
        return manifest

    @contextlib.contextmanager
    def staging(self, digest: str) -> Iterator[Path]:
        """Make an empty folder for a build whose lock the caller holds, and remove it at the end."""
        self.sweep()
        folder = self.root / "staging" / digest
        remove_tree(folder)
        folder.mkdir(0o700, parents=True)
        try:
            yield folder
        finally:
            remove_tree(folder)

    def publish(self, digest: str, content: Path, manifest: Manifest) -> None:
        """Move a finished artifact in place; the caller holds its lock.

        Args:
            digest: its name.
            content: a folder on the cache's file system whose `files/` is complete; it is moved away.
            manifest: written into it last; its digests are those of the files as they lie there.

        Raises:
            OSError: the disk is full, or what was written cannot be read back.
        """
        (content / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
        if read_manifest(content) != manifest:
            raise OSError(f"the manifest of {manifest.solution} was not written whole")
        place = self.place(digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_tree(place)  # the artifact that stands there failed its check
        os.rename(content, place)  # noqa: PTH104 - Path.rename hides that a folder is never replaced

    def sweep(self) -> None:
        """Remove the staging folders whose builder has ended."""
        for folder in (self.root / "staging").glob("*"):
            lock = self.lock(folder.name)
            if _take(lock):
                remove_tree(folder)
                lock.release()

    def entries(self) -> list[Entry]:
        """Return every artifact; the one with the latest use comes first."""
        found = [_read_entry(place) for place in (self.root / "artifacts").glob("??/*")]
        return sorted((entry for entry in found if entry is not None), key=lambda entry: -entry.last_used_s)

    def verify(self) -> list[tuple[Entry, str]]:
        """Compare every artifact with its manifest, and return those that differ, each with the reason."""
        problems = []
        for entry in self.entries():
            files = entry.manifest.files if entry.manifest else {}
            problem = find_change(entry.path / FILES, files) if entry.manifest else "its manifest is unreadable"
            if problem is not None:
                problems.append((entry, problem))
        return problems

    def remove(self, entry: Entry) -> bool:
        """Remove an entry, unless a run may use it or another process holds it; tell whether it was removed."""
        if entry.is_jit:
            for note in entry.path.parent.glob(f"{entry.path.name}.*"):
                with contextlib.suppress(OSError):
                    note.unlink()
        if entry.path != self.place(entry.digest):  # no artifact would be looked for there
            return remove_tree(entry.path)
        lock = self.lock(entry.digest)
        if not _take(lock):
            return False
        try:
            now = _read_entry(entry.path)
            is_used = now is not None and any(now.last_used_s >= since for since in lease_times(self.root))
            return not is_used and remove_tree(entry.path)
        finally:
            lock.release()

    def forget_failures(self, kept: int = 0) -> int:
        """Remove the memory of failed builds, but for the latest; return how many were removed."""
        failed = [entry for entry in self.entries() if entry.has_failed]
        return sum(self.remove(entry) for entry in failed[kept:])

    def clear(self) -> tuple[int, int]:
        """Remove every artifact that no run uses, and what dead builds left; return how many were removed and kept."""
        self.sweep()
        removed = [self.remove(entry) for entry in self.entries()]
        for path in (self.root / "locks").glob("*"):
            lock = FileLock(path)
            if _take(lock):  # its holder was killed
                lock.release()
        return sum(removed), len(removed) - sum(removed)

    def jit_folders(self) -> list[Entry]:
        """Return what each solution's compilers made when it ran, but empty folders; the latest use comes first."""
        found = [_read_jit_folder(place) for place in (self.root / JIT_FOLDER).glob("??/*") if _is_folder(place)]
        filled = (one for one in found if one is not None and (one.size_bytes or not one.is_whole))
        return sorted(filled, key=lambda one: -one.last_used_s)

    def is_over(self, limit_bytes: int) -> bool:
        """Tell whether artifacts and JIT folders hold more than a limit; what cannot be counted is more."""
        left_out: list[Path] = []
        folders = [self.root / "artifacts", *(self.root / JIT_FOLDER).glob("??")]
        sizes = [size_of_folder(folder, left_out) for folder in folders]
        return bool(left_out) or sum(sizes) > limit_bytes

    def evict(self, limit_bytes: float) -> int:
        """Remove what was not used for longest until `limit_bytes` are left at most; return the bytes freed.

        JIT folders stay while any run uses the cache. Those that cannot be counted are removed first.
        """
        self.forget_failures(MOST_FAILURES)
        found = [*self.entries(), *([] if lease_times(self.root) else self.jit_folders())]
        excess, freed = sum(one.size_bytes for one in found) - limit_bytes, 0
        for one in sorted(found, key=lambda one: one.last_used_s):
            if (freed < excess or not one.is_whole) and self.remove(one):
                freed += one.size_bytes
        return freed


class Lease:
    """A sign that a run uses the cache. While it is held, nobody removes what was used since. A context manager.

    Args:
        root: the cache's folder.

    Raises:
        ConfigError: the folder cannot be made or written to.
    """

    def __init__(self, root: Path) -> None:
        self._lock = FileLock(root / "leases" / f"{os.getpid()}-{os.urandom(6).hex()}")
        try:
            self._lock.wait(USUAL_LIMIT_S)
        except OSError as error:
            raise ConfigError(
                f"the cache cannot be written to: {error}; name another folder in {CACHE_VARIABLE}"
            ) from None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


def lease_times(root: Path) -> list[float]:
    """Return when each run began that uses the cache now, in seconds since the epoch. Dead leases are removed."""
    living = []
    for path in (root / "leases").glob("*"):
        lock = FileLock(path)
        if _take(lock):
            lock.release()
        else:
            with contextlib.suppress(OSError):  # its run ended at this moment
                living.append(path.lstat().st_mtime)
    return living


def _take(lock: FileLock) -> bool:
    """Take a lock if it is free; False also where something else stands in its place."""
    try:
        return lock.take()
    except OSError:
        return False


def read_manifest(place: Path) -> Manifest | None:
    """Return an artifact's manifest; None where it is missing or cannot be read."""
    try:
        return Manifest.model_validate_json(read_whole(place / MANIFEST, MOST_MANIFEST_BYTES))
    except (OSError, ValidationError):
        return None


def find_change(folder: Path, files: Mapping[str, str]) -> str | None:
    """Return which of a folder's files (path → sha256) is not as it was made, or None."""
    for path, digest in files.items():
        try:
            if digest_file(folder / path) != digest:
                return f"{path} is not what was built"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
    return None


def find_stranger(folder: Path, files: Iterable[str]) -> str | None:
    """Return a file or link of a folder that is not one of these, else None. Python could import such a stranger.

    Where a part of the folder cannot be walked, that part is the stranger.
    """
    known = {folder / path for path in files}
    strange: list[str] = []
    for path in walk_files(folder, lambda path, _: strange.append(str(path))):
        if path not in known:
            return str(path)
        if strange:
            break
    return strange[0] if strange else None


def digest_file(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal.

    Raises:
        OSError: it cannot be read, is no regular file, or is too large.
    """
    digest, left = hashlib.sha256(), MOST_FILE_BYTES
    with open_stream(path, MOST_FILE_BYTES) as handle:
        while (block := handle.read(1 << 20)) and left >= 0:  # it may grow meanwhile
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _read_entry(place: Path) -> Entry | None:
    size = size_of_folder(place)
    try:
        manifest = place / MANIFEST
        used = (manifest if manifest.is_file() else place).lstat().st_mtime
    except OSError:
        return None  # it is being removed
    found = read_manifest(place) if _is_folder(place) else None
    return Entry(place.name, place, size, used, found.solution if found is not None else None, found)


def name_jit_folder(folder: Path, solution: str) -> None:
    """Note whose JIT folder this is, and that it is used now."""
    with contextlib.suppress(OSError):  # then nobody knows its name
        folder.parent.mkdir(parents=True, exist_ok=True)
        note = folder.with_name(folder.name + NAME_SUFFIX)
        with os.fdopen(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644), "w") as handle:
            handle.write(solution[:MOST_NAME_BYTES])


def _read_jit_folder(place: Path) -> Entry | None:
    left_out: list[Path] = []
    size = size_of_folder(place, left_out)
    file, name = place.with_name(place.name + NAME_SUFFIX), None
    try:
        with contextlib.suppress(FileNotFoundError):
            name = read_whole(file, 4 * MOST_NAME_BYTES).decode("utf-8", "replace")
        used = (place if name is None else file).lstat().st_mtime
    except OSError:
        return None  # it is being removed
    return Entry(place.name, place, size, used, name, is_jit=True, is_whole=not left_out)


def size_of_folder(folder: Path, left_out: list[Path] | None = None) -> int:
    """Return the bytes of the files below a folder; 0 where it is none.

    Args:
        folder: the top.
        left_out: takes what cannot be counted.
    """
    sizes: list[int] = []
    tell = [] if left_out is None else left_out
    for path in walk_files(folder, lambda path, _: tell.append(path)) if _is_folder(folder) else ():
        with contextlib.suppress(OSError):  # it is being removed
            sizes.append(path.lstat().st_size)
    return sum(sizes)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
