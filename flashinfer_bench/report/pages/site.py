"""Writes the folder: one page, its scripts, and data by definition and solution, which the page loads on demand.

index.html                 the page; its policy lets it load scripts and styles of the folder, and nothing else
assets/                    scripts, style, the chart library with its licence
data/overview.js           what the first page shows
data/d_<id>.js, s_<id>.js  one definition, one solution; ids are digests of names
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.report.pages.details import describe_definition, describe_overview, describe_solution
from flashinfer_bench.report.pages.texts import id_of, to_script
from flashinfer_bench.report.verdict import to_one_line

MARKER: Final = "flashinfer-bench-report"
"""Marker in the index.html of a folder that this module wrote. Only a folder with the marker may be replaced."""


@collector_paused()
def write_site(folder: Path, trace_set: TraceSet, traces: Sequence[AnyTrace], *, title: str) -> dict[str, int]:
    """Write the pages of a set's latest verdicts; return the numbers of definitions, solutions and verdicts.

    Args:
        folder: a new or empty folder, or a folder that this function wrote. Links inside the folder are not followed.
        trace_set: the set with the definitions and solutions. Its baseline author is the baseline of the leaderboard.
        traces: the traces to show.
        title: title of the pages.

    Raises:
        DataSetError: the folder has other content.
        OSError: a file cannot be written.
    """
    if folder.exists() and not (folder.is_dir() and (_is_ours(folder / "index.html") or not any(folder.iterdir()))):
        raise DataSetError(f"{folder}: holds something else than a report; name a new or an empty folder")
    everything = list_results(replace(trace_set, baseline_author=None), traces, latest_only=False)
    results = [item for item in everything if item.is_latest]
    ranked = list_results(trace_set, traces) if trace_set.baseline_author else results
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    overview = {"made": made, "version": __version__, **describe_overview(trace_set, results, ranked)}
    folder.mkdir(parents=True, exist_ok=True)
    with open_folder(folder / "data", folder) as there:
        for old in there.own_path.glob("[ds]_*.js"):
            old.unlink()

    def write(key: str, content: Any) -> None:
        write_whole(folder / "data" / f"{key}.js", to_script(key, content), root=folder)

    by_definition = group(everything, attrgetter("definition"))
    names = dict.fromkeys([*trace_set.definitions, *by_definition])
    for name in names:
        write(f"d_{id_of(name)}", describe_definition(trace_set, name, by_definition.get(name, [])))
    solutions = {(item.definition, item.name): item for item in trace_set.all_solutions()}
    by_solution = group(results, attrgetter("definition", "solution"))
    for pair, items in by_solution.items():
        write(f"s_{id_of(*pair)}", describe_solution(solutions.get(pair), items))
    write("overview", overview)
    _write_assets(folder, title)
    return {"definition": len(names), "solution": len(by_solution), "verdict": len(results)}


def _is_ours(index: Path) -> bool:
    return index.is_file() and MARKER in index.read_text(encoding="utf-8", errors="replace")


def _write_assets(folder: Path, title: str) -> None:
    assets = {item.name: item.read_bytes() for item in (resources.files(__package__) / "assets").iterdir()}
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(assets.pop("index.html.j2").decode())
    for name, content in assets.items():
        write_whole(folder / "assets" / name, content, root=folder)
    scripts = sorted(name for name in assets if name.endswith(".js"))
    text = page.render(title=to_one_line(title), marker=MARKER, scripts=scripts)
    write_whole(folder / "index.html", text, root=folder)
