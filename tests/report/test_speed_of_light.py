"""The speed-of-light score: its formula, the score of a result, and the mean over a set."""

import csv
import io
from math import inf

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import list_results, sol_score
from flashinfer_bench.report.export import make_export
from flashinfer_bench.report.ranking import rank_by_author
from tests.cli.fake_engine import write_small_set
from tests.kit import make_definition, make_solution
from tests.report.made import FULL, on, summarise

FORMULA = {
    "the baseline": (8.0, 8.0, 2.0, 0.5),
    "the floor": (2.0, 8.0, 2.0, 1.0),
    "between": (4.0, 8.0, 2.0, 0.75),
    "slow": (14.0, 8.0, 2.0, 1 / 3),
    "endless": (inf, 8.0, 2.0, 0.0),
    "below the floor": (1.0, 8.0, 2.0, 1.0),
    "baseline at the floor": (2.1, 2.0, 2.0, 0.0),
    "both at the floor": (2.0, 2.0, 2.0, 1.0),
    "baseline below the floor": (1.9, 1.5, 2.0, 1.0),
}


@pytest.mark.parametrize(("kernel", "baseline", "floor", "expected"), FORMULA.values(), ids=FORMULA)
def test_a_score_is_the_place_between_baseline_and_floor(kernel, baseline, floor, expected):
    assert sol_score(kernel, baseline, floor) == pytest.approx(expected, abs=1e-12)


ROOF = {"floor_ms": 2.0, "peak": "GPU (vendor)"}


def make_set(tmp_path):
    """Make a set of three workloads with a reference of 8 ms. The baseline author has a latency on the first."""
    traces = [
        on("w0", "mine", 5.0, roofline=ROOF),
        on("w1", "mine", 4.0, roofline=ROOF),
        on("w2", "mine", status="TIMEOUT"),
        on("w0", "rival", 5.0, roofline=ROOF),
        on("w1", "fast", 1.9, half=0.01, roofline=ROOF),
        on("w2", "fast", 1.99, half=0.01, roofline=ROOF),
    ]
    root = write_small_set(tmp_path, workloads=3, traces=traces)
    found = TraceSet.from_path(root)
    authors = {"mine": "alice", "rival": "baseline", "fast": "bob"}
    found.solutions[make_definition().name] += [make_solution(name, author=author) for name, author in authors.items()]
    return found


def test_results_name_their_baseline_and_below_the_floor_there_is_no_score(tmp_path):
    trace_set = make_set(tmp_path)
    rows = list(csv.DictReader(io.StringIO(make_export("csv", trace_set, trace_set.all_traces())[0].decode())))
    found = {
        (row["solution"], row["workload"]): (row["sol_score"] and float(row["sol_score"]), row["sol_baseline"])
        for row in rows
    }
    assert found == {
        ("mine", "w0"): (0.5, "baseline"),
        ("mine", "w1"): (0.75, "reference"),
        ("mine", "w2"): (0.0, "reference"),
        ("rival", "w0"): (0.5, "baseline"),
        ("fast", "w1"): ("", "reference"),
        ("fast", "w2"): (1.0, "reference"),
    }
    assert (rows[0]["floor_ms"], rows[0]["peak"]) == ("2.0", "GPU (vendor)")
    one = [trace for trace in trace_set.all_traces() if trace.solution == "mine"]  # the baseline was filtered away
    assert list_results(trace_set, one)[0].sol_baseline == "baseline"
    for roofline in ({}, ROOF):  # no floor; no baseline
        unknown = [on("w1", status="TIMEOUT"), on(speedup=0.0, roofline=roofline)]
        assert {(item.sol_score, item.sol_baseline) for item in list_results(None, unknown)} == {(None, "")}


def test_means_count_failed_missing_and_refused_workloads_as_zero(tmp_path):
    trace_set = make_set(tmp_path)
    traces = list(trace_set.all_traces())
    expected = {(traces[0].definition, "rival"): dict.fromkeys(("w0", "w1", "w2"), 1.0)}
    rows = {row.solution: row for row in summarise(traces, expected, trace_set)}
    assert {name: row.sol_score for name, row in rows.items()} == {
        "mine": pytest.approx((0.5 + 0.75 + 0) / 3),
        "rival": pytest.approx(0.5 / 3),
        "fast": 0.5,
    }
    assert rows["mine"].sol_basis == ("baseline, GPU (vendor)", "reference, GPU (vendor)")
    ranked = {row.author: row.sol_score for row in rank_by_author(list_results(trace_set, traces))}
    assert ranked == {
        author: pytest.approx(score / 3) for author, score in (("alice", 1.25), ("baseline", 0.5), ("bob", 1.0))
    }
    trace_set.baseline_author = "alice"
    against = {row.author: row.sol_score for row in rank_by_author(list_results(trace_set, traces), "alice")}
    assert against == {"baseline": pytest.approx(0.5 / 3), "bob": pytest.approx(1 / 3)}


@pytest.mark.parametrize("line", ["summary", "best", "best --by definition", "table double", "summary --by author"])
def test_tables_have_the_score_on_request(tmp_path, capsys, line):
    write_small_set(tmp_path, workloads=1, traces=[on("w0", "double", 4.0, record=FULL, roofline=ROOF)])
    words = ["report", *line.split(), "--local", str(tmp_path)]
    assert main(words) == 0
    assert "SOL" not in capsys.readouterr().out
    assert main([*words, "--columns", "sol-score"]) == 0
    out = capsys.readouterr().out
    assert "0.75" in out
    assert "baseline, peak: reference, GPU (vendor)" in out
    assert main([*words, "--format", "json"]) == 0
    assert '"sol_score": 0.75' in capsys.readouterr().out
