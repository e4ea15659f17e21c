"""The recipe and lines that persist: where a call leaves any they are reset, and looking for them finds no others."""

from dataclasses import replace

import pytest

from flashinfer_bench.timing.procedure import CHECKS, LINES_CALLS, SECOND_LOOK, take_trial
from tests.kit.fake_gpu import fake_cupti_clock, fake_event_clock
from tests.timing.taking import RECIPE, flags_of, take

pytestmark = pytest.mark.cpu
FIRST_LOOK = 10
LOOKS = 40


def leaves_lines(gpu, length_ns, with_lines_ns):
    """Return a call that is quicker while persisting lines are left of the call before."""

    def launch():
        gpu.log.append("call")
        gpu.kernel("kernel", with_lines_ns if gpu.persisting else length_ns)
        gpu.persisting = True

    return launch


def test_persisting_lines_are_reset_before_each_call_that_leaves_them(gpu):
    trial = take(gpu, leaves_lines(gpu, 10_000, 4_000))
    assert trial.facts["lines_reset"] is True
    assert set(trial.spans_ns) == {10_000}
    assert gpu.log.count("reset") == LOOKS // 2 + 50
    assert trial.facts["calls"] == CHECKS + LOOKS + 50
    assert flags_of(trial) == ["persisting_l2"]


def test_lines_that_make_no_difference_are_left_alone(gpu):
    trial = take(gpu, leaves_lines(gpu, 10_000, 9_800))
    assert "lines_reset" not in trial.facts
    assert gpu.log.count("reset") == LINES_CALLS  # the first look was enough


def test_a_call_too_slow_for_a_second_look_is_taken_at_the_first(gpu):
    trial = take(gpu, leaves_lines(gpu, 60_000_000, 55_000_000))
    assert trial.facts["lines_reset"] is True
    assert gpu.log.count("reset") == LINES_CALLS + len(trial.samples)


def test_a_call_that_looks_slower_by_chance_is_looked_at_again_and_left_alone(gpu):
    lengths = [1_120] * (CHECKS + LINES_CALLS) + [1_504] * LINES_CALLS + [1_120, 1_504] * 200
    trial = take_trial(
        lambda index: gpu.call(length_ns=lengths[index]), fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds
    )
    assert gpu.log.count("reset") == LOOKS // 2
    assert "lines_reset" not in trial.facts


def test_one_scattered_look_in_two_is_not_enough(gpu):
    second = LINES_CALLS * SECOND_LOOK
    scattered = [1_504] * (second // 2 + 1) + [1_120] * (second - second // 2 - 1)  # slower in the median alone
    lengths = (
        [1_120] * CHECKS + [1_120] * LINES_CALLS + [1_504] * LINES_CALLS + [1_120] * second + scattered + [1_120] * 90
    )
    trial = take_trial(
        lambda index: gpu.call(length_ns=lengths[index]), fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds
    )
    assert gpu.log.count("reset") == LOOKS // 2
    assert "lines_reset" not in trial.facts


@pytest.mark.parametrize("warm", ["a warm lane", "events too"])
def test_lines_are_looked_for_where_a_flush_would_miss_them(gpu, warm):
    gpu.l2_cache = "warm" if warm == "a warm lane" else "cold"
    clock = fake_event_clock(gpu)
    trial = take_trial(lambda _: leaves_lines(gpu, 10_000, 4_000), clock, RECIPE, now=gpu.seconds)
    assert ("lines_reset" in trial.facts) == (gpu.l2_cache == "cold")
    assert ("reset" in gpu.log) == (gpu.l2_cache == "cold")


def test_lines_are_looked_for_on_a_device_that_was_idle_with_and_without_their_reset(gpu):
    take(gpu, gpu.call())
    looks = gpu.preambles[CHECKS : CHECKS + FIRST_LOOK]
    assert [(lead.waits_first or lead.resets_lines, lead.resets_lines) for lead in looks] == (
        [(True, False)] * LINES_CALLS + [(True, True)] * LINES_CALLS
    )
    assert len({lead.delay_ns for lead in looks}) == 1


def test_a_call_that_is_slow_in_the_checks_does_not_escape_the_look(gpu):
    usual = leaves_lines(gpu, 10_000, 4_000)

    def supply(index):
        def launch():
            gpu.now_ns += 10_000_000 if index < CHECKS else 0
            usual()

        return launch

    recipe = replace(RECIPE, budget_s=0.67, was_called=True)
    trial = take_trial(supply, fake_cupti_clock(gpu)[0], recipe, now=gpu.seconds)
    assert trial.facts["lines_reset"] is True
    assert set(trial.spans_ns) == {10_000}
