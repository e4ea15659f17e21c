"""The data of the overview, of a definition's page and of a solution's page; the scripts in `assets/` show the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from flashinfer_bench.data import Solution, TraceSet
from flashinfer_bench.data.measurement import BOUNDS
from flashinfer_bench.data.sets.results import Result, group, parse_time
from flashinfer_bench.data.sets.weights import differ
from flashinfer_bench.report.intervals import interval_of, mean_speedup
from flashinfer_bench.report.pages.texts import colour, id_of
from flashinfer_bench.report.ranking import FAST_P, rank_by_author, roofline_share_of
from flashinfer_bench.report.summary import SummaryRow, summarise
from flashinfer_bench.report.timing import MEANINGS, QUICK, flags_in
from flashinfer_bench.report.verdict import caveat_in, reason_of
from flashinfer_bench.roofline.peaks import find_peak
from flashinfer_bench.roofline.workloads import cost_of_workload

MOST_CHIPS: Final = 40
"""Maximum flags of one verdict on a page, and also the maximum libraries."""
MOST_POINTS: Final = 200
"""Maximum times of one job in a history."""


def describe_overview(trace_set: TraceSet, results: Sequence[Result], ranked: Sequence[Result]) -> dict[str, Any]:
    """Return the data of the first page and of the leaderboard. `ranked` has the leaderboard's baseline."""
    definitions, solutions = [], group(results, attrgetter("definition", "solution", "hardware"))
    names = {(item.definition, item.name) for item in trace_set.all_solutions()} | {key[:2] for key in solutions}
    counts = Counter(name for name, _ in names)
    for name in dict.fromkeys([*trace_set.definitions, *map(attrgetter("definition"), results)]):
        known = trace_set.definitions.get(name)
        definitions.append([id_of(name), name, known.op_type if known is not None else "", counts[name]])
    return {
        "weighted": differ(item.weight for item in results),
        "definitions": definitions,
        "solutions": [
            _describe_row(row, solutions[row.definition, row.solution, row.hardware]) for row in summarise(results)
        ],
        "flags": list(MEANINGS.items()),
        "bounds": BOUNDS,
        "p": FAST_P,
        "baseline": trace_set.baseline_author or "",
        "ranking": list(map(asdict, rank_by_author(ranked, trace_set.baseline_author))),
    }


def _describe_row(row: SummaryRow, items: Sequence[Result]) -> dict[str, Any]:
    mean = mean_speedup(item for item in items if item.is_ranked)
    return {
        **{name: getattr(row, name) for name in ("definition", "solution", "hardware", "passed", "judged", "standing")},
        "id": id_of(row.definition, row.solution),
        "did": id_of(row.definition),
        "author": items[0].author,
        "latency": None if row.timing_caveat else row.latency_ms,
        "speedup": mean and asdict(mean),
        "share": roofline_share_of(items),
        "failure": row.failures[0].status if row.failures else "",
        "quick": QUICK in row.timing.flags,
    }


def describe_definition(trace_set: TraceSet, name: str, everything: Sequence[Result]) -> dict[str, Any]:
    """Return the data of a definition's page. If the set lacks the definition, the page shows only the traces.

    Args:
        trace_set: the set.
        name: the definition's name.
        everything: the definition's results, including repeated ones. Repeated results appear only in the history.
    """
    results = [item for item in everything if item.is_latest]
    definition = trace_set.definitions.get(name)
    workloads = {trace.workload.uuid: trace.workload for trace in trace_set.workloads.get(name, [])}
    for result in results:
        workloads.setdefault(result.workload, result.trace.workload)
    hardware = list(dict.fromkeys(result.hardware for result in results))
    order = {uuid: index for index, uuid in enumerate(workloads)}
    rows = []
    for uuid, workload in workloads.items():
        root = trace_set.blob_root(name, uuid) or trace_set.root or Path()
        cost = cost_of_workload(definition, workload, root) if definition is not None else None
        known = (cost.flops, cost.bytes, cost.unit) if cost is not None else (None, None, "")
        rows.append([uuid, dict(workload.axes), *known])
    peaks = map(find_peak, hardware)
    return {
        "id": id_of(name),
        "name": name,
        "text": definition and definition.to_dict() | {"reference": colour("reference.py", definition.reference)},
        "hardware": hardware,
        "peaks": [peak and {"name": peak.label, "tflops": dict(peak.tflops), "tb": peak.tb_per_sec} for peak in peaks],
        "workloads": rows,
        "series": [
            {
                "id": id_of(name, solution),
                "name": solution,
                "author": items[0].author,
                "h": hardware.index(device),
                "speedup": mean and asdict(mean),
                "rows": [
                    [order[item.workload], item.status, *_numbers(item), item.is_ranked, item.standing, item.weight]
                    for item in items
                ],
            }
            for (solution, device), items in group(results, attrgetter("solution", "hardware")).items()
            for mean in [mean_speedup(item for item in items if item.measurement.meaningful)]
        ],
        "history": [
            [id_of(name, solution), hardware.index(device), order[workload], points]
            for (solution, device, workload), points in _list_points(everything).items()
        ],
    }


def _list_points(results: Sequence[Result]) -> dict[tuple[str, str, str], list[list[Any]]]:
    """Return the latest times of each job with more than one time: seconds since 1970, latency, and the latency's
    interval."""
    ranked = (item for item in results if item.is_ranked)
    timed = [(moment, item) for item in ranked if (moment := parse_time(item.evaluation.timestamp))]
    found: dict[tuple[str, str, str], list[list[Any]]] = {}
    for moment, item in sorted(timed, key=itemgetter(0)):
        job = (item.solution, item.hardware, item.workload)
        found.setdefault(job, []).append([int(moment.timestamp()), *_numbers(item)[:3]])
    return {job: points[-MOST_POINTS:] for job, points in found.items() if len(points) > 1}


def describe_solution(solution: Solution | None, results: Sequence[Result]) -> dict[str, Any]:
    """Return the data of a solution's page. The solution may be missing in the set."""
    first = results[0]
    logs: dict[str, int] = {}
    text = None
    if solution is not None:
        sources = [[item.path, colour(item.path, item.content)] for item in solution.sources]
        text = solution.to_dict() | {"digest": solution.digest(), "sources": sources}
    return {
        "id": id_of(first.definition, first.solution),
        "name": first.solution,
        "definition": first.definition,
        "d": id_of(first.definition),
        "author": first.author,
        "verdicts": [_describe_verdict(result, logs) for result in results],
        "logs": list(logs),
        "text": text,
    }


def _numbers(item: Result) -> list[float | None]:
    """Return the latency with its interval, the speed-up, the share of the roofline, and the interval of the speed-up.
    All values are None if the time is not meaningful."""
    interval, mean = interval_of(item), mean_speedup([item])
    bounds = (interval.low_ms, interval.high_ms) if interval is not None else (None, None)
    numbers = [item.latency_ms, *bounds, item.speedup, item.reported.roofline.share]
    numbers += [mean and mean.low, mean and mean.high]
    return numbers if item.measurement.meaningful else [None] * len(numbers)


def _describe_verdict(result: Result, logs: dict[str, int]) -> dict[str, Any]:
    evaluation, measured = result.evaluation, result.measurement
    details = to_builtins(measured) | {
        "standing": result.standing,
        "evaluator": result.reported.evaluator,
        "seed": result.reported.run.seed,
        "max_absolute_error": getattr(evaluation.correctness, "max_absolute_error", None),
        "max_relative_error": getattr(evaluation.correctness, "max_relative_error", None),
    }
    latency, low, high, speedup, share, *ends = _numbers(result)
    reference = result.reference_ms if measured.meaningful else None
    libraries = list(evaluation.environment.libs.items())[:MOST_CHIPS]
    flags = flags_in(result.reported)[:MOST_CHIPS]
    return {
        "w": result.workload,
        "axes": ", ".join(f"{name}={size}" for name, size in result.trace.workload.axes.items()),
        "hardware": result.hardware,
        "status": result.status,
        "reason": (caveat_in(measured) or "") if result.is_passed else reason_of(evaluation),
        "when": evaluation.timestamp,
        "ranked": result.is_ranked,
        "n": [latency, low, high, reference, speedup, share, *ends],
        "flags": flags if result.is_passed else [],
        "details": {word: value for word, value in details.items() if not isinstance(value, (list, dict))},
        "libs": ", ".join(f"{name} {version}" for name, version in libraries),
        "log": logs.setdefault(evaluation.log, len(logs)) if evaluation.log else -1,
    }
