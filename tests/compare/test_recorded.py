"""Recorded traces against each other: what is paired, what is refused, and what a comparison looks like."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from flashinfer_bench.cli.compare import render_comparison
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.recorded import compare_recorded
from flashinfer_bench.examine.compare.sides import find_contender, pair_up
from tests.cli.fake_engine import write_small_set
from tests.report.made import on, set_of


def timed(name, *latencies, half=0.01, keys=(), hardware="NVIDIA H200", **record):
    """Make a trace for each latency on w0, w1 and so on, with an interval and the keys under which it was taken."""
    record = {"method": "cupti", "cache_state": "cold", **record}
    run = {"fingerprint": {"protocol": "2", "sandbox": "walls", **dict(keys)}}
    return [
        on(f"w{index}", name, latency, half=half, hardware=hardware, run=run, record=record)
        for index, latency in enumerate(latencies)
    ]


def compare(*traces, words=("a", "b")):
    trace_set = set_of(*traces)
    return compare_recorded(*(find_contender(word, trace_set) for word in words), 0.02)


def decisions(found):
    return [(row.solutions, row.ratio.decide(found.threshold)) for row in found.rows]


def test_two_solutions_are_compared_on_each_workload_and_over_all():
    found = compare(*timed("a", 1.0, 2.0, half=0.005), *timed("b", 1.1, 2.0, half=0.005))
    assert decisions(found) == [("", "slower"), ("", "same")]
    assert [row.ratio.ratio for row in found.all_rows] == pytest.approx([1.1, 1.0, 1.1**0.5])
    assert found.rows[0].ratio.log_half == pytest.approx(0.005 * 2**0.5, rel=0.02)  # errors add up as squares
    assert [found.slower_than(share) for share in (0.05, 0.03)] == [["w0"], ["w0", "over all"]]


def test_authors_are_compared_by_their_fastest():
    trace_set = set_of(*timed("a", 1.0), *timed("slow", 3.0), *timed("b", 0.5))
    solutions = trace_set.solutions["double"]
    solutions[1] = solutions[1].model_copy(update={"author": "by_a"})
    authors = [find_contender(author, trace_set) for author in ("by_a", "by_b")]
    assert compare_recorded(*authors, 0.02).rows[0].ratio.ratio == pytest.approx(0.5)
    with pytest.raises(DataSetError, match="by_a has several solutions of double: name the one to compare: a, slow"):
        pair_up(*authors)
    (pairing,) = pair_up(
        *(find_contender(author, set_of(*timed("a", 1), *timed("b", 1))) for author in ("by_a", "by_b"))
    )
    assert (pairing.first.name, pairing.second.name) == ("a", "b")


def test_two_sets_and_two_files_are_compared_solution_by_solution(tmp_path):
    for folder, latency in (("old", 1.0), ("new", 1.5)):
        write_small_set(tmp_path / folder, traces=[*timed("double_python", latency), *timed("other", 3.0)])
    folders = [tmp_path / "old", tmp_path / "new"]
    for words in (folders, [min(folder.glob("traces/**/*.jsonl")) for folder in folders]):
        assert decisions(compare(words=map(str, words))) == [("double_python", "slower"), ("other", "same")]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"hardware": "NVIDIA H100"}, "other hardware: A NVIDIA H200, B NVIDIA H100"),
        ({"cache_state": "warm"}, "another state of the caches: A cold, B warm"),
        ({"method": "cuda_events"}, "another clock: A cupti, B cuda_events"),
        ({"keys": {"protocol": "1"}}, "another way to call and time: A 2, B 1"),
        ({"keys": {"sandbox": "none"}}, "another sandbox: A walls, B none"),
        ({"keys": {"timing": "no graphs"}}, "other settings of the timing: A usual, B no graphs"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(other, named):
    with pytest.raises(DataSetError, match=named):
        compare(*timed("a", 1.0), *timed("b", 1.0, **other))


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"status": "RUNTIME_ERROR", "log": "it broke"}, "B did not pass: RUNTIME_ERROR: it broke"),
        ({"record": {"meaningful": False, "reason": "interpreted"}}, "the time of B does not count: interpreted"),
    ],
)
def test_a_workload_without_a_time_is_said_so_and_not_compared(other, problem):
    found = compare(*timed("a", 1.0, 1.0), *timed("b", 1.0), on("w1", "b", hardware="NVIDIA H200", **other))
    assert [row.problem for row in found.rows if row.problem] == [problem]
    assert (found.overall, found.is_failed) == (found.rows[0].ratio, True)


def test_only_chosen_workloads_are_compared_and_nothing_is_measured(tmp_path, capsys):
    root = write_small_set(tmp_path, traces=[*timed("double_python", 1.0, 2.0), *timed("other", 1.1, 2.0)])
    command = ["compare", "double_python", "other", "--recorded", "--local", str(root), "--quiet"]
    for name, found in (("w1", ["w1"]), ("n=8", ["w0", "w1"])):
        assert main([*command, "--workloads", name, "--format", "json"]) == 0
        assert [row["workload"] for row in json.loads(capsys.readouterr().out)["rows"]] == found
    for flags, said in ((["--workloads", "w12"], "did you mean 'w1'"), (["--budget", "5"], "nothing is measured")):
        assert main([*command, *flags]) == 2
        assert said in capsys.readouterr().err


def test_a_workload_that_the_budget_left_out_is_no_failure():
    found = compare(*timed("a", 1.0), *timed("b", 1.0))
    left_out = replace(found.rows[0], ratio=None, problem="the budget was spent", is_unmeasured=True)
    some = replace(found, rows=(*found.rows, left_out))
    assert (some.is_failed, replace(found, rows=(left_out,)).is_failed) == (False, True)
    assert some.document(("a", "b"), [])["rows"][1]["decision"] == "cannot tell yet"
    suite = ElementTree.fromstring(some.junit([]))
    assert (suite.get("errors"), suite.get("skipped"), len(suite.findall("testcase/skipped"))) == ("0", "1", 1)


def test_intervals_that_are_wide_or_have_no_name_decide_nothing():
    assert decisions(compare(*timed("a", 1.0), *timed("b", 3.0, half=1.0))) == [("", "cannot tell yet")]
    old = [on("w0", name, ms, record={"method": "cupti"}) for name, ms in (("a", 1.0), ("b", 1.004))]
    assert 0.01 < compare(*old).rows[0].ratio.log_half < 0.03  # the spread between workers


def test_a_comparison_has_the_standing_of_its_times_and_their_flags_by_side():
    noisy, baseline = timed("a", 1.0, 1.0, flags=["noisy"], method="wall"), {"flags": ["noisy"]}
    noisy[1].evaluation.extra["measurement"]["flags"] = []
    for trace in noisy:
        trace.evaluation.extra["baseline"] = baseline
    found = compare(*noisy, *timed("b", 1.0, 1.0, method="wall"))
    (line,) = [line for line in found.warnings if "older_protocol" not in line]
    assert line.startswith("A: noisy, 1 of 2 measurements: ")
    shown = render_comparison(found, ("a", "b"))
    assert shown.startswith("CPU: indicative\n\nWorkload")
    assert f"\ntimes of {line}\n" in shown
    assert all(text in found.markdown(("a", "b"), []) for text in ("; CPU: indicative;", "times of A: noisy, 1 of 2"))
    document = found.document(("a", "b"), [])
    assert (document["standing"], document["timings"]["A"]["flags"]["noisy"]) == ("CPU: indicative", 1)
    assert compare(*timed("a", 1.0), *timed("b", 1.0)).standing == "not confirmed"


def test_documents_tell_the_same_and_escape_names():
    found = compare(*timed("a", 1.0), *timed("b", 1.2))
    slower = found.slower_than(0.03)
    text = found.markdown(("<script>a|b", "b"), slower)
    assert ("<script>" in text, "slower" in text) == (False, True)
    suite = ElementTree.fromstring(found.junit(slower))
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase/failure"))) == ("2", "2", 2)
