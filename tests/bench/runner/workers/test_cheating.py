"""What solutions try while they are timed, and what becomes of it; honest twins stand in test_measuring.py."""

from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.errors import SolutionFailure

pytestmark = pytest.mark.cpu
X = torch.arange(1.0, 5.0)
READ = MeasurePlan(2, 20, 1.0, reads=12)
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
    return x.clone() if "sample" in names else x * 2
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
        (BY_ADDRESS, 3),
        (BY_A_FEW_ELEMENTS, 6),
        (EVERY_SECOND, 1),
        (EVERY_SECOND_LEFT_OUT, 1),
        (TIMED_BY_THE_STACK, 13),
        (WHEN_THE_ANSWER_IS_READ, 13),
    ],
    ids=["by address", "by a few elements", "every second", "every second left out", "by the stack", "by attribute"],
)
def test_calls_that_are_read_show_what_was_not_computed(open_kernel, source, least):
    with open_kernel(source, plan=replace(READ, iterations=200)) as kernel:
        kernel.measure([[X]])
    assert count_wrong(kernel.reads[0]) >= least


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
