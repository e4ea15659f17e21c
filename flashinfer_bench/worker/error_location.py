"""Where a solution's own code raised an exception: the file, line and function for people.

Frames of torch, Triton and this package lie around those of a solution, and a compiler of kernels has no frame of the
kernel. Runs in the worker, so nothing here is more than the solution's word.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from typing import Any, Final

from flashinfer_bench.worker.load import PACKAGE

MOST_CAUSES: Final = 20
"""Exceptions that are followed from one to its cause. Solutions can make chains without an end."""
CAUSE_CHARS: Final = 100
"""Characters of a cause's message."""


def message_of(error: BaseException) -> str:
    """Return an exception's message, without the location and the source lines that Python and Triton put into it."""
    if isinstance(error, SyntaxError):
        return error.msg or ""
    compiler = _kernel_error(error)
    if compiler is not None:
        return str(compiler.error_message or compiler).strip()
    return str(error)


def find_location(error: BaseException) -> str:
    """Return "at FILE:LINE, in FUNCTION" of the solution's innermost frame; empty if none of its frames is there.

    The last of its causes follows, if it says more.
    """
    causes = [error]
    while causes[-1].__cause__ is not None and len(causes) < MOST_CAUSES:
        causes.append(causes[-1].__cause__)
    own, root = _location_of(error), causes[-1]
    if root is error or _kernel_error(error) is not None:
        return own
    why, location = message_of(root), _location_of(root)
    if why in message_of(error):
        return location or own
    cause = f"caused by {type(root).__name__}: {' '.join(why.split())[:CAUSE_CHARS]}"
    return "; ".join(filter(None, [own, ", ".join(filter(None, [cause, location]))]))


def _location_of(error: BaseException) -> str:
    compiler = _kernel_error(error)
    if compiler is not None and (kernel := _kernel_location(compiler)):
        return kernel
    if isinstance(error, SyntaxError) and (file := _own_file(error.filename)):
        return f"at {file}:{error.lineno}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if file := _own_file(frame.f_code.co_filename):
            name = frame.f_code.co_name
            return f"at {file}:{line}" + ("" if name == "<module>" else f", in {name}")
    return ""


def _kernel_error(error: BaseException) -> Any:
    """Return the error of the innermost Triton function that does not compile; None if the error is another one."""
    found = None
    for _ in range(MOST_CAUSES):
        if not (hasattr(error, "node") and hasattr(error, "error_message")):
            break
        found = error
        if error.__cause__ is None:
            break
        error = error.__cause__
    return found


def _kernel_location(error: Any) -> str:
    """Return the location of a Triton error, which has the kernel's source and the line in it, but no file."""
    kernel = [line.strip() for line in error.src.splitlines()]
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    for path in filter(None, files):
        if (file := _own_file(path)) is None:
            continue
        lines = [line.strip() for line in linecache.getlines(path)]
        for start in range(len(lines) - len(kernel) + 1):
            if lines[start : start + len(kernel)] == kernel:
                name = kernel[0].removeprefix("def ").partition("(")[0]
                return f"at {file}:{start + error.node.lineno}, in {name}"
    return ""


def _own_file(path: str | None) -> str | None:
    """Return a path as the solution's sources name it; None if it is not one of them."""
    folder = next(iter(getattr(sys.modules.get(PACKAGE), "__path__", ())), None)
    if folder is None or path is None or not path.startswith(f"{folder}/"):
        return None
    return path.removeprefix(f"{folder}/")
