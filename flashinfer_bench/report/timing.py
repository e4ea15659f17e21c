"""How times came about: the methods, fall-backs and flags of traces' measurements, counted and put into words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.data.measurement import BOUNDS, FingerprintRecord, RunRecord, ToldTrace, tell
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
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
_NO_FINGERPRINT: Final = FingerprintRecord()


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
    return count_timing([tell(item) for item in passed if item.performance is not None])


def count_timing(told: Sequence[ToldTrace]) -> Timing:
    """Count how evaluations were timed that have a performance."""
    records = [item.measurement for item in told]
    real = [record for record in records if record.meaningful]
    raw = Counter(
        (record.method, record.cache_state, record.launch, record.fallback) for record in records if record.method
    )
    ways: Counter[tuple[str, str, str, str]] = Counter()
    for (*words, fallback), count in raw.items():
        method, cache_state, launch, why = map(to_one_line, (*words, fallback))
        ways[method, cache_state, launch, "" if why == EVENTS_ASKED_FOR else reason_of_fallback(why)] += count
    flags = _count_words(flag for record in real for flag in record.flags)
    flags.update(_count_words(mark for item in told for mark in marks_of_run(item.run)))
    return Timing(
        ways=tuple(Way(*way, workloads=count) for way, count in ways.most_common()),
        unknown=len(records) - ways.total(),
        flags={flag: flags[flag] for flag in sorted(flags, key=_rank)},
        bounds=dict(_count_words(record.bound for record in real).most_common()),
        assurances=dict(_count_words(record.assurance for record in real).most_common()),
    )


def marks_of_run(run: RunRecord) -> list[str]:
    """Return the flags of a verdict; none where it has no fingerprint, as another engine's."""
    known = run.fingerprint
    if known == _NO_FINGERPRINT:
        return []
    holds = (str(known.protocol) != str(PROTOCOL), known.sandbox == "none", run.quick)
    return [mark for mark, held in zip(MARKS, holds, strict=True) if held]


def describe_ways(timings: Sequence[Timing]) -> str | None:
    """Say in a line how all rows were timed, or None where no trace tells."""
    totals: Counter[tuple[str, str, str]] = Counter()
    graphs: Counter[tuple[str, str, str]] = Counter()
    for way in (way for timing in timings for way in timing.ways):
        kind = (way.method, way.cache_state, way.fallback)
        totals[kind] += way.workloads
        graphs[kind] += way.workloads if way.launch == "graph" else 0
    if not totals:
        return None
    unknown = sum(timing.unknown for timing in timings)
    count = totals.total() + unknown
    parts = []
    for (method, cache_state, fallback), number in totals.most_common():
        text = f"by {METHODS.get(method, method)}"
        text += f", {cache_state} L2" if cache_state and method != "wall" else ""
        replayed = graphs[method, cache_state, fallback]
        if replayed:
            text += f", {f'{replayed} of them' if replayed < number else 'all'} as replays of CUDA graphs"
        text += f" ({fallback})" if fallback else ""
        parts.append(text if number == count else f"{number} of {count} {text}")
    parts += [f"{unknown} of {count} do not say how"] if unknown else []
    return f"timed {'; '.join(parts)}"


def describe_bounds(timings: Sequence[Timing]) -> str | None:
    """Say in a line at which assurance latencies were bound, and by what; None where no trace tells."""
    bounds: Counter[str] = sum((Counter(timing.bounds) for timing in timings), Counter())
    assurances = dict.fromkeys(name for timing in timings for name in timing.assurances)
    if not bounds:
        return None
    parts = [f"{number if len(bounds) > 1 else 'all'} by {BOUNDS.get(name, name)}" for name, number in bounds.items()]
    levels = f" at {' and '.join(assurances)} assurance" if assurances else ""
    return f"latencies bound{levels}: {', '.join(parts)}"


def describe_flag(flag: str, timings: Sequence[Timing]) -> str:
    """Say what a flag means, and how many times have it."""
    count = sum(timing.unknown + sum(way.workloads for way in timing.ways) for timing in timings)
    flagged = sum(timing.flags.get(flag, 0) for timing in timings)
    meaning = MEANINGS.get(flag)
    return f"{flag}, {flagged} of {count}" + (f": {meaning}" if meaning else "")


def flags_of(timings: Iterable[Timing]) -> list[str]:
    """Return the flags that any of the rows has, each once, in a fixed order."""
    return sorted({flag for timing in timings for flag in timing.flags}, key=_rank)


def _count_words(words: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word, count in Counter(words).items():
        if word:
            counts[to_one_line(word)] += count
    return counts


def _rank(flag: str) -> tuple[int, str]:
    known = list(MEANINGS)
    return (known.index(flag) if flag in MEANINGS else len(known), flag)
