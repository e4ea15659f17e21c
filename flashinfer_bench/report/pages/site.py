"""Writes the folder: one page, its scripts, and data by definition and solution, which it loads when it needs them.

index.html                 the page; its policy lets it load scripts and styles of the folder, and nothing else
assets/                    scripts, style, the chart library with its licence
data/overview.js           what the first page shows
data/d_<id>.js, s_<id>.js  one definition, one solution; ids are digests of names
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from flashinfer_bench import __version__
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.measurement import join_standings
from flashinfer_bench.data.store.jsonl import write_whole, write_whole_bytes
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.report.pages.details import cpus_of, describe_definition, describe_solution, short
from flashinfer_bench.report.pages.texts import id_of, line_of, to_script
from flashinfer_bench.report.ranking import FAST_P, rank_by_author, share_of
from flashinfer_bench.report.results import MeanRatio, Result, list_results, mean_of
from flashinfer_bench.report.timing import MEANINGS

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
    overview = _overview(trace_set, results, baseline_author)
    solutions = {(item.definition, item.name): item for group in trace_set.solutions.values() for item in group}
    data = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    with open_folder(data, folder) as there:
        for old in [*there.own_path.glob("d_*.js"), *there.own_path.glob("s_*.js")]:
            old.unlink()
    by_definition: defaultdict[str, list[Result]] = defaultdict(list)
    by_solution: defaultdict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        by_definition[result.definition].append(result)
        by_solution[result.definition, result.solution].append(result)
    for name in [*trace_set.definitions, *(item for item in by_definition if item not in trace_set.definitions)]:
        found = describe_definition(trace_set, name, by_definition.get(name, []))
        _write(data, f"d_{id_of(name)}", found)
    for key, items in by_solution.items():
        told = describe_solution(solutions.get(key), key[1], items)
        owner = {
            "id": id_of(*key),
            "definition": line_of(key[0]),
            "d": id_of(key[0]),
            "author": line_of(items[0].author),
        }
        _write(data, f"s_{id_of(*key)}", {**told, **owner})
    _write(data, "overview", overview)
    _write_assets(folder, title)
    return WrittenPages(folder, len(overview["definitions"]), len(by_solution), len(results))


def _overview(trace_set: TraceSet, results: Sequence[Result], baseline_author: str | None) -> dict[str, Any]:
    groups: defaultdict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.definition, result.solution, result.hardware].append(result)
    names = list(dict.fromkeys([*trace_set.definitions, *(item.definition for item in results)]))
    flags = {flag for result in results for flag in result.told.measurement.flags} | set(MEANINGS)
    return {
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "definitions": [_definition_entry(trace_set, name) for name in names],
        "solutions": [_solution_entry(items) for items in groups.values()],
        "flags": [[line_of(flag), MEANINGS.get(flag, "")] for flag in sorted(flags)],
        "p": list(FAST_P),
        "baseline": line_of(baseline_author) if baseline_author is not None else "",
        "cpu": cpus_of(results),
        "ranking": [_rounded(asdict(row)) for row in rank_by_author(results, baseline_author)],
    }


def _definition_entry(trace_set: TraceSet, name: str) -> list[Any]:
    """Return id, name, op type, and the number of workloads."""
    definition = trace_set.definitions.get(name)
    op_type = line_of(definition.op_type) if definition is not None else ""
    return [id_of(name), line_of(name), op_type, len(trace_set.workloads.get(name, []))]


def _solution_entry(items: Sequence[Result]) -> list[Any]:
    """Return what tables show of a solution on one kind of hardware; `ROW` in 4_overview.js names the places."""
    first = items[0]
    ranked = [item for item in items if item.is_ranked and item.speedup is not None]
    mean = mean_of([item.speedup or 0.0 for item in ranked], [item.speedup_log_half for item in ranked])
    timed = [item.latency_ms for item in items if item.told.measurement.meaningful]
    latencies = [latency for latency in timed if latency is not None]
    failed = [item.status for item in items if not item.is_passed]
    return [
        *(id_of(first.definition, first.solution), line_of(first.solution), id_of(first.definition)),
        *(line_of(first.definition), line_of(first.author), line_of(first.hardware)),
        *(sum(item.is_passed for item in items), len(items)),
        short(median(latencies)) if latencies else None,
        *_mean(mean),
        short(share_of(item.share for item in items if item.is_ranked)),
        max(set(failed), key=failed.count) if failed else "",
        int(any(item.told.run.quick for item in items)),
        join_standings(item.standing for item in items),
    ]


def _mean(mean: MeanRatio | None) -> list[float | None]:
    return [None, None, None] if mean is None else [short(mean.value), short(mean.low), short(mean.high)]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return short(value) if isinstance(value, float) else line_of(value) if isinstance(value, str) else value


def _check_folder(folder: Path) -> None:
    index = folder / "index.html"
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not index.is_file() or MARKER not in index.read_text(encoding="utf-8", errors="replace"):
        raise DataSetError(f"{folder}: holds something else than a report; name a new or an empty folder")


def _write(data: Path, key: str, content: Any) -> None:
    write_whole_bytes(data / f"{key}.js", to_script(key, content).encode("ascii"), root=data.parent)


def _write_assets(folder: Path, title: str) -> None:
    target = folder / "assets"
    scripts = []
    for item in sorted(ASSETS.iterdir(), key=lambda found: found.name):
        if item.name.endswith((".js", ".css", ".txt")):
            write_whole_bytes(target / item.name, item.read_bytes(), root=folder)
            scripts += [item.name] if item.name.endswith(".js") else []
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string((ASSETS / TEMPLATE).read_text(encoding="utf-8"))
    page = template.render(title=line_of(title), marker=MARKER, scripts=scripts)
    write_whole(folder / "index.html", page, root=folder)
