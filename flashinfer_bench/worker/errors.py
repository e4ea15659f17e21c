"""Describes a solution's exception in its worker: bounded text, and the location in the solution's files.

Frames of torch, Triton and this package surround the solution's frames. This runs in the worker, so a solution can
forge all of it.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import Final

from flashinfer_bench.worker.load import PACKAGE
from flashinfer_bench.worker.protocol import MAX_TEXT, MOST_WORDS

KEPT_FRAMES: Final = 12
MODULE: Final = "<module>"
"""Python's name for a module's code, in place of a function's name."""
NATIVE: Final = re.compile(r"(?!/).+\.(cpp|cc|cxx|cu|cuh|h|hpp)")
"""A C++ or CUDA source of the solution in a frame of tvm-ffi. The compiler got the file's path in the solution."""
MOST_CAUSES: Final = 20
"""Maximum number of exceptions in a chain of causes. Solutions can make endless chains."""


def describe_error(error: BaseException) -> dict[str, str]:
    """Return the fields of a `WorkerError`. The traceback omits our own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(str(Path(__file__).parent)):
        trace = trace.tb_next
    message, location, lines = "", "", list[str]()
    try:
        message, location = message_of(error), find_location(error)
        lines = traceback.format_exception(type(error), error, trace, limit=-KEPT_FRAMES)
    except BaseException as second:
        message = message or f"(its message could not be read: {type(second).__name__})"
    return {
        "type": escape_surrogates(type(error).__name__)[:500],
        "message": escape_surrogates(message)[:MAX_TEXT],
        "location": escape_surrogates(location)[:MOST_WORDS],
        "traceback": escape_surrogates("".join(lines))[-MAX_TEXT:],
    }


def escape_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode. Lone surrogates become escape sequences."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def message_of(error: BaseException) -> str:
    """Return an exception's message, without the location and the source lines that Python and Triton add."""
    if isinstance(error, SyntaxError):
        return error.msg or ""
    kernels = [reported for one in _causes_of(error) if (reported := getattr(one, "error_message", None))]
    return str(kernels[-1] if kernels else error)


def find_location(error: BaseException) -> str:
    """Return "at FILE:LINE, in FUNCTION" of the solution's innermost frame; empty if there is none.

    The frames of an exception's cause are deeper than the frames of the exception itself.
    """
    return next(filter(None, map(_location_of, reversed(_causes_of(error)))), "")


def describe_frame(file: str, line: int | None, function: str = MODULE) -> str:
    """Return "at FILE:LINE, in FUNCTION", without a function for a frame of a module."""
    return f"at {file}:{line}" + ("" if function == MODULE else f", in {function}")


def _causes_of(error: BaseException) -> list[BaseException]:
    """Return an exception and its chain of causes."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and len(causes) < MOST_CAUSES:
        causes.append(cause)
    return causes


def _location_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and (file := _own_file(error.filename)):
        return describe_frame(file, error.lineno)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if file := _own_file(frame.f_code.co_filename):
            name = frame.f_code.co_name  # of a C++ function: void run(tvm::ffi::TensorView)
            return describe_frame(file, line, name.partition("(")[0].rpartition(" ")[2])
    return ""


def _own_file(path: str | None) -> str | None:
    """Return a path relative to the solution's sources; None if it is another file."""
    if path is not None and NATIVE.fullmatch(path):
        return path
    folder = next(iter(getattr(sys.modules.get(PACKAGE), "__path__", ())), None)
    if folder is None or path is None or not path.startswith(f"{folder}/"):
        return None
    return path.removeprefix(f"{folder}/")
