"""How times came about: methods, fall-backs and flags of the measurements of several traces, counted and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.data.measurement import BOUNDS, FingerprintRecord, ReportedTrace, RunRecord, read_reported
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.timing.flags import FLAGS
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, reason_of_fallback

QUICK: Final = "quick"
MEANINGS: Final = {
    **FLAGS,
    "older_protocol": "the verdict is of an older way to call and time; run --resume judges it again",
    "no_walls": "the solution was judged without walls, so it could reach what its user may",
    QUICK: "a quick look, with few readings: it is never the best, and run --resume judges again",
}
"""Flags of measurements, then those of verdicts, in the order in which tables list them."""
METHODS: Final = {"cupti": "CUPTI", "cuda_events": "CUDA events", "wall": "the wall clock"}
"""The names of clocks, as a reader knows them."""


@dataclass(frozen=True)
class Timing:
    """How the passed workloads of a row were timed. Each table has a number of workloads by a word."""

    ways: Mapping[str, int]
    """By "by CUPTI, cold L2" and the like; workloads that do not say how they were timed are left out."""
    replays: int
    """Workloads that were timed as replays of CUDA graphs."""
    unknown: int
    """Workloads whose trace does not say how it was timed."""
    flags: Mapping[str, int]
    """Workloads whose time means nothing are left out."""
    bounds: Mapping[str, int]
    """By "by a gated chain of calls at standard assurance" and the like; older traces do not say."""


def read_timing(passed: Iterable[AnyEvaluation]) -> Timing:
    """Count how passed evaluations were timed."""
    return count_timing([read_reported(item) for item in passed if item.performance is not None])


def count_timing(reported: Sequence[ReportedTrace]) -> Timing:
    """Count how evaluations with a performance were timed."""
    records = [item.measurement for item in reported]
    known = [record for record in records if record.method]
    real = [record for record in records if record.meaningful]
    marks = (mark for item in reported for mark in marks_of_run(item.run))
    flags = _count([*(flag for record in real for flag in record.flags), *marks])
    return Timing(
        ways=_count(_describe_way(record.method, record.cache_state, record.fallback) for record in known),
        replays=sum(record.launch == "graph" for record in known),
        unknown=len(records) - len(known),
        flags={flag: flags[flag] for flag in _sort(flags)},
        bounds=_count(_describe_bound(record.bound, record.assurance) for record in real if record.bound),
    )


def marks_of_run(run: RunRecord) -> list[str]:
    """Return the flags of a verdict; none without a fingerprint, as of another engine."""
    known = run.fingerprint
    if known == FingerprintRecord():
        return []
    marks = {"older_protocol": str(known.protocol) != str(PROTOCOL), "no_walls": known.sandbox == "none"}
    return [mark for mark, holds in (marks | {QUICK: run.quick}).items() if holds]


def describe_ways(timings: Sequence[Timing]) -> str | None:
    """Return a line on how all rows were timed; None if no trace says it."""
    ways = _add(timing.ways for timing in timings)
    unknown, replays = sum(timing.unknown for timing in timings), sum(timing.replays for timing in timings)
    count = ways.total() + unknown
    parts = [way if number == count else f"{number} of {count} {way}" for way, number in ways.most_common()]
    parts += [f"{unknown} of {count} do not say how"] if unknown else []
    graphs = f", {'all' if replays == count else f'{replays} of them'} as replays of CUDA graphs" if replays else ""
    return f"timed {'; '.join(parts)}{graphs}" if ways else None


def describe_bounds(timings: Sequence[Timing]) -> str | None:
    """Return a line on what bounds latencies, and at which assurance; None if no trace says it."""
    bounds = _add(timing.bounds for timing in timings)
    parts = [f"{number if len(bounds) > 1 else 'all'} {bound}" for bound, number in bounds.most_common()]
    return f"latencies bound: {', '.join(parts)}" if bounds else None


def describe_flag(flag: str, timings: Sequence[Timing]) -> str:
    """Return the meaning of a flag, and how many times have it."""
    count = sum(timing.unknown + sum(timing.ways.values()) for timing in timings)
    flagged = sum(timing.flags.get(flag, 0) for timing in timings)
    return f"{flag}, {flagged} of {count}" + (f": {MEANINGS[flag]}" if flag in MEANINGS else "")


def flags_of(timings: Iterable[Timing]) -> list[str]:
    """Return the flags that any row has, each once, in a fixed order."""
    return _sort(flag for timing in timings for flag in timing.flags)


@lru_cache(1 << 10)
def _describe_way(method: str, cache_state: str, fallback: str) -> str:
    clock, caches = METHODS.get(method, method), f", {cache_state} L2" if cache_state and method != "wall" else ""
    reason = "" if fallback == EVENTS_ASKED_FOR else reason_of_fallback(fallback)
    return to_one_line(f"by {clock}{caches}{f' ({reason})' if reason else ''}")


@lru_cache(1 << 10)
def _describe_bound(bound: str, assurance: str) -> str:
    return to_one_line(f"by {BOUNDS.get(bound, bound)}{f' at {assurance} assurance' if assurance else ''}")


def _sort(flags: Iterable[str]) -> list[str]:
    found = set(flags)
    return [*filter(found.__contains__, MEANINGS), *sorted(found.difference(MEANINGS))]


def _count(words: Iterable[str]) -> dict[str, int]:
    return {to_one_line(word): number for word, number in Counter(words).items() if word}


def _add(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum(map(Counter, counts), Counter())
