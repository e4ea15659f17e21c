"""Rows of solutions, and the best of workloads and definitions: selection, order, and ties."""

import json
import math

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.report.ranking import count_winners, group_by, rank_by_author
from flashinfer_bench.report.summary import rank_by_workload
from tests.cli.fake_engine import write_small_set
from tests.report.made import (
    CPU,
    FULL,
    STANDARD,
    UNREAL,
    best_by_definition,
    best_by_workload,
    on,
    set_of,
    summarise,
)

REFERENCE = {"interval95_ms": [8 / 1.3, 8 * 1.3], "interval": "workers"}
WAITS = {"flags": ["waits_inside"]}
OLD = {"method": "cupti", "confirmed": True}


def test_a_row_has_median_latency_geometric_mean_and_missing_workloads():
    traces = [on("a", latency=1.0, speedup=1.0), on("b", latency=2.0, speedup=1.0), on("c", latency=9.0, speedup=8.0)]
    traces += [on("d"), on("d", status="TIMEOUT"), on("e", status="RUNTIME_ERROR")]  # the last verdict counts
    traces.append(on("a", "other", speedup=0.0))
    pairs = {
        ("double", name): dict.fromkeys(to, 1.0)
        for name, to in {"x": "abcdef", "other": "a", "never_run": "ab"}.items()
    }
    other, row, never = summarise(traces, pairs)
    assert (row.passed, row.judged, row.pending, row.latency_ms, row.speedup) == (3, 5, 1, 2.0, pytest.approx(2.0))
    assert [(one.status, one.workloads) for one in row.failures] == [("TIMEOUT", ("d",)), ("RUNTIME_ERROR", ("e",))]
    assert (other.latency_ms, other.speedup, other.pending) == (1.0, None, 0)  # its reference was not measured
    assert (never.solution, never.judged, never.pending) == ("never_run", 0, 2)


@pytest.mark.parametrize(
    ("halves", "reference", "shown"),
    [
        ([0.1], REFERENCE, 1),
        ([0.1, 0.1, 0.1, 0.1], REFERENCE, 2),
        ([0.1, None], REFERENCE, None),
        ([0.1], {"interval95_ms": [7.0, 9.0]}, None),  # of an older version
        ([0.1], {}, None),
    ],
)
def test_a_speedup_has_an_interval_if_both_times_have_one(halves, reference, shown):
    """`shown`: the half of one workload over the half of the mean."""
    traces = [on(f"w{at}", speedup=8.0, half=half, baseline=reference) for at, half in enumerate(halves)]
    trace_set = set_of(*traces)
    (row,), (author,) = summarise(traces), rank_by_author(list_results(trace_set, traces))
    (winner,) = count_winners(rank_by_workload(list_results(trace_set, traces)), "author")
    (whole,) = group_by(list_results(trace_set, traces), "hardware")
    found = [row.speedup_interval95, winner.speedup_interval95, author.speedup.interval, whole.speedup.interval]
    if shown is None:
        assert found == [None] * 4
        return
    half = math.hypot(math.log(1 / 0.9), math.log(1.3))
    wanted = [8 * math.exp(sign * half / shown) for sign in (-1, 1)]
    assert [list(bounds) for bounds in found] == [pytest.approx(wanted)] * 4
    trace_set.baseline_author = "by_x"
    (against,) = summarise(traces, trace_set=trace_set)
    assert (against.speedup, against.speedup_interval95) == (1.0, None)


@pytest.mark.parametrize(
    ("halves", "shown"),
    [([0.1], 0.1), ([0.1, 0.4, 0.2], 0.4), ([0.1, 0.2, 0.4, 0.3], 0.4), ([0.1, None, 0.2], None)],
)
def test_the_interval_of_a_row_is_that_of_its_median_workload(halves, shown):
    (row,) = summarise([on(f"w{at}", latency=at + 1.0, half=half) for at, half in enumerate(halves)])
    assert row.interval_share == (shown and pytest.approx(shown))


def beside(record=FULL, slower=FULL, **parts):
    """Make traces of "x", and of "y" with twice the time."""
    return [on("w0", "x", record=record, **parts), on("w0", "y", 2.0, record=slower)]


COUNTS = {
    "no failed one": (beside(status="INCORRECT_NUMERICAL"), "y"),
    "no quick look": (beside(run={"quick": True}), "y"),
    "no time that means nothing": (beside(UNREAL, STANDARD), "y"),
    "none that waits as its reference does": (beside(FULL | WAITS, baseline=WAITS), "y"),
    "one that waits alone": (beside(FULL | WAITS), "x"),
    "none that reported far less": (beside(FULL | {"claimed_ms": 0.5}), "y"),
    "one that reported nearly as much": (beside(FULL | {"claimed_ms": 0.95}), "x"),
}


@pytest.mark.parametrize(("traces", "best"), COUNTS.values(), ids=COUNTS)
def test_the_best_is(traces, best):
    assert [row.solution for row in (*best_by_workload(traces), *best_by_definition(traces))] == [best] * 2


def test_the_best_of_a_definition_passes_the_most_then_has_the_highest_speedup_on_each_hardware():
    traces = [on("a", "x", 1.0, 2.0), on("a", "y", 1.5, 3.0), on("a", "y", hardware="AMD")]
    assert [row.solution for row in best_by_workload(traces)] == ["y", "x"]
    assert [row.solution for row in best_by_workload(traces, "speedup")] == ["y", "y"]
    assert [row.solution for row in best_by_definition(traces)] == ["y", "y"]
    traces += [on("b", "y", status="TIMEOUT"), on("b", "x")]
    assert [row.solution for row in best_by_definition(traces)] == ["y", "x"]


def test_solutions_whose_intervals_meet_are_a_tie():
    """The geometric mean of two workloads has a narrower interval than each: a tie on one need not be a tie over
    all."""
    times = (("x", 1.0), ("y", 1.01), ("z", 1.018), ("far", 1.5))
    traces = [on(uuid, name, ms, half=0.01) for name, ms in times for uuid in "ab"] + [on("a", "half", 1.0, half=0.01)]
    (row,) = best_by_definition(traces, "latency")
    assert (row.solution, [tie.solution for tie in row.ties]) == ("x", ["y"])
    by_workload = best_by_workload(traces)
    assert [[tie.solution for tie in one.ties] for one in by_workload] == [["half", "y", "z"], ["y", "z"]]
    assert (by_workload[0].interval.low_ms, by_workload[0].interval.high_ms) == (0.99, 1.01)


STANDINGS = {
    "a confirmed result": (beside(STANDARD), "y", "confirmed"),
    "the faster confirmed one": (beside(), "x", "confirmed"),
    "else the fastest": (beside(STANDARD, OLD), "x", "not confirmed"),
    "no older trace": (beside(OLD), "y", "confirmed"),
    "no other engine's": (beside(None), "y", "confirmed"),
    "of CPUs the fastest": (beside(CPU, CPU), "x", "CPU: indicative"),
}


@pytest.mark.parametrize(("traces", "first", "standing"), STANDINGS.values(), ids=STANDINGS)
def test_the_first_in_each_ranking_has(traces, first, standing):
    trace_set = set_of(*traces)
    rows = [best_by_workload(traces)[0], best_by_definition(traces)[0], summarise(traces)[0]]
    (author, *_) = rank_by_author(list_results(trace_set, traces))
    assert [row.solution for row in rows] == [first] * 3
    assert (author.author, trace_set.get_best_trace("double").solution) == (f"by_{first}", first)
    assert {(row.confirmed, row.standing) for row in (*rows, author)} == {(standing == "confirmed", standing)}


def test_a_ranking_keeps_everybody_else_and_hardware_apart():
    traces = [on("w0", name, ms, record=STANDARD) for name, ms in (("a", 1.0), ("b", 2.0), ("d", 8.0))]
    traces.append(on("w0", "c", 4.0))
    rows = rank_by_author(list_results(set_of(*traces), traces))
    assert [(row.author, row.fastest_share) for row in rows] == [("by_c", 1), ("by_a", 1), ("by_b", 1), ("by_d", 0.5)]
    elsewhere = best_by_workload([*traces, on(record=CPU, hardware="CPU"), on(record=STANDARD, hardware="old")])
    assert [row.standing for row in elsewhere] == ["CPU: indicative", "confirmed", "not confirmed"]


def test_scores_take_confirmed_times_and_put_a_confirmed_author_first():
    """The faster line of `sure` was judged at standard assurance, before its confirmation."""
    traces = [on("w0", name, ms, record=STANDARD) for name, ms in (("base", 8.0), ("fast", 1.0), ("sure", 0.5))]
    traces.append(on("w0", "sure", 2.0))
    ranking = [(author, one.avg_speedup, one.confirmed) for author, one in set_of(*traces).rank_authors("by_base")]
    assert ranking == [("by_sure", 4.0, True), ("by_fast", 8.0, False)]


TABLES = {"best": True, "best --by definition": False, "summary": True, "visualize": True, "best --by author": False}


@pytest.mark.parametrize(("words", "is_marked"), TABLES.items())
def test_tables_mark_unconfirmed_times_and_name_a_set_of_cpus(words, is_marked, tmp_path, capsys):
    sets = {"cpu": beside(CPU, CPU), "gpu": [*beside(STANDARD), on("w1", "y", record=STANDARD)]}
    for name, marks in {"cpu": (1, False), "gpu": (0, is_marked)}.items():
        root = str(write_small_set(tmp_path / name, traces=sets[name]))
        assert main(["report", *words.split(), "--local", root]) == 0
        out = capsys.readouterr().out
        assert (out.count("CPU: indicative"), "† not confirmed: " in out) == marks
    assert main(["report", *words.split(), "--local", root, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["confirmed"] is True


@pytest.mark.parametrize("latency", [math.inf, 0.0, 5e-324, 1e308])
def test_a_latency_that_no_call_has_is_never_best_and_in_no_average(tmp_path, capsys, latency):
    traces = [on("w0", "double_python", latency, math.inf if latency else 0.0), on("w0", "other", 2.0)]
    assert [row.solution for row in (*best_by_workload(traces), *best_by_definition(traces))] == ["other"] * 2
    assert {row.solution: row.latency_ms for row in summarise(traces)} == {"double_python": None, "other": 2.0}
    root = write_small_set(tmp_path / "set", traces=traces)
    trace_set = TraceSet.from_path(root)
    assert trace_set.get_best_trace("double").solution == "other"
    assert trace_set.summary()["avg_latency_ms"] == 2.0
    for words in ("summary --by author", "history --definition double", "export -", "html"):
        command = ["report", *words.split(), *([str(tmp_path / "pages")] if words == "html" else [])]
        assert main([*command, "--local", str(root)]) == 0, words
        assert "Traceback" not in capsys.readouterr().err
