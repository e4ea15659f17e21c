"""What a worker needs of this machine: which folders it reads, which devices it uses. Nothing is imported or started.

A worker reads the interpreter with its packages, the system's programs and libraries, the compilers and this package;
not what lies beside them: the data set, caches, home folders and the folders of running programs stay out, also where
the interpreter lies below a home folder.

`/dev/shm` is not among what it writes: threads, pipes and memory files do without, and a file there would outlive its
worker and reach the next one. What breaks is multiprocessing's locks, queues and shared memory; torch.compile, whose
pool of compilers uses such locks, compiles in the worker instead (`environments.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.runner.environments import named_paths
from flashinfer_bench.compile.toolchain import find_cuda, find_cxx
from flashinfer_bench.worker.walls.walls import PLAIN_DEVICES

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
"""Of /etc; the rest of it may be for root alone."""
DEVICES: Final = (
    *PLAIN_DEVICES,
    *("nvidia[0-9]*", "nvidiactl", "nvidia-uvm*", "nvidia-modeset", "nvidia-caps", "nvidia-caps-imex-channels", "dxg"),
)


def find_readable(
    environment: Mapping[str, str], *, hidden: Iterable[str] = (), import_path: Sequence[str] | None = None
) -> list[str]:
    """Return what every worker reads, by real paths; what is not there is left out.

    Args:
        environment: the session's.
        hidden: folders that no worker reads, also where they lie in one that it does.
        import_path: where modules are imported from; sys.path where it is left out.
    """
    system = [*SYSTEM, *(f"/etc/{name}" for name in SETTINGS)]
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, os.path.realpath(sys.executable)]
    found += [str(PACKAGE), *_find_imported(sys.path if import_path is None else import_path)]
    found += _find_tools(environment)
    homes = _find_homes()
    narrow = (path for path in map(os.path.realpath, found) if not _holds_one(path, homes))
    there = dict.fromkeys(path for path in [*map(os.path.realpath, system), *narrow] if Path(path).exists())
    outer = [path for path in there if not any(str(above) in there for above in Path(path).parents)]
    secret = [os.path.realpath(path) for path in hidden]
    return [part for path in outer for part in carve(path, secret)]


def carve(path: str, hidden: Sequence[str]) -> list[str]:
    """Return a folder without those that are hidden: its other entries, where one of them lies in it."""
    if _is_inside_or_same(path, hidden):
        return []
    if not any(_is_inside_or_same(secret, [path]) for secret in hidden):
        return [path]
    return [part for entry in sorted(Path(path).iterdir()) for part in carve(str(entry), hidden)]


def find_devices() -> list[str]:
    """Return the device nodes that a worker uses."""
    return [str(path) for pattern in DEVICES for path in sorted(Path("/dev").glob(pattern))]


def keep_reachable(path_variable: str, readable: Iterable[str]) -> str:
    """Return $PATH without folders that a worker cannot read: it would find programs there that it cannot start."""
    folders = path_variable.split(os.pathsep)
    roots = list(readable)
    return os.pathsep.join(folder for folder in folders if _is_inside_or_same(os.path.realpath(folder), roots))


def is_too_wide(path: str) -> bool:
    """Tell whether a folder holds a whole home, or all homes: no variable of a user's opens these."""
    return _holds_one(path, _find_homes())


def _find_homes() -> list[str]:
    return [os.path.realpath(home) for home in ("/home", "/root", str(Path.home()), "/tmp", "/var/tmp", "/run")]


def _holds_one(path: str, homes: Iterable[str]) -> bool:
    return any(_is_inside_or_same(home, [path]) for home in homes)


def _find_imported(import_path: Sequence[str]) -> Iterator[str]:
    for entry in import_path:
        folder = Path(entry or ".")
        if not folder.exists():
            continue
        if folder.is_file():
            yield str(folder)  # the standard library in an archive
        elif _is_installed_into(folder):
            yield str(folder)
        elif folder.resolve() != PACKAGE.parent:
            yield from map(str, _find_modules(folder))
    yield from _find_editable()


def _is_installed_into(folder: Path) -> bool:
    """Tell a folder that packages are installed into from one that somebody works in, with data and tests beside."""
    if folder.name in ("site-packages", "dist-packages", "lib-dynload"):
        return True
    return any(entry.suffix == ".dist-info" for entry in folder.iterdir())


def _find_modules(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.suffix in (".py", ".so", ".pyd") or (entry / "__init__.py").is_file():
            yield entry


def _find_editable() -> Iterator[str]:
    """Yield the packages of editable installs that put no folder on the path, but a table of packages."""
    for name, module in list(sys.modules.items()):
        table = getattr(module, "MAPPING", None) if name.startswith("__editable__") else None
        if isinstance(table, dict):
            yield from (str(place) for place in table.values() if Path(str(place)) != PACKAGE)


def _find_tools(environment: Mapping[str, str]) -> Iterator[str]:
    for part in named_paths(environment):
        compiler = find_cxx({**environment, "CXX": part})
        if compiler is not None:
            yield from map(str, compiler.files())
        elif Path(part).is_absolute() and Path(part).exists():
            yield part
    cuda = find_cuda(environment)
    if cuda is not None:
        yield str(cuda.home)
        yield from map(str, cuda.nvcc.files())
    compiler = find_cxx(environment)
    if compiler is not None:
        yield from map(str, compiler.files())


def _is_inside_or_same(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
