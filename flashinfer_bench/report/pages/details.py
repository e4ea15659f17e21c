"""The data of a definition's page and of a solution's page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.data import Definition, Solution, TraceSet
from flashinfer_bench.data.definition import AxisConst, AxisExpr, TensorSpec
from flashinfer_bench.data.measurement import BOUNDS, INDICATIVE
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.report.pages.highlight import colour
from flashinfer_bench.report.pages.texts import block_of, id_of, line_of
from flashinfer_bench.report.results import Result
from flashinfer_bench.report.timing import read_told
from flashinfer_bench.report.verdict import caveat_in, reason_of
from flashinfer_bench.roofline.peaks import find_peak
from flashinfer_bench.roofline.workloads import cost_of_workload

DIGITS: Final = 6
"""Numbers in data have this many significant digits."""
MOST_CHIPS: Final = 40
"""A page lists this many flags, libraries or facts of one verdict."""


def short(value: float | None) -> float | None:
    """Return a number with few digits; None for what JSON has no number for."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def describe_definition(trace_set: TraceSet, name: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return the data of a definition's page. The set need not have the definition: traces may be all there is."""
    definition = trace_set.definitions.get(name)
    workloads = {trace.workload.uuid: trace.workload for trace in trace_set.workloads.get(name, [])}
    for result in results:
        workloads.setdefault(result.workload, result.trace.workload)
    axes = _axis_names(definition, list(workloads.values()))
    hardware = list(dict.fromkeys(result.hardware for result in results))
    root = trace_set.root or Path()
    order = {uuid: index for index, uuid in enumerate(workloads)}
    return {
        "id": id_of(name),
        "name": line_of(name),
        "text": _text_of(definition),
        "axes": [line_of(axis) for axis in axes],
        "hardware": [line_of(item) for item in hardware],
        "cpu": cpus_of(results),
        "peaks": [_peak_of(item) for item in hardware],
        "workloads": [
            _workload_entry(definition, workload, axes, trace_set.blob_root(name, uuid) or root)
            for uuid, workload in workloads.items()
        ],
        "series": _series(results, order, hardware),
    }


def cpus_of(results: Sequence[Result]) -> list[str]:
    """Return the hardware all of whose ranked results are of a CPU."""
    standings: defaultdict[str, set[str]] = defaultdict(set)
    for result in results:
        standings[line_of(result.hardware)].add(result.standing)
    return [hardware for hardware, found in standings.items() if found - {""} == {INDICATIVE}]


def describe_solution(solution: Solution | None, name: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return the data of a solution's page. The set need not have the solution."""
    logs: dict[str, int] = {}
    verdicts = [_verdict(result, logs) for result in results]
    text: dict[str, Any] = {"name": line_of(name), "verdicts": verdicts, "logs": [block_of(log) for log in logs]}
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
        "facts": [[key, line_of(value)] for key, value in facts.items() if value],
        "sources": [[line_of(item.path), colour(item.path, item.content)] for item in solution.sources],
    }


def _text_of(definition: Definition | None) -> dict[str, Any]:
    if definition is None:
        return {"missing": True}
    return {
        "op_type": line_of(definition.op_type),
        "description": block_of(definition.description),
        "tags": [line_of(tag) for tag in definition.tags],
        "axes": [[line_of(name), *_axis(axis)] for name, axis in definition.axes.items()],
        "inputs": [_tensor(name, spec) for name, spec in definition.inputs.items()],
        "outputs": [_tensor(name, spec) for name, spec in definition.outputs.items()],
        "constraints": [line_of(item) for item in definition.constraints],
        "reference": colour("reference.py", definition.reference),
    }


def _axis(axis: Any) -> list[str]:
    size = str(axis.value) if isinstance(axis, AxisConst) else ""
    size = line_of(axis.expression) if isinstance(axis, AxisExpr) else size
    return [axis.type, size, line_of(axis.description or "")]


def _tensor(name: str, spec: TensorSpec) -> list[str]:
    shape = "scalar" if spec.shape is None else f"[{', '.join(spec.shape)}]"
    return [line_of(name), line_of(shape), spec.dtype, line_of(spec.description or "")]


def _axis_names(definition: Definition | None, workloads: Sequence[Workload]) -> list[str]:
    """Return the axes that workloads give, the one with the most sizes first: latency is drawn over it."""
    names = list(dict.fromkeys(name for workload in workloads for name in workload.axes))
    known = definition.var_axes if definition is not None else names
    kept = [name for name in names if name in known] or names
    return sorted(kept, key=lambda name: -len({workload.axes.get(name) for workload in workloads}))


def _workload_entry(definition: Definition | None, workload: Workload, axes: Sequence[str], root: Path) -> list[Any]:
    """Return uuid, axes, FLOPs, bytes and unit of a workload."""
    cost = cost_of_workload(definition, workload, root) if definition is not None else None
    known = [short(cost.flops), short(cost.bytes), cost.unit] if cost is not None else [None, None, ""]
    return [line_of(workload.uuid), [workload.axes.get(name) for name in axes], *known]


def _peak_of(hardware: str) -> dict[str, Any] | None:
    peak = find_peak(hardware)
    return None if peak is None else {"name": peak.label, "tflops": dict(peak.tflops), "tb": peak.tb_per_sec}


def _series(results: Sequence[Result], order: Mapping[str, int], hardware: Sequence[str]) -> list[dict[str, Any]]:
    groups: defaultdict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.solution, result.hardware].append(result)
    return [
        {
            "id": id_of(items[0].definition, name),
            "name": line_of(name),
            "author": line_of(items[0].author),
            "h": hardware.index(place),
            "rows": [_point(item, order) for item in items],
        }
        for (name, place), items in groups.items()
    ]


def _point(item: Result, order: Mapping[str, int]) -> list[Any]:
    """Return workload, verdict, latency with its interval, speed-up, share of the roofline, rank and standing."""
    numbers = [item.latency_ms, item.low_ms, item.high_ms, item.speedup, item.share]
    if not item.told.measurement.meaningful:
        numbers = [None] * len(numbers)
    return [order[item.workload], item.status, *map(short, numbers), int(item.is_ranked), item.standing]


def _verdict(result: Result, logs: dict[str, int]) -> dict[str, Any]:
    evaluation, measured = result.evaluation, result.told.measurement
    told = read_told(evaluation)
    numbers = ("latency_ms", "low_ms", "high_ms", "reference_ms", "speedup", "share")
    details = {
        "clock": measured.method,
        "caches": measured.cache_state,
        "launch": measured.launch,
        "fall-back": measured.fallback,
        "readings": short(measured.samples),
        "trials": short(result.told.interval.trials),
        "median ms": short(measured.median_ms),
        "quartiles ms": _pair(measured.q25_ms, measured.q75_ms),
        "standing": result.standing,
        "assurance": measured.assurance,
        "bound by": BOUNDS.get(measured.bound, measured.bound),
        "outside ms": short(measured.outside_ms),
        "gated chain ms": short(measured.relay_ms),
        "batch ms": short(measured.burst_ms),
        "unconfirmed": measured.why_not,
        "setup ms": short(measured.setup_ms),
        "evaluator": result.told.evaluator,
        "seed": None if result.told.run.seed is None else str(result.told.run.seed),
    }
    correctness = evaluation.correctness
    if correctness is not None:
        details["largest absolute error"] = _number(correctness.max_absolute_error)
        details["largest relative error"] = _number(correctness.max_relative_error)
    libraries = list(evaluation.environment.libs.items())[:MOST_CHIPS]
    return {
        "w": line_of(result.workload),
        "axes": line_of(", ".join(f"{name}={size}" for name, size in result.trace.workload.axes.items())),
        "hardware": line_of(result.hardware),
        "status": result.status,
        "reason": (caveat_in(measured) or "") if result.is_passed else line_of(reason_of(evaluation)),
        "when": line_of(evaluation.timestamp),
        "ranked": int(result.is_ranked),
        "n": [short(getattr(result, name)) if measured.meaningful else None for name in numbers],
        "flags": [line_of(flag) for flag in (*measured.flags, *told.marks)][:MOST_CHIPS] if result.is_passed else [],
        "details": [[key, _told(value)] for key, value in details.items() if value is not None and value != ""],
        "libs": line_of(", ".join(f"{name} {version}" for name, version in libraries)),
        "log": logs.setdefault(evaluation.log, len(logs)) if evaluation.log else -1,
    }


def _told(value: object) -> str:
    return line_of(value) if isinstance(value, str) else str(value)


def _pair(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.{DIGITS}g} to {high:.{DIGITS}g}"


def _number(value: float) -> str:
    return f"{value:.{DIGITS}g}"
