"""What solutions try while they are timed, and what becomes of it; honest twins stand in test_measuring.py."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.errors import SolutionFailure

pytestmark = pytest.mark.cpu
X = torch.arange(1.0, 5.0)
READ = MeasurePlan(2, 20, 1.0, reads=12)
WORK = """
import time
def work(x):
    end = time.process_time() + 0.002
    while time.process_time() < end:
        pass
    return x * 2
"""
BY_ADDRESS = """
known = {}
def run(x):
    if x.data_ptr() not in known:
        known[x.data_ptr()] = x * 2
    return known[x.data_ptr()]
"""
BY_A_FEW_ELEMENTS = """
known = {}
def run(x):
    return known.setdefault(round(float(x.abs().sum()), -3), x * 2)
"""
EVERY_SECOND = """
calls = 0
def run(x):
    global calls
    calls += 1
    return x * 3 if calls % 2 else x * 2
"""
EVERY_SECOND_LEFT_OUT = """
calls = 0
def run(x, y):
    global calls
    calls += 1
    if calls % 2:
        y.copy_(x * 2)
"""
TIMED_BY_THE_STACK = """
import sys
def run(x):
    frame, names = sys._getframe(), set()
    while frame:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return x.clone() if "sample" in names or "burst" in names else x * 2
"""
WHEN_THE_ANSWER_IS_READ = """
import torch
kept = []
class Calls:
    def __call__(self, x):
        y = torch.empty(4)
        y.detach = lambda: x * 2
        return y.fill_(7)
run = Calls()
"""


def count_wrong(reads):
    return sum(not torch.equal(read.outputs[0], read.inputs[0] * 2) for read in reads)


@pytest.mark.parametrize(
    ("source", "least"),
    [
        (BY_ADDRESS, 6),
        (BY_A_FEW_ELEMENTS, 6),
        (EVERY_SECOND, 1),
        (EVERY_SECOND_LEFT_OUT, 1),
        (TIMED_BY_THE_STACK, 13),
        (WHEN_THE_ANSWER_IS_READ, 13),
    ],
    ids=["by address", "by a few elements", "every second", "every second left out", "by the stack", "by attribute"],
)
def test_calls_that_are_read_show_what_was_not_computed(open_kernel, source, least):
    with open_kernel(source, plan=READ) as kernel:
        assert is_refused(kernel) or count_wrong(kernel.reads[0]) >= least


def is_refused(kernel):
    """Measure; tell whether bursts have refuted the readings, as they do where calls compute in bursts alone."""
    try:
        kernel.measure([[X]])
    except SolutionFailure as failure:
        return "as timed from outside" in failure.message
    return False


LIES = """
import flashinfer_bench.worker.main as main
answer = main.answer_readings
def lie(samples):
    told = answer(samples)
    return {**told, "span_ns": [50_000] * len(samples), "enqueue_ns": [50_000] * len(samples)}
main.answer_readings = lie
run = work
"""
SLOW_WATCH = """
import flashinfer_bench.timing.clocks.wall as wall
now = 0
def tick():
    global now
    now += 50_000
    return now
wall.perf_counter_ns = tick
run = work
"""
IN_A_CHILD = """
import os
import flashinfer_bench.worker.main as main
answer = main.answer_readings
main.answer_readings = lambda samples: {**answer(samples), "span_ns": [100_000] * len(samples)}
def run(x):
    if os.fork() == 0:
        work(x)
        os._exit(0)
    os.wait()
    return x * 2
"""


@pytest.mark.parametrize("source", [LIES, SLOW_WATCH, IN_A_CHILD], ids=["answers", "watch", "in a child"])
def test_a_latency_far_below_what_calls_cost_outside_is_refused_with_both_figures(open_kernel, source):
    with open_kernel(WORK + source, declared=False, timeout_seconds=50.0) as kernel:
        kernel(X)
        with pytest.raises(SolutionFailure) as failure:
            kernel.measure([[X]])
    claimed, burst = (float(text.split(" ms")[0].split()[-1]) for text in failure.value.message.split("; "))
    assert failure.value.status == "RUNTIME_ERROR"
    assert claimed <= 0.1
    assert burst >= 1.5
    assert "as timed from outside" in failure.value.message


FORGER = """
import flashinfer_bench.worker.main as main
answer = main.answer_readings
def forge(samples):
    told, count = answer(samples), len(samples)
    return {**told, **{changes}}
main.answer_readings = forge
def run(x):
    return x * 2
"""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("{'span_ns': [10**12] * count}", "readings add up to more than the time that passed"),
        ("{'span_ns': [0] * count}", "less than an empty call takes"),
        ("{name: told[name] * 2 for name in told if told[name]}", "readings of"),
        ("{'busy_ns': [0] * count, 'operations': [0] * count}", "operations that the clock cannot see"),
        ("{'span_ns': [-1] * count}", "out of protocol"),
        ("{'span_ns': [float('nan')] * count}", "out of protocol"),
        ("{'span_ns': [10**400] * count}", "out of protocol"),
        ("{'late': []}", "out of protocol"),
        ("{'more': 1}", "out of protocol"),
    ],
)
def test_readings_that_cannot_be_are_refused(open_kernel, changes, said):
    with open_kernel(FORGER.replace("{changes}", changes)) as kernel:
        kernel(X)
        with pytest.raises(SolutionFailure, match=said) as failure:
            kernel.measure([[X]])
    assert failure.value.status == "RUNTIME_ERROR"


def test_work_that_setup_leaves_to_a_thread_is_no_gain(open_kernel):
    source = """
import threading
def setup(x):
    place = []
    thread = threading.Thread(target=lambda: place.append(work(x)))
    thread.start()
    return {"thread": thread, "place": place}
def run(x, *, thread, place):
    thread.join()
    return place[0]
"""
    with open_kernel(WORK + source, plan=READ) as kernel:
        measured = kernel.measure([[X]])
    assert count_wrong(kernel.reads[0]) == 0
    assert measured.latency_ms > 1.5
