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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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

    What needs no lock of Python's runs side by side: the hash of Triton's files, and the programs that Triton asks.

    Args:
        capability: the GPU's compute capability, by which Triton asks its assembler for its version; None leaves that
            to each worker.
    """
    steps: list[Callable[[], None]] = [_compute_key, *(partial(_ask_once, *asked) for asked in ASKED_ONCE)]
    if capability is not None:
        steps.append(partial(_ask_assembler, 10 * capability[0] + capability[1]))
    for module in (*(module for module, _ in ASKED_ONCE), COMPILER):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    with ThreadPoolExecutor(len(steps)) as pool:  # its threads are gone before anything is forked
        done = [pool.submit(step) for step in steps]
        for module in LATE_IMPORTS:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        for one in done:
            with contextlib.suppress(Exception):  # no libcuda, or no such program: each worker will find out
                one.result()


def _compute_key() -> None:
    for module, name in KEY_FUNCTIONS:
        with contextlib.suppress(ImportError, AttributeError):
            getattr(importlib.import_module(module), name)()
            return


def _ask_once(module: str, name: str) -> None:
    getattr(importlib.import_module(module), name)()


def _ask_assembler(architecture: int) -> None:
    compiler = importlib.import_module(COMPILER)
    compiler.get_ptxas(architecture)
    compiler.get_ptxas_version(architecture)


def leave_untuned() -> None:
    """Under Triton's interpreter, let autotuned kernels take their first configuration.

    To time the others Triton asks a GPU's driver, and without one it fails. Times would say nothing there.
    """
    tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if tuner is not None and os.environ.get("TRITON_INTERPRET") == "1":
        tuner._bench = lambda *_args, **_kwargs: [0.0, 0.0, 0.0]
