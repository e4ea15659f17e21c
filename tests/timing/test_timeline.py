"""From records to readings: which call an operation belongs to, and what a call's operations add up to."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.gpu_queue import DELAY_KERNEL, EMPTY_KERNEL, FLUSH_KERNEL
from flashinfer_bench.timing.timeline import (
    MOST_FILL_NS,
    MOST_FILLS,
    HostCall,
    Operation,
    TimelineBroken,
    busy_time,
    read_samples,
)

SPIN, FLUSH, MARK = DELAY_KERNEL, FLUSH_KERNEL, EMPTY_KERNEL
TORCH_FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_"


def read(operations, calls, flushes=True):
    return read_samples(operations, calls, flushes=flushes)


def two_calls():
    """Return the records of two calls of two kernels each behind a flush and a spin, and the host's side."""
    records = [
        Operation(FLUSH, 0, 40, 1),
        Operation(SPIN, 40, 100, 2),
        Operation("a", 101, 111, 3),
        Operation("b", 112, 132, 4),
        Operation(FLUSH, 140, 180, 5),
        Operation(SPIN, 180, 240, 6),
        Operation("a", 242, 252, 7),
        Operation("b", 253, 283, 8),
    ]
    return records, [HostCall(10, 30), HostCall(150, 190)]


def test_what_ran_between_two_spins_is_one_call():
    first, second = read(*two_calls())
    assert (first.span_ns, first.busy_ns, first.operations, first.lead_ns) == (31, 30, 2, 1)
    assert (second.span_ns, second.busy_ns, second.operations, second.lead_ns) == (41, 40, 2, 2)
    assert (first.enqueue_ns, second.enqueue_ns) == (20, 40)
    assert first.launched == second.launched == (("a", 1), ("b", 1))
    assert (first.late, first.escaped) == (False, False)


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_records_says_nothing(source):
    records, calls = two_calls()
    shuffled = source.sample(records, len(records))
    assert read(shuffled, calls) == read(records, calls)


@given(st.integers(0, 10**12))
def test_a_later_start_of_the_clock_says_nothing(shift):
    records, calls = two_calls()
    later = [Operation(r.name, r.start_ns + shift, r.end_ns + shift, r.correlation) for r in records]
    assert read(later, [HostCall(c.begin_ns + shift, c.end_ns + shift) for c in calls]) == read(records, calls)


def test_the_nodes_of_a_graph_share_an_id_and_all_count():
    records = [Operation(SPIN, 0, 50, 1), *[Operation(f"node{i}", 60 + 10 * i, 68 + 10 * i, 2) for i in range(5)]]
    (sample,) = read(records, [HostCall(5, 9)])
    assert (sample.operations, sample.span_ns, sample.busy_ns) == (5, 48, 40)


def test_a_side_stream_that_runs_before_the_spin_ends_belongs_to_the_call_that_launched_it():
    records, calls = two_calls()
    side = Operation("side", 160, 175, 9, stream=1)  # launched by the second call, runs beside its flush
    first, second = read([*records, side], calls)
    assert (first.operations, first.escaped) == (2, False)
    assert (second.operations, second.escaped, second.lead_ns, second.span_ns) == (3, True, 0, 123)


def test_the_streams_of_a_call_are_counted():
    records, calls = two_calls()
    first, second = read([*records, Operation("side", 254, 260, 9, stream=1)], calls)
    assert (first.streams, second.streams) == (1, 2)
    (nothing, alone) = read([record for record in records if record.correlation not in (3, 4, 8)], calls)
    assert (nothing.streams, alone.streams) == (0, 1)


def test_work_that_runs_on_into_the_next_call_is_counted_where_it_was_launched():
    records, calls = two_calls()
    long = Operation("long", 120, 300, 4)
    first, second = read([*records, long], calls)
    assert (first.operations, first.span_ns, second.operations) == (3, 199, 2)


def test_launches_of_another_thread_count_for_the_call_in_whose_window_they_fall():
    records, calls = two_calls()
    other = [Operation("thread", 255, 260, 7), Operation("earlier", 1, 2, 0)]
    first, second = read([*records, *other], calls)
    assert (first.operations, second.operations) == (2, 3)
    assert ("thread", 1) in second.launched
    assert not any(name == "earlier" for sample in (first, second) for name, _ in sample.launched)


def test_a_call_that_launches_nothing_has_a_reading_of_the_host_alone():
    records, calls = two_calls()
    first, second = read([record for record in records if record.correlation not in (3, 4)], calls)
    assert (first.span_ns, first.busy_ns, first.operations, first.lead_ns, first.enqueue_ns) == (0, 0, 0, None, 20)
    assert second.operations == 2


def test_a_call_that_is_enqueued_after_its_spin_ended_is_late():
    records, _ = two_calls()
    first, second = read(records, [HostCall(10, 101), HostCall(150, 240)])
    assert (first.late, second.late) == (True, False)


@pytest.mark.parametrize("missing", [2, 6])
def test_a_missing_spin_breaks_the_timeline(missing):
    records, calls = two_calls()
    with pytest.raises(TimelineBroken, match="1 of 2 calls"):
        read([record for record in records if record.correlation != missing], calls)


def test_a_spin_too_many_breaks_the_timeline():
    records, calls = two_calls()
    with pytest.raises(TimelineBroken, match="3 of 2 calls"):
        read([*records, Operation(SPIN, 300, 310, 9)], calls)


@pytest.mark.parametrize("flush", [FLUSH, None], ids=["cold", "warm"])
def test_a_kernel_that_bears_the_name_of_our_flush_is_seen(flush):
    records = [Operation(FLUSH, 0, 40, 1)] if flush else []
    records += [Operation(SPIN, 40, 100, 2), Operation("a", 101, 111, 3), Operation(FLUSH, 112, 132, 4)]
    records += [Operation(FLUSH, 140, 180, 5)] if flush else []
    records += [Operation(SPIN, 180, 240, 6), Operation("a", 242, 252, 7), Operation(FLUSH, 253, 283, 8)]
    samples = read(records, [HostCall(10, 30), HostCall(150, 190)], flush)
    assert [(sample.operations, sample.busy_ns) for sample in samples] == [(2, 30), (2, 40)]


def marked_calls():
    """Return two calls, each with a mark behind it and a copy behind the mark; the first launches a mark itself."""
    records = [Operation(SPIN, 40, 100, 1), Operation("a", 101, 111, 2), Operation(MARK, 112, 132, 3)]
    records += [Operation(MARK, 133, 134, 4), Operation("copy", 135, 165, 5)]
    records += [Operation(FLUSH, 170, 210, 6), Operation(SPIN, 210, 240, 7), Operation("a", 242, 252, 8)]
    records += [Operation(MARK, 253, 254, 9), Operation("copy", 255, 285, 10)]
    return records, [HostCall(10, 30, ends_with_mark=True), HostCall(150, 190, ends_with_mark=True)]


def test_what_comes_behind_the_mark_is_no_part_of_the_call():
    first, second = read(*marked_calls())
    assert (first.span_ns, first.operations, first.launched) == (31, 2, (("a", 1), (MARK, 1)))
    assert (second.span_ns, second.operations) == (10, 1)


def test_a_missing_mark_breaks_the_timeline():
    records, calls = marked_calls()
    with pytest.raises(TimelineBroken, match="the mark behind a call"):
        read([record for record in records if record.correlation != 9], calls)


def replay_of_two(*before):
    """Return the records of a replay of two operations behind others, each a name and a length, and of a copy."""
    records, now_ns = [Operation(SPIN, 40, 100, 1)], 100
    for name, length_ns in before:
        records.append(Operation(name, now_ns + 1, now_ns + 1 + length_ns, len(records) + 1))
        now_ns += 1 + length_ns
    graph = len(records) + 1
    records += [Operation("a", now_ns + 1, now_ns + 11, graph), Operation(TORCH_FILL, now_ns + 12, now_ns + 32, graph)]
    records += [
        Operation(MARK, now_ns + 33, now_ns + 34, graph + 1),
        Operation("copy", now_ns + 35, now_ns + 65, graph + 2),
    ]
    return records


def replayed(records, end_ns=90):
    (sample,) = read(records, [HostCall(10, end_ns, ends_with_mark=True, is_replay=True)])
    return sample


def test_the_fills_before_a_graph_are_no_part_of_its_replay():
    fills = (TORCH_FILL, 2), (TORCH_FILL, 2)
    sample = replayed(replay_of_two(*fills), end_ns=104)
    assert (sample.operations, sample.span_ns, sample.lead_ns) == (2, 31, 1)
    assert dict(sample.launched) == {"a": 1, TORCH_FILL: 1}
    assert not sample.late  # the GPU still had a fill to do
    assert replayed(replay_of_two(*fills), end_ns=107).late
    (whole,) = read(replay_of_two(*fills), [HostCall(10, 90, ends_with_mark=True)])
    assert (whole.operations, whole.span_ns) == (4, 37)


@pytest.mark.parametrize(
    ("before", "operations"),
    [
        ([("mine", 2)], 3),
        ([(TORCH_FILL, MOST_FILL_NS + 1)], 3),
        ([(TORCH_FILL, 2), ("mine", 2), (TORCH_FILL, 2)], 4),
        ([(TORCH_FILL, 2)] * (MOST_FILLS + 1), 3),
    ],
    ids=["another kernel", "a long fill", "a kernel behind a fill", "many fills"],
)
def test_whatever_else_is_launched_before_a_graph_is_part_of_the_reading(before, operations):
    assert replayed(replay_of_two(*before)).operations == operations


def test_what_is_launched_behind_a_graph_is_part_of_the_reading():
    records = [Operation(SPIN, 0, 50, 1), Operation("a", 51, 351, 2), Operation("b", 352, 353, 3)]
    (sample,) = read(records, [HostCall(5, 9, is_replay=True)])
    assert (sample.operations, sample.span_ns) == (2, 302)


def test_a_replay_of_nothing_has_no_operations():
    (sample,) = read([Operation(SPIN, 0, 50, 1)], [HostCall(5, 9, is_replay=True)])
    assert sample.operations == 0


def test_no_calls_have_no_readings():
    assert read([], []) == []


intervals = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=30)


@given(intervals)
def test_busy_time_is_the_length_of_the_union(pairs):
    operations = [Operation("k", start, start + length, 1) for start, length in pairs]
    covered = {moment for op in operations for moment in range(op.start_ns, op.end_ns)}
    assert busy_time(operations) == len(covered)


@given(intervals)
def test_busy_time_lies_between_the_longest_operation_and_the_span(pairs):
    records = [Operation(SPIN, 0, 1, 1), *[Operation("k", 2 + start, 2 + start + length, 2) for start, length in pairs]]
    (sample,) = read(random.Random(0).sample(records, len(records)), [HostCall(0, 1)])
    assert max(length for _, length in pairs) <= sample.busy_ns <= sample.span_ns


def test_work_that_begins_when_the_spin_ends_has_not_escaped():
    (sample,) = read([Operation(SPIN, 0, 50, 1), Operation("a", 50, 60, 2)], [HostCall(5, 9)])
    assert (sample.escaped, sample.lead_ns) == (False, 0)


@pytest.mark.parametrize("others", [[], [Operation("b", 62, 70, 3)]])
def test_work_on_the_spins_stream_that_begins_a_moment_before_its_end_has_not_escaped(others):
    """Programmatic dependent launch."""
    (sample,) = read([Operation(SPIN, 0, 50, 1), Operation("a", 49, 60, 2), *others], [HostCall(5, 9)])
    assert (sample.escaped, sample.lead_ns) == (False, 0)
    assert sample.span_ns == (21 if others else 11)


def test_spins_are_in_the_order_of_their_launches_not_of_their_times():
    records = [Operation(SPIN, 200, 240, 1), Operation("a", 241, 251, 2)]
    records += [Operation(SPIN, 100, 140, 3), Operation("b", 141, 191, 4)]  # on a stream that was free before
    assert [sample.span_ns for sample in read(records, [HostCall(5, 9)] * 2, False)] == [10, 50]
