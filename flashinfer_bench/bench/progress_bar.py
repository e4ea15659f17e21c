"""A bar for a run that is started from Python: by tqdm where it is installed, else by rich."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
        jobs: of the run; without any there is no bar.
        wanted: whether there is a bar at all; None for: in notebooks.
        console: where rich draws; the usual one by default.
    """
    if not jobs or not (is_notebook() if wanted is None else wanted):
        yield lambda _event: None
        return
    counts: Counter[str] = Counter()
    with ExitStack() as drawn:
        advance = _draw_by_tqdm(drawn, jobs) or _draw_by_rich(drawn, jobs, console)

        def tell(event: Event) -> None:
            if isinstance(event, JobFinished) and event.trace.evaluation is not None:
                counts[event.trace.evaluation.status.value] += 1
            elif isinstance(event, JobFaulted):
                counts[LEFT_OUT if event.is_left_out else WITHOUT_VERDICT] += 1
            else:
                return
            advance(", ".join(f"{number} {what}" for what, number in counts.items()))

        yield tell


def _draw_by_tqdm(drawn: ExitStack, jobs: int) -> Callable[[str], object] | None:
    """Return a function that advances the bar and describes it; None if tqdm is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets it draws text, and says so
            tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
    bar = drawn.enter_context(tqdm(total=jobs, unit="job"))
    return lambda text: (bar.set_postfix_str(text, False), bar.update())


def _draw_by_rich(drawn: ExitStack, jobs: int, console: Console | None) -> Callable[[str], object]:
    # Imported here, because it takes a tenth of a second, and most runs show no bar.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    bar = drawn.enter_context(Progress(*columns, console=console))
    task = bar.add_task("", total=jobs)
    return lambda text: bar.update(task, advance=1, description=text, refresh=True)


def is_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None
