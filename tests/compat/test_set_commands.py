"""The commands about sets, typed as the documents of the public package type them."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

CHECKS = "layout,definition,workload,solution,trace,baseline,benchmark"


def write_set(root, *, author="baseline", **parts):
    return write_trace_set(
        root,
        definitions=[make_definition(), make_definition("unused")],
        solutions=[make_solution(author=author)],
        workloads=[make_trace(solution=None, workload=make_workload(uuid)) for uuid in ("a", "b")],
        **parts,
    )


@pytest.mark.cpu
def test_a_whole_validation_before_a_pull_request(tmp_path, capsys):
    root, folder = write_set(tmp_path / "set"), tmp_path / "reports"
    command = ["validate", "--dataset", str(root), "--checks", CHECKS, "--disable-gpu", "--op-types", "test"]
    options = ["--definitions", "double", "--output-folder", str(folder), "--outputs", "stdout,json,text"]
    assert main([*command, *options]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "baseline: 2 jobs: 2 PASSED",
        "benchmark: 2 jobs: 2 PASSED",
        "1 definition, 1 solution, 2 workloads, 0 traces: 0 errors, 0 warnings",
    ]
    assert (folder / "report.txt").read_text() == out
    report = json.loads((folder / "report.json").read_text())
    assert report["checks"] == CHECKS.split(",")
    assert report["coverage"]["not_passed"] == {}
    assert main(["validate-render", str(folder / "report.json")]) == 0
    assert capsys.readouterr().out == out


def test_errors_end_with_1_and_misuse_with_2(tmp_path, capsys):
    root = write_set(tmp_path, files={"solutions/x.json": "{"})
    assert main(["validate", "--dataset", str(root)]) == 1
    assert main(["validate", "--dataset", str(root), "--checks", "everything"]) == 2
    assert main(["validate", "--dataset", str(root / "nowhere")]) == 2


def test_two_peoples_results_are_put_together(tmp_path, capsys):
    ours = write_set(tmp_path / "ours", traces=[make_trace(workload=make_workload("a"))])
    theirs = write_set(tmp_path / "theirs", traces=[make_trace(workload=make_workload("b"))])
    output = tmp_path / "both"
    command = ["report", "merge", "--local", str(ours), "--local", str(theirs), "--output"]
    assert main([*command, str(output)]) == 0
    assert main(["report", "summary", "--local", str(output), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.split("\n", 1)[1])["rows"]
    assert (row["passed"], row["pending"]) == (2, 0)
    assert main([*command, str(output)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_definitions_of_one_name_that_differ_are_not_merged(tmp_path, capsys):
    ours = write_set(tmp_path / "ours")
    theirs = write_trace_set(tmp_path / "theirs", definitions=[make_definition(reference="def run(x): return x\n")])
    command = ["report", "merge", "--local", str(ours), "--local", str(theirs), "--output", str(tmp_path / "both")]
    assert main(command) == 2
    assert "definition 'double' differs between" in capsys.readouterr().err
    assert not (tmp_path / "both").exists()


def test_a_rival_displaces_nobody(tmp_path, capsys):
    root = write_set(tmp_path, author="alice")
    write_trace_set(root, {"solutions/mallory/test/double/mine.json": make_solution(author="mallory")})
    assert main(["list", "--local", str(root), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["definitions"][0]["solutions"] == ["double_python"]
    assert "mine.json" in err
    assert "solutions/alice/test/double/double_python.json" in err


def test_the_summary_counts_workloads_without_a_verdict(tmp_path, capsys):
    traces = [make_trace(workload=make_workload(uuid)) for uuid in ("a", "gone", "old")]
    assert main(["report", "summary", "--local", str(write_set(tmp_path, traces=traces)), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["judged"], row["pending"]) == (3, 1)
