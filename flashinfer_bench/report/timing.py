"""How times came about: the methods, fall-backs and flags of traces' measurements, counted and put into words.

Traces come from foreign files too, so nothing in a measurement is trusted to have a shape.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from flashinfer_bench.bench.planning.resume import PROTOCOL, find_fingerprint
from flashinfer_bench.data.evaluation import says_quick
from flashinfer_bench.data.measurement import BOUNDS, BriefMeasurement, Measurement, parse_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, decode_measurement, decode_run
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.timing.flags import FLAGS
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, reason_of_fallback

QUICK: Final = "quick"
MARKS: Final = {
    "older_protocol": "the verdict is of an older way to call and time; run --resume judges it again",
    "no_walls": "the solution was judged without walls, so it could reach what its user may",
    QUICK: "a quick look, with few readings: it is never the best, and run --resume judges again",
}
"""Flags of verdicts, beside those of measurements, by the fingerprint; a trace without one has neither."""
MEANINGS: Final = {**FLAGS, **MARKS}
METHODS: Final = {"cupti": "CUPTI", "cuda_events": "CUDA events", "wall": "the wall clock"}
"""The names of clocks, as a reader knows them."""


@dataclass(frozen=True)
class Way:
    """One way in which workloads were timed."""

    method: str
    cache_state: str
    launch: str
    """"stream" or "graph"; empty where the method knows no difference."""
    fallback: str
    """Why no better method was used; empty where it was the user's choice, or the best method."""
    workloads: int


@dataclass(frozen=True)
class Burst:
    """What bounds a latency from outside the solution's process."""

    workload: str
    assurance: str
    """"standard" or "full"; empty on a CPU and in older traces."""
    bound: str
    """What bounds it: a key of `BOUNDS`; empty in older traces."""
    burst_ms: float | None
    """What one call cost in a burst; None where bursts did not resolve it, or where none were needed."""
    burst_resolution_ms: float | None
    """What a burst cannot tell from nothing, for one call."""
    relay_ms: float | None
    """What one call cost in a relay; None where none was run."""
    why_unconfirmed: str
    """Why that does not settle the latency; empty where it does."""


class ToldFingerprint(msgspec.Struct, frozen=True, gc=False):
    """What is read of a fingerprint."""

    protocol: str = ""
    sandbox: str = ""


class ToldRun(msgspec.Struct, frozen=True, gc=False):
    """What is read of the record of a run."""

    fingerprint: ToldFingerprint | None = None
    quick: bool = False


Record = TypeVar("Record", Measurement, BriefMeasurement)


class Told(msgspec.Struct, Generic[Record], frozen=True, gc=False):
    """What an evaluation tells of how its time came about, in its `extra`."""

    measurement: Record
    run: ToldRun

    @property
    def marks(self) -> Sequence[str]:
        """The marks of the verdict; none where it has no fingerprint, as another engine's."""
        found = self.run.fingerprint
        return _marks(found.protocol, found.sandbox, self.run.quick) if found is not None else ()


@dataclass(frozen=True)
class Timing:
    """How the passed workloads of a row were timed."""

    ways: tuple[Way, ...]
    """The most frequent one first. Workloads that do not say how they were timed are not among them."""
    unknown: int
    """Workloads whose trace does not say how it was timed."""
    flags: Mapping[str, int]
    """Number of workloads that have each flag. Workloads whose time means nothing are left out."""
    bounds: Mapping[str, int]
    """What bounds the latencies, a key of `BOUNDS` each → number of workloads; older traces do not say."""
    assurances: Mapping[str, int]
    """"standard" or "full" → number of workloads whose time was bound at that level."""


def read_timing(passed: Iterable[AnyEvaluation]) -> Timing:
    """Count how passed evaluations were timed."""
    return count_timing([read_told(item) for item in passed if item.performance is not None])


def read_told(evaluation: AnyEvaluation) -> Told[Measurement]:
    """Return what an evaluation tells of its time: `extra` of a trace's line is parsed at each look."""
    measurement, run = decode_measurement(evaluation, _RECORD), decode_run(evaluation, _RUN)
    return Told(measurement, run) if measurement is not None and run is not None else _read_oddly_told(evaluation)


def read_briefly_told(evaluation: AnyEvaluation) -> Told[BriefMeasurement] | Told[Measurement]:
    """Return as much of it as tables of solutions read."""
    measurement, run = decode_measurement(evaluation, _BRIEF_RECORD), decode_run(evaluation, _RUN)
    return Told(measurement, run) if measurement is not None and run is not None else _read_oddly_told(evaluation)


def _read_oddly_told(evaluation: AnyEvaluation) -> Told[Measurement]:
    extra = evaluation.extra
    run, marks = find_fingerprint(extra)
    shown = (
        ToldFingerprint(str(marks.get("protocol", "")), str(marks.get("sandbox", ""))) if marks is not None else None
    )
    return Told(parse_measurement(extra), ToldRun(shown, says_quick(run)))


def count_timing(told: Sequence[Told[Any]]) -> Timing:
    """Count how evaluations were timed that have a performance."""
    records = [item.measurement for item in told]
    ways: Counter[tuple[str, str, str, str]] = Counter()
    for way, count in Counter(
        (record.method, record.cache_state, record.launch, record.fallback) for record in records if record.method
    ).items():
        ways[_way(*way)] += count
    flags: Counter[str] = Counter()
    for raised, count in Counter((tuple(_flags(item.measurement)), item.marks) for item in told).items():
        for flag in itertools.chain(*raised):
            flags[to_one_line(flag)] += count
    return Timing(
        ways=tuple(Way(*way, workloads=count) for way, count in ways.most_common()),
        unknown=len(records) - ways.total(),
        flags={flag: flags[flag] for flag in sorted(flags, key=_rank)},
        bounds=_count_words(record.bound for record in records if record.meaningful),
        assurances=_count_words(record.assurance for record in records if record.meaningful),
    )


def read_burst(workload: str, record: Measurement) -> Burst:
    """Return what bounds a latency from outside.

    Args:
        workload: the uuid of its workload.
        record: how it was measured.
    """
    assurance, bound, why = map(to_one_line, (record.assurance, record.bound, record.why_not))
    return Burst(workload, assurance, bound, record.burst_ms, record.burst_resolution_ms, record.relay_ms, why)


def describe_ways(timings: Iterable[Timing]) -> str | None:
    """Say in a line how all rows were timed, or None where no trace tells."""
    totals: Counter[tuple[str, str, str]] = Counter()
    graphs: Counter[tuple[str, str, str]] = Counter()
    unknown = 0
    for timing in timings:
        unknown += timing.unknown
        for way in timing.ways:
            kind = (way.method, way.cache_state, way.fallback)
            totals[kind] += way.workloads
            graphs[kind] += way.workloads if way.launch == "graph" else 0
    if not totals:
        return None
    count = totals.total() + unknown
    parts = [_describe(kind, number, graphs[kind], count) for kind, number in totals.most_common()]
    parts += [f"{unknown} of {count} do not say how"] if unknown else []
    return f"timed {'; '.join(parts)}"


def describe_bounds(timings: Iterable[Timing]) -> str | None:
    """Say in a line at which assurance latencies were bound, and by what; None where no trace tells."""
    timings = list(timings)
    bounds: Counter[str] = sum((Counter(timing.bounds) for timing in timings), Counter())
    assurances: Counter[str] = sum((Counter(timing.assurances) for timing in timings), Counter())
    if not bounds:
        return None
    parts = [f"{number if len(bounds) > 1 else 'all'} by {BOUNDS.get(name, name)}" for name, number in bounds.items()]
    levels = f" at {' and '.join(assurances)} assurance" if assurances else ""
    return f"latencies bound{levels}: {', '.join(parts)}"


def describe_flag(flag: str, timings: Iterable[Timing]) -> str:
    """Say what a flag means, and how many times have it."""
    timings = list(timings)
    count = sum(timing.unknown + sum(way.workloads for way in timing.ways) for timing in timings)
    flagged = sum(timing.flags.get(flag, 0) for timing in timings)
    meaning = MEANINGS.get(flag)
    return f"{flag}, {flagged} of {count}" + (f": {meaning}" if meaning else "")


def flags_of(timings: Iterable[Timing]) -> list[str]:
    """Return the flags that any of the rows has, each once, in a fixed order."""
    return sorted({flag for timing in timings for flag in timing.flags}, key=_rank)


def _describe(kind: tuple[str, str, str], number: int, graphs: int, count: int) -> str:
    method, cache_state, fallback = kind
    text = f"by {METHODS.get(method, method)}" + (f", {cache_state} L2" if cache_state and method != "wall" else "")
    if graphs:
        text += f", {f'{graphs} of them' if graphs < number else 'all'} as replays of CUDA graphs"
    text += f" ({fallback})" if fallback else ""
    return text if number == count else f"{number} of {count} {text}"


def _count_words(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(to_one_line(word) for word in words if word).most_common())


@lru_cache(64)
def _way(method: str, cache_state: str, launch: str, why: str) -> tuple[str, str, str, str]:
    fallback = to_one_line(why)
    reason = "" if fallback == EVENTS_ASKED_FOR else reason_of_fallback(fallback)
    return (to_one_line(method), to_one_line(cache_state), to_one_line(launch), reason)


@lru_cache(64)
def _marks(protocol: str, sandbox: str, is_quick: bool) -> tuple[str, ...]:
    holds = (protocol != str(PROTOCOL), sandbox == "none", is_quick)
    return tuple(mark for mark, held in zip(MARKS, holds, strict=True) if held)


def _flags(record: BriefMeasurement) -> list[str]:
    """Return the flags; none where the time means nothing, since a flag would invite to measure again."""
    return record.flags if record.meaningful else []


_RECORD: Final = msgspec.json.Decoder(Measurement)
_BRIEF_RECORD: Final = msgspec.json.Decoder(BriefMeasurement)
_RUN: Final = msgspec.json.Decoder(ToldRun)


def _rank(flag: str) -> tuple[int, str]:
    known = list(MEANINGS)
    return (known.index(flag) if flag in MEANINGS else len(known), flag)
