"""Commands as typed in guides of contests and in documents of the public package."""

from __future__ import annotations

import json
import logging

import pytest

from flashinfer_bench.cli.main import cli
from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu
FEW = "--warmup-runs 1 --iterations 3 --num-trials 1 --devices cpu"
CHECKS = "layout,definition,workload,solution,trace,baseline,benchmark"


@pytest.fixture(autouse=True)
def _quiet_again():
    logger = logging.getLogger("flashinfer_bench")
    before = (logger.level, list(logger.handlers))
    yield
    logger.level, logger.handlers = before[0], list(before[1])


@pytest.fixture
def root(tmp_path):
    """A set with a baseline solution, two workloads, and a definition without jobs."""
    return write_trace_set(
        tmp_path / "set",
        definitions=[make_definition(), make_definition("unused")],
        solutions=[make_solution(author="baseline")],
        workloads=[make_trace(solution=None, workload=make_workload(uuid)) for uuid in ("a", "b")],
    )


@pytest.mark.slow
def test_a_line_of_an_evaluation_guide_runs_and_saves(root, capsys):
    line = f"run --local {root} --definitions double --save-results --use-isolated-runner --log-level INFO --resume"
    assert cli([*line.split(), "--timeout", "300", *FEW.split()]) == 0
    assert [trace.is_successful() for trace in TraceSet.from_path(root).traces["double"]] == [True] * 2
    assert "double_python" in capsys.readouterr().out
    assert cli(["run", "--save-results", "--no-save-results"]) == 2
    assert "--save-results" in capsys.readouterr().err


@pytest.mark.parametrize(("level", "is_shown"), [("debug", True), ("INFO", False)])
def test_a_traceback_is_shown_at_debug_alone(tmp_path, capfd, level, is_shown):
    assert cli(["list", "--local", str(tmp_path / "none"), f"--log-level={level}"]) == 2
    errors = capfd.readouterr().err
    assert ("Traceback" in errors, "does not exist" in errors) == (is_shown, True)


@pytest.mark.slow
def test_a_whole_validation_before_a_pull_request(root, tmp_path, capsys):
    folder = tmp_path / "reports"
    command = ["validate", "--dataset", str(root), "--checks", CHECKS, "--disable-gpu", "--op-types", "test"]
    options = ["--definitions", "double", "--output-folder", str(folder), "--outputs", "stdout,json,text"]
    assert cli([*command, *options]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "baseline: 2 jobs: 2 PASSED",
        "benchmark: 2 jobs: 2 PASSED",
        "1 definition, 1 solution, 2 workloads, 0 traces: 0 errors, 0 warnings",
    ]
    assert (folder / "report.txt").read_text() == out
    report = json.loads((folder / "report.json").read_text())
    assert (report["checks"], report["coverage"]["not_passed"]) == (CHECKS.split(","), {})
    assert cli(["validate-render", str(folder / "report.json")]) == 0
    assert capsys.readouterr().out == out


def test_the_summary_counts_workloads_without_a_verdict(root, capsys):
    write_trace_set(root, traces=[make_trace(workload=make_workload(uuid)) for uuid in ("a", "gone", "old")])
    assert cli(["report", "summary", "--local", str(root), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["judged"], row["pending"]) == (3, 1)
