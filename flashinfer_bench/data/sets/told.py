"""What a trace tells beside its verdict, in `extra`: how it was timed, its roofline, and what it is of.

Traces come from foreign files too. So each entry is read alone, and one of another form counts as not given.
"""

from __future__ import annotations

from typing import Final

import msgspec

from flashinfer_bench.data.measurement import Measurement, Number, read_leniently
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, decode_extra


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
    seed: int | None = None


class ToldTrace(msgspec.Struct, frozen=True, gc=False):
    """What a trace tells beside its verdict."""

    measurement: Measurement = Measurement()
    baseline: Measurement = Measurement()
    """How the reference was timed."""
    roofline: RooflineRecord = RooflineRecord()
    run: RunRecord = RunRecord()
    evaluator: str = ""


def tell(evaluation: AnyEvaluation) -> ToldTrace:
    """Return what a trace tells; all of it "not given" where there is no `extra`."""
    found = decode_extra(evaluation, _TOLD)
    return read_leniently(evaluation.extra, ToldTrace) if found is None else found


_TOLD: Final = msgspec.json.Decoder(ToldTrace)
