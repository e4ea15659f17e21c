"""Turns an exception of foreign code (a reference or a plug-in) in the judge's process into an error of this
package."""

from __future__ import annotations

import types
from collections.abc import Callable

from flashinfer_bench.errors import FlashInferBenchError


class Blame:
    """A context manager that replaces exceptions of foreign code. This package's errors and interrupts pass unchanged.

    Args:
        explain: takes the exception and makes the error that is raised instead.
    """

    def __init__(self, explain: Callable[[BaseException], FlashInferBenchError]) -> None:
        self._explain = explain

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, FlashInferBenchError):
            raise self._explain(error) from error
