"""The data in a trace's `evaluation.extra`: how the job was timed, its roofline, and its fingerprint.

`timing.summary` writes the record of a measurement, with the fields that `timing.measurement` names. Trace files are
untrusted: an entry of an unexpected form counts as missing.
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
"""Any number except nan and the infinities."""


BOUNDS: Final = {
    "samples": "the requests that took its readings",
    "chain": "a gated chain of calls",
    "batch": "back-to-back batches of calls",
    "floor": "the least time that the device allows",
    "none": "none (indicative)",
}
"""Source of a latency's lower bound → its description."""
CONFIRMED: Final = "confirmed"
"""Standing of results with full assurance. These results may take first place."""
NOT_CONFIRMED: Final = "not confirmed"
"""The standing of all other GPU results, and of traces without a timing record."""
INDICATIVE: Final = "CPU: indicative"
"""Standing of results from a CPU. These results are never confirmed."""
LEAST_REPORTED: Final = 0.9
"""Minimum of the worker's reported latency divided by the recorded latency. Below this minimum, the latency is never
the best. For honest calls, the reported time and the time measured from outside differ by at most a tenth."""
Row = TypeVar("Row")
Record = TypeVar("Record", bound=msgspec.Struct)


class Measurement(msgspec.Struct, frozen=True, gc=False):
    """The record of a measurement. An empty text, an empty list or None means that the record lacks the value."""

    method: str = ""
    """The clock: "cupti", "cuda_events" or "wall"."""
    cache_state: str = ""
    """"cold" or "warm"."""
    launch: str = ""
    """"stream" or "graph"; empty if the method does not distinguish them."""
    fallback: str = ""
    """Why no better clock was used."""
    flags: list[str] = []
    """Warnings about the time; see `timing.flags`."""
    meaningful: bool = True
    """False if the time says nothing about the kernel, as under Triton's interpreter."""
    reason: str = ""
    """Why the time is not meaningful."""
    interval95_ms: list[Number] = []
    """95 % interval of the latency: two bounds. `interval` names the scope of the bounds."""
    assurance: str = ""
    """The level of assurance of a GPU latency: "standard" or "full"; empty on a CPU and in traces of earlier
    versions."""
    bound: str = ""
    """Source of the latency's lower bound: a key of `BOUNDS`; empty in traces of earlier versions."""
    interval: str = ""
    """"workers": the samples of several workers. "one worker, widened": the samples of one worker, plus the spread
    between workers. Empty in traces of earlier versions: only the samples of one worker."""
    samples: Number | None = None
    """Number of samples."""
    trials: Number | None = None
    kernels: dict[str, Number] = {}
    """Name of an operation in the timed calls → its number of launches in all samples. The names and numbers come from
    the worker."""
    library_kernels: str = "unknown"
    """How many operations of `kernels` come from a library: all, some, none, or unknown; see `timing.libraries`."""
    late: Number | None = None
    """Number of samples that include time of the host."""
    median_ms: Number | None = None
    q25_ms: Number | None = None
    q75_ms: Number | None = None
    std_ms: Number | None = None
    min_ms: Number | None = None
    max_ms: Number | None = None
    kernel_ms: Number | None = None
    """Time of `run` alone, if the solution has a `setup`. The latency includes both functions."""
    setup_ms: Number | None = None
    """Time of `setup`."""
    outside_ms: Number | None = None
    """Mean wall time per call of the requests to a worker, on a CPU. It does not bound the latency (`bound` is
    "none")."""
    why_unconfirmed: str = ""
    """Why the time from outside does not confirm the latency."""
    claimed_ms: Number | None = None
    """The latency that the worker reported, if the recorded latency is higher."""
    burst_ms: Number | None = None
    """Time of one call in a batch of back-to-back calls; None if batches could not resolve the time or were not
    needed."""
    relay_ms: Number | None = None
    """Time of one call in a gated chain, measured from outside; None if no chain was run."""

    @property
    def is_full(self) -> bool:
        """Whether the latency has full assurance."""
        return self.assurance == "full"

    @property
    def standing(self) -> str:
        """The rank class of the latency: `CONFIRMED`, `NOT_CONFIRMED` or `INDICATIVE`; empty if the time is not
        meaningful."""
        if not self.meaningful:
            return ""
        if self.is_full:
            return CONFIRMED
        return INDICATIVE if self.method == "wall" else NOT_CONFIRMED

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval; None if the record has no valid interval."""
        if len(self.interval95_ms) != 2 or not 0 <= self.interval95_ms[0] <= self.interval95_ms[1]:
            return None
        return self.interval95_ms[0], self.interval95_ms[1]

    @property
    def is_confirmed(self) -> bool | None:
        """Whether times from outside confirmed the latency; None if there are no such times."""
        return None if self.bound in ("", "none") else "unconfirmed" not in self.flags


class RooflineRecord(msgspec.Struct, frozen=True, gc=False):
    """The parsed fields of a trace's roofline."""

    flops: Number | None = None
    bytes: Number | None = None
    tflops: Number | None = None
    tb_per_sec: Number | None = None
    share: Number | None = None
    """Share of the roofline that the latency reaches; 1 is the best."""
    floor_ms: Number | None = None
    """The shortest time that the peak rates allow."""
    peak: str = ""
    """The device, and the source of its peak rates."""


class CompiledRecord(msgspec.Struct, frozen=True, gc=False):
    """The parsed fields of the reference's time under torch.compile."""

    mode: str = ""
    """Mode of torch.compile; empty if the run did not request a compiled reference."""
    latency_ms: Number | None = None
    compile_s: Number | None = None
    """Seconds of the first call, which compiles. The latency does not include these seconds."""
    graphs: Number | None = None
    graph_breaks: Number | None = None
    reason: str = ""
    """Why there is no latency."""


class RunRecord(msgspec.Struct, frozen=True, gc=False):
    """The parsed fields of the record of a run."""

    fingerprint: dict[str, str] = {}
    """Digests of the judged objects, and settings (`planning.resume`). Empty in a trace from another engine."""
    quick: bool = False
    """Whether the verdict is a quick look. Its latency is not compared with other latencies."""
    seed: int | None = None
    task: str = ""
    """The task of a server that the verdict belongs to; empty for a run."""
    author: str = ""
    """The author of a solution that was submitted to a server."""
    timeout_seconds: Number | None = None
    call_timeout_seconds: Number | None = None
    worker_memory_gb: Number | None = None

    @property
    def solution_digest(self) -> str:
        """The digest of the judged solution; empty in a trace from another engine."""
        return self.fingerprint.get("solution", "")

    @property
    def keys(self) -> dict[str, str]:
        """The fingerprint with the seed of the run."""
        if not self.fingerprint or self.seed is None:
            return self.fingerprint
        return {"seed": str(self.seed), **self.fingerprint}


class ReportedTrace(msgspec.Struct, frozen=True, gc=False):
    """The data of a trace, without the verdict."""

    measurement: Measurement = Measurement()
    baseline: Measurement = Measurement()
    """How the reference was timed."""
    baseline_compile: CompiledRecord = CompiledRecord()
    roofline: RooflineRecord = RooflineRecord()
    run: RunRecord = RunRecord()
    evaluator: str = ""
    library_calls: str = ""
    """"refused" if the solution was right and its kernels were all a library's."""

    def may_be_best(self, latency_ms: float) -> bool:
        """Return whether a latency may be called the best.

        These latencies may not:

        * latencies of quick looks,
        * latencies of which the worker reported less than `LEAST_REPORTED`,
        * latencies of jobs whose solution and reference both wait for the GPU inside a call.

        In such a job, the host's time decides the speed-up.
        """
        both_wait = all("waits_inside" in record.flags for record in (self.measurement, self.baseline))
        claimed_ms = self.measurement.claimed_ms
        is_raised = claimed_ms is not None and claimed_ms < LEAST_REPORTED * latency_ms
        return not (self.run.quick or both_wait or is_raised)


_REPORTED: Final = msgspec.json.Decoder(ReportedTrace)


def read_reported(evaluation: AnyEvaluation) -> ReportedTrace:
    """Return the data of a trace. An entry of `extra` that is missing or has an unexpected form counts as missing."""
    if isinstance(evaluation, EvaluationLine):
        with suppress(msgspec.MsgspecError):
            return _REPORTED.decode(evaluation.extra_text)
    return _read_leniently(evaluation.extra, ReportedTrace)


def read_measurement(evaluation: AnyEvaluation) -> Measurement:
    """Return the record of the solution's timing; all values are missing if the trace has no record."""
    return read_reported(evaluation).measurement


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
    """Return the best of several standings: confirmed, then not confirmed, then indicative; empty if all are empty."""
    found = set(standings)
    return next((word for word in (CONFIRMED, NOT_CONFIRMED, INDICATIVE) if word in found), "")


def lead_confirmed(
    rows: Iterable[Row], contest: Callable[[Row], Hashable], standing: Callable[[Row], str]
) -> list[Row]:
    """Move the first confirmed row of each contest to the front of the contest. The other rows keep their order.

    Args:
        rows: the rows in order; the rows of a contest are adjacent.
        contest: returns the key of a row. Rows with the same key compete.
        standing: returns the standing of a row.
    """
    found: list[Row] = []
    for _, group in groupby(rows, contest):
        items = list(group)
        first = next((row for row in items if standing(row) == CONFIRMED), None)
        found += sorted(items, key=lambda row: row is not first)
    return found
