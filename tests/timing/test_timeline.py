"""From records to samples: which call an operation belongs to, and what a call's operations add up to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.flush import DELAY_KERNEL, EMPTY_KERNEL, FLUSH_KERNEL
from flashinfer_bench.timing.timeline import HostCall, Operation, TimelineBroken, busy_time, read_samples

DELAY, FLUSH, MARK = DELAY_KERNEL, FLUSH_KERNEL, EMPTY_KERNEL
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_"
RECORDS = [
    Operation(FLUSH, 0, 40, 1),
    Operation(DELAY, 40, 100, 2),
    Operation("a", 101, 111, 3),
    Operation("b", 112, 132, 4),
    Operation(FLUSH, 140, 180, 5),
    Operation(DELAY, 180, 240, 6),
    Operation("a", 242, 252, 7),
    Operation("b", 253, 283, 8),
]
CALLS = [HostCall(10, 30), HostCall(150, 190)]


@given(st.permutations(RECORDS))
def test_calls_are_told_apart_whatever_the_order_of_records(records):
    first, second = read_samples(records, CALLS, flushes=True)
    assert (first.span_ns, first.busy_ns, first.operations, first.lead_ns, first.enqueue_ns) == (31, 30, 2, 1, 20)
    assert (second.span_ns, second.busy_ns, second.operations, second.lead_ns, second.enqueue_ns) == (41, 40, 2, 2, 40)
    assert first.launched == second.launched == (("a", 1), ("b", 1))
    assert (first.late, first.escaped, first.streams) == (False, False, 1)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        (Operation("side", 160, 175, 9, stream=1), [(2, 31, False, 1), (3, 123, True, 2)]),  # beside the flush
        (Operation("long", 120, 300, 4), [(3, 199, False, 1), (2, 41, False, 1)]),  # it runs on
        (Operation("before", 1, 2, 0), [(2, 31, False, 1), (2, 41, False, 1)]),
        (Operation(FLUSH, 133, 135, 4), [(3, 34, False, 1), (2, 41, False, 1)]),  # one of the call's own
    ],
)
def test_an_operation_belongs_to_the_call_that_launched_it(more, found):
    samples = read_samples([*RECORDS, more], CALLS, flushes=True)
    assert [(one.operations, one.span_ns, one.escaped, one.streams) for one in samples] == found


@pytest.mark.parametrize(("records", "calls"), [(RECORDS[2:], CALLS), (RECORDS, CALLS[:1])])
def test_a_delay_too_few_or_too_many_breaks_the_timeline(records, calls):
    with pytest.raises(TimelineBroken, match="calls are in the records"):
        read_samples(records, calls, flushes=True)


@pytest.mark.parametrize(
    ("operations", "host_end", "found"),
    [
        ([Operation("a", 49, 60, 2)], 50, (11, 0, False, False)),  # programmatic dependent launch
        ([Operation("a", 49, 60, 2), Operation("b", 62, 70, 3)], 51, (21, 0, False, True)),
        ([Operation(f"n{i}", 60 + 10 * i, 68 + 10 * i, 2) for i in range(5)], 9, (48, 10, False, False)),  # a graph
    ],
)
def test_work_on_the_delays_stream_has_not_escaped_and_a_host_that_ends_behind_it_is_late(operations, host_end, found):
    (sample,) = read_samples([Operation(DELAY, 0, 50, 1), *operations], [HostCall(5, host_end)], flushes=False)
    assert (sample.span_ns, sample.lead_ns, sample.escaped, sample.late) == found


def test_what_comes_behind_the_mark_is_no_part_of_the_call():
    """The call launches a mark itself."""
    records = [Operation(DELAY, 40, 100, 1), Operation("a", 101, 111, 2), Operation(MARK, 112, 132, 3)]
    records += [Operation(MARK, 133, 134, 4), Operation("copy", 135, 165, 5)]
    calls = [HostCall(10, 30, ends_with_mark=True)]
    (sample,) = read_samples(records, calls, flushes=True)
    assert (sample.span_ns, sample.operations) == (31, 2)
    with pytest.raises(TimelineBroken, match="the mark behind a call"):
        read_samples(records[:2], calls, flushes=True)


@pytest.mark.parametrize(
    ("before", "is_replay", "operations"),
    [
        ([(FILL, 2), (FILL, 2)], True, 2),
        ([(FILL, 2), (FILL, 2)], False, 4),
        ([(FILL, 5_001)], True, 3),
        ([(FILL, 2), ("mine", 2), (FILL, 2)], True, 4),
    ],
    ids=["fills", "no replay", "a long fill", "a kernel behind a fill"],
)
def test_of_what_is_launched_before_a_graph_the_fills_alone_are_no_part_of_its_replay(before, is_replay, operations):
    records, now_ns = [Operation(DELAY, 40, 100, 1)], 100
    for name, length_ns in before:
        records.append(Operation(name, now_ns + 1, now_ns + 1 + length_ns, len(records) + 1))
        now_ns += 1 + length_ns
    graph = len(records) + 1
    records += [Operation("a", now_ns + 1, now_ns + 11, graph), Operation(FILL, now_ns + 12, now_ns + 32, graph)]
    (sample,) = read_samples(records, [HostCall(10, 104, is_replay=is_replay)], flushes=False)
    assert sample.operations == operations
    assert operations > 2 or not sample.late  # the GPU still had a fill to do


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=30))
def test_busy_time_is_the_length_of_the_union(pairs):
    records = [Operation("k", 2 + start, 2 + start + length, 2) for start, length in pairs]
    assert busy_time(records) == len({moment for op in records for moment in range(op.start_ns, op.end_ns)})
