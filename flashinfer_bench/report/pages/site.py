"""Writes the folder: one page, its scripts, and data by definition and solution, which it loads when it needs them.

index.html                 the page; its policy lets it load scripts and styles of the folder, and nothing else
assets/                    scripts, style, the chart library with its licence
data/overview.js           what the first page shows
data/d_<id>.js, s_<id>.js  one definition, one solution; ids are digests of names
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from flashinfer_bench import __version__
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import group, list_results
from flashinfer_bench.data.store.jsonl import write_whole, write_whole_bytes
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.report.pages.details import describe_definition, describe_overview, describe_solution
from flashinfer_bench.report.pages.texts import clean, id_of, line_of, to_script

MARKER: Final = "flashinfer-bench-report"
"""A folder whose index.html has this word was written by this file, and may be written again."""
TEMPLATE: Final = "index.html.j2"
ASSETS: Final = resources.files("flashinfer_bench.report.pages") / "assets"


@dataclass(frozen=True)
class WrittenPages:
    """What was written."""

    folder: Path
    definitions: int
    solutions: int
    traces: int


@collector_paused()
def write_site(
    folder: Path,
    trace_set: TraceSet,
    traces: Iterable[AnyTrace],
    *,
    title: str,
    baseline_author: str | None = None,
) -> WrittenPages:
    """Write the pages of a set's latest verdicts.

    Args:
        folder: a new or an empty one, or one that holds such pages. No link in it is followed.
        trace_set: where definitions and solutions are looked up.
        traces: what is shown.
        title: what the pages are called.
        baseline_author: whose solutions authors are ranked against; None for the reference.

    Raises:
        DataSetError: the folder holds something else.
        ValueError: the baseline author has no verdict.
        OSError: a file cannot be written.
    """
    _check_folder(folder)
    results = list_results(trace_set, traces)
    overview = describe_overview(trace_set, results, baseline_author)
    made = {"made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "version": __version__}
    folder.mkdir(parents=True, exist_ok=True)
    with open_folder(folder / "data", folder) as there:
        for old in [*there.own_path.glob("d_*.js"), *there.own_path.glob("s_*.js")]:
            old.unlink()
    by_definition = group(results, attrgetter("definition"))
    for name in dict.fromkeys([*trace_set.definitions, *by_definition]):
        _write(folder, f"d_{id_of(name)}", describe_definition(trace_set, name, by_definition.get(name, [])))
    solutions = {(item.definition, item.name): item for part in trace_set.solutions.values() for item in part}
    by_solution = group(results, attrgetter("definition", "solution"))
    for key, items in by_solution.items():
        _write(folder, f"s_{id_of(*key)}", describe_solution(solutions.get(key), items))
    _write(folder, "overview", {**made, **overview})
    _write_assets(folder, title)
    return WrittenPages(folder, len(overview["definitions"]), len(by_solution), len(results))


def _check_folder(folder: Path) -> None:
    index = folder / "index.html"
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not index.is_file() or MARKER not in index.read_text(encoding="utf-8", errors="replace"):
        raise DataSetError(f"{folder}: holds something else than a report; name a new or an empty folder")


def _write(folder: Path, key: str, content: Any) -> None:
    write_whole_bytes(folder / "data" / f"{key}.js", to_script(key, clean(content)).encode("ascii"), root=folder)


def _write_assets(folder: Path, title: str) -> None:
    assets = sorted(ASSETS.iterdir(), key=attrgetter("name"))
    for item in assets:
        if item.name.endswith((".js", ".css", ".txt")):
            write_whole_bytes(folder / "assets" / item.name, item.read_bytes(), root=folder)
    scripts = [item.name for item in assets if item.name.endswith(".js")]
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string((ASSETS / TEMPLATE).read_text(encoding="utf-8"))
    page = template.render(title=line_of(title), marker=MARKER, scripts=scripts)
    write_whole(folder / "index.html", page, root=folder)
