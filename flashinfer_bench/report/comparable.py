"""What two times have to have in common before anybody compares them, and the word for what differs. Pure.

`compare` refuses by it, and `report diff` and `report history` make no decision. A mark that one trace does not tell is
not held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from flashinfer_bench.data.measurement import ReportedTrace
from flashinfer_bench.report.verdict import to_one_line

KINDS: Final = {
    "hardware": "other hardware",
    "cache state": "another state of the caches",
    "method": "another clock",
    "protocol": "another way to call and time",
    "sandbox": "other walls",
    "timing": "other settings of the timing",
}
"""What has to be equal, and what it is where it is not."""
USUAL: Final = "usual"
"""The settings of the timing where a trace tells of no others."""


class Difference(NamedTuple):
    """One mark that differs."""

    kind: str
    """What it is, in words: "other walls"."""
    first: str
    second: str


def marks_of(reported: ReportedTrace, hardware: str) -> dict[str, str]:
    """Return what two times have to have in common; a mark is left out where the trace does not say."""
    known, record = reported.run.fingerprint, reported.measurement
    usual = USUAL if known.protocol or known.sandbox or known.solution else ""
    marks = (hardware, record.cache_state, record.method, known.protocol, known.sandbox, known.timing or usual)
    return {key: to_one_line(str(mark)) for key, mark in zip(KINDS, marks, strict=True) if mark}


def find_difference(first: Mapping[str, str], second: Mapping[str, str]) -> Difference | None:
    """Return the first mark that differs; None where all that both tell are equal."""
    for key, kind in KINDS.items():
        if key in first and key in second and first[key] != second[key]:
            return Difference(kind, first[key], second[key])
    return None
