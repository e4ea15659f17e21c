"""The data of the overview, of a definition's page and of a solution's page, before texts are cleaned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final

from flashinfer_bench.data import Definition, Solution, TraceSet
from flashinfer_bench.data.definition import AxisConst, AxisExpr, TensorSpec
from flashinfer_bench.data.measurement import BOUNDS, INDICATIVE, join_standings
from flashinfer_bench.data.sets.results import Result, group
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.report.intervals import interval_of
from flashinfer_bench.report.pages.highlight import colour
from flashinfer_bench.report.pages.texts import DIGITS, block_of, id_of
from flashinfer_bench.report.ranking import FAST_P, rank_by_author, roofline_share_of, speedup_of
from flashinfer_bench.report.timing import MEANINGS, marks_of_run
from flashinfer_bench.report.verdict import caveat_in, reason_of
from flashinfer_bench.roofline.peaks import find_peak
from flashinfer_bench.roofline.workloads import cost_of_workload

MOST_CHIPS: Final = 40
"""A page lists this many flags, libraries or facts of one verdict."""


def describe_overview(trace_set: TraceSet, results: Sequence[Result], baseline_author: str | None) -> dict[str, Any]:
    """Return what the first page and the leaderboard show."""
    definitions = []
    for name in dict.fromkeys([*trace_set.definitions, *map(attrgetter("definition"), results)]):
        known = trace_set.definitions.get(name)
        workloads = len(trace_set.workloads.get(name, []))
        definitions.append([id_of(name), name, known.op_type if known is not None else "", workloads])
    flags = {flag for result in results for flag in result.measurement.flags} | set(MEANINGS)
    solutions = group(results, attrgetter("definition", "solution", "hardware")).values()
    return {
        "definitions": definitions,
        "solutions": list(map(_solution_entry, solutions)),
        "flags": [[flag, MEANINGS.get(flag, "")] for flag in sorted(flags)],
        "p": FAST_P,
        "baseline": baseline_author or "",
        "cpu": _cpus_of(results),
        "ranking": [asdict(row) for row in rank_by_author(results, baseline_author)],
    }


def _solution_entry(items: Sequence[Result]) -> list[Any]:
    """Return what tables show of a solution on one kind of hardware; `ROW` in 4_overview.js names the places."""
    first = items[0]
    mean = speedup_of(items)
    timed = [item.latency_ms for item in items if item.measurement.meaningful]
    latencies = [latency for latency in timed if latency is not None]
    failed = [item.status for item in items if not item.is_passed]
    return [
        *(id_of(first.definition, first.solution), first.solution, id_of(first.definition)),
        *(first.definition, first.author, first.hardware),
        *(sum(item.is_passed for item in items), len(items)),
        median(latencies) if latencies else None,
        *((mean.value, mean.low, mean.high) if mean is not None else (None, None, None)),
        roofline_share_of(items),
        max(set(failed), key=failed.count) if failed else "",
        int(any(item.told.run.quick for item in items)),
        join_standings(item.standing for item in items),
    ]


def _cpus_of(results: Iterable[Result]) -> list[str]:
    """Return the hardware all of whose ranked results are of a CPU."""
    groups = group(results, attrgetter("hardware"))
    return [name for name, items in groups.items() if {item.standing for item in items} - {""} == {INDICATIVE}]


def describe_definition(trace_set: TraceSet, name: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return the data of a definition's page. The set need not have the definition: traces may be all there is."""
    definition = trace_set.definitions.get(name)
    workloads = {trace.workload.uuid: trace.workload for trace in trace_set.workloads.get(name, [])}
    for result in results:
        workloads.setdefault(result.workload, result.trace.workload)
    axes = _axis_names(definition, list(workloads.values()))
    hardware = list(dict.fromkeys(result.hardware for result in results))
    order = {uuid: index for index, uuid in enumerate(workloads)}
    rows = []
    for uuid, workload in workloads.items():
        root = trace_set.blob_root(name, uuid) or trace_set.root or Path()
        cost = cost_of_workload(definition, workload, root) if definition is not None else None
        known = (cost.flops, cost.bytes, cost.unit) if cost is not None else (None, None, "")
        rows.append([uuid, [workload.axes.get(axis) for axis in axes], *known])
    peaks = [find_peak(item) for item in hardware]
    return {
        "id": id_of(name),
        "name": name,
        "text": _text_of(definition) if definition is not None else {"missing": True},
        "axes": axes,
        "hardware": hardware,
        "cpu": _cpus_of(results),
        "peaks": [peak and {"name": peak.label, "tflops": dict(peak.tflops), "tb": peak.tb_per_sec} for peak in peaks],
        "workloads": rows,
        "series": [
            {
                "id": id_of(name, solution),
                "name": solution,
                "author": items[0].author,
                "h": hardware.index(place),
                "rows": [
                    [order[item.workload], item.status, *_numbers(item), int(item.is_ranked), item.standing]
                    for item in items
                ],
            }
            for (solution, place), items in group(results, attrgetter("solution", "hardware")).items()
        ],
    }


def _text_of(definition: Definition) -> dict[str, Any]:
    axes = []
    for name, axis in definition.axes.items():
        size = axis.value if isinstance(axis, AxisConst) else axis.expression if isinstance(axis, AxisExpr) else ""
        axes.append([name, axis.type, str(size), axis.description or ""])
    return {
        "op_type": definition.op_type,
        "description": block_of(definition.description),
        "tags": definition.tags,
        "axes": axes,
        "inputs": _tensors(definition.inputs),
        "outputs": _tensors(definition.outputs),
        "constraints": definition.constraints,
        "reference": colour("reference.py", definition.reference),
    }


def _tensors(specs: dict[str, TensorSpec]) -> list[list[str]]:
    return [
        [name, "scalar" if spec.shape is None else f"[{', '.join(spec.shape)}]", spec.dtype, spec.description or ""]
        for name, spec in specs.items()
    ]


def _axis_names(definition: Definition | None, workloads: Sequence[Workload]) -> list[str]:
    """Return the axes that workloads give, the one with the most sizes first: latency is drawn over it."""
    names = list(dict.fromkeys(name for workload in workloads for name in workload.axes))
    known = definition.var_axes if definition is not None else names
    kept = [name for name in names if name in known] or names
    return sorted(kept, key=lambda name: -len({workload.axes.get(name) for workload in workloads}))


def describe_solution(solution: Solution | None, results: Sequence[Result]) -> dict[str, Any]:
    """Return the data of a solution's page. The set need not have the solution."""
    first = results[0]
    logs: dict[str, int] = {}
    text: dict[str, Any] = {
        "id": id_of(first.definition, first.solution),
        "name": first.solution,
        "definition": first.definition,
        "d": id_of(first.definition),
        "author": first.author,
        "verdicts": [_verdict(result, logs) for result in results],
        "logs": list(map(block_of, logs)),
    }
    if solution is None:
        return {**text, "missing": True, "sources": []}
    spec = solution.spec
    facts = {
        "language": spec.language.value,
        "entry point": spec.entry_point,
        "target hardware": ", ".join(spec.target_hardware),
        "dependencies": ", ".join(spec.dependencies),
        "binding": spec.binding.value if spec.binding else "",
        "digest": solution.digest(),
    }
    return {
        **text,
        "description": block_of(solution.description),
        "facts": [[key, value] for key, value in facts.items() if value],
        "sources": [[item.path, colour(item.path, item.content)] for item in solution.sources],
    }


def _numbers(item: Result) -> list[float | None]:
    """Return latency, its interval, speed-up and share of the roofline; nothing if the time means nothing."""
    interval = interval_of(item.latency_ms, item.measurement)
    bounds = (interval.low_ms, interval.high_ms) if interval is not None else (None, None)
    numbers = [item.latency_ms, *bounds, item.speedup, item.told.roofline.share]
    return numbers if item.measurement.meaningful else [None] * len(numbers)


def _verdict(result: Result, logs: dict[str, int]) -> dict[str, Any]:
    evaluation, measured, run = result.evaluation, result.measurement, result.told.run
    correctness = evaluation.correctness
    quartiles = [f"{bound:.{DIGITS}g}" for bound in (measured.q25_ms, measured.q75_ms) if bound is not None]
    details = {
        "clock": measured.method,
        "caches": measured.cache_state,
        "launch": measured.launch,
        "fall-back": measured.fallback,
        "readings": measured.samples,
        "trials": measured.trials,
        "median ms": measured.median_ms,
        "quartiles ms": " to ".join(quartiles) if len(quartiles) == 2 else "",
        "standing": result.standing,
        "assurance": measured.assurance,
        "bound by": BOUNDS.get(measured.bound, measured.bound),
        "outside ms": measured.outside_ms,
        "gated chain ms": measured.relay_ms,
        "batch ms": measured.burst_ms,
        "unconfirmed": measured.why_unconfirmed,
        "setup ms": measured.setup_ms,
        "evaluator": result.told.evaluator,
        "seed": run.seed,
        "largest absolute error": correctness.max_absolute_error if correctness is not None else None,
        "largest relative error": correctness.max_relative_error if correctness is not None else None,
    }
    latency, low, high, speedup, share = _numbers(result)
    reference = result.reference_ms if measured.meaningful else None
    libraries = list(evaluation.environment.libs.items())[:MOST_CHIPS]
    flags = [*measured.flags, *marks_of_run(run)][:MOST_CHIPS]
    return {
        "w": result.workload,
        "axes": ", ".join(f"{name}={size}" for name, size in result.trace.workload.axes.items()),
        "hardware": result.hardware,
        "status": result.status,
        "reason": (caveat_in(measured) or "") if result.is_passed else reason_of(evaluation),
        "when": evaluation.timestamp,
        "ranked": int(result.is_ranked),
        "n": [latency, low, high, reference, speedup, share],
        "flags": flags if result.is_passed else [],
        "details": [[key, _fact(value)] for key, value in details.items() if value is not None and value != ""],
        "libs": ", ".join(f"{name} {version}" for name, version in libraries),
        "log": logs.setdefault(evaluation.log, len(logs)) if evaluation.log else -1,
    }


def _fact(value: object) -> str:
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
