"""A bar for a run that is started from Python."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished

if TYPE_CHECKING:
    from rich.console import Console

WITHOUT_VERDICT: Final = "without a verdict"
LEFT_OUT: Final = "left out"


@contextmanager
def progress_bar(
    jobs: int, *, wanted: bool | None = None, console: Console | None = None
) -> Iterator[Callable[[Event], object]]:
    """Show a bar while the block runs; gives the function that has to be told each event.

    Args:
        jobs: of the run; without any there is no bar.
        wanted: whether there is a bar at all; None for: in notebooks.
        console: where it is drawn; the usual one by default.
    """
    if not jobs or not (is_notebook() if wanted is None else wanted):
        yield lambda _event: None
        return
    # Imported here, because it takes a tenth of a second, and most runs show no bar.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counts: Counter[str] = Counter()
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=jobs)

        def tell(event: Event) -> None:
            if isinstance(event, JobFinished) and event.trace.evaluation is not None:
                counts[event.trace.evaluation.status.value] += 1
            elif isinstance(event, JobFaulted):
                counts[LEFT_OUT if event.is_left_out else WITHOUT_VERDICT] += 1
            else:
                return
            text = ", ".join(f"{number} {what}" for what, number in counts.items())
            bar.update(task, advance=1, description=text, refresh=True)

        yield tell


def is_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None
