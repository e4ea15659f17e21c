"""The benchmark of identical solutions: what it counts, and that drawn latencies keep its goal."""

import argparse

from benchmarks.bench_identical import MOST_APART, share_apart, simulate
from flashinfer_bench.report.intervals import TimeInterval


def test_a_pair_is_apart_where_its_intervals_do_not_meet():
    group = [TimeInterval(low, low + 1.0, "") for low in (1.0, 1.5, 2.0, 4.0)]
    found = share_apart([group, group[:2]])
    assert (found["pairs"], found["apart"]) == (7, 3)


def test_drawn_latencies_of_equal_code_have_intervals_that_meet():
    found = simulate(argparse.Namespace(solutions=12, repeats=3, count=4))
    assert max(one["share_apart"] for one in found) <= MOST_APART
    assert all(one["half"] < 4.5 * one["spread"] for one in found)  # not by being as wide as one likes
