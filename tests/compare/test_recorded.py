"""Recorded traces against each other: what is paired, what is refused, and what a comparison looks like."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.chosen import choose_workloads
from flashinfer_bench.examine.compare.comparison import Row
from flashinfer_bench.examine.compare.documents import compare_document, render_junit, render_markdown
from flashinfer_bench.examine.compare.recorded import compare_recorded
from flashinfer_bench.examine.compare.sides import find_contender, pair_up
from tests.kit import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set

GPU = {"method": "cupti", "cache_state": "cold"}


def timed(latency_ms, half=0.01, *, hardware="NVIDIA H200", marks=None, **measurement):
    """An evaluation with an interval, and the marks under which it was taken."""
    bounds = [latency_ms * (1 - half), latency_ms * (1 + half)]
    record = {**GPU, "interval95_ms": bounds, "interval": "workers", **measurement}
    run = {"fingerprint": {"protocol": "2", "sandbox": "walls", **(marks or {})}}
    extra = {"measurement": record, "run": run}
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
        lines = [make_trace(solution=None, workload=make_workload(f"w{index}")) for index in range(2)]
        parts = {"definitions": [make_definition()], "solutions": solutions, "workloads": lines, "traces": traces}
        return write_trace_set(tmp_path / folder, **parts)

    return write


def compare(root, first, second, threshold=0.02):
    trace_set = TraceSet.from_path(root)
    return compare_recorded(*(find_contender(word, trace_set) for word in (first, second)), threshold)


def decisions(found):
    return [found.decide(row.ratio) for row in found.rows]


def test_two_solutions_are_compared_on_each_workload_and_over_all(write_set):
    found = compare(write_set(a=[timed(1.0), timed(2.0)], b=[timed(1.1), timed(2.0, 0.001)]), "a", "b")
    assert [row.ratio.ratio for row in found.rows] == pytest.approx([1.1, 1.0])
    assert decisions(found) == ["slower", "same"]
    assert found.overall.ratio == pytest.approx(1.1**0.5)
    assert found.slower_than(0.05) == ["w0"]
    assert found.slower_than(0.03) == ["w0", "over all"]


def test_authors_are_compared_by_their_fastest(write_set):
    root = write_set(a=[timed(1.0)], b=[timed(0.5)])
    assert decisions(compare(root, "author_of_a", "author_of_b")) == ["faster"]
    (pairing,) = pair_up(*(find_contender(f"author_of_{name}", TraceSet.from_path(root)) for name in "ab"))
    assert (pairing.first.name, pairing.second.name) == ("a", "b")


def test_two_sets_and_two_files_are_compared_solution_by_solution(write_set):
    old, new = write_set("old", a=[timed(1.0)], b=[timed(3.0)]), write_set("new", a=[timed(1.5)], b=[timed(3.0)])
    found = compare(old, str(old), str(new), threshold=0.03)
    assert [(row.label, found.decide(row.ratio)) for row in found.rows] == [("a", "slower"), ("b", "same")]
    first, second = (min(root.glob("traces/**/*.jsonl")) for root in (old, new))
    assert [row.label for row in compare(old, str(first), str(second)).rows] == ["a"]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (timed(1.0, hardware="NVIDIA H100"), "other hardware: A NVIDIA H200, B NVIDIA H100"),
        (timed(1.0, cache_state="warm"), "another state of the caches: A cold, B warm"),
        (timed(1.0, method="cuda_events"), "another clock: A cupti, B cuda_events"),
        (timed(1.0, marks={"protocol": "1"}), "another way to call and time: A 2, B 1"),
        (timed(1.0, marks={"sandbox": "none"}), "other walls: A walls, B none"),
        (timed(1.0, marks={"timing": "no graphs"}), "other settings of the timing: A usual, B no graphs"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(write_set, other, named):
    with pytest.raises(DataSetError, match=named):
        compare(write_set(a=[timed(1.0)], b=[other]), "a", "b")


def test_a_solution_that_does_not_pass_is_said_so_and_not_compared(write_set):
    wrong = make_evaluation("RUNTIME_ERROR", log="it broke")
    found = compare(write_set(a=[timed(1.0), timed(1.0)], b=[timed(1.0), wrong]), "a", "b")
    assert [row.problem for row in found.problems] == ["B did not pass: RUNTIME_ERROR: it broke"]
    assert found.overall == found.rows[0].ratio


def test_a_time_that_does_not_count_is_not_called_a_failure(write_set):
    unreal = timed(1.0, meaningful=False, reason="interpreted")
    found = compare(write_set(a=[timed(1.0), timed(1.0)], b=[timed(1.0), unreal]), "a", "b")
    assert [row.problem for row in found.problems] == ["the time of B does not count: interpreted"]


def test_workloads_are_chosen_by_uuids_and_their_beginnings():
    known = ["d011721d-aa", "d011ffff-bb", "other"]
    assert choose_workloads(["d0117", "other"], known) == {"d011721d-aa", "other"}
    assert choose_workloads(["d011"], known) == {"d011721d-aa", "d011ffff-bb"}
    with pytest.raises(DataSetError, match="'othr' is none of both sides; did you mean 'other'"):
        choose_workloads(["othr"], known)


def test_only_chosen_workloads_are_compared(write_set):
    root = write_set(a=[timed(1.0), timed(2.0)], b=[timed(1.1), timed(2.0)])
    command = ["compare", "a", "b", "--recorded", "--local", str(root), "--quiet"]
    assert main([*command, "--workloads", "w1"]) == 0
    assert main([*command, "--workloads", "w9"]) == 2
    assert main([*command, "--budget", "5"]) == 2  # nothing is measured


def test_a_workload_that_the_budget_left_out_is_no_failure(write_set):
    found = compare(write_set(a=[timed(1.0)], b=[timed(1.0)]), "a", "b")
    left_out = Row("double", "w1", problem="the budget was spent", is_unmeasured=True)
    some = replace(found, rows=(*found.rows, left_out))
    assert (some.is_failed, replace(found, rows=(left_out,)).is_failed) == (False, True)
    assert replace(found, rows=(*found.rows, replace(left_out, is_unmeasured=False))).is_failed
    assert compare_document(some, ("a", "b"), [])["rows"][1]["decision"] == "cannot tell yet"
    suite = ElementTree.fromstring(render_junit(some, []))
    assert (suite.get("errors"), suite.get("skipped"), len(suite.findall("testcase/skipped"))) == ("0", "1", 1)


def test_an_interval_that_reaches_to_zero_decides_nothing(write_set):
    found = compare(write_set(a=[timed(1.0)], b=[timed(3.0, half=1.0)]), "a", "b")
    assert (found.rows[0].ratio.ratio, decisions(found)) == (pytest.approx(3.0), ["cannot tell yet"])


def test_a_trace_without_a_named_interval_gets_the_spread_between_workers(write_set):
    old = timed(1.0, 0.0001, interval="")
    found = compare(write_set(a=[old], b=[timed(1.004, 0.0001, interval="")]), "a", "b")
    assert 0.01 < found.rows[0].ratio.log_half < 0.03


def test_names_that_are_nothing_are_told_with_the_nearest(write_set):
    with pytest.raises(DataSetError, match=r"'aa' is no file.*did you mean"):
        compare(write_set(aaa=[timed(1.0)], b=[timed(1.0)]), "aa", "b")


def test_documents_tell_the_same_and_escape_names(write_set):
    found = compare(write_set(a=[timed(1.0)], b=[timed(1.2)]), "a", "b")
    slower = found.slower_than(0.03)
    document = json.loads(json.dumps(compare_document(found, ("a", "b"), slower)))
    assert (document["overall"]["decision"], document["slower_than_allowed"]) == ("slower", ["w0", "over all"])
    text = render_markdown(found, ("<script>a|b", "b"), slower)
    assert "<script>" not in text
    assert "slower" in text
    suite = ElementTree.fromstring(render_junit(found, slower))
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase/failure"))) == ("2", "2", 2)
