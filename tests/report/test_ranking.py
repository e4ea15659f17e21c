"""Authors against a baseline, and rows by author, op type and hardware."""

import math

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.report.intervals import mean_of
from flashinfer_bench.report.ranking import FAST_P, rank_by_author
from tests.cli.fake_engine import write_small_set
from tests.report.made import UNREAL, on, set_of


def times(name, *latencies, **parts):
    """Make a trace for each latency on w0, w1 and so on; None is a failure."""
    return [
        on(f"w{index}", name, latency or 1.0, **parts, **({} if latency else {"status": "TIMEOUT"}))
        for index, latency in enumerate(latencies)
    ]


def rank(*groups, baseline=None):
    traces = [trace for part in groups for trace in part]
    trace_set = set_of(*traces)
    trace_set.baseline_author = baseline
    return rank_by_author(list_results(trace_set, traces), baseline)


def test_a_failed_workload_counts_zero_in_the_score_and_in_fast_p():
    (row,) = rank(times("x", 2.0, None))
    assert (row.score, row.passed, row.workloads, row.compared) == (0.0, 1, 2, 1)
    assert [row.fast_p[FAST_P.index(p)] for p in (1.0, 5.0)] == [0.5, 0.0]


def test_no_slow_baseline_and_no_easy_choice_makes_an_author_the_first():
    """A rival with a slow baseline, a rival that solves a single easy workload, and a rival that fails the other
    workloads."""
    honest, close = times("honest", *[1.0] * 4), times("close", *[1.2] * 4)
    inflated = times("inflated", *[3.0] * 4, speedup=1000.0)  # its trace has a reference of 3 s
    picky, failing = times("picky", 1.0), times("failing", 0.9, None, None, None)
    rows = rank(inflated, picky, failing, close, honest)
    assert [row.author for row in rows] == ["by_honest", "by_close", "by_inflated", "by_failing", "by_picky"]
    assert max(rows, key=lambda row: row.score).author == "by_inflated"
    against_slow = rank(inflated, picky, close, honest, baseline="by_inflated")
    assert [row.author for row in against_slow] == ["by_honest", "by_close", "by_picky"]
    assert against_slow[0].score == pytest.approx(3.0)


def test_hardware_is_never_mixed_and_meaningless_times_are_not_ranked():
    rows = rank(times("x", 1.0), times("y", 0.1, hardware="AMD"))
    assert [(row.hardware, row.fastest_share) for row in rows] == [("AMD", 1.0), ("GPU", 1.0)]
    assert rank(times("x", 1.0, run={"quick": True})) == []
    rows = rank(times("x", 1.0, record=UNREAL), times("y", 1.0), times("z", None))
    assert [(row.score, row.fastest_share) for row in rows] == [(8.0, 1.0), (None, None), (0.0, 0.0)]


def test_a_mean_has_the_interval_of_its_parts():
    mean = mean_of([(2.0, 1.0, 0.01), (8.0, 1.0, 0.01), (None, 1.0, None)])
    assert mean.value == pytest.approx(4.0)
    assert mean.high / mean.value == pytest.approx(math.exp(math.sqrt(2) * 0.01 / 2))
    assert mean_of([(2.0, 1.0, 0.01), (8.0, 1.0, None)]).low is None


@pytest.fixture
def report(tmp_path, capsys, monkeypatch):
    traces = [*times("double_python", 1.0, 2.0), *times("other", 4.0)]
    root = write_small_set(tmp_path, traces=traces)

    def start(*argv, code=0, width=60):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["report", *argv, "--local", str(root)]) == code
        return capsys.readouterr()

    return start


def test_a_baseline_author_is_one_that_the_set_has(report):
    for words in (["summary", "--by", "author"], ["html", "pages"]):
        assert "nobody" in report(*words, "--baseline-author", "nobody", code=2).err
    for command in ("summary", "best", "table double"):
        assert "nobody" in report(*command.split(), "--baseline-author", "nobody", code=2).err
    wrong = report("summary", "--by", "op_type", "--baseline-author", "x", code=2).err
    assert "needs --by solution or --by author" in wrong
