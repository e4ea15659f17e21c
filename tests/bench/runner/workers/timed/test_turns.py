"""Turns of two kernels: what cancels, what leaving calls out gains, when they tell nothing."""

import math
from contextlib import contextmanager
from itertools import cycle
from random import Random

import pytest

from flashinfer_bench.bench.runner.workers.timed.turns import (
    BURST_SLACK,
    FEWEST_ROUNDS,
    MEDIAN_SLACK,
    Limits,
    Turns,
    count_calls,
    count_single_calls,
    find_hindrance,
    middle_half,
    take_turns,
    tell,
)

pytestmark = pytest.mark.cpu


class Host:
    """A core whose speed changes by half every few turns; time passes with each of them."""

    def __init__(self, *, seed=1, turns_a_speed=7, noise=0.0):
        self.now_ns, self.made, self.log = 0.0, 0, []
        self._random, self._turns_a_speed, self._noise, self._speed = Random(seed), turns_a_speed, noise, 1.0

    def side(self, name, true_ns, *, leaves_out=0.0):
        def take():
            if self.made % self._turns_a_speed == 0:
                self._speed = self._random.choice([1.0, 1.5, 1.2])
            self.made += 1
            share = 0.05 if self._random.random() < leaves_out else 1.0
            call_ns = share * true_ns * self._speed * (1 + self._noise * self._random.gauss(0, 1))
            self.now_ns += 4 * call_ns + 2_000_000
            self.log.append(name)
            return call_ns

        return take

    def now(self):
        return self.now_ns / 1e9


LIMITS = Limits(0.7, 250)


@contextmanager
def free():
    yield True


def run(host, own, other, free_gpu=free):
    return take_turns(own, other, free_gpu, LIMITS, host.now)


@pytest.mark.parametrize("factor", [1.0, 3.0, 0.25])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_what_holds_one_side_up_is_no_part_of_the_ratio(factor, noise):
    host = Host(noise=noise)
    found = run(host, host.side("own", 500_000), host.side("other", factor * 500_000))
    assert found.ratio == pytest.approx(factor, rel=0.015)


def test_sides_take_turns_and_a_first_one_of_each_is_left_out():
    host = Host()
    found = run(host, host.side("own", 500_000), host.side("other", 500_000))
    assert host.log[:2] == ["own", "other"]
    counted = host.log[2:]
    assert counted == ["own" if at % 2 == 0 else "other" for at in range(len(counted))]
    assert (len(found.own), len(found.other)) == (counted.count("own"), counted.count("other"))
    assert len(found.own) == len(found.other) + 1


def test_rounds_end_once_the_ratio_is_known():
    host = Host(turns_a_speed=10**9)
    found = run(host, host.side("own", 500_000), host.side("other", 500_000))
    assert len(found.other) == FEWEST_ROUNDS


def test_rounds_end_with_their_time():
    host = Host(noise=0.3)
    found = run(host, host.side("own", 2_000_000), host.side("other", 2_000_000))
    assert FEWEST_ROUNDS <= len(found.other) < LIMITS.most_rounds
    assert LIMITS.most_s <= host.now() <= LIMITS.most_s + 0.1


def test_too_few_rounds_tell_nothing():
    host = Host()
    few = run(host, host.side("own", 50_000_000), host.side("other", 50_000_000))
    enough = equal_turns(100)
    for record in (tell(few, enough), tell(enough, few)):
        assert "ratio" not in record
        assert record["why_not"] == "there was time for fewer than 10 rounds"


def equal_turns(count, ratio=1.0):
    return Turns([1000.0] * (count + 1), [1000.0 * ratio] * count)


@pytest.mark.parametrize(
    ("of_calls", "of_bursts", "told"),
    [(1.0, 1.0, 1.0), (3.0, 1.0, BURST_SLACK), (1.1, 1.0, 1.1), (0.5, 3.0, 0.5)],
    ids=["equal", "a claim", "a little more", "less"],
)
def test_a_claim_gains_no_more_than_its_slack_over_bursts(of_calls, of_bursts, told):
    record = tell(equal_turns(50, of_calls), equal_turns(20, of_bursts))
    assert record["ratio"] == pytest.approx(told)
    assert (record["rounds"], record["burst_rounds"], record["burst_ratio"]) == (50, 20, pytest.approx(of_bursts))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.35, 0.45])
def test_who_leaves_out_fewer_than_half_of_his_turns_gains_next_to_nothing(share):
    for seed in range(20):
        host = Host(seed=seed, noise=0.01, turns_a_speed=10**9)
        found = run(host, host.side("own", 500_000, leaves_out=share), host.side("other", 500_000))
        assert found.ratio < MEDIAN_SLACK * (1.05 if share < 0.4 else 20.0)


@pytest.mark.parametrize(("busy_in", "tells"), [(10, True), (3, False), (1, False)])
def test_a_gpu_that_is_busy_when_the_others_turn_comes_makes_rounds_tell_nothing(busy_in, tells):
    host, rounds = Host(), cycle([False] + [True] * (busy_in - 1))

    @contextmanager
    def often_busy():
        yield next(rounds)

    found = run(host, host.side("own", 500_000), host.side("other", 500_000), often_busy)
    record = tell(found, found)
    assert ("ratio" in record) is tells
    assert tells or "not free" in record["why_not"]


def test_each_turn_is_compared_with_those_before_and_after_it():
    assert Turns([1.0, 4.0, 1.0], [2.0, 6.0]).logarithms == pytest.approx([0.0, math.log(3.0)])


@pytest.mark.parametrize("seed", range(5))
def test_equal_sides_are_told_as_equal_where_rounds_differ_much(seed):
    chance = Random(seed)

    def take():
        return 1e6 * math.exp(chance.gauss(0, 0.3))

    own, other = [take() for _ in range(4001)], [take() for _ in range(4000)]
    one_way, other_way = Turns(own, other[:-1]).ratio, Turns(other, own[1:-1]).ratio
    assert one_way == pytest.approx(1, abs=0.02)
    assert other_way == pytest.approx(1, abs=0.02)
    assert one_way * other_way == pytest.approx(1, abs=0.004)  # by ratios it was 1.02


@pytest.mark.parametrize(
    ("own_ms", "other_ms", "calls"), [(0.1, 0.1, 8), (1, 1, 8), (2, 2, 4), (1, 10, 1), (9, 9, 1), (0, 0, 8)]
)
def test_long_calls_have_few_in_a_turn_so_that_there_is_time_for_rounds(own_ms, other_ms, calls):
    assert count_single_calls(own_ms, other_ms) == calls


def test_before_each_turn_the_one_side_is_held_still():
    host, held = Host(), []

    @contextmanager
    def hold():
        held.append(len(host.log))
        yield True

    run(host, host.side("own", 500_000), host.side("other", 500_000), hold)
    assert held == list(range(len(host.log)))


def test_the_middle_half_leaves_a_quarter_out_at_either_end():
    assert middle_half([100.0, 2.0, 4.0, -50.0]) == 3.0
    assert middle_half([5.0]) == 5.0


def test_a_turn_of_nothing_divides_by_no_zero():
    assert Turns([0.0] * 3, [0.0] * 2).logarithms == [0.0, 0.0]
    assert Turns([0.0] * 11, [0.0] * 10).ratio == 0.0


@pytest.mark.parametrize(("call_ms", "calls"), [(0.5, 4), (0.45, 5), (30.0, 1), (0.001, 32), (0.0, 32)])
def test_a_burst_has_as_many_calls_as_take_two_milliseconds(call_ms, calls):
    assert count_calls(call_ms) == calls


@pytest.mark.parametrize(
    ("own_ms", "other_ms", "left_s", "told"),
    [
        (0.5, 0.5, 60.0, None),
        (9.0, 9.0, 60.0, None),
        (0.5, 100.0, 60.0, "there is time for fewer than 10 rounds"),
        (500.0, 0.5, 60.0, "there is time for fewer than 10 rounds"),
        (0.5, 0.5, 3.0, "too little of the solution's time is left"),
    ],
)
def test_slow_calls_and_such_that_have_little_time_left_take_no_turns(own_ms, other_ms, left_s, told):
    assert find_hindrance(own_ms, other_ms, left_s) == told
