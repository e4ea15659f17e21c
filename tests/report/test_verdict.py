"""What one evaluation says in one line."""

import pytest

from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.report.verdict import REASON_LIMIT, caveat_of, first_reason, to_one_line
from tests.kit import make_evaluation, make_trace, make_workload

TRACEBACK = """\
Traceback (most recent call last):
  File "main.py", line 3, in run
    return helper(x)
ValueError: x is too
long
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("\n  \n", ""),
        ("output y is float32\nmore", "output y is float32"),
        (TRACEBACK, "ValueError: x is too"),
        (f"run raised:\n{TRACEBACK}", "run raised: ValueError: x is too"),
        (f"ValueError in the call: x is too\n{TRACEBACK}", "ValueError in the call: x is too"),
        (f"it said: {TRACEBACK}", "it said: ValueError: x is too"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
    ],
)
def test_the_reason_is_the_first_line_or_the_exception_of_a_traceback(log, reason):
    assert first_reason(log) == reason


def test_a_reason_cannot_write_to_the_terminal():
    assert to_one_line("\x1b[31mred\x1b[0m\tand\x07") == "\\x1b[31mred\\x1b[0m and\\x07"


def test_a_long_reason_is_cut_and_says_so():
    line = to_one_line("a" * 1000)
    assert len(line) == REASON_LIMIT
    assert line.endswith("…")


@pytest.mark.parametrize(
    ("extra", "caveat"),
    [
        (None, None),
        ({}, None),
        ({"measurement": {"meaningful": True}}, None),
        ({"measurement": {"meaningful": False}}, "this time says nothing about the kernel"),
        ({"measurement": {"meaningful": False, "reason": "an interpreter"}}, "an interpreter"),
        ({"measurement": "from another engine"}, None),
    ],
)
def test_a_time_means_something_unless_the_measurement_says_otherwise(extra, caveat):
    assert caveat_of(make_evaluation(extra=extra)) == caveat


def test_of_a_repeated_job_the_last_verdict_counts():
    first, last = make_trace(status="TIMEOUT"), make_trace(status="PASSED")
    other = make_trace(workload=make_workload("w1"), status="TIMEOUT")
    assert find_latest([first, other, make_trace(solution=None), last]) == [other, last]


def test_verdicts_of_different_hardware_do_not_replace_each_other():
    here, there = make_trace(), make_trace(environment={"hardware": "other device", "libs": {}})
    assert len(find_latest([here, there])) == 2
