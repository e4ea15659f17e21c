"""From records to samples: the call of an operation, and the sums over a call's operations."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.flush import DELAY_KERNEL, EMPTY_KERNEL, FLUSH_KERNEL
from flashinfer_bench.timing.timeline import HostCall, Operation, TimelineBroken, busy_time, read_samples

FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_"
NAMES = {"flush": FLUSH_KERNEL, "delay": DELAY_KERNEL, "mark": EMPTY_KERNEL, "fill": FILL}


def records(text):
    """Return the operations of lines "launch name start end [stream]"; a launch may have several."""
    found = []
    for line in text.strip().splitlines():
        launch, name, *numbers = line.split("#")[0].split()
        found.append(Operation(NAMES.get(name, name), *map(int, numbers[:2]), int(launch), *map(int, numbers[2:])))
    return found


TWO = """
1 flush   0  40
2 delay  40 100
3 a     101 111
4 b     112 132
5 flush 140 180
6 delay 180 240
7 a     242 252
8 b     253 283
"""
CALLS = [HostCall(10, 30), HostCall(150, 190)]


def test_calls_are_separated_in_any_order_of_records():
    shuffled = records(TWO)
    random.Random(1).shuffle(shuffled)
    first, second = read_samples(shuffled, CALLS, flushes=True)
    assert (first.span_ns, first.busy_ns, first.operations, first.lead_ns, first.enqueue_ns) == (31, 30, 2, 1, 20)
    assert (second.span_ns, second.busy_ns, second.operations, second.lead_ns, second.enqueue_ns) == (41, 40, 2, 2, 40)
    assert first.launched == second.launched == (("a", 1), ("b", 1))
    assert (first.late, first.escaped, first.streams) == (False, False, 1)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("9 side 160 175 1", [(2, 31, False, 1), (3, 123, True, 2)]),  # next to the flush
        ("4 long 120 300", [(3, 199, False, 1), (2, 41, False, 1)]),  # it runs on
        ("0 before 1 2", [(2, 31, False, 1), (2, 41, False, 1)]),
        ("4 flush 133 135", [(3, 34, False, 1), (2, 41, False, 1)]),  # one of the call's own
    ],
)
def test_an_operation_belongs_to_the_call_that_launched_it(more, found):
    samples = read_samples(records(TWO + more), CALLS, flushes=True)
    assert [(one.operations, one.span_ns, one.escaped, one.streams) for one in samples] == found


ONE_CALL = [
    # launches of a call behind a delay from 0 to 50, end of its host call; span, lead, escaped, late
    ("2 a 49 60", 50, (11, 0, False, False)),  # programmatic dependent launch
    ("2 a 49 60\n3 b 62 70", 51, (21, 0, False, True)),
    ("2 a 60 68\n2 b 70 78\n2 c 80 88", 9, (28, 10, False, False)),  # a graph
]


@pytest.mark.parametrize(("operations", "host_end", "found"), ONE_CALL)
def test_work_on_the_delays_stream_has_not_escaped_and_a_host_that_ends_behind_it_is_late(operations, host_end, found):
    (sample,) = read_samples(records(f"1 delay 0 50\n{operations}"), [HostCall(5, host_end)], flushes=False)
    assert (sample.span_ns, sample.lead_ns, sample.escaped, sample.late) == found


MARKED = """
1 delay  40 100
2 a     101 111
3 mark  112 132 # the call's own
4 mark  133 134
5 copy  135 165
"""


def test_operations_behind_the_mark_are_no_part_of_the_call():
    (sample,) = read_samples(records(MARKED), [HostCall(10, 30, ends_with_mark=True)], flushes=True)
    assert (sample.span_ns, sample.operations) == (31, 2)


@pytest.mark.parametrize(
    ("text", "calls", "reason"),
    [
        (TWO.replace("2 delay  40 100\n", ""), CALLS, "calls are in the records"),
        (TWO, CALLS[:1], "calls are in the records"),
        (MARKED.partition("3 mark")[0], [HostCall(10, 30, ends_with_mark=True)], "the mark behind a call"),
    ],
)
def test_a_delay_or_a_mark_too_few_or_too_many_breaks_the_timeline(text, calls, reason):
    with pytest.raises(TimelineBroken, match=reason):
        read_samples(records(text), calls, flushes=True)


REPLAYED = "5 a 200 210\n5 fill 211 231"
FILLS = [
    # launches between the delay and a graph, whether that is a replay; the operations of the call
    ("2 fill 101 103\n3 fill 104 106", True, 2),
    ("2 fill 101 103\n3 fill 104 106", False, 4),
    ("2 fill 101 5102", True, 3),
    ("2 fill 101 103\n3 mine 104 106\n4 fill 107 109", True, 4),
]


@pytest.mark.parametrize(("before", "is_replay", "operations"), FILLS, ids=["fills", "no replay", "long", "a kernel"])
def test_only_fills_before_a_graph_are_no_part_of_its_replay(before, is_replay, operations):
    held = records(f"1 delay 40 100\n{before}\n{REPLAYED}")
    (sample,) = read_samples(held, [HostCall(10, 104, is_replay=is_replay)], flushes=False)
    assert sample.operations == operations
    assert operations > 2 or not sample.late  # the GPU still had a fill to do


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=30))
def test_busy_time_is_the_length_of_the_union(pairs):
    held = [Operation("k", start, start + length, 2) for start, length in pairs]
    assert busy_time(held) == len({moment for op in held for moment in range(op.start_ns, op.end_ns)})
