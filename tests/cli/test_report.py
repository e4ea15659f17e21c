"""The report commands on a set with traces."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import write_small_set
from tests.kit import make_trace, make_workload


def on(uuid, solution, **parts):
    return make_trace(workload=make_workload(uuid), solution=solution, **parts)


TRACES = [
    on("w0", "double_python", speedup=2.0),
    on("w1", "double_python", speedup=2.0),
    on("w0", "other", speedup=8.0),
    on("w1", "other", status="TIMEOUT", log="still running"),
]


@pytest.fixture
def report(tmp_path, capsys):
    root = write_small_set(tmp_path, workloads=3, traces=TRACES)

    def start(*argv):
        assert main(["report", *argv, "--local", str(root)]) == 0
        return capsys.readouterr()

    return start


def test_visualize_has_the_counts_and_both_tables(report):
    shown = report("visualize").out
    assert shown.startswith("4 verdicts: 3 PASSED, 1 TIMEOUT\n")
    assert report("summary").out in shown
    assert shown.endswith(report("best").out)
    document = json.loads(report("visualize", "--format", "json").out)
    assert document["counts"] == {"PASSED": 3, "TIMEOUT": 1}
    assert (len(document["rows"]), len(document["best"])) == (2, 2)


def test_summary_has_a_row_a_solution_and_the_workloads_without_a_verdict(report):
    rows = [line.split() for line in report("summary").out.splitlines()]
    assert ["double", "double_python", "2/2", "1", "1.00", "ms†", "2.00x"] in rows
    assert ["double", "other", "1/2", "1", "1.00", "ms†", "8.00x"] in rows


def test_summary_can_be_narrowed(report):
    assert "double_python" not in report("summary", "--solutions", "other").out
    assert "double_python" in report("summary", "--authors", "alice", "--op-types", "test").out


def test_summary_in_json_has_raw_numbers(report):
    rows = json.loads(report("summary", "--format", "json").out)["rows"]
    assert [(row["solution"], row["passed"], row["judged"], row["pending"]) for row in rows] == [
        ("double_python", 2, 2, 1),
        ("other", 1, 2, 1),
    ]
    assert rows[1]["failures"][0]["status"] == "TIMEOUT"


def test_best_is_by_workload_unless_asked_by_definition(report):
    by_workload = json.loads(report("best", "--format", "json").out)["rows"]
    assert [(row["workload"], row["solution"]) for row in by_workload] == [("w0", "other"), ("w1", "double_python")]
    by_definition = json.loads(report("best", "--by", "definition", "--format", "json").out)["rows"]
    assert [row["solution"] for row in by_definition] == ["double_python"]


def test_the_tables_of_the_best_have_the_winners(report):
    assert "other" in report("best").out
    assert "other" not in report("best", "--by", "definition").out


@pytest.mark.parametrize("command", ["summary", "best"])
def test_a_name_that_nothing_has_is_refused(command, tmp_path, capsys):
    root = str(write_small_set(tmp_path, traces=TRACES))
    assert main(["report", command, "--local", root, "--solutions", "othr", "--authors", "alise"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: --solutions: the trace set has no solution 'othr'; did you mean 'other'?",
        "error: --authors: the trace set has no author 'alise'; did you mean 'alice'?",
    ]


def test_a_pass_that_a_later_verdict_supersedes_is_not_denied(tmp_path, capsys):
    later = [on("w0", "other"), on("w0", "other", status="TIMEOUT", log="still running")]
    assert main(["report", "best", "--local", str(write_small_set(tmp_path, traces=later))]) == 0
    assert capsys.readouterr().err.startswith("note: there is no job whose latest verdict is PASSED; ")


@pytest.mark.parametrize("command", ["summary", "best"])
def test_without_traces_there_is_a_note(command, tmp_path, capsys):
    assert main(["report", command, "--local", str(write_small_set(tmp_path))]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "no traces to report" in err
