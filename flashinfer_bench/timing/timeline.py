"""Turns GPU records into samples: operations between two delay kernels belong to the call launched between them. Pure
functions.

Operations are assigned to a call by the order of launches (correlation id), and not by time. On a stream that does not
wait for the current stream, work may run before the delay has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final

from flashinfer_bench.timing.flush import DELAY_KERNEL, EMPTY_KERNEL, FLUSH_KERNEL
from flashinfer_bench.timing.measurement import Sample

FILL: Final = "FillFunctor"
"""Text in the names of torch's kernels that write one value to all elements."""
MOST_FILLS: Final = 4
MOST_FILL_NS: Final = 5_000
"""Maximum number of 8-byte fills before a graph, two for each random generator, and the maximum time of each fill."""


class TimelineBroken(Exception):
    """The records do not have one delay for each call, so calls cannot be separated."""


@dataclass(frozen=True)
class Operation:
    """One kernel, copy or fill that a GPU ran; times in nanoseconds on one clock."""

    name: str
    start_ns: int
    end_ns: int
    correlation: int
    """Number that grows in the order of launches. All nodes of one graph launch share a number."""
    stream: int = 0


@dataclass(frozen=True)
class HostCall:
    """Begin and end of one call on the host, on the same clock as the operations."""

    begin_ns: int
    end_ns: int
    ends_with_mark: bool = False
    """Whether an empty kernel was launched behind the call, as a mark. Work after the mark is no part of the call."""
    is_replay: bool = False
    """Whether the call replayed one graph. Torch's fills before the graph are no part of the call."""


def read_samples(operations: Sequence[Operation], calls: Sequence[HostCall], *, flushes: bool) -> list[Sample]:
    """Return one sample per call.

    Args:
        operations: all operations that ran, in any order.
        calls: the host's side of each call, in order.
        flushes: whether a flush was launched before each delay.

    Raises:
        TimelineBroken: there is not exactly one delay for each call.
    """
    delays: list[Operation] = []
    groups: list[list[Operation]] = []
    for operation in sorted(operations, key=attrgetter("correlation")):
        if operation.name == DELAY_KERNEL:
            delays.append(operation)
            groups.append([])
        elif groups:
            groups[-1].append(operation)
    if len(delays) != len(calls):
        raise TimelineBroken(f"{len(delays)} of {len(calls)} calls are in the records")
    samples = []
    for number, (group, call, before) in enumerate(zip(groups, calls, delays, strict=True), 1):
        flush = _find_last(group, FLUSH_KERNEL) if flushes and number < len(calls) else None
        if flush is not None:  # the flush of the next call; a call may launch kernels of the same name
            del group[flush]
        if call.ends_with_mark:
            mark = _find_last(group, EMPTY_KERNEL)
            if mark is None:
                raise TimelineBroken("the mark behind a call is not in the records")
            del group[mark:]
        samples.append(read_call(group, call, _cut_fills(group, before) if call.is_replay else before))
    return samples


def _find_last(operations: Sequence[Operation], name: str) -> int | None:
    for at in range(len(operations) - 1, -1, -1):
        if operations[at].name == name:
            return at
    return None


def _cut_fills(operations: list[Operation], before: Operation) -> Operation:
    """Remove torch's fills before a graph; return the last operation before the graph.

    The fills set the seed and the offset of the graph's random numbers. A launch without a graph gets these as
    arguments.
    """
    count = 0
    for one in operations[: min(MOST_FILLS, len(operations) - 1)]:
        is_fill = FILL in one.name and one.end_ns - one.start_ns <= MOST_FILL_NS
        if not is_fill or one.correlation == operations[-1].correlation:  # the operation is in the graph
            break
        count += 1
    removed = operations[:count]
    del operations[:count]
    return max([before, *removed], key=attrgetter("end_ns"))


def read_call(operations: Sequence[Operation], call: HostCall, before: Operation) -> Sample:
    """Return the sample of one call that launched these operations after `before`."""
    enqueue_ns, late = call.end_ns - call.begin_ns, call.end_ns > before.end_ns
    if not operations:
        return Sample(span_ns=0, enqueue_ns=enqueue_ns, busy_ns=0, operations=0, late=late)
    # Lists are faster than generators here. This runs between two requests, once for each call.
    first = min([operation.start_ns for operation in operations])
    return Sample(
        span_ns=max([operation.end_ns for operation in operations]) - first,
        enqueue_ns=enqueue_ns,
        busy_ns=busy_time(operations),
        operations=len(operations),
        late=late,
        lead_ns=max(0, first - before.end_ns),
        launched=_count_names(tuple([operation.name for operation in operations])),
        # On the same stream an operation may begin a moment early (programmatic dependent launch); such an operation
        # waits for the end of the delay itself.
        escaped=first < before.end_ns
        and any(one.start_ns < before.end_ns and one.stream != before.stream for one in operations),
        work_ns=sum([operation.end_ns - operation.start_ns for operation in operations]),
        streams=len({operation.stream for operation in operations}),
    )


@lru_cache
def _count_names(names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Count the occurrences of each name, sorted. It is cached, because all calls of a solution have the same names."""
    return tuple(sorted(Counter(names).items()))


def busy_time(operations: Sequence[Operation]) -> int:
    """Return the length of the union of the operations' intervals."""
    busy = covered_until = 0
    for operation in sorted(operations, key=attrgetter("start_ns")):
        busy += max(0, operation.end_ns - max(operation.start_ns, covered_until))
        covered_until = max(covered_until, operation.end_ns)
    return busy
