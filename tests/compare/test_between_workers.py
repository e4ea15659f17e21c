"""Intervals that hold for the next worker, and what is learned of the spread between workers."""

import json
from math import exp, log
from random import Random

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.spread_file import SpreadFile
from flashinfer_bench.timing.between_workers import (
    default_spread,
    is_noisy,
    learned_spread,
    report_of_workers,
    report_with_spread,
    sum_squares,
)

CPU, GPU = default_spread("cpu"), default_spread("cuda")
DEVICE = Device("cuda", 0, "NVIDIA H200", "GPU-1")


def test_an_interval_of_one_worker_is_widened_and_named():
    reported = report_with_spread({"interval95_ms": [0.999, 1.001], "flags": ["noisy", "throttled"]}, 1.0, GPU)
    low, high = reported["interval95_ms"]
    assert (reported["interval"], reported["worker_spread_from"]) == ("one worker, widened", "default")
    assert (reported["readings95_ms"], reported["flags"]) == ([0.999, 1.001], ["throttled"])
    assert low < 0.999 < 1.001 < high
    assert (high - low) / 2 == pytest.approx(GPU.half, rel=0.05)
    alone = report_with_spread({}, 2.0, CPU)  # without enough readings
    assert log(alone["interval95_ms"][1] / 2.0) == pytest.approx(CPU.half)
    assert "readings95_ms" not in alone
    for form in ([], None, "12", [1.0], ["1", None]):  # as an evaluator may make it
        assert report_with_spread({"interval95_ms": form}, 2.0, CPU)["interval95_ms"] == alone["interval95_ms"]
    scattered = report_with_spread({"interval95_ms": [0.0, 1.0]}, 1e-4, CPU)  # no float holds its exponential
    assert scattered["interval95_ms"][1] > 1


def test_noisy_is_relative_to_the_spread_between_workers():
    steady, wide = (0.98, 1.02), (0.7, 1.3)
    assert [is_noisy(1.0, steady, CPU), is_noisy(1.0, steady, GPU), is_noisy(1.0, wide, CPU)] == [False, True, True]
    assert not is_noisy(1e-3, (0.98e-3, 1.02e-3), GPU)  # the clock has steps of 32 ns


def test_several_workers_have_students_interval():
    reported = report_of_workers({"interval95_ms": [1.1, 1.3], "method": "wall"}, [1.0, 1.1, 1.2])
    assert (reported["interval"], reported["workers_ms"], reported["readings95_ms"]) == (
        "workers",
        [1.0, 1.1, 1.2],
        [1.1, 1.3],
    )
    assert reported["interval95_ms"] == pytest.approx(
        [1.1 - 4.303 * 0.1 / 3**0.5, 1.1 + 4.303 * 0.1 / 3**0.5], rel=1e-3
    )


def test_blocks_of_one_trial_teach_intervals_that_hold_jobs_of_three():
    random = Random(5)

    def time_of_worker(trials):
        between = random.gauss(0, 0.02)
        return exp(between + sum(random.gauss(0, 0.02) for _ in range(trials)) / trials)

    spread = learned_spread("cpu", *sum_squares([[time_of_worker(1) for _ in range(8)] for _ in range(20)]))
    held = {trials: sum(abs(log(time_of_worker(trials))) <= spread.half for _ in range(1000)) for trials in (3, 1)}
    assert held[3] >= 950
    assert held[1] <= 980  # it is no wider than it has to be
    assert CPU.share / 2 < learned_spread("cpu", 0.0, 1.0).share < CPU.share  # few workers were lucky


def test_the_spread_is_kept_for_each_device_the_oldest_is_forgotten_and_a_damaged_file_is_none(tmp_path):
    kept, freedoms = SpreadFile(tmp_path, DEVICE), []
    assert kept.read() == GPU
    for _ in range(40):
        kept.add([[1.0, 1.002] * 10])
        freedoms.append(json.loads(kept.path.read_text())["freedom"])
    assert (kept.read().is_measured, kept.read().share < 0.002) == (True, True)
    assert freedoms[-1] == pytest.approx(freedoms[-10])
    assert SpreadFile(tmp_path, Device("cuda", 0, "NVIDIA H200", "GPU-2")).read() == GPU
    for text in ("{", "[]", '{"squares": -1, "freedom": 3}', "0" * 5000):
        kept.path.write_text(text)
        assert kept.read() == GPU
    kept.add([[1.0, 1.1]])
    assert kept.read().is_measured
