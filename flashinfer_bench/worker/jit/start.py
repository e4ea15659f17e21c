"""Does once, in the fork server, the work that every process would do at its first Triton launch; none of it touches a
device. Under Triton's interpreter, tuning is switched off.

Most of that time is the hash of Triton's own files. Its result is cached in the process, and so inherited by forks.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Final

KEY_MODULES: Final = ("triton.runtime.cache", "triton.compiler.compiler")
"""The module with `triton_key`, which computes the hash: in Triton 3.5 and later, and before."""
COMPILER: Final = "triton.backends.nvidia.compiler"
PROGRAMS: Final = (("triton.backends.nvidia.driver", "library_dirs"), ("triton.runtime.build", "platform_key"))
"""Functions that start programs (`ldconfig`, `file`) and keep what these say. A first launch asks them, also of a
kernel that is compiled."""
GLUON: Final = "triton.experimental.gluon"


def prepare_triton(capability: tuple[int, int] | None = None) -> None:
    """Import and compute what a first launch would; a version of Triton that has none of it is left as it is.

    Args:
        capability: the GPU's compute capability, by which Triton asks its assembler for its version; None leaves that
            to each worker.
    """
    for module in (*(module for module, _ in PROGRAMS), COMPILER):
        with suppress(ImportError):
            import_module(module)
    with ThreadPoolExecutor() as pool:  # its threads are gone before anything is forked
        pool.submit(_compute_key)
        for module, name in PROGRAMS:  # a step that fails is left to each worker
            pool.submit(_call, module, name)
        if capability is not None:
            for name in ("get_ptxas", "get_ptxas_version"):
                pool.submit(_call, COMPILER, name, 10 * capability[0] + capability[1])
        with suppress(ImportError):
            import_module(GLUON)


def _call(module: str, name: str, *arguments: int) -> None:
    getattr(import_module(module), name)(*arguments)


def _compute_key() -> None:
    for module in KEY_MODULES:
        with suppress(ImportError, AttributeError):
            _call(module, "triton_key")
            return


def leave_untuned() -> None:
    """Under Triton's interpreter, let autotuned kernels take their first configuration.

    To time the others Triton asks a GPU's driver, and without one it fails. Times would say nothing there.
    """
    tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if tuner is not None and os.environ.get("TRITON_INTERPRET") == "1":
        tuner._bench = lambda *_args, **_kwargs: [0.0, 0.0, 0.0]
