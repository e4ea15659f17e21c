"""Counts and describes the timing of several traces: methods, fall-backs, bounds and flags of the measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.data.measurement import BOUNDS, ReportedTrace
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.timing.flags import FLAGS
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, FALLING_BACK

QUICK: Final = "quick"
MEANINGS: Final = {
    **FLAGS,
    "noisy_reference": "the reference's time is noisy, and so is the speed-up",
    "older_protocol": "the verdict is of an older way to call and time; run --resume judges it again",
    "no_sandbox": "the solution was judged without a sandbox, so it could reach all that its user can",
    QUICK: "a quick look, with few samples: it is never the best, and run --resume judges again",
}
"""Flag → meaning. Flags about the solution's time come first, then flags about the reference's time, then flags about
the verdict."""
METHODS: Final = {"cupti": "CUPTI", "cuda_events": "CUDA events", "wall": "the wall clock"}
"""The display names of clocks."""


@dataclass(frozen=True)
class Timing:
    """The timing of the passed workloads of a row. Values are numbers of workloads."""

    ways: Mapping[str, int]
    """Way of timing, such as "by CUPTI, cold L2" → number of workloads. Workloads without a timing record are
    skipped."""
    replays: int
    """Number of workloads timed as replays of CUDA graphs."""
    unknown: int
    """Number of workloads without a timing record."""
    flags: Mapping[str, int]
    """Flag → number of workloads. A time that is not meaningful has no flags."""
    bounds: Mapping[str, int]
    """Bound, such as "a gated chain of calls at standard assurance" → number of workloads. Traces without a bound, from
    earlier versions, are skipped."""


def count_timing(reported: Sequence[ReportedTrace]) -> Timing:
    """Count the timings of evaluations with a performance."""
    records = [item.measurement for item in reported]
    known = [record for record in records if record.method]
    real = [record for record in records if record.meaningful]
    return Timing(
        ways=_count(_describe_way(record.method, record.cache_state, record.fallback) for record in known),
        replays=sum(record.launch == "graph" for record in known),
        unknown=len(records) - len(known),
        flags=_sort(_count(flag for item in reported for flag in flags_in(item))),
        bounds=_count(_describe_bound(record.bound, record.assurance) for record in real if record.bound),
    )


def flags_in(reported: ReportedTrace) -> list[str]:
    """Return the flags of a verdict with a performance. A time that is not meaningful has no flags.

    A verdict of another engine has no fingerprint, so only flags about times apply.
    """
    measured, known = reported.measurement, reported.run.fingerprint
    conditions = {
        "noisy_reference": measured.meaningful and "noisy" in reported.baseline.flags,
        "older_protocol": known and known.get("protocol") != str(PROTOCOL),
        "no_sandbox": known.get("sandbox") == "none",
        QUICK: known and reported.run.quick,
    }
    return [*(measured.flags if measured.meaningful else ()), *filter(conditions.get, conditions)]


def join_timings(timings: Sequence[Timing]) -> Timing:
    """Return the timing of all rows together."""
    ways, flags, bounds = (
        sum((Counter(getattr(timing, name)) for timing in timings), Counter[str]())
        for name in ("ways", "flags", "bounds")
    )
    replays, unknown = (sum(getattr(timing, name) for timing in timings) for name in ("replays", "unknown"))
    return Timing(ways, replays, unknown, _sort(flags), bounds)


def describe_ways(timing: Timing) -> str | None:
    """Return a line on the timing of the rows; None if no trace has a record."""
    ways, unknown, replays = Counter(timing.ways), timing.unknown, timing.replays
    count = ways.total() + unknown
    parts = [way if number == count else f"{number} of {count} {way}" for way, number in ways.most_common()]
    parts += [f"{unknown} of {count} do not say how"] if unknown else []
    graphs = f", {'all' if replays == count else f'{replays} of them'} as replays of CUDA graphs" if replays else ""
    return f"timed {'; '.join(parts)}{graphs}" if ways else None


def describe_bounds(timing: Timing) -> str | None:
    """Return a line on the bounds and the assurance of latencies; None if no trace has bounds."""
    bounds = Counter(timing.bounds).most_common()
    parts = [f"{bound} ({number})" if len(bounds) > 1 else bound for bound, number in bounds]
    return f"bound of the latencies: {', '.join(parts)}" if bounds else None


def describe_flag(flag: str, timing: Timing) -> str:
    """Return the meaning of a flag, and the number of measurements with the flag: one for each verdict."""
    count = timing.unknown + sum(timing.ways.values())
    return f"{flag}, {timing.flags[flag]} of {count} measurements" + (f": {MEANINGS[flag]}" if flag in MEANINGS else "")


@lru_cache(1 << 10)
def _describe_way(method: str, cache_state: str, fallback: str) -> str:
    clock, caches = METHODS.get(method, method), f", {cache_state} L2" if cache_state and method != "wall" else ""
    reason = "" if fallback == EVENTS_ASKED_FOR else fallback.removesuffix(f". {FALLING_BACK}")
    return to_one_line(f"by {clock}{caches}{f' ({reason})' if reason else ''}")


@lru_cache(1 << 10)
def _describe_bound(bound: str, assurance: str) -> str:
    return to_one_line(f"{BOUNDS.get(bound, bound)}{f' at {assurance} assurance' if assurance else ''}")


def _sort(flags: Mapping[str, int]) -> dict[str, int]:
    """Return the flags in the order of their meanings, then all unknown flags."""
    return {flag: flags[flag] for flag in (*MEANINGS, *sorted(flags.keys() - MEANINGS.keys())) if flag in flags}


def _count(words: Iterable[str]) -> dict[str, int]:
    return {to_one_line(word): number for word, number in Counter(words).items() if word}
