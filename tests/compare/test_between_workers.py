"""Intervals that hold for the next worker, and what is learned of the spread between workers."""

import json
from math import exp, log
from random import Random

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.spread_file import SpreadFile
from flashinfer_bench.timing.between_workers import (
    DEFAULT_SPREADS,
    MOST_FREEDOM,
    default_spread,
    interval_of_workers,
    is_noisy,
    learned_spread,
    sum_squares,
    told_of_workers,
    told_with_spread,
    widened_interval,
)

GPU = Device("cuda", 0, "NVIDIA H200", "GPU-1")


def test_an_interval_of_one_worker_is_widened_and_named():
    told = told_with_spread({"interval95_ms": [0.999, 1.001], "method": "cupti"}, 1.0, default_spread("cuda"))
    low, high = told["interval95_ms"]
    assert (told["interval"], told["worker_spread_from"]) == ("one worker, widened", "default")
    assert told["readings95_ms"] == [0.999, 1.001]
    assert low < 0.999 < 1.001 < high
    assert (high - low) / 2 == pytest.approx(default_spread("cuda").half, rel=0.05)


def test_an_interval_without_enough_readings_is_the_spread_alone():
    told = told_with_spread({}, 2.0, default_spread("cpu"))
    assert log(told["interval95_ms"][1] / 2.0) == pytest.approx(default_spread("cpu").half)
    assert "readings95_ms" not in told


def test_noisy_is_relative_to_the_spread_between_workers():
    steady, wide = (0.98e6, 1.02e6), (0.7e6, 1.3e6)
    assert not is_noisy(1e6, steady, default_spread("cpu"))
    assert is_noisy(1e6, steady, default_spread("cuda"))
    assert is_noisy(1e6, wide, default_spread("cpu"))
    assert not is_noisy(1000, (980, 1020), default_spread("cuda"))  # the clock has steps of 32 ns
    told = told_with_spread(
        {"interval95_ms": [0.98, 1.02], "flags": ["noisy", "throttled"]}, 1.0, default_spread("cpu")
    )
    assert told["flags"] == ["throttled"]


def test_several_workers_have_students_interval():
    assert interval_of_workers([1.0, 1.2]) == pytest.approx(
        (max(0.0, 1.1 - 12.706 * 0.1), 1.1 + 12.706 * 0.1), rel=1e-3
    )
    told = told_of_workers({"interval95_ms": [1.1, 1.3], "method": "wall"}, [1.0, 1.1, 1.2])
    assert (told["interval"], told["workers_ms"], told["readings95_ms"]) == ("workers", [1.0, 1.1, 1.2], [1.1, 1.3])
    assert told["interval95_ms"][0] < 1.0 < 1.2 < told["interval95_ms"][1]


@pytest.mark.parametrize("workers", [2, 3, 5, 10])
def test_intervals_of_workers_hold_the_mean_of_all(workers):
    random = Random(3)
    groups = ([random.gauss(1.0, 0.05) for _ in range(workers)] for _ in range(600))
    held = sum(low <= 1.0 <= high for low, high in map(interval_of_workers, groups))
    assert 0.91 <= held / 600 <= 0.99


def test_two_workers_of_equal_code_rarely_have_intervals_that_do_not_meet():
    random = Random(4)
    spread = learned_spread("cpu", *sum_squares([[exp(random.gauss(0, 0.05)) for _ in range(30)]]))
    pairs = [(exp(random.gauss(0, 0.05)), exp(random.gauss(0, 0.05))) for _ in range(1000)]
    intervals = [[widened_interval(time, None, spread) for time in pair] for pair in pairs]
    apart = sum(max(a[0], b[0]) > min(a[1], b[1]) for a, b in intervals)
    assert apart <= 1000 / 20


def test_blocks_of_one_trial_teach_intervals_that_hold_jobs_of_three():
    random = Random(5)

    def time_of_worker(trials):
        between = random.gauss(0, 0.02)
        return exp(between + sum(random.gauss(0, 0.02) for _ in range(trials)) / trials)

    spread = learned_spread("cpu", *sum_squares([[time_of_worker(1) for _ in range(8)] for _ in range(20)]))
    held = sum(abs(log(time_of_worker(3))) <= spread.half for _ in range(1000))
    assert held >= 950


def test_what_few_workers_tell_is_held_against_the_default():
    lucky = learned_spread("cpu", 0.0, 1.0)
    assert DEFAULT_SPREADS["cpu"] / 2 < lucky.share < DEFAULT_SPREADS["cpu"]
    assert learned_spread("cpu", 100 * 0.01**2, 100.0).share == pytest.approx(0.01)


def test_the_spread_is_kept_for_each_device(tmp_path):
    kept = SpreadFile(tmp_path, GPU)
    assert kept.read() == default_spread("cuda")
    kept.add([[1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.001, 0.999]] * 3)
    assert kept.read().is_measured
    assert kept.read().share < 0.002
    assert SpreadFile(tmp_path, Device("cuda", 0, "NVIDIA H200", "GPU-2")).read() == default_spread("cuda")


def test_the_oldest_is_forgotten(tmp_path):
    kept = SpreadFile(tmp_path, GPU)
    for _ in range(40):
        kept.add([[1.0, 1.01] * 10])
    assert json.loads(kept.path.read_text())["freedom"] == pytest.approx(MOST_FREEDOM)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"squares": -1, "freedom": 3}', '{"squares": "x"}', "0" * 5000])
def test_a_damaged_file_counts_as_missing(tmp_path, text):
    kept = SpreadFile(tmp_path, GPU)
    kept.path.parent.mkdir()
    kept.path.write_text(text)
    assert kept.read() == default_spread("cuda")
    kept.add([[1.0, 1.1]])
    assert kept.read().is_measured
