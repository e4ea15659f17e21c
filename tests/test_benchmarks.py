"""The kit of benchmarks/: sets that are valid, verdicts that are held, figures that are saved, and their page."""

from __future__ import annotations

import ast
import json

import pytest

from benchmarks import results, sweep_published
from benchmarks.kit import sets
from benchmarks.kit.commands import Command
from benchmarks.kit.script import Figure, Row, make_parser, run_rows
from benchmarks.results import GOALS, Goal
from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu

EXPECTED = {("d", "s", "w0"): "PASSED", ("d", "s", "w1"): "RUNTIME_ERROR"}


@pytest.mark.parametrize(
    ("statuses", "expected", "odd"),
    [
        (["PASSED", "RUNTIME_ERROR"], EXPECTED, []),
        (["PASSED", "PASSED"], None, []),
        (["PASSED", "TIMEOUT"], EXPECTED, ["d / s / w1: TIMEOUT, expected RUNTIME_ERROR"]),
        (["PASSED"], EXPECTED, ["d / s / w1: None, expected RUNTIME_ERROR"]),
        (["PASSED"], None, ["1 jobs without a verdict"]),
        ([], None, ["it failed", "no verdicts"]),
    ],
)
def test_odd_verdicts_of_a_command_are_told(statuses, expected, odd):
    where = {"definition": "d", "solution": "s"}
    jobs = [{**where, "workload": f"w{n}", "status": one} for n, one in enumerate(statuses)]
    document = {"jobs": jobs, "plan": {"jobs": 2}} if jobs else {}
    assert Command(2.0, 1.5, document, "" if jobs else "it failed").odd(expected) == odd


def test_sets_are_valid_and_each_solution_has_a_kernel_of_its_own(tmp_path):
    made = {
        "verdicts": lambda root: sets.verdicts(root, [1, 2]),
        "gemm": lambda root: sets.gemm(root, [1]),
        "sampler": sets.sampler,
        "triton": lambda root: sets.triton(root, 3, [16]),
        "slow": lambda root: sets.slow_reference(root, steps=3, width=64, rows=[8]),
        "python": lambda root: sets.python(root, 2, [1, 2]),
    }
    for name, make in made.items():
        one = make(tmp_path / name)
        read = TraceSet.from_path(one.root)
        assert not read.issues
        solutions = [solution for found in read.solutions.values() for solution in found]
        pairs = {(s.definition, s.name, t.workload.uuid) for s in solutions for t in read.workloads[s.definition]}
        assert pairs == set(one.expected)
        for solution in solutions:
            content = solution.sources[0].content
            ast.parse(content)
            assert (f"# {solution.name}, {sets.MARK}\n" in content) == (solution.name != "quick")


def run(monkeypatch, figures, *flags, needs=""):
    monkeypatch.setitem(GOALS, "seconds", Goal("a claim", 2.0, "s"))
    rows = {"row": Row(lambda _bench: figures, needs, "a row")}
    return run_rows(rows, make_parser("", rows).parse_args(["--devices", "cpu", *flags]), "speed")


@pytest.mark.parametrize(
    ("value", "odd", "flags", "code", "saved"),
    [
        (1.9, [], [], 0, 1),
        (2.1, [], [], 1, 1),
        (2.1, [], ["--no-goals"], 0, 1),
        (2.1, [], ["--small"], 0, 0),
        (1.9, [], ["--no-save"], 0, 0),
        (1.9, ["a wrong verdict"], ["--small"], 1, 0),
        (None, [], [], 1, 0),
        (..., [], [], 2, 0),
    ],
)
def test_figures_are_held_against_goals_and_saved(value, odd, flags, code, saved, monkeypatch, tmp_path):
    file = tmp_path / "lines.jsonl"
    figures = [] if value is ... else [Figure("seconds", value, "s", odd=odd)]
    assert run(monkeypatch, figures, *flags, "--output", str(file)) == code
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    assert [(line["figure"], line["unit"], line["gpu"]) for line in lines] == [("seconds", "s", None)] * saved
    for line in lines:
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


@pytest.mark.parametrize(
    ("most", "taken"),
    [(0, [0, 1, 2, 3, 4]), (1, [0]), (2, [0, 4]), (3, [0, 2, 4]), (4, [0, 1, 2, 4]), (9, [0, 1, 2, 3, 4])],
)
def test_a_sweep_takes_workloads_from_the_smallest_to_the_largest(most, taken):
    assert sweep_published.spread(list(range(5)), most) == taken


@pytest.mark.parametrize(
    ("blob", "code", "reported"),
    [
        ("gone", 0, ["test", "3", "0", "PASSED:", "2,", "MISSING", "BLOB:", "1"]),
        ("broken", 1, ["test", "3", "1", "PASSED:", "2,", "FAULT:", "1"]),
    ],
)
def test_a_missing_blob_is_expected_and_one_that_cannot_be_read_fails_a_sweep(
    tmp_path, monkeypatch, capsys, blob, code, reported
):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(sweep_published.resource, "setrlimit", lambda *arguments: None)
    stored = {"x": {"type": "safetensors", "path": f"./blob/{blob}.safetensors", "tensor_key": "x"}}
    workloads = [make_workload(f"w{size}", axes={"n": size}) for size in (8, 64)] + [make_workload("w9", inputs=stored)]
    write_trace_set(
        tmp_path,
        {"blob/broken.safetensors": b"no safetensors"},
        definitions=[make_definition()],
        workloads=[make_trace(workload=workload, solution=None) for workload in workloads],
    )
    options = "--op-types test --workloads 0 --published-only --solutions value --devices cpu --no-save"
    monkeypatch.setattr("sys.argv", ["sweep_published", str(tmp_path), *options.split()])
    assert sweep_published.main() == code
    assert capsys.readouterr().out.splitlines()[-2].split() == reported
