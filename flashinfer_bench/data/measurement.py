"""How a time was measured, as a trace says it: the record `evaluation.extra["measurement"]`, as reports read it.

`timing.summary` makes the record, of facts that `timing.measurement` names. Traces come from foreign files too, and the
record has had several forms. So nothing in it is trusted: a value of another form than expected counts as not given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import groupby
from typing import Annotated, Any, Final, TypeVar

import msgspec

from flashinfer_bench.data.store.trace_lines import AnyEvaluation, decode_measurement

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
    latency_ms: Number | None = None
    """What an older form has instead of `median_ms`."""
    kernel_ms: Number | None = None
    """Time of `run` alone, where the solution has a `setup`; the latency has both."""
    setup_ms: Number | None = None
    """Time of `setup`."""
    outside_ms: Number | None = None
    """Mean wall time of one call on a CPU, by the requests that made it; it bounds nothing (`bound` is "none")."""
    why_unconfirmed: str = ""
    """Why what was timed from outside does not settle the latency."""
    confirmed: bool | None = None
    """What an older form has beside `bound`, or in its place: whether the latency was settled."""
    burst_ms: Number | None = None
    """What one call cost in a burst; None where bursts did not resolve it, or where none were needed."""
    relay_ms: Number | None = None
    """What one call cost in a relay, timed from outside; None where none was run."""
    not_confirmed: str = ""
    """What an older form has instead of `why_unconfirmed`."""
    trials_ms: list[Number] = []
    """Median of each trial."""
    samples_ns: list[Number | list[Number]] = []
    """Every reading, in two older forms; the present form is a table, which no report reads."""

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
        if self.confirmed is not None or self.bound in ("", "none"):
            return self.confirmed
        return "unconfirmed" not in self.flags

    @property
    def why_not(self) -> str:
        """Why the latency is not settled, in either form; empty where it is."""
        return self.why_unconfirmed or self.not_confirmed

    @property
    def readings_ns(self) -> list[float]:
        """The readings of all trials, where the record has an older form."""
        return [reading for part in self.samples_ns for reading in (part if isinstance(part, list) else [part])]

    @property
    def spread(self) -> float:
        """The interquartile range over the median; 0 where the record does not tell it."""
        if not self.median_ms or self.q25_ms is None or self.q75_ms is None:
            return 0.0
        return (self.q75_ms - self.q25_ms) / self.median_ms


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


def read_measurement(evaluation: AnyEvaluation) -> Measurement:
    """Return how the solution was timed; all of it "not given" where the trace has no record."""
    found = decode_measurement(evaluation, _RECORD)
    return read_leniently((evaluation.extra or {}).get("measurement"), Measurement) if found is None else found


def read_leniently(value: Any, kind: type[Record]) -> Record:
    """Make a record of a value of any form: each entry is read alone, and one of another form counts as not given."""
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind) if isinstance(value, Mapping) else ():
        if field.name in value:
            try:
                kept[field.name] = msgspec.convert(value[field.name], field.type)
            except (msgspec.ValidationError, ValueError):
                if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                    kept[field.name] = read_leniently(value[field.name], field.type)
    return kind(**kept)


_RECORD: Final = msgspec.json.Decoder(Measurement)
