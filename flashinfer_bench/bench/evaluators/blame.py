"""Turns an exception of foreign code (a reference or a plug-in) in the judge's process into an error of this
package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flashinfer_bench.errors import FlashInferBenchError


@contextmanager
def blaming(explain: Callable[[BaseException], FlashInferBenchError]) -> Iterator[None]:
    """Replace exceptions of foreign code. This package's errors and interrupts pass unchanged.

    Args:
        explain: takes the exception and makes the error that is raised instead.
    """
    try:
        yield
    except FlashInferBenchError:
        raise
    except (Exception, SystemExit) as error:
        raise explain(error) from error
