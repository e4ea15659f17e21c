"""Prepares Triton once in the fork server, so that first launches in workers are faster. It uses no device.

Most of a first launch's time goes into the hash of Triton's own files. The hash is cached in the process, and inherited
by forks. Under Triton's interpreter, tuning is switched off.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Final

KEY_MODULES: Final = ("triton.runtime.cache", "triton.compiler.compiler")
"""Modules with `triton_key`, which computes the hash: in Triton 3.5 and later, and in older versions."""
COMPILER: Final = "triton.backends.nvidia.compiler"
PROGRAMS: Final = (("triton.backends.nvidia.driver", "library_dirs"), ("triton.runtime.build", "platform_key"))
"""Functions that start programs (`ldconfig`, `file`) and cache their output. Every first launch calls them."""
GLUON: Final = "triton.experimental.gluon"


def prepare_triton(capability: tuple[int, int] | None = None) -> None:
    """Import and compute everything for a first launch. Steps missing in a Triton version are skipped.

    Args:
        capability: the GPU's compute capability, for which Triton asks the version of its assembler; None to leave that
            to each worker.
    """
    for module in (*(module for module, _ in PROGRAMS), COMPILER):
        with suppress(ImportError):
            import_module(module)
    with ThreadPoolExecutor() as pool:  # its threads end before any fork
        pool.submit(_compute_key)
        for module, name in PROGRAMS:  # a failed step is left to each worker
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
    """Under Triton's interpreter, make autotuned kernels use their first configuration.

    To time configurations, Triton needs a GPU's driver, and fails without it. Times would have no meaning there.
    """
    tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if tuner is not None and os.environ.get("TRITON_INTERPRET") == "1":
        tuner._bench = lambda *_args, **_kwargs: [0.0, 0.0, 0.0]
