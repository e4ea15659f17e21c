"""Recorded traces against each other: what is paired, what is refused, and what a comparison looks like."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.recorded import compare_recorded
from flashinfer_bench.examine.compare.result import Row
from flashinfer_bench.examine.compare.sides import find_contender, pair_up
from tests.kit import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set

GPU = {"method": "cupti", "cache_state": "cold"}


def timed(latency_ms, half=0.01, *, hardware="NVIDIA H200", marks=None, **measurement):
    """An evaluation with an interval, and the marks under which it was taken."""
    bounds = [latency_ms * (1 - half), latency_ms * (1 + half)]
    record = {**GPU, "interval95_ms": bounds, "interval": "workers", **measurement}
    extra = {"measurement": record, "run": {"fingerprint": {"protocol": "2", "sandbox": "walls", **(marks or {})}}}
    return make_evaluation(latency_ms=latency_ms, extra=extra, environment={"hardware": hardware, "libs": {}})


@pytest.fixture
def write_set(tmp_path):
    """Write a set; keywords are solution → its evaluation on each workload."""

    def write(folder="set", **evaluations):
        solutions = [make_solution(name, author=f"author_of_{name}") for name in evaluations]
        traces = [
            make_trace(solution=name, workload=make_workload(f"w{index}"), evaluation=evaluation)
            for name, listed in evaluations.items()
            for index, evaluation in enumerate(listed)
        ]
        parts = {"definitions": [make_definition()], "solutions": solutions, "traces": traces}
        return write_trace_set(tmp_path / folder, **parts)

    return write


def compare(root, first="a", second="b", threshold=0.02):
    trace_set = TraceSet.from_path(root)
    return compare_recorded(*(find_contender(word, trace_set) for word in (first, second)), threshold)


def decisions(found):
    return [row.ratio.decide(found.threshold) for row in found.rows]


def test_two_solutions_are_compared_on_each_workload_and_over_all(write_set):
    found = compare(write_set(a=[timed(1.0), timed(2.0)], b=[timed(1.1), timed(2.0, 0.001)]))
    assert [row.ratio.ratio for row in found.rows] == pytest.approx([1.1, 1.0])
    assert decisions(found) == ["slower", "same"]
    assert found.overall.ratio == pytest.approx(1.1**0.5)
    assert found.rows[0].ratio.log_half == pytest.approx(0.01 * 2**0.5, rel=0.02)  # errors add up as squares
    assert [found.slower_than(share) for share in (0.05, 0.03)] == [["w0"], ["w0", "over all"]]


def test_authors_are_compared_by_their_fastest(write_set):
    root = write_set(a=[timed(1.0)], b=[timed(0.5)])
    authors = ("author_of_a", "author_of_b")
    assert decisions(compare(root, *authors)) == ["faster"]
    (pairing,) = pair_up(*(find_contender(author, TraceSet.from_path(root)) for author in authors))
    assert (pairing.first.name, pairing.second.name) == ("a", "b")


def test_two_sets_and_two_files_are_compared_solution_by_solution(write_set):
    roots = [write_set("old", a=[timed(1.0)], b=[timed(3.0)]), write_set("new", a=[timed(1.5)], b=[timed(3.0)])]
    found = compare(roots[0], *map(str, roots), threshold=0.03)
    assert [(row.label, row.ratio.decide(0.03)) for row in found.rows] == [("a", "slower"), ("b", "same")]
    files = [str(min(root.glob("traces/**/*.jsonl"))) for root in roots]
    assert [row.label for row in compare(roots[0], *files).rows] == ["a"]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (timed(1.0, hardware="NVIDIA H100"), "other hardware: A NVIDIA H200, B NVIDIA H100"),
        (timed(1.0, cache_state="warm"), "another state of the caches: A cold, B warm"),
        (timed(1.0, method="cuda_events"), "another clock: A cupti, B cuda_events"),
        (timed(1.0, marks={"sandbox": "none"}), "other walls: A walls, B none"),
        (timed(1.0, marks={"timing": "no graphs"}), "other settings of the timing: A usual, B no graphs"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(write_set, other, named):
    with pytest.raises(DataSetError, match=named):
        compare(write_set(a=[timed(1.0)], b=[other]))


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (make_evaluation("RUNTIME_ERROR", log="it broke"), "B did not pass: RUNTIME_ERROR: it broke"),
        (timed(1.0, meaningful=False, reason="interpreted"), "the time of B does not count: interpreted"),
    ],
)
def test_a_workload_without_a_time_is_said_so_and_not_compared(write_set, other, problem):
    found = compare(write_set(a=[timed(1.0), timed(1.0)], b=[timed(1.0), other]))
    assert [row.problem for row in found.problems] == [problem]
    assert (found.overall, found.is_failed) == (found.rows[0].ratio, True)


def test_only_chosen_workloads_are_compared(write_set, capsys):
    root = write_set(a=[timed(1.0), timed(2.0)], b=[timed(1.1), timed(2.0)])
    command = ["compare", "a", "b", "--recorded", "--local", str(root), "--quiet"]
    assert main([*command, "--workloads", "w1", "--format", "json"]) == 0
    assert [row["workload"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["w1"]
    assert main([*command, "--workloads", "w12"]) == 2
    assert "'w12' is none of both sides; did you mean 'w1'" in capsys.readouterr().err
    assert main([*command, "--budget", "5"]) == 2


def test_a_workload_that_the_budget_left_out_is_no_failure(write_set):
    found = compare(write_set(a=[timed(1.0)], b=[timed(1.0)]))
    left_out = Row("double", "w1", problem="the budget was spent", is_unmeasured=True)
    some = replace(found, rows=(*found.rows, left_out))
    assert (some.is_failed, replace(found, rows=(left_out,)).is_failed) == (False, True)
    assert some.document(("a", "b"), [])["rows"][1]["decision"] == "cannot tell yet"
    suite = ElementTree.fromstring(some.junit([]))
    assert (suite.get("errors"), suite.get("skipped"), len(suite.findall("testcase/skipped"))) == ("0", "1", 1)


def test_intervals_that_are_wide_or_have_no_name_decide_nothing(write_set):
    assert decisions(compare(write_set(a=[timed(1.0)], b=[timed(3.0, half=1.0)]))) == ["cannot tell yet"]
    old, new = (timed(ms, 0.0001, interval="") for ms in (1.0, 1.004))
    found = compare(write_set("old", a=[old], b=[new]))
    assert 0.01 < found.rows[0].ratio.log_half < 0.03  # the spread between workers


def test_documents_tell_the_same_and_escape_names(write_set):
    found = compare(write_set(a=[timed(1.0)], b=[timed(1.2)]))
    slower = found.slower_than(0.03)
    text = found.markdown(("<script>a|b", "b"), slower)
    assert ("<script>" in text, "slower" in text) == (False, True)
    suite = ElementTree.fromstring(found.junit(slower))
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase/failure"))) == ("2", "2", 2)
