"""What a trace tells beside its verdict, in `evaluation.extra`: how it was timed, its roofline, and what it is of.

`timing.summary` makes the record of a measurement from metadata that `timing.measurement` names. Traces come from
foreign files too, so nothing in them is trusted: each entry of another form than expected counts as not given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Annotated, Any, Final, TypeVar

import msgspec

from flashinfer_bench.data.store.trace_lines import AnyEvaluation, EvaluationLine

Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Any but nan and the infinities."""


BOUNDS: Final = {
    "samples": "the requests that took its readings",
    "chain": "a gated chain of calls",
    "batch": "back-to-back batches of calls",
    "floor": "the least time that the device allows",
    "none": "nothing (indicative)",
}
"""What may bound a latency, and the words for it."""
CONFIRMED: Final = "confirmed"
"""The standing of a result of full assurance, which may take first place."""
NOT_CONFIRMED: Final = "not confirmed"
"""The standing of any other result of a GPU, and of each trace that does not say how it was timed."""
INDICATIVE: Final = "CPU: indicative"
"""The standing of a result of a CPU, which is never confirmed."""
LEAST_REPORTED: Final = 0.9
"""A latency is never the best if its worker reported less than this share of it: outside times of honest calls come
within a tenth."""
Row = TypeVar("Row")
Record = TypeVar("Record", bound=msgspec.Struct)


class Measurement(msgspec.Struct, frozen=True, gc=False):
    """What a measurement's record says; an empty text, an empty list or None where it does not say."""

    method: str = ""
    """The clock: "cupti", "cuda_events" or "wall"."""
    cache_state: str = ""
    """"cold" or "warm"."""
    launch: str = ""
    """"stream" or "graph"; empty where the method knows no difference."""
    fallback: str = ""
    """Why no better clock was used."""
    flags: list[str] = []
    """What a reader should know before acting on the number; see `timing.flags`."""
    meaningful: bool = True
    """False where the time says nothing about the kernel, as under Triton's interpreter."""
    reason: str = ""
    """Why the time is not meaningful."""
    interval95_ms: list[Number] = []
    """95 % interval of the latency: two bounds. What it holds for, `interval` says."""
    assurance: str = ""
    """The level at which a latency on a GPU was bound: "standard" or "full"; empty in older traces and on a CPU."""
    bound: str = ""
    """What bounds the latency: a key of `BOUNDS`; empty in older traces."""
    interval: str = ""
    """"workers": from several workers; "one worker, widened": by the spread between workers. Empty in older traces,
    whose interval is of one worker's readings alone."""
    samples: Number | None = None
    """Number of readings."""
    trials: Number | None = None
    late: Number | None = None
    """Number of readings that hold the host's time."""
    median_ms: Number | None = None
    q25_ms: Number | None = None
    q75_ms: Number | None = None
    std_ms: Number | None = None
    min_ms: Number | None = None
    max_ms: Number | None = None
    kernel_ms: Number | None = None
    """Time of `run` alone, where the solution has a `setup`; the latency has both."""
    setup_ms: Number | None = None
    """Time of `setup`."""
    outside_ms: Number | None = None
    """Mean wall time of one call on a CPU, by the requests that made it; it bounds nothing (`bound` is "none")."""
    why_unconfirmed: str = ""
    """Why what was timed from outside does not settle the latency."""
    claimed_ms: Number | None = None
    """What the worker reported of a latency that was raised."""
    burst_ms: Number | None = None
    """What one call cost in a burst; None where bursts did not resolve it, or where none were needed."""
    relay_ms: Number | None = None
    """What one call cost in a relay, timed from outside; None where none was run."""

    @property
    def is_full(self) -> bool:
        """Whether the latency was bound at full assurance: a winner that is confirmed."""
        return self.assurance == "full"

    @property
    def standing(self) -> str:
        """What the latency counts for in a ranking: `CONFIRMED`, `NOT_CONFIRMED`, `INDICATIVE`; empty for nothing."""
        if not self.meaningful:
            return ""
        if self.is_full:
            return CONFIRMED
        return INDICATIVE if self.method == "wall" else NOT_CONFIRMED

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval; None where the record has none, or one of another form."""
        if len(self.interval95_ms) != 2 or not 0 <= self.interval95_ms[0] <= self.interval95_ms[1]:
            return None
        return self.interval95_ms[0], self.interval95_ms[1]

    @property
    def is_confirmed(self) -> bool | None:
        """Whether what was timed from outside settled the latency; None where nothing was."""
        return None if self.bound in ("", "none") else "unconfirmed" not in self.flags


class RooflineRecord(msgspec.Struct, frozen=True, gc=False):
    """What is read of a trace's roofline."""

    flops: Number | None = None
    bytes: Number | None = None
    tflops: Number | None = None
    tb_per_sec: Number | None = None
    share: Number | None = None
    """Share of the roofline that the latency reaches; 1 is the best."""


class FingerprintRecord(msgspec.Struct, frozen=True, gc=False):
    """What is read of a fingerprint; all of it empty in the traces of another engine."""

    definition: str = ""
    solution: str = ""
    workload: str = ""
    evaluator: str = ""
    hardware: str = ""
    protocol: str | int = ""
    """Number of the procedure that calls and times."""
    sandbox: str = ""
    timing: str = ""
    """Settings of the timing that are not the usual ones."""


class RunRecord(msgspec.Struct, frozen=True, gc=False):
    """What is read of the record of a run."""

    fingerprint: FingerprintRecord = FingerprintRecord()
    quick: bool = False
    """Whether it is a quick look: too few readings to compare it with others, or to keep it."""
    seed: int | None = None


class ReportedTrace(msgspec.Struct, frozen=True, gc=False):
    """The fields of a trace's `extra` that reports read."""

    measurement: Measurement = Measurement()
    baseline: Measurement = Measurement()
    """How the reference was timed."""
    roofline: RooflineRecord = RooflineRecord()
    run: RunRecord = RunRecord()
    evaluator: str = ""

    def may_be_best(self, latency_ms: float) -> bool:
        """Tell whether a latency may be called the best.

        It may not if it is of a quick look, if the worker reported far less, or if solution and reference both wait for
        the GPU inside a call: then the host's time decides their ratio.
        """
        both_wait = all("waits_inside" in record.flags for record in (self.measurement, self.baseline))
        claimed_ms = self.measurement.claimed_ms
        is_raised = claimed_ms is not None and claimed_ms < LEAST_REPORTED * latency_ms
        return not (self.run.quick or both_wait or is_raised)


def read_reported(evaluation: AnyEvaluation) -> ReportedTrace:
    """Return the reported fields of a trace; defaults if it has no `extra`."""
    return read_extra(evaluation, ReportedTrace)


def read_measurement(evaluation: AnyEvaluation) -> Measurement:
    """Return how the solution was timed; all of it "not given" where the trace has no record."""
    return read_reported(evaluation).measurement


def read_extra(evaluation: AnyEvaluation, kind: type[Record]) -> Record:
    """Read from `extra` the entries that a record has; an entry of another form counts as not given."""
    if isinstance(evaluation, EvaluationLine):
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(evaluation.extra_text, type=kind)
    return _read_leniently(evaluation.extra, kind)


def _read_leniently(value: Any, kind: type[Record]) -> Record:
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind) if isinstance(value, Mapping) else ():
        if field.name in value:
            try:
                kept[field.name] = msgspec.convert(value[field.name], field.type)
            except (msgspec.ValidationError, ValueError):
                if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                    kept[field.name] = _read_leniently(value[field.name], field.type)
    return kind(**kept)


def join_standings(standings: Iterable[str]) -> str:
    """Return the standing of a row that joins several results: the best of theirs; empty if there are none."""
    found = set(standings)
    return next((word for word in (CONFIRMED, NOT_CONFIRMED, INDICATIVE) if word in found), "")


def lead_confirmed(
    rows: Iterable[Row], contest: Callable[[Row], Hashable], standing: Callable[[Row], str]
) -> list[Row]:
    """Put the first confirmed row of each contest before its others, which keep their order.

    Args:
        rows: in order; those of one contest stand together.
        contest: what rows have in common whose first place needs a confirmation, if one of them has it.
        standing: the standing of a row.
    """
    found: list[Row] = []
    for _, group in groupby(rows, contest):
        items = list(group)
        first = next((row for row in items if standing(row) == CONFIRMED), None)
        found += sorted(items, key=lambda row: row is not first)
    return found
