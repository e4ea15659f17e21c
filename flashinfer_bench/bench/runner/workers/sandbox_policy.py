"""The folders, variables and sandbox policy of each worker of a session.

The part common to all workers is found once, and each solution's part is added. A worker reads the interpreter with its
packages, the system's programs and libraries, the compilers, and this package. A worker does not read neighbouring
folders: the data set, caches, home folders, and folders of running programs, even if the interpreter is below a home
folder. A worker writes to its home, and to its solution's folder of compiled code.

Workers cannot write to `/dev/shm`. A file in this folder would outlive its worker and reach the next worker. Threads,
pipes and memory files do not need the folder. Locks, queues and shared memory of multiprocessing do not work.
torch.compile, whose pool of compilers uses such locks, compiles in the worker instead (`environments.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.bench.evaluators.compare.kernel_cache import lend_helpers
from flashinfer_bench.bench.runner.environments import library_folder, named_paths
from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.compile import Artifact
from flashinfer_bench.compile.cache import JIT_FOLDER, MOST_FILE_BYTES
from flashinfer_bench.compile.toolchain import find_cuda, find_cxx
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.sandbox.confine import PLAIN_DEVICES, Policy
from flashinfer_bench.sandbox.user import choose_user, find_barrier
from flashinfer_bench.worker.jit.folders import LIBRARY

PACKAGE: Final = Path(__file__).parents[3]
SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/proc"),
    *("/sys/devices", "/sys/bus", "/sys/class", "/sys/dev", "/sys/module", "/sys/fs/cgroup", "/sys/kernel/mm"),
)
SETTINGS: Final = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "nsswitch.conf", "hosts"),
    *("localtime", "timezone", "os-release", "lsb-release", "debian_version", "redhat-release", "mime.types"),
    *("ssl/openssl.cnf", "gai.conf", "host.conf", "protocols", "services", "nvidia", "OpenCL", "vulkan", "ld-nix.so"),
)
"""Files of /etc that workers read. Other files there may be for root only."""
DEVICES: Final = (
    *PLAIN_DEVICES,
    *("nvidia[0-9]*", "nvidiactl", "nvidia-uvm*", "nvidia-modeset", "nvidia-caps", "nvidia-caps-imex-channels", "dxg"),
)
LIBRARIES: Final = ("torch", "flashinfer-python", "apache-tvm-ffi", "triton")
"""Packages whose versions decide, together with the GPU, whether compiled modules can be used again."""
ENTERED_BY_ALL, READ_BY_ALL = 0o711, 0o755


class PolicyMaker:
    """Makes policies, and names the cache folders of a solution's run-time compilers."""

    def __init__(self, session_config: SessionConfig, environment: Mapping[str, str]) -> None:
        self._session_config, self._environment = session_config, environment
        self._has_own_user = session_config.is_sandboxed and session_config.sandbox_user == "own"
        self._cache_root = Path(session_config.cache_root)
        self.shared_modules = library_folder(environment, self._cache_root)
        self._devices = tuple(find_devices())

    @cached_property
    def _readable(self) -> list[str]:
        return find_readable(self._environment, hidden=self._session_config.hidden)

    @cached_property
    def _path(self) -> str:
        """The session's PATH without folders that workers cannot read, since programs in these folders could not
        start."""
        folders = self._environment.get("PATH", os.defpath).split(os.pathsep)
        return os.pathsep.join(one for one in folders if _is_below(os.path.realpath(one), self._readable))

    @cached_property
    def _made_for(self) -> str:
        """A digest of the library versions and the compute capability for which modules are compiled."""
        versions = {}
        for package in LIBRARIES:
            with suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        return digest_of({"libraries": versions, "capability": self._session_config.gpu_capability})

    def open_to_workers(self, run_directory: Path) -> None:
        """Let workers of another user pass through the session's folder to their own folders."""
        if self._has_own_user:
            run_directory.chmod(ENTERED_BY_ALL)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables that are specific to a worker whose run-time compilers use this folder."""
        compilers = {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCH_EXTENSIONS_DIR": str(folder / "torch")}
        if not self._session_config.is_sandboxed:
            return compilers
        return {
            **compilers,
            "FLASHINFER_WORKSPACE_BASE": str(folder / "flashinfer"),
            "CUDA_CACHE_PATH": str(folder / "cuda"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its pool of compilers needs locks in /dev/shm
            "PATH": self._path,
            "USER": "worker",
            "LOGNAME": "worker",
        }

    def folder(self, digest: str) -> Path:
        """Return the cache folder of a solution's run-time compilers."""
        own = f"{digest}-own" if self._has_own_user else digest  # each folder belongs to its user
        return self._cache_root / JIT_FOLDER / digest[:2] / own

    def mark_compiled(self, digest: str) -> None:
        """Record that a solution's kernels are compiled, in a file that no worker can write."""
        with suppress(OSError):  # then the kernels are checked again
            self._mark(digest).touch()

    def is_compiled(self, digest: str) -> bool:
        """Return whether `mark_compiled` recorded the solution for the current library versions and GPU."""
        return self._session_config.is_sandboxed and self._mark(digest).exists() and self.folder(digest).is_dir()

    def _mark(self, digest: str) -> Path:
        folder = self.folder(digest)
        return folder.with_name(f"{folder.name}.{self._made_for}")

    def make_policy(self, owner: str, folder: Path, artifact: Path | None) -> Policy | None:
        """Make the folder of a worker's run-time compilers; return the worker's policy, without the worker's home.
        Return None without a sandbox.

        Args:
            owner: decides the worker's own user: the solution's digest, or a unique digest for an unknown solution.
            folder: see `environment`.
            artifact: folder of the solution's files.
        """
        if not self._session_config.is_sandboxed:
            return None
        is_new = not folder.exists()  # in a folder that a worker has written to, a name may be a link
        folder.mkdir(parents=True, exist_ok=True)
        lent = lend_helpers(Path(self.environment(folder)["TRITON_CACHE_DIR"])) if is_new else []
        reads = [str(path) for path in (self.shared_modules / LIBRARY, artifact) if path is not None]
        user = None
        if self._has_own_user and find_barrier(folder.parent, enters_only=True) is None:
            user = choose_user(owner)
            for path in (folder, *lent):
                os.chown(path, user, user)
        return Policy(
            readable=(*self._readable, *reads),
            writable=(str(folder),),
            devices=self._devices,
            user=user,
            reads_all_owners=self._session_config.sandbox_user == "root that reads all files",
        )

    def hand_over(self, artifact: Artifact, given: Path) -> Artifact:
        """Return an artifact that a worker can read. If the worker's user cannot read the original, return a copy in
        the folder `given`."""
        if not self._has_own_user or find_barrier(artifact.directory / artifact.entry) is None:
            return artifact
        copy = given / "artifact"
        for path in walk_files(artifact.directory, lambda *_: None):
            target = copy / path.relative_to(artifact.directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(read_whole(path, MOST_FILE_BYTES))
        for path in (copy, *copy.rglob("*")):
            path.chmod(READ_BY_ALL)
        return replace(artifact, directory=copy)


def find_readable(
    environment: Mapping[str, str], *, hidden: Iterable[str] = (), import_path: Sequence[str] | None = None
) -> list[str]:
    """Return the real paths that every worker reads. Missing paths are skipped.

    Args:
        hidden: folders that no worker reads, even inside a readable folder.
        import_path: folders from which modules are imported; None for sys.path.
    """
    system = [*SYSTEM, *(f"/etc/{name}" for name in SETTINGS)]
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, os.path.realpath(sys.executable)]
    found += [str(PACKAGE), *_find_imported(sys.path if import_path is None else import_path)]
    found += _find_tools(environment)
    narrow = (path for path in map(os.path.realpath, found) if not is_too_wide(path))
    there = dict.fromkeys(path for path in [*map(os.path.realpath, system), *narrow] if Path(path).exists())
    outer = [path for path in there if not any(str(above) in there for above in Path(path).parents)]
    secret = [os.path.realpath(path) for path in hidden]
    return [part for path in outer for part in carve(path, secret)]


def carve(path: str, hidden: Sequence[str]) -> list[str]:
    """Return the paths that together cover a folder without its hidden parts."""
    if _is_below(path, hidden):
        return []
    if not any(_is_below(secret, [path]) for secret in hidden):
        return [path]
    return [part for entry in sorted(Path(path).iterdir()) for part in carve(str(entry), hidden)]


def find_devices() -> list[str]:
    """Return the device nodes that a worker uses."""
    return [str(path) for pattern in DEVICES for path in sorted(Path("/dev").glob(pattern))]


def is_too_wide(path: str) -> bool:
    """Return whether a folder contains a whole home, or all homes. A user's variable must not open such a folder to
    workers."""
    homes = ("/home", "/root", str(Path.home()), "/tmp", "/var/tmp", "/run")
    return any(_is_below(os.path.realpath(home), [path]) for home in homes)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _find_imported(import_path: Sequence[str]) -> Iterator[str]:
    """Yield the modules on the path: whole folders of installed packages, single modules of other folders."""
    for folder in (Path(entry or ".") for entry in import_path):
        with suppress(PermissionError):  # Python imports nothing from such a folder
            if folder.is_file():  # the standard library in an archive
                yield str(folder)
            elif folder.exists():
                entries = sorted(folder.iterdir())
                is_site = folder.name in ("site-packages", "dist-packages", "lib-dynload")
                if is_site or any(entry.suffix == ".dist-info" for entry in entries):
                    yield str(folder)
                elif folder.resolve() != PACKAGE.parent:
                    suffixes = (".py", ".so", ".pyd")
                    yield from (str(one) for one in entries if one.suffix in suffixes or any(one.glob("__init__.py")))
    for name, module in list(sys.modules.items()):  # editable installs may have a table of packages
        table = getattr(module, "MAPPING", None) if name.startswith("__editable__") else None
        if isinstance(table, dict):
            yield from (str(path) for path in table.values() if Path(str(path)) != PACKAGE)


def _find_tools(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of compilers, and paths named by the environment."""
    for part in named_paths(environment):
        compiler = find_cxx({**environment, "CXX": part})
        if compiler is not None:
            yield from map(str, compiler.files())
        elif Path(part).is_absolute() and Path(part).exists():
            yield part
    cuda, cxx = find_cuda(environment), find_cxx(environment)
    if cuda is not None:
        yield from (str(cuda.home), *map(str, cuda.nvcc.files()))
    if cxx is not None:
        yield from map(str, cxx.files())
