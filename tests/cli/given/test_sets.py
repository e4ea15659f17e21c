"""Opening trace sets, and what `list` and `validate` say of them."""

import json

import pytest

from flashinfer_bench.cli.args import describe_issues
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import LoadIssue
from tests.cli.fake_engine import write_small_set
from tests.kit import make_definition, make_solution, write_trace_set

TAKES_ALL = """
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

class Mine(DefaultEvaluator):
    "Takes everything."
    @classmethod
    def can_evaluate(cls, definition):
        return True

EVALUATORS = [Mine]
"""
COMMANDS = ["list", "run", "validate", "report summary", "report best"]


@pytest.fixture(autouse=True)
def no_default_set(monkeypatch):
    monkeypatch.delenv("FIB_DATASET_PATH", raising=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_set_there_is_one_clear_line(command, capsys):
    assert main(command.split()) == 2
    assert capsys.readouterr().err == "error: no trace set: give --local PATH, or set FIB_DATASET_PATH\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_folders_are_told_all_at_once(command, capsys, tmp_path):
    assert main([*command.split(), "--local", str(tmp_path / "a"), "--local", str(tmp_path / "b")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in lines] == [True, True]
    assert str(tmp_path / "b") in lines[1]


@pytest.mark.parametrize("command", ["list", "run", "report summary"])
def test_an_empty_set_is_refused(command, capsys, tmp_path):
    assert main([*command.split(), "--local", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}: no definition here; a trace set has definitions/<op_type>/<definition>.json\n"
    )


def test_a_set_whose_definitions_are_broken_is_not_told_as_empty(capsys, tmp_path):
    (file := write_small_set(tmp_path) / "definitions" / "test" / "double.json").write_text("{")
    for other in file.parent.glob("*.json"):
        other.write_text("{")
    (tmp_path / "tolerances.yaml").write_text("double: {rtol: 0.1}\n")
    assert main(["run", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert f"{file}:1: not JSON" in lines[0]
    assert lines[-1] == f"error: {tmp_path}: none of its definitions can be used"
    assert main(["validate", str(tmp_path)]) == 1
    assert "warning" not in capsys.readouterr().out.replace("0 warnings", "")


def test_a_misspelt_folder_is_told_with_the_set_beside_it(capsys, tmp_path):
    write_small_set(tmp_path / "my-set")
    (tmp_path / "my-sat").mkdir()
    assert main(["list", str(tmp_path / "my-sett")]) == 2
    assert capsys.readouterr().err.endswith(f"; did you mean '{tmp_path / 'my-set'}'?\n")


def test_a_folder_inside_a_set_is_told_from_an_empty_one(capsys, tmp_path):
    inside = write_small_set(tmp_path) / "workloads"
    assert main(["list", "--local", str(inside)]) == 2
    assert capsys.readouterr().err == f"error: {inside}: no definition here; did you mean {tmp_path}?\n"


def test_the_environment_names_the_default_set(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(write_small_set(tmp_path)))
    assert main(["list"]) == 0
    assert "double" in capsys.readouterr().out


def test_list_counts_what_there_is(capsys, tmp_path):
    assert main(["list", "--local", str(write_small_set(tmp_path))]) == 0
    heading, _, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["Definition", "Op", "type", "Workloads", "Solutions", "Traces"]
    assert row.split() == ["double", "test", "2", "3", "0"]


@pytest.mark.parametrize(("word", "hint"), [("double", "--definitions double"), ("nothing", "holds definitions/\n")])
def test_a_name_without_its_flag_is_told(capsys, tmp_path, word, hint):
    assert main(["list", str(write_small_set(tmp_path)), word]) == 2
    assert capsys.readouterr().err.endswith(hint + ("" if hint.endswith("\n") else "\n"))


def test_list_shows_workloads_and_one_list_at_a_time(capsys, tmp_path):
    root = str(write_small_set(tmp_path))
    assert main(["list", root, "--workloads"]) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["Workload", "Definition", "Axes"]
    assert rows
    assert all("double" in row and "n=" in row for row in rows)
    assert main(["list", root, "--workloads", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workloads"]) == len(rows)
    assert main(["list", root, "--workloads", "--evaluators"]) == 2


def test_list_in_json_names_the_solutions(capsys, tmp_path):
    assert main(["list", "--format", "json", "--local", str(write_small_set(tmp_path))]) == 0
    (item,) = json.loads(capsys.readouterr().out)["definitions"]
    assert sorted(item["solutions"]) == ["double_python", "in_cuda", "other"]
    assert item["workloads"] == 2


def test_list_refuses_names_that_the_set_does_not_have(capsys, tmp_path):
    root = str(write_small_set(tmp_path))
    assert main(["list", "--local", root, "--definitions", "duoble", "--op-types", "tset"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: --definitions: the trace set has no definition 'duoble'; did you mean 'double'?",
        "error: --op-types: the trace set has no op type 'tset'; did you mean 'test'?",
    ]


def test_an_error_of_one_file_leaves_the_rest_usable(capsys, tmp_path):
    root = write_small_set(tmp_path, files={"definitions/test/broken.json": "{"})
    assert main(["list", "--local", str(root)]) == 0
    out, err = capsys.readouterr()
    assert "double" in out
    assert err.startswith("error: ")
    assert "broken.json" in err


def test_validate_exits_with_1_on_errors_only(capsys, tmp_path):
    assert main(["validate", "--local", str(write_small_set(tmp_path / "good"))]) == 0
    assert capsys.readouterr().out.endswith("0 errors, 0 warnings\n")
    root = write_trace_set(write_small_set(tmp_path / "bad"), {"definitions/test/broken.json": "{"})
    assert main(["validate", "--local", str(root)]) == 1
    assert "broken.json" in capsys.readouterr().out


def test_validate_takes_a_set_of_solutions_only_with_warnings(capsys, tmp_path):
    root = write_trace_set(tmp_path, solutions=[make_solution()])
    assert main(["validate", "--local", str(root)]) == 0
    assert capsys.readouterr().out.endswith("1 solution, 0 workloads, 0 traces: 0 errors, 2 warnings\n")


def test_validate_refuses_a_folder_with_nothing_in_it(capsys, tmp_path):
    assert main(["validate", "--local", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"error: {tmp_path}: the set has no definitions")
    assert out.endswith("1 error, 0 warnings\n")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def run(x:\n", "main.py: not Python: '(' was never closed (line 1 of the source)"),
        ("def rum(x):\n    return x\n", "main.py: there is no function 'run'; did you mean 'rum'?"),
        ("def run():\n    pass\n", "run() cannot be called as double calls it"),
    ],
)
def test_validate_warns_of_what_can_only_fail_to_compile(source, said, capsys, tmp_path):
    root = write_trace_set(tmp_path, definitions=[make_definition()], solutions=[make_solution(source=source)])
    assert main(["validate", "--local", str(root)]) == 0
    out = capsys.readouterr().out
    assert f"double_python.json: double_python: {said}" in out
    assert out.endswith("0 errors, 1 warning\n")


def test_validate_in_json_lists_every_issue(capsys, tmp_path):
    root = write_small_set(tmp_path, files={"definitions/test/broken.json": "{"})
    assert main(["validate", "--format", "json", "--local", str(root)]) == 1
    (issue,) = json.loads(capsys.readouterr().out)["issues"]
    assert issue["severity"] == "error"
    assert issue["file"].endswith("broken.json")


def test_many_warnings_are_counted_and_errors_never_are(tmp_path):
    warnings = [LoadIssue("warning", tmp_path, index, None, "odd") for index in range(30)]
    errors = [LoadIssue("error", tmp_path, index, None, "wrong") for index in range(30)]
    lines = describe_issues([*warnings, *errors])
    assert sum(line.startswith("error: ") for line in lines) == 30
    assert sum(line.startswith("warning: ") for line in lines) == 21
    assert "10 more warnings" in lines[-1]


def test_list_says_which_evaluator_judges_and_why(capsys, tmp_path):
    definition = make_definition("low", op_type="lowbit")
    root = write_trace_set(tmp_path, definitions=[definition, make_definition()])
    assert main(["list", "--evaluators", "--format", "json", "--local", str(root)]) == 0
    low, double = json.loads(capsys.readouterr().out)["definitions"]
    assert (low["evaluator"]["name"], low["evaluator"]["origin"]) == ("LowBitEvaluator", "built-in")
    assert "op type lowbit" in low["evaluator"]["why"]
    assert double["evaluator"]["name"] == "DefaultEvaluator"


def test_list_of_evaluators_as_a_table_names_the_plug_in(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "all_mine.py").write_text(TAKES_ALL)
    config = tmp_path / "config.yaml"
    config.write_text("evaluator_modules: [all_mine]\n")
    root = write_small_set(tmp_path / "set")
    assert main(["list", "--evaluators", "--config", str(config), "--local", str(root)]) == 0
    heading, _, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["Definition", "Op", "type", "Evaluator", "From", "Why"]
    assert row.split(maxsplit=5) == ["double", "test", "Mine", "evaluator_modules:", "all_mine", "Takes everything."]


def test_an_evaluator_that_ends_its_process_is_misuse_before_anything_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "ends.py").write_text("import os, sys\nprint('bye', file=sys.stderr, flush=True)\nos._exit(3)\n")
    root = write_small_set(tmp_path / "set")
    assert main(["run", "--dry-run", "--evaluator-modules", "ends", "--local", str(root)]) == 2
    said = capsys.readouterr().err
    assert "the process that imports the evaluators (ends) ended with exit code 3; it said last" in said
    assert "bye" in said


@pytest.mark.parametrize("flag", ["--config", "--evaluator-modules"])
def test_list_takes_flags_of_evaluators_only_with_evaluators(flag, capsys, tmp_path):
    assert main(["list", flag, "x", "--local", str(tmp_path)]) == 2
    assert "give --evaluators too" in capsys.readouterr().err
