"""What a ratio means, and when two times may be compared at all."""

from math import log

import pytest

from flashinfer_bench.data.sets.told import FingerprintRecord, ToldTrace, tell
from flashinfer_bench.report.comparable import find_difference, marks_of
from flashinfer_bench.report.decision import decide, join_halves, log_half_of
from tests.kit import make_evaluation

CASES = (
    (1.0, 0.01, "same"),
    (1.012, 0.005, "same"),  # the interval leaves out 1, and yet all of it lies within the threshold
    (1.1, 0.05, "slower"),
    (0.9, 0.05, "faster"),
    (1.1, 0.2, "cannot tell yet"),
    (1.015, 0.01, "cannot tell yet"),
    (1.1, None, "cannot tell yet"),
)
"""Ratio, half its interval as a logarithm, and what it means by a threshold of 2 %."""


@pytest.mark.parametrize(("ratio", "half", "wanted"), CASES)
def test_a_decision_follows_from_the_interval_and_the_threshold(ratio, half, wanted):
    assert decide(log(ratio), half) == wanted


@pytest.mark.parametrize(("ratio", "half", "wanted"), CASES)
def test_it_is_the_same_whichever_side_is_named_first(ratio, half, wanted):
    turned = {"faster": "slower", "slower": "faster"}.get(wanted, wanted)
    assert decide(-log(ratio), half) == turned


def test_an_interval_that_reaches_to_zero_tells_nothing_of_a_ratio():
    assert log_half_of(1.0, 0.0, 2.0) is None
    assert join_halves([0.3, None]) is None
    assert join_halves([0.3, 0.4]) == pytest.approx(0.5)
    assert log_half_of(1.0, 0.5, 1.25) == pytest.approx(log(2))  # the larger side


def test_a_mark_that_one_side_does_not_tell_is_not_held_against_it():
    marks = marks_of(ToldTrace(), "x")
    assert marks == {"hardware": "x"}
    assert find_difference(marks, {**marks, "sandbox": "walls", "timing": "no graphs"}) is None
    assert find_difference(marks, {"hardware": "y"}) == ("other hardware", "x", "y")


def test_a_strange_mark_costs_the_others_nothing():
    run = {"fingerprint": {"timing": {"strange": 1}, "protocol": 3, "sandbox": "walls", "solution": "d"}}
    marks = marks_of(tell(make_evaluation(extra={"run": run})), "x")
    assert marks == {"hardware": "x", "protocol": "3", "sandbox": "walls", "timing": "usual"}


def test_a_number_counts_as_its_digits():
    run = ToldTrace().run
    told = [ToldTrace(run=type(run)(fingerprint=FingerprintRecord(protocol=name))) for name in (2, "2")]
    assert find_difference(*(marks_of(one, "x") for one in told)) is None
