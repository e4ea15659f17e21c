"""Which trace counts where a job was judged more than once: the latest one, whatever file it is in.

A quick look (`--quick`) that passed does not displace a whole verdict on the same definition, solution and workload.
Look-ups, reports and resumed runs use this rule. Equal times, and times that are no ISO 8601, keep the files' order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Final

from flashinfer_bench.data.store.trace_lines import AnyTrace

JudgedKey = tuple[str, str | None, str, str]
"""Names of definition and solution, the workload's uuid, and the hardware."""
JUDGED_KEYS: Final = ("definition", "solution", "workload", "evaluator")
"""The keys of a fingerprint that say what was judged, and by whom. The others say under which settings."""
_FRACTION: Final = re.compile(r"\.(\d+)")
_UNKNOWN: Final = datetime.min.replace(tzinfo=timezone.utc)


def in_order_of_time(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the traces that hold a verdict, the earliest first."""
    return sorted((trace for trace in traces if trace.evaluation is not None), key=_time_of)


def find_latest(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the trace that counts of each definition, solution, workload and hardware, the earliest first."""
    return list(latest_by_key(traces).values())


def latest_by_key(traces: Iterable[AnyTrace]) -> dict[JudgedKey, AnyTrace]:
    """Return the traces that count, as `find_latest` does, each by what it is of."""
    latest: dict[JudgedKey, AnyTrace] = {}
    whole: dict[JudgedKey, AnyTrace] = {}
    ordered = in_order_of_time(traces)
    keys = [
        (trace.definition, trace.solution, trace.workload.uuid, trace.evaluation.environment.hardware)
        for trace in ordered
        if trace.evaluation is not None  # as of all that are in order
    ]
    times = Counter(keys)
    if len(times) == len(keys):  # as where nothing was judged again
        return dict(zip(keys, ordered, strict=True))
    for key, trace in zip(keys, ordered, strict=True):
        if times[key] == 1:  # as most are: whether it is a quick look need not be read
            latest[key] = trace
            continue
        is_quick = trace.evaluation is not None and trace.evaluation.is_quick
        if is_quick and trace.is_successful() and key in whole and not _differ(whole[key], trace):
            latest[key] = whole[key]
            continue
        if not is_quick:
            whole[key] = trace
        latest.pop(key, None)
        latest[key] = trace
    return latest


def _differ(*traces: AnyTrace) -> bool:
    """Tell whether it is known that two traces are of different things, by their fingerprints."""
    judged = [_judged(trace) for trace in traces]
    return None not in judged and judged[0] != judged[1]


def _judged(trace: AnyTrace) -> list[Any] | None:
    run = (trace.evaluation.extra or {}).get("run") if trace.evaluation is not None else None
    found = run.get("fingerprint") if isinstance(run, Mapping) else None
    return [found.get(key) for key in JUDGED_KEYS] if isinstance(found, Mapping) else None


def parse_time(text: str) -> datetime | None:
    """Return the time of a verdict in UTC; None for a text that is no time."""
    moment = _parse_time(text)
    return None if moment == _UNKNOWN else moment


def _time_of(trace: AnyTrace) -> datetime:
    return _parse_time(trace.evaluation.timestamp) if trace.evaluation is not None else _UNKNOWN


@lru_cache(1 << 16)
def _parse_time(text: str) -> datetime:
    """Return the time of a verdict. A time without a zone is UTC; a text that is no time counts as the earliest.

    Times are told to the second, so many verdicts share one.
    """
    text = text.strip()
    if text[-1:] in ("Z", "z"):
        text = f"{text[:-1]}+00:00"
    if "." in text:
        text = _FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", text)
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return _UNKNOWN
