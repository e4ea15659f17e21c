"""The walls of each worker of a session: what all of them have alike is found once, a solution's own is added to it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree, walk_files
from flashinfer_bench.bench.evaluators.compare.kernel_cache import lend_helpers
from flashinfer_bench.bench.runner.environments import library_folder, solution_environment
from flashinfer_bench.bench.runner.own_user import choose_user, find_barrier
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers.process import REMOVE_LIMIT_S
from flashinfer_bench.bench.runner.workers.reach import find_devices, find_readable, keep_reachable
from flashinfer_bench.compile import Artifact
from flashinfer_bench.compile.cache import JIT_FOLDER, MOST_FILE_BYTES
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.worker.walls.module_layer import LIBRARY
from flashinfer_bench.worker.walls.walls import Walls

LOOKED_AT: Final = 64
"""Entries of a folder that are looked at, at the most."""
LIBRARIES: Final = ("torch", "flashinfer-python", "apache-tvm-ffi", "triton")
"""What modules are compiled for, beside the GPU."""
MOST_LENT: Final = 1
"""Entries of a new Triton cache that `lend_helpers` makes, at the most."""
ENTERED_BY_ALL, READ_BY_ALL = 0o711, 0o755
KEY_BYTES: Final = 32
"""Bytes of what a worker that is made for no solution has in place of a digest."""


class Enclosure:
    """Makes walls.

    Args:
        hello: the session's settings.
        environment: the session's.
    """

    def __init__(self, hello: Hello, environment: Mapping[str, str]) -> None:
        self._has_own_user = hello.sandbox_user == "own"
        self._reads_all_owners = hello.sandbox_user == "root that reads all files"
        self._cache_root = Path(hello.cache_root)
        self._shared_modules = library_folder(environment, self._cache_root)
        self._readable = find_readable(environment, hidden=hello.hidden)
        self._devices = tuple(find_devices())
        self._path = keep_reachable(environment.get("PATH", os.defpath), self._readable)
        self._made_for = _name_libraries(hello.gpu_capability)
        self._of_no_solution: dict[str, Path] = {}
        """What stands for a digest → the folder that goes with it."""

    def open_to_workers(self, run_directory: Path) -> None:
        """Let workers of another user through the session's folder to their own."""
        if self._has_own_user:
            run_directory.chmod(ENTERED_BY_ALL)

    def environment(self, digest: str) -> dict[str, str]:
        """Return the variables of a solution's worker that differ from those of one without walls."""
        folder = self.folder(digest)
        return {
            **solution_environment(folder),
            "FLASHINFER_WORKSPACE_BASE": str(folder / "flashinfer"),
            "CUDA_CACHE_PATH": str(folder / "cuda"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its pool of compilers needs locks in /dev/shm
            "PATH": self._path,
            "USER": "worker",
            "LOGNAME": "worker",
        }

    def make_key(self, folder: Path) -> str:
        """Return what stands for a digest where a worker is made for no solution; `drop_key` removes its folder.

        Args:
            folder: becomes its folder. Whoever made the folder above removes that, also where this process is killed.
        """
        key = secrets.token_hex(KEY_BYTES)
        self._of_no_solution[key] = folder
        return key

    def drop_key(self, key: str) -> None:
        """Remove the folder of such a worker, which has ended. What takes too long goes with the folder above."""
        remove_tree(self._of_no_solution.pop(key), REMOVE_LIMIT_S)

    def folder(self, digest: str) -> Path:
        """Return where a solution's compilers at run time keep what they make."""
        if digest in self._of_no_solution:
            return self._of_no_solution[digest]
        own = f"{digest}-own" if self._has_own_user else digest  # each belongs to its user
        return self._cache_root / JIT_FOLDER / digest[:2] / own

    def has_kernels(self, digest: str) -> bool:
        """Tell whether Triton has compiled anything for a solution: more lies in its cache than what was lent."""
        cache = Path(solution_environment(self.folder(digest))["TRITON_CACHE_DIR"])
        return len(_some_entries(cache)) > MOST_LENT

    def mark_compiled(self, digest: str) -> None:
        """Note that a solution's modules are compiled, beside its folder, where no worker writes."""
        with suppress(OSError):  # then they are looked at once more
            self._mark(digest).touch()

    def is_marked(self, digest: str) -> bool:
        """Tell whether that was noted, of these versions of the libraries and for such a GPU."""
        return self._mark(digest).exists() and self.folder(digest).is_dir()

    def _mark(self, digest: str) -> Path:
        folder = self.folder(digest)
        return folder.with_name(f"{folder.name}.{self._made_for}")

    def make_walls(self, digest: str, artifact: Path | None, given: Path) -> Walls:
        """Make a solution's folder, and the walls of a worker for it; its home is to be added.

        Args:
            digest: the solution's.
            artifact: its files.
            given: a folder that this worker alone will read.
        """
        folder = self.folder(digest)
        is_new = not folder.exists()  # in one that a worker has written to, a name may lead elsewhere
        folder.mkdir(parents=True, exist_ok=True)
        lent = lend_helpers(Path(solution_environment(folder)["TRITON_CACHE_DIR"])) if is_new else []
        given.mkdir(parents=True)
        given.chmod(READ_BY_ALL)
        read = [*self._readable, str(given), str(self._shared_modules / LIBRARY)]
        walls = Walls(
            readable=(*read, str(artifact)) if artifact is not None else tuple(read),
            writable=(str(folder),),
            devices=self._devices,
            reads_all_owners=self._reads_all_owners,
            shared_modules=str(self._shared_modules),
        )
        if not self._has_own_user or find_barrier(folder.parent, enters_only=True) is not None:
            return walls
        user = choose_user(digest)
        for own in (folder, *lent):
            os.chown(own, user, user)
        return replace(walls, user=user)

    def hand_over(self, artifact: Artifact, given: Path) -> Artifact:
        """Return an artifact that a worker can read: a copy, where the worker is of a user that may not read it."""
        barrier = find_barrier(artifact.directory / artifact.entry)
        if not self._has_own_user or barrier is None:
            return artifact
        copy = given / "artifact"
        for path in walk_files(artifact.directory, lambda *_: None):
            content = read_whole(path, MOST_FILE_BYTES)
            target = copy / path.relative_to(artifact.directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            for made in (target, *target.parents[: len(target.relative_to(copy).parts)]):
                made.chmod(READ_BY_ALL)
        return replace(artifact, directory=copy)


def _name_libraries(capability: tuple[int, int] | None) -> str:
    """Return a name for these versions of the libraries, and a GPU's compute capability."""
    versions = {}
    for package in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return digest_of({"libraries": versions, "capability": capability})


def _some_entries(folder: Path) -> list[Path]:
    """Return a folder's entries, no more than LOOKED_AT: its solution may have put any number there."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in islice(entries, LOOKED_AT)]
    return []
