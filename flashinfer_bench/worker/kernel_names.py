"""The names of the operations that a worker's timed calls launched, in the form of the answer to `stop`."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from typing import Final

from flashinfer_bench.timing.libraries import MAX_NAME, keep_names
from flashinfer_bench.worker.protocol import MAX_LAUNCHES, digest_of

RUNTIME: Final = "libstdc++.so.6"
"""The C++ runtime, which torch has loaded. It demangles names."""


def answer_launches(launches: Iterable[tuple[tuple[str, int], ...]]) -> dict[str, dict[str, int]]:
    """Return digest → launches of each operation by name, for the first MAX_LAUNCHES kinds of calls."""
    answer = {}
    for launched in [one for one in launches if one][:MAX_LAUNCHES]:
        counts = Counter[str]()
        for name, count in launched:
            counts[demangle(name)[:MAX_NAME]] += count
        answer[digest_of(launched)] = keep_names(counts)
    return answer


def demangle(name: str) -> str:
    """Return a C++ symbol as its declaration. Other names, and all names if the runtime is missing, are returned
    unchanged."""
    if not name.startswith("_Z"):
        return name
    try:
        runtime, status = ctypes.CDLL(RUNTIME), ctypes.c_int()
    except OSError:
        return name
    runtime.__cxa_demangle.restype, runtime.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    text = runtime.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        runtime.free(text)
