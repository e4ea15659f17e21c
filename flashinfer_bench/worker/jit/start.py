"""Does once, in the template, what every process would do at its first Triton launch; under its interpreter, less.

Measured on an H200 with Triton 3.6 and a warm cache: of 0.38 s, 0.27 s go into hashing Triton's own files (its
result is cached in the process, and so inherited by forks) and 0.08 s into importing Gluon. None of it touches a
device.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Final

KEY_FUNCTIONS: Final = (("triton.runtime.cache", "triton_key"), ("triton.compiler.compiler", "triton_key"))
"""The function that computes the hash: in Triton 3.5 and later, and before."""
LATE_IMPORTS: Final = ("triton.experimental.gluon", "triton.backends.nvidia.driver")
COMPILER: Final = "triton.backends.nvidia.compiler"
ASKED_ONCE: Final = (("triton.backends.nvidia.driver", "library_dirs"), ("triton.runtime.build", "platform_key"))
"""Functions that start programs (`ldconfig`, `file`) and keep what these say. A first launch asks them, also of a
kernel that is compiled."""


def prepare_triton(capability: tuple[int, int] | None = None) -> None:
    """Import and compute what a first launch would; a version of Triton that has none of it is left as it is.

    Args:
        capability: the GPU's compute capability, by which Triton asks its assembler for its version; None leaves that
            to each worker.
    """
    for module in LATE_IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for module, name in ASKED_ONCE:
        with contextlib.suppress(Exception):  # no libcuda, or no such program: each worker will find out
            getattr(importlib.import_module(module), name)()
    if capability is not None:
        major, minor = capability
        with contextlib.suppress(Exception):
            compiler = importlib.import_module(COMPILER)
            compiler.get_ptxas(10 * major + minor)
            compiler.get_ptxas_version(10 * major + minor)
    for module, name in KEY_FUNCTIONS:
        with contextlib.suppress(ImportError, AttributeError):
            getattr(importlib.import_module(module), name)()
            return


def leave_untuned() -> None:
    """Under Triton's interpreter, let autotuned kernels take their first configuration.

    To time the others Triton asks a GPU's driver, and without one it fails. Times would say nothing there.
    """
    tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if tuner is not None and os.environ.get("TRITON_INTERPRET") == "1":
        tuner._bench = lambda *_args, **_kwargs: [0.0, 0.0, 0.0]
