"""The kit of benchmarks/: sets that are valid, verdicts that are held, figures that are saved, and their page."""

from __future__ import annotations

import ast
import json

import pytest

from benchmarks import results
from benchmarks.kit import sets
from benchmarks.kit.commands import Command
from benchmarks.kit.script import Figure, Row, make_parser, run_rows
from benchmarks.results import GOALS, Goal
from flashinfer_bench.data import TraceSet

pytestmark = pytest.mark.cpu

EXPECTED = {("d", "s", "w0"): "PASSED", ("d", "s", "w1"): "RUNTIME_ERROR"}


def command(*statuses, jobs=2, error=""):
    told = [
        {"definition": "d", "solution": "s", "workload": f"w{n}", "status": one}
        for n, one in enumerate(statuses)
        if one
    ]
    return Command(2.0, 1.5, {"jobs": told, "plan": {"jobs": jobs}}, error)


@pytest.mark.parametrize(
    ("run", "expected", "odd"),
    [
        (command("PASSED", "RUNTIME_ERROR"), EXPECTED, []),
        (command("PASSED", "PASSED"), None, []),
        (command("PASSED", "TIMEOUT"), EXPECTED, ["d / s / w1: TIMEOUT, expected RUNTIME_ERROR"]),
        (command("PASSED"), EXPECTED, ["d / s / w1: None, expected RUNTIME_ERROR"]),
        (command("PASSED"), None, ["1 jobs without a verdict"]),
        (Command(1.0, None, {}, "it failed"), None, ["it failed", "no verdicts"]),
    ],
)
def test_odd_verdicts_of_a_command_are_told(run, expected, odd):
    assert run.odd(expected) == odd


def test_sets_are_valid_and_each_solution_has_a_kernel_of_its_own(tmp_path):
    made = [
        sets.verdicts(tmp_path / "verdicts", [1, 2]),
        sets.gemm(tmp_path / "gemm", [1]),
        sets.sampler(tmp_path / "sampler"),
        sets.triton(tmp_path / "triton", 3, [16]),
        sets.slow_reference(tmp_path / "slow", steps=3, width=64, rows=[8]),
        sets.python(tmp_path / "python", 2, [1, 2]),
    ]
    for one in made:
        read = TraceSet.from_path(one.root)
        assert not read.issues
        solutions = [solution for found in read.solutions.values() for solution in found]
        assert {
            (one.definition, one.name, t.workload.uuid) for one in solutions for t in read.workloads[one.definition]
        } == set(one.expected)
        for solution in solutions:
            ast.parse(solution.sources[0].content)
            is_marked = f"# {solution.name}, {sets.MARK}\n" in solution.sources[0].content
            assert is_marked == (solution.name != "quick")


def run(monkeypatch, figures, *flags, needs=""):
    monkeypatch.setitem(GOALS, "seconds", Goal("a claim", 2.0, "s"))
    rows = {"row": Row(lambda _bench: figures, needs, "a row")}
    return run_rows(rows, make_parser("", rows).parse_args(["--devices", "cpu", *flags]), "speed")


@pytest.mark.parametrize(
    ("figures", "flags", "code", "saved"),
    [
        ([Figure("seconds", 1.9, "s")], [], 0, 1),
        ([Figure("seconds", 2.1, "s")], [], 1, 1),
        ([Figure("seconds", 2.1, "s")], ["--no-goals"], 0, 1),
        ([Figure("seconds", 2.1, "s")], ["--small"], 0, 0),
        ([Figure("seconds", 1.9, "s")], ["--no-save"], 0, 0),
        ([Figure("seconds", 1.9, "s", odd=["a wrong verdict"])], ["--small"], 1, 0),
        ([Figure("seconds", None, "s")], [], 1, 0),
        ([], [], 2, 0),
    ],
)
def test_figures_are_held_against_goals_and_saved(figures, flags, code, saved, monkeypatch, tmp_path):
    file = tmp_path / "lines.jsonl"
    assert run(monkeypatch, figures, *flags, "--output", str(file)) == code
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    assert len(lines) == saved
    for line in lines:
        assert (line["figure"], line["unit"], line["gpu"]) == ("seconds", "s", None)
        assert line["command"].startswith("python -m benchmarks.speed")
        assert {"machine", "commit", "versions", "time"} <= line.keys()


def test_a_row_that_the_machine_cannot_take_is_skipped(monkeypatch, capsys):
    assert run(monkeypatch, [Figure("seconds", 1.0)], "--no-save", needs="gpus") == 2
    assert "row: skipped: needs 2 GPUs; this machine has 0" in capsys.readouterr().out


def test_the_page_has_the_latest_figure_of_each_goal_and_all_of_them_over_commits():
    line = {"figure": "help", "unit": "s", "machine": "a machine", "command": "python -m benchmarks.speed"}
    page = results.render([{**line, "value": 0.5, "commit": "aaa"}, {**line, "value": 0.3, "commit": "bbb"}])
    assert "| `run --help` | at most 0.4 s | 0.3 s | a machine | bbb | `python -m benchmarks.speed` |" in page
    assert "| help | aaa: 0.5 s; bbb: 0.3 s |" in page
    assert "not measured" in page
    assert "**0.5 s**" in results.render([{**line, "value": 0.5, "commit": "aaa"}])


def test_the_page_is_up_to_date():
    """If it is not: python -m benchmarks.results."""
    assert results.PAGE.read_text(encoding="utf-8") == results.render(results.read_lines())
