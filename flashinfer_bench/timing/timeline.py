"""From what a GPU did to readings: the operations between two spins belong to the call that was launched between them.

Pure. An operation is given to a call by the order in which the host launched it (its correlation id), and not by the
time when it ran: work on a stream that does not wait for the current one may run before the spin has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from flashinfer_bench.timing.measurement import Sample

FILL: Final = "FillFunctor"
"""Stands in the names of torch's kernels that write one value."""
MOST_FILLS: Final = 4
"""Fills before a graph at the most: two for each generator of random numbers."""
MOST_FILL_NS: Final = 5_000
"""What such a fill, of 8 bytes, takes at the most."""


class TimelineBroken(Exception):
    """The records do not hold one spin for each call, so calls cannot be told apart."""


@dataclass(frozen=True)
class Operation:
    """One kernel, copy or fill that a GPU ran; times in nanoseconds on one clock."""

    name: str
    start_ns: int
    end_ns: int
    correlation: int
    """Grows in the order in which the host launched; all nodes of a graph launch share one."""
    stream: int = 0
    """Number of the stream that it ran on."""


@dataclass(frozen=True)
class HostCall:
    """When the host began and ended one call, on the same clock."""

    begin_ns: int
    end_ns: int
    ends_with_mark: bool = False
    """A mark was launched behind it: what comes after the mark is no part of the call."""
    is_replay: bool = False
    """It was the replay of one graph: torch's fills before the graph are no part of the call."""


@dataclass(frozen=True)
class OurKernels:
    """Names of the kernels that are launched round calls."""

    spin: str
    """Stands before each call."""
    flush: str | None
    """Stands once before each spin; None where none does."""
    mark: str
    """Stands behind a call that ends with a mark."""


def read_samples(operations: Sequence[Operation], calls: Sequence[HostCall], *, names: OurKernels) -> list[Sample]:
    """Return one reading per call.

    Args:
        operations: all that ran, in any order.
        calls: the host's side of each call, in order.
        names: the kernels round the calls.

    Raises:
        TimelineBroken: there is not one spin for each call.
    """
    spins: list[Operation] = []
    groups: list[list[Operation]] = []
    for operation in sorted(operations, key=attrgetter("correlation")):
        if operation.name == names.spin:
            spins.append(operation)
            groups.append([])
        elif groups:
            groups[-1].append(operation)
    if len(spins) != len(calls):
        raise TimelineBroken(f"{len(spins)} of {len(calls)} calls are in the records")
    for group in groups[:-1]:
        _remove_last(group, names.flush)  # the flush before the next call's spin
    samples: list[Sample] = []
    for group, call, before in zip(groups, calls, spins, strict=True):
        if call.ends_with_mark:
            _cut_at_mark(group, names.mark)
        if call.is_replay:
            before = _cut_fills(group, before)
        samples.append(read_call(group, call, before))
    return samples


def _remove_last(operations: list[Operation], name: str | None) -> None:
    """Remove the operation of that name that was launched last; they are in the order in which they were launched.

    A call may have launched others of the same name.
    """
    for at in range(len(operations) - 1, -1, -1):
        if operations[at].name == name:
            del operations[at]
            return


def _cut_at_mark(operations: list[Operation], mark: str) -> None:
    """Remove the mark that was launched last, and all that was launched behind it; they are in that order.

    Raises:
        TimelineBroken: there is no mark.
    """
    for at in range(len(operations) - 1, -1, -1):
        if operations[at].name == mark:
            del operations[at:]
            return
    raise TimelineBroken("the mark behind a call is not in the records")


def _cut_fills(operations: list[Operation], before: Operation) -> Operation:
    """Remove torch's fills before a graph; the operations are in the order in which they were launched.

    For a call that draws random numbers torch tells the graph by two fills where its draws begin. Without the graph the
    same numbers come with the launches. Whatever else is launched before a graph stays a part of the reading.

    Args:
        operations: of a replay.
        before: the work before it.

    Returns:
        The work before the graph.
    """
    count = 0
    while count < min(MOST_FILLS, len(operations) - 1) and _is_fill(operations[count]):
        if operations[count].correlation == operations[-1].correlation:
            break  # a node of the graph
        count += 1
    removed = operations[:count]
    del operations[:count]
    return max([before, *removed], key=attrgetter("end_ns"))


def _is_fill(operation: Operation) -> bool:
    return FILL in operation.name and operation.end_ns - operation.start_ns <= MOST_FILL_NS


def read_call(operations: Sequence[Operation], call: HostCall, before: Operation) -> Sample:
    """Return the reading of one call that launched these operations after `before`."""
    enqueue_ns = call.end_ns - call.begin_ns
    late = call.end_ns > before.end_ns
    if not operations:
        return Sample(span_ns=0, enqueue_ns=enqueue_ns, busy_ns=0, operations=0, late=late)
    if len(operations) == 1:  # as of most calls: the rest of this function, in a tenth of its time
        only = operations[0]
        length_ns = only.end_ns - only.start_ns
        return Sample(
            span_ns=length_ns,
            enqueue_ns=enqueue_ns,
            busy_ns=max(0, length_ns),
            operations=1,
            late=late,
            lead_ns=max(0, only.start_ns - before.end_ns),
            launched=((only.name, 1),),
            escaped=_escapes(only, before),
            work_ns=length_ns,
            streams=1,
        )
    first = min(operation.start_ns for operation in operations)
    last = max(operation.end_ns for operation in operations)
    busy_ns = busy_time(operations)
    return Sample(
        span_ns=last - first,
        enqueue_ns=enqueue_ns,
        busy_ns=busy_ns,
        operations=len(operations),
        late=late,
        lead_ns=max(0, first - before.end_ns),
        launched=tuple(sorted(Counter(operation.name for operation in operations).items())),
        escaped=any(_escapes(operation, before) for operation in operations),
        work_ns=sum(operation.end_ns - operation.start_ns for operation in operations),
        streams=len({operation.stream for operation in operations}),
    )


def _escapes(operation: Operation, before: Operation) -> bool:
    """Say whether an operation ran beside the work before its call, since its stream does not wait for it.

    On the same stream one may begin a moment before that work has ended where both may overlap (programmatic dependent
    launch). It waits for the end itself, and counts from where it began.
    """
    return operation.start_ns < before.end_ns and operation.stream != before.stream


def busy_time(operations: Sequence[Operation]) -> int:
    """Return the length of the union of the operations' intervals."""
    busy = covered_until = 0
    for operation in sorted(operations, key=lambda op: op.start_ns):
        begin = max(operation.start_ns, covered_until)
        if operation.end_ns > begin:
            busy += operation.end_ns - begin
            covered_until = operation.end_ns
    return busy
