"""Traces as files of benchmark trackers: Bencher, github-action-benchmark and the PyTorch benchmark database.

A tracker gets the latest verdicts that passed with a meaningful time, without quick looks. Failures are omitted,
because a tracker would draw them as times. The name of a benchmark consists of definition, solution, workload and
hardware. So no chart mixes times from different hardware.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final

from flashinfer_bench.data.sets.results import Result
from flashinfer_bench.report.timing import QUICK

NOT_MEANINGFUL: Final = "not meaningful"
NS_PER_MS: Final = 1e6
US_PER_MS: Final = 1e3
DIGITS: Final = 8
"""Significant digits of a time. No clock has a finer resolution."""


def track(form: str, results: Sequence[Result]) -> tuple[Any, int, Counter[str]]:
    """Return the document of a format of `TRACKERS`, the number of rows, and reason → number of omitted verdicts."""
    rows = [item for item in results if item.is_ranked]
    left_out = Counter(
        item.status if not item.is_passed else QUICK if item.reported.run.quick else NOT_MEANINGFUL
        for item in results
        if not item.is_ranked
    )
    return TRACKERS[form](rows), len(rows), left_out


def _name(item: Result) -> str:
    return "/".join((item.definition, item.solution, item.workload, item.hardware))


def _times(item: Result, per_ms: float) -> list[float]:
    """Return the latency, followed by finite bounds of the latency's interval."""
    bounds = item.measurement.bounds or ()
    times = [float(f"{time * per_ms:.{DIGITS}g}") for time in (item.latency_ms or 0.0, *bounds)]
    return times if all(map(isfinite, times)) else times[:1]


def _to_bencher(results: Iterable[Result]) -> dict[str, Any]:
    """Return Bencher Metric Format: benchmark → measure → value. Bencher's measure `latency` is in nanoseconds."""
    bounds = ("value", "lower_value", "upper_value")
    return {
        _name(item): {"latency": dict(zip(bounds, _times(item, NS_PER_MS), strict=False))}
        | ({"speedup": {"value": item.speedup}} if item.speedup else {})
        for item in results
    }


def _to_action(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the list of github-action-benchmark's tool `customSmallerIsBetter`."""
    entries = []
    for item in results:
        value, *bounds = _times(item, US_PER_MS)
        interval = {"range": " to ".join(map(str, bounds))} if bounds else {}
        extra = "\n".join(map(": ".join, _describe(item).items()))
        entries.append({"name": _name(item), "unit": "us", "value": value, **interval, "extra": extra})
    return entries


def _to_pytorch(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return records for version 3 of PyTorch's benchmark database: one for each metric of a result."""
    return [
        {
            "benchmark": {"name": "flashinfer_bench", "mode": "inference", "extra_info": _describe(item)},
            "model": {"name": item.definition, "type": item.op_type, "backend": item.solution},
            "metric": {"name": name, "benchmark_values": [value]},
            "runners": [{"name": item.hardware}],
        }
        for item in results
        for name, value in (("latency_us", _times(item, US_PER_MS)[0]), ("speedup", item.speedup))
        if value
    ]


def _describe(item: Result) -> dict[str, str]:
    """Return the conditions of a time. All values are texts."""
    words = {name: getattr(item, name) for name in ("workload", "author", "hardware", "standing")}
    words |= {name: getattr(item.measurement, name) for name in ("method", "cache_state", "launch")}
    return {name: text for name, text in words.items() if text}


TRACKERS: Final[Mapping[str, Callable[[Iterable[Result]], Any]]] = {
    "bmf": _to_bencher,
    "github-action-benchmark": _to_action,
    "pytorch": _to_pytorch,
}
"""Format → the function that makes the document."""
