"""Decisions about pairs of times: on numbers alone, and how often they are wrong."""

from math import exp, log
from random import Random
from types import SimpleNamespace

import pytest

from flashinfer_bench.examine.compare.measuring import PairSeries
from flashinfer_bench.examine.compare.result import Comparison, Ratio, Row, join_ratios, ratio_of_pairs
from tests.report.made import CPU, GPU, on


def test_the_interval_of_pairs_is_students():
    ratio = ratio_of_pairs([0.01, 0.03], level=0.95)
    assert ratio.interval == pytest.approx((exp(0.02 - 0.12706), exp(0.02 + 0.12706)), rel=1e-3)


def test_one_pair_decides_nothing_and_more_scatter_needs_more_pairs():
    ratio = ratio_of_pairs([0.5])
    assert (ratio.interval, ratio.decide(0.02), ratio.pairs_needed(0.02)) == (None, "cannot tell yet", 3)
    few, many = (Ratio(0.0, 1.0, error, 5, 6).pairs_needed(0.02) for error in (0.01, 0.02))
    assert 0 < few < many


def test_the_geometric_mean_of_two_workloads_is_known_better_than_each():
    one = ratio_of_pairs([0.01, 0.02, 0.03, 0.04, 0.02, 0.03])
    both = join_ratios([one, one])
    assert (both.log_mean, both.freedom) == pytest.approx((one.log_mean, 2 * one.freedom))
    assert (both.log_half < one.log_half, both.pairs) == (True, 12)
    assert join_ratios([one, ratio_of_pairs([0.5])]).interval is None


def simulate(true: float, spread: float, threshold: float, *, count: int) -> list[tuple[str, bool]]:
    """Return what series of pairs were decided as, and whether the last interval held the true ratio."""
    random, found = Random(1), []
    for _ in range(count):
        logs: list[float] = []
        for analysis in (4, 6, 9, 13, 19, 28, 42, 63, 94):  # docs/compare.md
            logs += [random.gauss(log(true), spread) for _ in range(analysis - len(logs))]
            ratio = ratio_of_pairs(logs)
            if ratio.decide(threshold) != "cannot tell yet":
                break
        found.append((ratio.decide(threshold), abs(ratio.log_mean - log(true)) <= ratio.log_half))
    return found


@pytest.mark.parametrize(
    ("true", "spread", "threshold", "wanted", "least"),
    [
        (1.00, 0.0045, 0.02, "same", 0.99),  # a GPU
        (1.00, 0.030, 0.02, "same", 0.92),  # a noisy one
        (1.08, 0.050, 0.05, "slower", 0.98),  # a CPU
        (1.00, 0.220, 0.05, "cannot tell yet", 0.92),  # a CPU under load: all looks are made
    ],
)
def test_looking_again_and_again_does_not_make_a_difference(true, spread, threshold, wanted, least):
    found = simulate(true, spread, threshold, count=300)
    assert sum(decision == wanted for decision, _ in found) >= least * len(found)
    assert sum(held for _, held in found) >= 0.92 * len(found)
    if true == 1:  # a difference where there is none, in about one of twenty series at most
        assert sum(decision in ("faster", "slower") for decision, _ in found) <= 0.06 * len(found)


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        ([0.01, 0.06, 0.03, 0.06], "2 more pairs: --budget 90"),
        ([0.01, 0.06, 0.03, 0.06, 0.01], "4 more pairs: --budget 110"),
        ([0.5], "3 more pairs: --budget 240"),
        ([0.5, -0.5, 0.4, -0.4], "a quieter machine or a larger --threshold, since 94 pairs, the limit, are too few"),
        ([0.5, 0.5, 0.5, 0.51], ""),
    ],
)
def test_an_undecided_comparison_names_the_budget_that_decides(logs, said):
    row = Row("d", "w", pairs_ms=[(1.0, 1.0)] * len(logs), ratio=ratio_of_pairs(logs))
    found = Comparison([row], 0.02, "measured", "cpu", 60.0)
    assert found.need == said
    counted = f" ({said.partition(':')[0]})" if "--budget" in said else ""
    assert found.describe(row)[1] == (f"cannot tell yet{counted}" if said else "slower")


@pytest.mark.parametrize(
    ("record", "flags", "disturbed", "steady"),
    [
        (CPU, ["noisy"], 2, True),
        (CPU, ["noisy"], 3, False),
        (CPU, ["unconfirmed"], 3, False),
        (CPU, ["constant_output"], 8, True),
        (GPU, ["noisy"], 8, True),
    ],
)
def test_equal_code_on_a_cpu_under_load_is_not_called_faster(record, flags, disturbed, steady):
    series = PairSeries("", (None, None))
    times = (0.9, 0.94, 0.88, 0.93)
    for pair, time in enumerate(times):
        for side, latency in enumerate((1.0, time)):
            hit = {"flags": flags if 2 * pair + side < disturbed else []}
            evaluation = on(latency=latency, record=record | hit).evaluation
            series.record(pair, side, SimpleNamespace(evaluation=evaluation, device=SimpleNamespace(name="it")))
    ratio = series.ratio()
    assert (ratio.is_steady, series.is_open(0.02)) == (steady, not steady)
    assert ratio.log_half == pytest.approx(ratio_of_pairs(list(map(log, times))).log_half * (1 if steady else 2))
    row = Row("d", "w", pairs_ms=series.times(), ratio=ratio)
    found = Comparison([row], 0.02, "measured", "it", 60.0)
    quieter = "a quieter machine, since many times are noisy or unconfirmed"
    words = ("faster", "") if steady else ("cannot tell yet (unsteady times)", quieter)
    assert (found.describe(row)[1], found.need) == words
    document = found.document(("a", "b"), [])
    assert [one["steady"] for one in (*document["rows"], document["overall"])] == [steady] * 2
