"""What tables and pages read of a trace's `extra`: its measurement with the interval, its roofline, and its digests.

Traces come from foreign files too. So each entry is read alone, and one of another form counts as not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from flashinfer_bench.data.measurement import Measurement, Number, parse_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, decode_extra, decode_measurement


class IntervalRecord(msgspec.Struct, frozen=True, gc=False):
    """What is read of a measurement beside `Measurement`."""

    interval95_ms: tuple[Number, Number] | None = None
    """Bounds of the latency, with 95 % confidence. What they hold for, `interval` says."""
    interval: str = ""
    """As of `Measurement`: empty in older traces, whose bounds are of one worker's readings alone."""
    min_ms: Number | None = None
    max_ms: Number | None = None
    trials: Number | None = None


class RooflineRecord(msgspec.Struct, frozen=True, gc=False):
    """What is read of a trace's roofline."""

    flops: Number | None = None
    bytes: Number | None = None
    tflops: Number | None = None
    tb_per_sec: Number | None = None
    share: Number | None = None
    """Share of the roofline that the latency reaches; 1 is the best."""
    floor_ms: Number | None = None
    """The shortest time that the device allows."""


class DigestRecord(msgspec.Struct, frozen=True, gc=False):
    """What is read of a fingerprint."""

    definition: str = ""
    solution: str = ""
    protocol: str | int = ""
    """Number of the way to call and time."""
    sandbox: str = ""
    """The walls of the workers."""
    timing: str = ""
    """Settings of the timing that are not the usual ones."""


class _Run(msgspec.Struct, frozen=True, gc=False):
    fingerprint: DigestRecord = DigestRecord()
    quick: bool = False
    seed: int | None = None


class ToldTrace(msgspec.Struct, frozen=True, gc=False):
    """What a trace tells beside its verdict."""

    measurement: Measurement = Measurement()
    interval: IntervalRecord = IntervalRecord()
    baseline: IntervalRecord = IntervalRecord()
    """The interval of the reference's time."""
    roofline: RooflineRecord = RooflineRecord()
    run: _Run = _Run()
    evaluator: str = ""


def tell(evaluation: AnyEvaluation) -> ToldTrace:
    """Return what a trace tells; all of it "not given" where there is no `extra`."""
    first, second = decode_extra(evaluation, _TOLD), decode_measurement(evaluation, _INTERVAL)
    if first is not None and second is not None:
        return msgspec.structs.replace(first, interval=second)
    extra = evaluation.extra or {}
    run = extra.get("run")
    known = _convert(run.get("fingerprint") if isinstance(run, Mapping) else None, DigestRecord, DigestRecord())
    return ToldTrace(
        measurement=parse_measurement(extra),
        interval=_convert(extra.get("measurement"), IntervalRecord, IntervalRecord()),
        baseline=_convert(extra.get("baseline"), IntervalRecord, IntervalRecord()),
        roofline=_convert(extra.get("roofline"), RooflineRecord, RooflineRecord()),
        run=msgspec.structs.replace(_convert(run, _Run, _Run()), fingerprint=known),
        evaluator=_convert(extra.get("evaluator"), str, ""),
    )


def _convert(value: object, kind: type[Any], otherwise: Any) -> Any:
    """Read a value of unknown form; of a table each entry alone."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError):
        if not isinstance(value, Mapping) or kind is str:
            return otherwise
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    kept = {name: value[name] for name, kind in fields.items() if name in value and _fits(value[name], kind)}
    return msgspec.convert(kept, kind)


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError):
        return False
    return True


_TOLD: Final = msgspec.json.Decoder(ToldTrace)
_INTERVAL: Final = msgspec.json.Decoder(IntervalRecord)
