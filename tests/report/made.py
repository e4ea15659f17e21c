"""Traces whose `extra` has a timing record."""

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.report import summary
from tests.kit import make_definition, make_solution, make_trace, make_workload

GPU = {"method": "cupti", "cache_state": "cold", "launch": "stream"}
FULL = {"method": "cupti", "assurance": "full", "bound": "batch"}
STANDARD = {"method": "cupti", "assurance": "standard", "bound": "chain"}
CPU = {"method": "wall", "bound": "none"}
UNREAL = {"meaningful": False, "reason": "an interpreter ran it"}


def on(uuid="w0", solution="x", latency=1.0, speedup=None, *, record=FULL, half=None, hardware="GPU", **parts):
    """Make a trace on one workload.

    Args:
        speedup: speed-up over the reference, which takes 8 ms by default.
        record: the measurement; None for a trace of another engine.
        half: half the interval as a share of the latency.
        parts: parts of the evaluation; `run`, `baseline` and the like go to `extra`.
    """
    extra = {name: parts.pop(name) for name in ("run", "baseline", "baseline_compile", "roofline") if name in parts}
    if record is not None:
        bounds = [latency * (1 - half), latency * (1 + half)] if half is not None else None
        extra["measurement"] = record | ({"interval95_ms": bounds, "interval": "workers"} if bounds else {})
    parts = {"environment": {"hardware": hardware, "libs": {}}, "extra": extra} | parts
    speedup = 8.0 / latency if speedup is None else speedup
    return make_trace(workload=make_workload(uuid), solution=solution, latency_ms=latency, speedup=speedup, **parts)


def set_of(*traces, names=()):
    """Make a set of `double` with these traces; the author of a solution "x" is "by_x"."""
    names = dict.fromkeys([*names, *(trace.solution for trace in traces)])
    return TraceSet(
        definitions={"double": make_definition()},
        solutions={"double": [make_solution(name, author=f"by_{name}") for name in names]},
        traces={"double": list(traces)},
    )


def summarise(traces, expected=None, trace_set=None):
    return summary.summarise(list_results(trace_set, traces), expected, trace_set)


def best_by_workload(traces, *by, trace_set=None):
    return summary.best_by_workload(list_results(trace_set, traces), *by)


def best_by_definition(traces, *by):
    return summary.best_by_definition(list_results(None, traces), *by)
