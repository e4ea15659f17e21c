"""Conditions that two times must share before they are compared, and descriptions of a difference.

`compare` refuses times with different conditions. `report diff` and `report history` make no decision on these times. A
key that is missing in one trace does not count as a difference.
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
    "sandbox": "another sandbox",
    "timing": "other settings of the timing",
}
"""Key that must be equal → description of a difference."""
USUAL: Final = "usual"
"""Value of a trace whose timing settings are all defaults."""


class Difference(NamedTuple):
    """One key that differs."""

    kind: str
    """Description of the difference, such as "another sandbox"."""
    first: str
    second: str


def comparison_keys(reported: ReportedTrace, hardware: str) -> dict[str, str]:
    """Return the conditions of a time by key, without keys that the trace lacks."""
    known, record = reported.run.fingerprint, reported.measurement
    own = (known.get("protocol"), known.get("sandbox"), known.get("timing", USUAL if known else ""))
    values = (hardware, record.cache_state, record.method, *own)
    return {key: to_one_line(str(value)) for key, value in zip(KINDS, values, strict=True) if value}


def find_difference(first: Mapping[str, str], second: Mapping[str, str]) -> Difference | None:
    """Return the first key whose values differ; None if no values differ. A key that one side lacks is skipped."""
    for key, kind in KINDS.items():
        if key in first and key in second and first[key] != second[key]:
            return Difference(kind, first[key], second[key])
    return None
