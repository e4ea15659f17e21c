"""A bar for a run that is started from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, RunStarted


@contextmanager
def progress_bar(*, wanted: bool | None = None) -> Iterator[Callable[[Event], object]]:
    """Show a bar while the block runs; yield the function that takes each event.

    Args:
        wanted: whether to show a bar; None to show it only in notebooks.
    """
    if not (is_notebook() if wanted is None else wanted):
        yield lambda _event: None
        return
    from rich.progress import Progress  # takes a tenth of a second, and most runs show no bar

    with Progress() as bar:
        task, total = bar.add_task("jobs", total=0, visible=False), 0

        def show(event: Event) -> None:
            nonlocal total
            if isinstance(event, (RunStarted, JobsAdded)):
                total += event.jobs
                bar.update(task, total=total, visible=True)
            bar.advance(task, isinstance(event, (JobFinished, JobFaulted)))

        yield show


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None
