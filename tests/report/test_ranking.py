"""Authors against a baseline, and rows by author, op type and hardware."""

import json
import math

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.report.intervals import mean_of
from flashinfer_bench.report.ranking import FAST_P, group_by, rank_by_author
from tests.cli.fake_engine import write_small_set
from tests.kit import make_definition, make_evaluation, make_solution, make_trace, make_workload


def on(uuid, solution, latency=1.0, **parts):
    if not parts:
        parts = {"evaluation": make_evaluation(latency_ms=latency, speedup=4.0 / latency)}
    return make_trace(workload=make_workload(uuid), solution=solution, **parts)


def results_of(*traces):
    names = dict.fromkeys(trace.solution for trace in traces)
    solutions = {"double": [make_solution(name, author=f"by_{name}") for name in names]}
    trace_set = TraceSet(definitions={"double": make_definition()}, solutions=solutions)
    return list_results(trace_set, traces)


def test_authors_are_scored_against_the_reference():
    fast, slow = rank_by_author(results_of(on("a", "x", 1.0), on("b", "x", 4.0), on("a", "y", 8.0), on("b", "y", 8.0)))
    assert (fast.author, fast.score, fast.win_rate, fast.fastest_share) == ("by_x", pytest.approx(2.5), 0.5, 1.0)
    assert (slow.author, slow.score, slow.win_rate) == ("by_y", pytest.approx(0.5), 0.0)
    assert slow.fastest_share == pytest.approx((1 / 8 + 1 / 2) / 2)
    assert fast.speedup.value == pytest.approx(2.0)  # the geometric mean, beside the score


def test_a_failed_workload_counts_zero_in_the_score_and_in_fast_p():
    (row,) = rank_by_author(results_of(on("a", "x", 1.0), on("b", "x", status="TIMEOUT")))
    assert (row.score, row.passed, row.workloads, row.compared) == (0.0, 1, 2, 1)
    assert row.fast_p[FAST_P.index(1.0)] == 0.5
    assert row.fast_p[FAST_P.index(5.0)] == 0.0


def test_a_slow_baseline_inflates_the_score_and_not_the_share_of_the_fastest():
    results = results_of(on("a", "x", 1.0), on("a", "slow", 100.0))
    (row,) = rank_by_author(results, "by_slow")
    assert (row.score, row.fastest_share) == (pytest.approx(100.0), 1.0)
    with pytest.raises(ValueError, match="nobody"):
        rank_by_author(results, "nobody")


def test_no_slow_baseline_and_no_easy_choice_makes_an_author_the_first():
    """A rival with a slow baseline of its own, one that solves a single easy workload, and one that fails the rest."""
    honest = [on(uuid, "honest", 1.0) for uuid in "abcd"]
    close = [on(uuid, "close", 1.2) for uuid in "abcd"]
    slow = make_evaluation(latency_ms=3.0, speedup=1000.0)  # its trace tells of a reference that took 3 s
    inflated = [on(uuid, "inflated", evaluation=slow) for uuid in "abcd"]
    picky = [on("a", "picky", 1.0)]
    failing = [on("a", "failing", 0.9), *(on(uuid, "failing", status="TIMEOUT") for uuid in "bcd")]
    rows = rank_by_author(results_of(*inflated, *picky, *failing, *close, *honest))
    assert [row.author for row in rows] == ["by_honest", "by_close", "by_inflated", "by_failing", "by_picky"]
    by_score = max(rows, key=lambda row: row.score)
    assert by_score.author == "by_inflated"
    against_slow = rank_by_author(results_of(*inflated, *picky, *close, *honest), "by_inflated")
    assert [row.author for row in against_slow] == ["by_honest", "by_close", "by_picky"]


def test_scores_of_reports_are_those_of_rank_authors():
    traces = [
        on(uuid, name, ms)
        for name, times in (("base", (8, 4)), ("x", (2, 4)), ("y", (8, 1)))
        for uuid, ms in zip("ab", times, strict=True)
    ]
    traces += [on("a", "z", 1.0), on("b", "z", status="TIMEOUT")]
    solutions = {"double": [make_solution(name, author=f"by_{name}") for name in ("base", "x", "y", "z")]}
    trace_set = TraceSet(definitions={"double": make_definition()}, solutions=solutions, traces={"double": traces})
    rows = rank_by_author(list_results(trace_set, traces), "by_base")
    ranking = trace_set.rank_authors("by_base")
    assert {row.author: row.score for row in rows} == {author: found.avg_speedup for author, found in ranking}
    assert {row.author: row.score for row in rows} == {"by_x": 2.5, "by_y": 2.5, "by_z": 0.0}


def test_hardware_is_never_mixed():
    other = make_evaluation(latency_ms=0.1, environment={"hardware": "other", "libs": {}})
    rows = rank_by_author(results_of(on("a", "x", 1.0), on("a", "y", evaluation=other)))
    assert [(row.hardware, row.fastest_share) for row in rows] == [("other", 1.0), ("test device", 1.0)]


@pytest.mark.parametrize("extra", [{"run": {"quick": True}}, {"measurement": {"meaningful": False}}])
def test_quick_looks_and_times_that_mean_nothing_are_not_ranked(extra):
    rows = rank_by_author(results_of(on("a", "x", evaluation=make_evaluation(extra=extra))))
    assert [row.score for row in rows] in ([], [None])


def test_a_mean_has_the_interval_of_its_parts():
    mean = mean_of([2.0, 8.0], [0.01, 0.01])
    assert mean.value == pytest.approx(4.0)
    assert mean.high / mean.value == pytest.approx(math.exp(math.sqrt(2) * 0.01 / 2))
    assert mean_of([2.0, 8.0], [0.01, None]).low is None
    assert mean_of([], []) is None


def test_groups_count_what_they_hold():
    (row,) = group_by(results_of(on("a", "x"), on("a", "y", status="TIMEOUT")), "op_type")
    assert (row.group, row.definitions, row.solutions, row.passed, row.judged) == ("test", 1, 2, 1, 2)


@pytest.fixture
def report(tmp_path, capsys):
    traces = [on("w0", "double_python", 1.0), on("w1", "double_python", 2.0), on("w0", "other", 4.0)]
    root = write_small_set(tmp_path, workloads=2, traces=traces)

    def start(*argv, code=0):
        assert main(["report", *argv, "--local", str(root)]) == code
        return capsys.readouterr()

    return start


@pytest.mark.parametrize("key", ["author", "op_type", "hardware"])
@pytest.mark.parametrize("command", ["summary", "best"])
def test_tables_and_json_have_rows_by(command, key, report):
    assert report(command, "--by", key).out.splitlines()[0].lower().startswith(key.replace("_", " "))
    rows = json.loads(report(command, "--by", key, "--format", "json").out)["rows"]
    assert rows


@pytest.mark.parametrize(("columns", "most"), [("80", 80), ("60", 60)])
def test_the_table_of_authors_fits_its_width_and_keeps_what_ranks(columns, most, report, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    lines = report("summary", "--by", "author").out.splitlines()
    assert max(map(len, lines)) <= most
    assert lines[0].split()[:4] == ["Author", "Of", "fastest", "Score"]
    assert "Roofline" not in lines[0]  # nobody has one
    assert report("summary", "--by", "hardware").out.startswith("Hardware")


def test_a_baseline_author_is_one_that_the_set_has(report):
    assert "nobody" in report("summary", "--by", "author", "--baseline-author", "nobody", code=2).err
    assert "needs --by author" in report("summary", "--baseline-author", "x", code=2).err
