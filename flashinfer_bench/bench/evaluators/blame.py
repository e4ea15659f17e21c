"""Turns what code that is not ours raises in the judge into an error of ours: a reference's, or a plug-in's."""

from __future__ import annotations

import types
from collections.abc import Callable

from flashinfer_bench.errors import FlashInferBenchError


class Blame:
    """A context in which whatever fails is explained; errors of ours, and interrupts, go on as they are.

    Args:
        explain: makes the error that is raised instead.
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
