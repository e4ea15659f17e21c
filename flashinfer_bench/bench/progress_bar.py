"""A bar for a run that is started from Python: by tqdm where it is installed, else by rich."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished

if TYPE_CHECKING:
    from rich.console import Console

Tell = Callable[[Event], object]
WITHOUT_VERDICT: Final = "without a verdict"
LEFT_OUT: Final = "left out"


@contextmanager
def progress_bar(jobs: int, *, wanted: bool | None = None, console: Console | None = None) -> Iterator[Tell]:
    """Show a bar while the block runs; gives the function that has to be told each event.

    Args:
        jobs: of the run; where there are none, there is no bar.
        wanted: whether there is a bar at all; None for: in notebooks.
        console: where rich draws; the usual one where it is left out.
    """
    if not jobs or not (is_notebook() if wanted is None else wanted):
        yield lambda _event: None
        return
    counts: Counter[str] = Counter()
    tqdm = _find_tqdm()
    if tqdm is not None:
        with tqdm(total=jobs, unit="job") as bar:

            def tell_tqdm(event: Event) -> None:
                if _count(event, counts):
                    bar.set_postfix_str(_describe(counts), False)
                    bar.update()

            yield tell_tqdm
        return
    # Imported here, because it takes a tenth of a second, and most runs show no bar.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as drawn:
        task = drawn.add_task("", total=jobs)

        def tell_rich(event: Event) -> None:
            if _count(event, counts):
                drawn.update(task, advance=1, description=_describe(counts), refresh=True)

        yield tell_rich


def is_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


def _find_tqdm() -> Callable[..., Any] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets it draws text, and says so
            found: Callable[..., Any] = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
    return found


def _count(event: Event, counts: Counter[str]) -> bool:
    """Count a job that has ended; say whether one has."""
    if isinstance(event, JobFinished) and event.trace.evaluation is not None:
        counts[event.trace.evaluation.status.value] += 1
        return True
    if isinstance(event, JobFaulted):
        counts[LEFT_OUT if event.is_left_out else WITHOUT_VERDICT] += 1
        return True
    return False


def _describe(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items())
