"""Which trace counts where a job was judged more than once: the latest one, whatever file it is in.

A quick look (`--quick`) that passed does not displace a whole verdict on the same definition, solution and workload.
Look-ups, reports and resumed runs use this rule. Equal times, and times that are no ISO 8601, keep the files' order.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from operator import attrgetter
from typing import Final

import msgspec

from flashinfer_bench.data.measurement import tell
from flashinfer_bench.data.store.trace_lines import AnyTrace

JUDGED_KEYS: Final = ("definition", "solution", "workload", "evaluator")
"""The keys of a fingerprint that say what was judged, and by whom. The others say under which settings."""
_JUDGED: Final = attrgetter(*JUDGED_KEYS)
_UNKNOWN: Final = datetime.min.replace(tzinfo=timezone.utc)


def in_order_of_time(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the traces that hold a verdict, the earliest first."""
    judged = [(trace, trace.evaluation) for trace in traces if trace.evaluation is not None]
    return [trace for trace, _ in sorted(judged, key=lambda item: parse_time(item[1].timestamp) or _UNKNOWN)]


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
    return trace.evaluation is not None and tell(trace.evaluation).run.quick


def _may_be_alike(*traces: AnyTrace) -> bool:
    """Tell whether two traces are of the same things by their fingerprints, or one has none."""
    judged = {_JUDGED(tell(trace.evaluation).run.fingerprint) for trace in traces if trace.evaluation is not None}
    return len(judged - {("", "", "", "")}) < 2


def parse_time(text: str) -> datetime | None:
    """Return the time of a verdict; None for a text that is no time. A time without a zone is UTC."""
    try:
        moment = msgspec.convert(text.strip(), datetime)
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (msgspec.ValidationError, OverflowError):
        return None
