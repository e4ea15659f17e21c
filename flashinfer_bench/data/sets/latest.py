"""Which trace counts where a job was judged more than once: the latest one, whatever file it is in.

A quick look (`--quick`) that passed does not displace a whole verdict on the same definition, solution and workload.
Look-ups, reports and resumed runs use this rule. Equal times, and times that are no ISO 8601, keep the files' order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Final

from flashinfer_bench.data.store.trace_lines import AnyTrace

JUDGED_KEYS: Final = ("definition", "solution", "workload", "evaluator")
"""The keys of a fingerprint that say what was judged, and by whom. The others say under which settings."""
_FRACTION: Final = re.compile(r"\.(\d+)")
_UNKNOWN: Final = datetime.min.replace(tzinfo=timezone.utc)


def in_order_of_time(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the traces that hold a verdict, the earliest first."""
    judged = [(trace, trace.evaluation) for trace in traces if trace.evaluation is not None]
    return [trace for trace, _ in sorted(judged, key=lambda item: _parse_time(item[1].timestamp))]


def find_latest(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the trace that counts of each definition, solution, workload and hardware, the earliest first."""
    latest: dict[tuple[str, str | None, str, str], AnyTrace] = {}
    whole: dict[tuple[str, str | None, str, str], AnyTrace] = {}
    for trace in in_order_of_time(traces):
        assert trace.evaluation is not None  # as of all that are in order
        key = (trace.definition, trace.solution, trace.workload.uuid, trace.evaluation.environment.hardware)
        before = latest.pop(key, None)
        if before is not None:
            if not _is_quick(before):
                whole[key] = before
            if key in whole and _is_quick(trace) and trace.is_successful() and _may_be_alike(whole[key], trace):
                trace = whole[key]
        latest[key] = trace
    return list(latest.values())


def _is_quick(trace: AnyTrace) -> bool:
    return trace.evaluation is not None and trace.evaluation.is_quick


def _may_be_alike(*traces: AnyTrace) -> bool:
    """Tell whether two traces are of the same things by their fingerprints, or one has none."""
    judged = [_judged(trace) for trace in traces]
    return None in judged or judged[0] == judged[1]


def _judged(trace: AnyTrace) -> list[Any] | None:
    run = (trace.evaluation.extra or {}).get("run") if trace.evaluation is not None else None
    found = run.get("fingerprint") if isinstance(run, Mapping) else None
    return [found.get(key) for key in JUDGED_KEYS] if isinstance(found, Mapping) else None


def parse_time(text: str) -> datetime | None:
    """Return the time of a verdict in UTC; None for a text that is no time."""
    moment = _parse_time(text)
    return None if moment == _UNKNOWN else moment


@lru_cache(1 << 16)
def _parse_time(text: str) -> datetime:
    """Return the time of a verdict. A time without a zone is UTC; a text that is no time counts as the earliest.

    Times are told to the second, so many verdicts share one.
    """
    text = text.strip()
    if text[-1:] in ("Z", "z"):
        text = f"{text[:-1]}+00:00"
    text = _FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", text)
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return _UNKNOWN
