"""First place needs a confirmed result if there is one; others follow, marked; CPUs are ranked under one heading."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.columns import list_judged, make_row
from flashinfer_bench.report.best import best_by_definition, best_by_workload
from flashinfer_bench.report.pages.texts import id_of
from flashinfer_bench.report.ranking import rank_by_author
from flashinfer_bench.report.results import list_results
from flashinfer_bench.report.summary import summarise
from tests.cli.fake_engine import write_small_set
from tests.kit import make_definition, make_solution, make_trace, make_workload
from tests.report.pages.sets import write_pages

FULL = {"method": "cupti", "assurance": "full", "bound": "batch"}
STANDARD = {"method": "cupti", "assurance": "standard", "bound": "chain"}
OLD = {"method": "cupti", "confirmed": True}
CPU = {"method": "wall", "bound": "none"}
UNREAL = {"method": "wall", "meaningful": False}
FOREIGN = None
"""A trace of another engine has no record of its measurement."""


def trace_of(solution, latency, record, uuid="w0", hardware="GPU"):
    return make_trace(
        workload=make_workload(uuid),
        solution=solution,
        latency_ms=latency,
        speedup=8.0 / latency,
        environment={"hardware": hardware, "libs": {}},
        extra={} if record is None else {"measurement": record},
    )


def set_of(*results):
    """Make a set of (solution, latency in ms, record, ...); the solution "base" takes 8 ms."""
    traces = [trace_of(*result) for result in results]
    names = dict.fromkeys(["base", *(trace.solution for trace in traces)])
    return TraceSet(
        definitions={"double": make_definition()},
        solutions={"double": [make_solution(name, author=f"by_{name}") for name in names]},
        traces={"double": traces},
    )


CASES = {
    "a confirmed result comes first": ([("fast", 1.0, STANDARD), ("sure", 2.0, FULL)], "sure", True, "confirmed"),
    "of two confirmed ones the faster": ([("fast", 1.0, FULL), ("sure", 2.0, FULL)], "fast", True, "confirmed"),
    "else the fastest, marked": ([("fast", 1.0, STANDARD), ("old", 2.0, OLD)], "fast", False, "not confirmed"),
    "older traces are not confirmed": ([("old", 1.0, OLD), ("sure", 2.0, FULL)], "sure", True, "confirmed"),
    "nor are another engine's": ([("far", 1.0, FOREIGN), ("slow", 2.0, FOREIGN)], "far", False, "not confirmed"),
    "CPUs are ranked without marks": ([("fast", 1.0, CPU), ("slow", 2.0, CPU)], "fast", False, "CPU: indicative"),
}


@pytest.mark.parametrize(("results", "first", "confirmed", "standing"), CASES.values(), ids=CASES)
def test_every_ranking_has_the_same_first(results, first, confirmed, standing):
    trace_set = set_of(*results)
    traces = trace_set.traces["double"]
    rows = [
        best_by_workload(traces)[0],
        best_by_definition(traces)[0],
        summarise(traces)[0],
        rank_by_author(list_results(trace_set, traces))[0],
    ]
    named = [getattr(row, "solution", None) or row.author.removeprefix("by_") for row in rows]
    assert (named, trace_set.get_best_trace("double").solution) == ([first] * 4, first)
    assert {(row.confirmed, row.standing) for row in rows} == {(confirmed, standing)}


@pytest.mark.parametrize("record", [STANDARD, CPU])
def test_scores_take_confirmed_times_and_put_a_confirmed_author_first(record):
    """The faster line of `sure` was judged at standard assurance, before its confirmation."""
    results = [("base", 8.0, record), ("fast", 1.0, record), ("sure", 0.5, record)]
    confirmed = [("sure", 2.0, FULL)] if record is STANDARD else []
    ranking = set_of(*results, *confirmed).rank_authors("by_base")
    found = [(author, score.avg_speedup, score.confirmed) for author, score in ranking]
    sure, fast = ("by_sure", 4.0 if confirmed else 16.0, bool(confirmed)), ("by_fast", 8.0, False)
    assert found == [sure, fast]


def test_a_ranking_keeps_everybody_else():
    trace_set = set_of(("a", 1.0, STANDARD), ("b", 2.0, STANDARD), ("c", 4.0, FULL), ("d", 8.0, STANDARD))
    rows = rank_by_author(list_results(trace_set, trace_set.traces["double"]))
    assert [row.author for row in rows] == ["by_c", "by_a", "by_b", "by_d"]
    assert [row.fastest_share for row in rows] == [1.0, 1.0, 1.0, 0.5]
    assert [row.solution for row in summarise(trace_set.traces["double"])] == ["c", "a", "b", "d"]


def test_kinds_of_hardware_stay_apart():
    trace_set = set_of(("fast", 1.0, STANDARD, "w0", "old GPU"), ("sure", 2.0, FULL), ("on_cpu", 3.0, CPU, "w0", "CPU"))
    rows = best_by_workload(trace_set.traces["double"])
    assert {row.hardware: (row.solution, row.standing) for row in rows} == {
        "CPU": ("on_cpu", "CPU: indicative"),
        "GPU": ("sure", "confirmed"),
        "old GPU": ("fast", "not confirmed"),
    }


def test_a_time_that_means_nothing_has_no_standing():
    (row,) = summarise([trace_of("x", 1.0, UNREAL)])
    assert (row.standing, row.confirmed) == ("", False)


def test_columns_say_what_is_confirmed():
    trace_set = set_of(("x", 1.0, FULL), ("y", 1.0, STANDARD), ("z", 1.0, FOREIGN))
    trace_set.traces["double"].append(make_trace(status="TIMEOUT"))
    rows = [make_row(judged) for judged in list_judged(trace_set)]
    assert [row["confirmed"] for row in rows] == [True, False, False, None]


@pytest.fixture
def report(tmp_path, capsys):
    def start(results, *argv):
        traces = [trace_of(name, latency, record, uuid) for name, latency, record, uuid in results]
        root = write_small_set(tmp_path, workloads=2, traces=traces)
        assert main(["report", *argv, "--local", str(root)]) == 0
        return capsys.readouterr().out

    return start


GPU_SET = [("double_python", 1.0, STANDARD, "w0"), ("other", 2.0, FULL, "w0"), ("other", 2.0, STANDARD, "w1")]
CPU_SET = [("double_python", 1.0, CPU, "w0"), ("other", 2.0, CPU, "w0")]
TABLES = [("best",), ("best", "--by", "definition"), ("summary",), ("summary", "--by", "author"), ("visualize",)]


@pytest.mark.parametrize("argv", TABLES, ids=" ".join)
def test_tables_mark_what_is_not_confirmed(report, argv):
    out = report(GPU_SET, *argv)
    has_unconfirmed = argv not in (("best", "--by", "definition"), ("summary", "--by", "author"))
    assert ("\u2020 not confirmed: " in out) == has_unconfirmed
    assert "CPU: indicative" not in out


@pytest.mark.parametrize("argv", [*TABLES, ("best", "--by", "author")], ids=" ".join)
def test_a_set_of_cpus_has_one_heading_and_no_marks(report, argv):
    out = report(CPU_SET, *argv)
    assert (out.count("CPU: indicative"), "\u2020" in out) == (1, False)


@pytest.mark.parametrize("argv", [*TABLES, ("best", "--by", "author")], ids=" ".join)
def test_json_says_of_each_row_whether_it_is_confirmed(report, argv):
    rows = json.loads(report(GPU_SET, *argv, "--format", "json"))["rows"]
    assert rows[0]["confirmed"] is True
    assert all(isinstance(row["confirmed"], bool) for row in rows)


def test_winners_are_counted_with_their_confirmations(report):
    out = report(GPU_SET, "best", "--by", "author")
    assert out.splitlines()[2].split()[1:3] == ["2/2", "1"]


@pytest.mark.parametrize(("results", "cpu"), [(GPU_SET, []), (CPU_SET, ["GPU"])])
def test_pages_have_the_standing_of_rows_and_the_cpus(tmp_path, results, cpu):
    trace_set = set_of(*results)
    folder = write_pages(tmp_path / "pages", trace_set)
    standing = "CPU: indicative" if cpu else "not confirmed"
    for key, count in (("overview", 2), (f"d_{id_of('double')}", 1)):
        text = (folder / "data" / f"{key}.js").read_text()
        data = json.loads(json.loads(text[text.index(",") + 1 : text.rindex(")")]))
        assert data["cpu"] == cpu
        assert str(data).count(f"'{standing}'") >= count
