"""An exception of a solution's, as its worker describes it: a bounded text, and its location in the solution's files.

Frames of torch, Triton and this package lie around those of a solution, and a compiler of kernels has no frame of the
kernel. Runs in the worker, so nothing here is more than the solution's word.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.worker.load import PACKAGE
from flashinfer_bench.worker.protocol import MAX_TEXT, MOST_WORDS

KEPT_FRAMES: Final = 12
MOST_CAUSES: Final = 20
"""Exceptions that are followed from one to its cause. Solutions can make chains without an end."""
CAUSE_CHARS: Final = 100
"""Characters of a cause's message."""


def describe_error(error: BaseException) -> dict[str, str]:
    """Return the fields of a `WorkerError`; our own frames are left out of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(str(Path(__file__).parent)):
        trace = trace.tb_next
    message, location, lines = "", "", list[str]()
    try:
        message = message_of(error)
        location = find_location(error)
        lines = traceback.format_exception(type(error), error, trace, limit=-KEPT_FRAMES)
    except BaseException as second:
        message = message or f"(its message could not be read: {type(second).__name__})"
    told = escape_surrogates("".join(lines))
    bounds = {"type": (type(error).__name__, 500), "message": (message, MAX_TEXT), "location": (location, MOST_WORDS)}
    return {name: escape_surrogates(text)[:most] for name, (text, most) in bounds.items()} | {
        "traceback": told[-MAX_TEXT:]
    }


def escape_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode: half a surrogate pair becomes an escape sequence."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def message_of(error: BaseException) -> str:
    """Return an exception's message, without the location and the source lines that Python and Triton put into it."""
    if isinstance(error, SyntaxError):
        return error.msg or ""
    kernel = _find_kernel_error(error)
    return str(error) if kernel is None else str(kernel.error_message or kernel).strip()


def find_location(error: BaseException) -> str:
    """Return "at FILE:LINE, in FUNCTION" of the solution's innermost frame; empty if none of its frames is there.

    The last of its causes follows, if it says more.
    """
    own, root = _location_of(error), _causes_of(error)[-1]
    if root is error or _find_kernel_error(error) is not None:
        return own
    why, location = message_of(root), _location_of(root)
    if why in message_of(error):
        return location or own
    cause = f"caused by {type(root).__name__}: {' '.join(why.split())[:CAUSE_CHARS]}"
    return "; ".join(filter(None, [own, ", ".join(filter(None, [cause, location]))]))


def _causes_of(error: BaseException) -> list[BaseException]:
    """Return an exception, and those that caused it, one after the other."""
    causes = [error]
    while causes[-1].__cause__ is not None and len(causes) < MOST_CAUSES:
        causes.append(causes[-1].__cause__)
    return causes


def _find_kernel_error(error: BaseException) -> Any:
    """Return the error of the innermost Triton function that does not compile; None if the error is another one."""
    if not hasattr(error, "error_message"):
        return None
    found = [cause for cause in _causes_of(error) if hasattr(cause, "node") and hasattr(cause, "error_message")]
    return found[-1] if found else None


def _location_of(error: BaseException) -> str:
    kernel = _find_kernel_error(error)
    if kernel is not None and (location := _find_kernel(kernel)):
        return location
    if isinstance(error, SyntaxError) and (file := _own_file(error.filename)):
        return f"at {file}:{error.lineno}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if file := _own_file(frame.f_code.co_filename):
            name = frame.f_code.co_name
            return f"at {file}:{line}" + ("" if name == "<module>" else f", in {name}")
    return ""


def _find_kernel(error: Any) -> str:
    """Return the location of a Triton error, which has the kernel's source and the line in it, but no file."""
    first = error.src.splitlines()[0].strip()
    for module in list(sys.modules.values()):
        file = _own_file(getattr(module, "__file__", None))
        lines = [] if file is None else [line.strip() for line in linecache.getlines(str(module.__file__))]
        if first in lines:
            name = first.removeprefix("def ").partition("(")[0]
            return f"at {file}:{lines.index(first) + error.node.lineno}, in {name}"
    return ""


def _own_file(path: str | None) -> str | None:
    """Return a path as the solution's sources name it; None if it is not one of them."""
    folder = next(iter(getattr(sys.modules.get(PACKAGE), "__path__", ())), None)
    if folder is None or path is None or not path.startswith(f"{folder}/"):
        return None
    return path.removeprefix(f"{folder}/")
