"""Descriptions in reports: why a solution failed, how it was timed, differences, and decisions on a ratio."""

from math import log

import pytest

from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.data.measurement import ReportedTrace, read_reported
from flashinfer_bench.report.blind import find_blind
from flashinfer_bench.report.comparable import comparison_keys, find_difference
from flashinfer_bench.report.decision import decide, join_halves, log_half_of
from flashinfer_bench.report.timing import count_timing, describe_bounds, describe_flag, describe_ways, join_timings
from flashinfer_bench.report.verdict import first_reason, to_one_line
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, FALLING_BACK
from tests.kit import make_evaluation, make_trace, make_workload
from tests.report.made import GPU

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
        ("\n  \n", ""),
        (f"run raised:\n{TRACEBACK}", "run raised: ValueError: x is too"),
        (f"ValueError in the call: x is too\n{TRACEBACK}", "ValueError in the call: x is too"),
        (f"it said: {TRACEBACK}", "it said: ValueError: x is too"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("\x1b[31mred\x1b[0m\tand\x07", "\\x1b[31mred\\x1b[0m and\\x07"),
        ("a" * 1000, "a" * 299 + "…"),
    ],
)
def test_the_reason_is_the_first_line_or_the_exception_of_a_traceback(log, reason):
    assert first_reason(log) == reason == to_one_line(reason)


def timed(method="cupti", *, run=None, **record):
    extra = {"measurement": GPU | {"method": method} | record, **({"run": run} if run is not None else {})}
    return make_evaluation(extra=extra)


def read_timing(evaluations):
    return count_timing([read_reported(one) for one in evaluations if one.performance is not None])


@pytest.mark.parametrize(
    ("evaluations", "line"),
    [
        ([timed(launch="graph"), timed()], "timed by CUPTI, cold L2, 1 of them as replays of CUDA graphs"),
        ([timed("cuda_events", cache_state="warm", fallback=EVENTS_ASKED_FOR)], "timed by CUDA events, warm L2"),
        ([timed("cuda_events", fallback=f"no CUPTI. {FALLING_BACK}")], "timed by CUDA events, cold L2 (no CUPTI)"),
        ([timed("wall", cache_state="warm", launch="")], "timed by the wall clock"),
        ([timed(), make_evaluation()], "timed 1 of 2 by CUPTI, cold L2; 1 of 2 do not say how"),
        ([make_evaluation("TIMEOUT")], None),
    ],
)
def test_a_line_says_how_times_were_taken(evaluations, line):
    assert describe_ways(join_timings([read_timing([evaluation]) for evaluation in evaluations])) == line


def test_a_line_has_the_bounds_of_latencies_and_the_assurance():
    chain, floor = (timed(bound=bound, assurance="standard") for bound in ("chain", "floor"))
    reported = "bound of the latencies: a gated chain of calls at standard assurance (2), the least time"
    assert describe_bounds(read_timing([chain, chain, floor, timed()])).startswith(reported)
    assert describe_bounds(read_timing([timed()])) is None
    indicative = read_timing([timed("wall", bound="none")])
    assert describe_bounds(indicative) == "bound of the latencies: none (indicative)"


def test_measurements_of_foreign_files_cannot_break_a_report():
    foreign = make_evaluation(extra={"measurement": {"method": ["x"], "flags": ["a\x1b"]}})
    unreal = timed("wall", flags=["noisy"], meaningful=False)
    assert read_timing([timed(flags={"a": 1}), foreign, unreal]).flags == {"a\\x1b": 1}


def test_verdicts_of_an_older_protocol_and_without_a_sandbox_are_marked():
    now = {"protocol": str(PROTOCOL), "sandbox": "walls"}
    runs = (None, now, {"hardware": "x"}, now | {"sandbox": "none"})
    timing = read_timing([timed(run={"fingerprint": fingerprint}) for fingerprint in runs])
    assert timing.flags == {"older_protocol": 1, "no_sandbox": 1}
    assert all(": " in describe_flag(mark, timing) for mark in timing.flags)


def test_a_noisy_reference_flags_the_speed_up_of_a_meaningful_time():
    found = [timed(meaningful=known) for known in (True, False)]
    for evaluation in found:
        evaluation.extra["baseline"] = {"flags": ["noisy", "throttled"]}
    assert read_timing(found).flags == {"noisy_reference": 1}


CASES = (
    (1.0, 0.01, "same"),
    (1.012, 0.005, "same"),  # the interval excludes 1, but is within the threshold
    (1.1, 0.05, "slower"),
    (0.9, 0.05, "faster"),
    (1.1, 0.2, "cannot tell yet"),
    (1.015, 0.01, "cannot tell yet"),
    (1.1, None, "cannot tell yet"),
)
"""Ratio, half its interval as a logarithm, and the decision at a threshold of 2 %."""


@pytest.mark.parametrize(("ratio", "half", "wanted"), CASES)
def test_a_decision_follows_from_interval_and_threshold_whichever_side_is_first(ratio, half, wanted):
    assert decide(log(ratio), half) == wanted
    assert decide(-log(ratio), half) == {"faster": "slower", "slower": "faster"}.get(wanted, wanted)


def test_an_interval_that_reaches_zero_gives_no_interval_of_a_ratio():
    assert log_half_of(1.0, 0.0, 2.0) is join_halves([0.3, None]) is None
    assert join_halves([0.3, 0.4]) == pytest.approx(0.5)
    assert log_half_of(1.0, 0.5, 1.25) == pytest.approx(log(2))  # the larger side


def test_a_key_that_one_trace_lacks_is_no_difference():
    keys = comparison_keys(ReportedTrace(), "x")
    assert find_difference(keys, {**keys, "sandbox": "walls", "timing": "no graphs"}) is None
    assert find_difference(keys, {"hardware": "y"}) == ("other hardware", "x", "y")
    run = {"fingerprint": {"timing": {"strange": 1}, "protocol": 3, "sandbox": "walls", "solution": "d"}}
    strange = comparison_keys(read_reported(make_evaluation(extra={"run": run})), "x")
    assert strange == {"hardware": "x"}


def passed(workload="w0", largest=0.001, *, status="PASSED", norm_rule=False, **output):
    outputs = {"y": {"max_expected": largest, **output}}
    correctness = {"max_relative_error": 0.0, "max_absolute_error": 0.0, "extra": {"outputs": outputs}}
    extra = {"run": {"config": {"atol": 0.01, "norm_rule": norm_rule}}}
    return make_trace(workload=make_workload(workload), status=status, correctness=correctness, extra=extra)


def test_an_output_within_atol_is_reported_once_with_its_largest_value():
    seen = (("w0", 0.001), ("w1", 0.01), ("w1", 0.009), ("w2", 0.02))
    (found,) = find_blind([passed(uuid, largest) for uuid, largest in seen])
    assert "on 2 workloads: no expected value is above atol=0.01, the largest is 0.009" in str(found)
    assert find_blind([passed(error_norm=0.01)])
    others = [passed(largest=largest) for largest in (0.0, 0.0101, None, "large")]
    others += [passed(error_norm=0.01, norm_rule=True), passed(status="INCORRECT_NUMERICAL"), make_trace()]
    assert find_blind(others) == []  # zeros that another rule rejects
