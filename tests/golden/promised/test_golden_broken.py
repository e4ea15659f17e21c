"""A set with a fault of each kind: each is told with its file and field, and the rest is judged.

Spec: spec/trace-format.md ("Folder", "Variants": each must load, or be refused with file, line, field and reason while
the rest of the set loads), spec/engine.md ("The nearest relative's known failures": a failing reference),
spec/compat.md (1: two files of one name; 4: `validate`); docs/formats.md ("Checks of `validate`"), docs/editing.md
("Exit codes"), docs/migration.md ("Sets"), docs/solutions.md ("Statuses").
"""

from __future__ import annotations

import json

import pytest

from tests.golden.face import QUICK, Face, SmallSet, assert_has, make_solution, spec, write_json, write_lines

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
DOUBLE = "def run(x):\n    return x * 2\n"
FAULTS = {
    "no_json": ("error", "definitions/golden/no_json.json", "", "JSON"),
    "no_run": ("warning", "definitions/golden/no_run.json", "", "run"),
    "half_a_definition": ("error", "definitions/golden/half.json", "outputs", ""),
    "unknown_dtype": ("error", "definitions/golden/dtype.json", "dtype", "complex64"),
    "unknown_axis": ("error", "definitions/golden/axis.json", "", "q"),
    "torn_line": ("error", "workloads/golden/right.jsonl", "", "JSON"),
    "missing_axis": ("error", "workloads/golden/sized.jsonl", "", "m"),
    "missing_blob": ("error", "", "", "blob/nowhere.safetensors"),
    "no_sources": ("error", "solutions/me/golden/right/empty.json", "sources", ""),
    "bad_language": ("error", "solutions/me/golden/right/cobol.json", "language", "cobol"),
    "no_definition": ("warning", "solutions/me/golden/nobody/lost.json", "", "nobody"),
    "torn_trace": ("error", "traces/me/golden/right.jsonl", "", "JSON"),
    "two_of_a_name": ("error", "", "", "twice"),
}
"""Fault → severity, end of the file's path, a word of the field, a word of the reason."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    small = SmallSet(tmp_path_factory.mktemp("broken") / "set")
    tensor = spec(["n"], "float32")
    root = small.root
    small.definition("right", DOUBLE, {"x": tensor}, {"y": tensor})
    small.workload("right", "w1")
    small.solution("right", "whole", DOUBLE)
    small.definition("fails", "def run(x):\n    raise ValueError('a broken reference')\n", {"x": tensor}, {"y": tensor})
    small.workload("fails", "f1")
    small.solution("fails", "of_fails", DOUBLE)
    small.definition(
        "sized", DOUBLE, {"x": spec(["m"], "float32")}, {"y": spec(["m"], "float32")}, axes={"m": {"type": "var"}}
    )
    small.workload("sized", "s1", axes={"m": 4})
    small.workload("sized", "s2")
    small.solution("sized", "of_sized", DOUBLE)
    small.definition("stored", DOUBLE, {"x": tensor}, {"y": tensor})
    small.workload(
        "stored", "b1", {"x": {"type": "safetensors", "path": "blob/nowhere.safetensors", "tensor_key": "x"}}
    )
    small.workload("stored", "b2")
    small.solution("stored", "of_stored", DOUBLE)
    small.definition(
        "no_run", "def walk(x, y, z):\n    return x\n\n\nclass Thing:\n    pass\n", {"x": tensor}, {"y": tensor}
    )
    folder = root / "definitions" / "golden"
    (folder / "no_json.json").write_text('{"name": "no_json", ')
    write_json(
        folder / "half.json", {"name": "half", "op_type": "golden", "axes": {}, "inputs": {}, "reference": DOUBLE}
    )
    for name, change in {"dtype": spec(["n"], "complex64"), "axis": spec(["q"], "float32")}.items():
        content = json.loads((folder / "right.json").read_text()) | {"name": name, "inputs": {"x": change}}
        write_json(folder / f"{name}.json", content)
    with (root / "workloads" / "golden" / "right.jsonl").open("a") as file:
        file.write('{"definition": "right", "workload": {"uu\n')
    solutions = root / "solutions" / "me" / "golden"
    write_json(solutions / "right" / "empty.json", make_solution("right", "empty", "") | {"sources": []})
    write_json(solutions / "right" / "cobol.json", make_solution("right", "cobol", DOUBLE, language="cobol"))
    write_json(solutions / "nobody" / "lost.json", make_solution("nobody", "lost", DOUBLE))
    for folder in ("right", "right/again"):
        write_json(
            root / "solutions" / "else" / "golden" / folder / "x.json",
            make_solution("right", "twice", DOUBLE, author="me"),
        )
    write_lines(root / "traces" / "me" / "golden" / "right.jsonl", ['{"definition": "right"'])
    return small


@pytest.fixture(scope="module")
def here(small, shared_cache):
    return Face(shared_cache, small.root.parent)


@pytest.fixture(scope="module")
def validated(here, small):
    return here("validate", small.root, "--format", "json")


@pytest.fixture(scope="module")
def done(here, small):
    return here("run", "--local", small.root, *QUICK, "--no-save-results", "--format", "json")


@pytest.mark.parametrize("fault", FAULTS)
def test_validate_tells_each_fault_with_file_field_and_reason(validated, fault):
    severity, file, field, word = FAULTS[fault]
    issues = validated.json["issues"]
    for issue in issues:
        assert_has(issue, "severity file line field reason check")
    found = [i for i in issues if i["severity"] == severity and str(i["file"]).endswith(file) and word in json.dumps(i)]
    assert [i for i in found if field in str(i["field"])], [i for i in issues if str(i["file"]).endswith(file)]


def test_validate_ends_with_1_and_names_lines(validated, here, small):
    assert validated.code == 1, validated
    torn = next(i for i in validated.json["issues"] if str(i["file"]).endswith("workloads/golden/right.jsonl"))
    assert torn["line"] == 2
    assert here("validate", small.root, "--checks", "layout").code in (0, 1)
    assert here("validate", small.root, "--checks", "nonsense").code == 2


def test_validate_counts_what_is_there_and_its_coverage(validated):
    document = validated.json
    assert_has(document["coverage"], "without_workloads without_baseline not_passed")
    assert document["definitions"] >= 5
    assert set(document["coverage"]["without_baseline"]) >= {"right", "sized", "stored"}


def test_report_files_are_written_and_rendered_again(here, small, tmp_path):
    done = here("validate", "--dataset", small.root, "--output-folder", tmp_path / "out")
    assert done.code == 1
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["issues"]
    rendered = here("validate-render", tmp_path / "out" / "report.json")
    assert "no_json.json" in rendered.out
    assert "no_json.json" in (tmp_path / "out" / "report.txt").read_text()


def test_the_rest_is_judged(done):
    document = done.json
    assert {(job["solution"], job["workload"]) for job in document["jobs"]} >= {
        ("whole", "w1"),
        ("of_sized", "s1"),
        ("of_stored", "b2"),
    }
    assert {job["status"] for job in document["jobs"]} <= {"PASSED", "RUNTIME_ERROR"}  # the second one on a busy CPU


def test_a_broken_reference_is_a_fault_and_no_verdict(done):
    (fault,) = done.json["faults"]
    assert (fault["definition"], fault["solution"], fault["workload"]) == ("fails", "of_fails", "f1")
    assert "a broken reference" in json.dumps(fault)
    assert "of_fails" not in {job["solution"] for job in done.json["jobs"]}


def test_a_missing_blob_is_left_out_and_told(done):
    assert "b1" not in {job["workload"] for job in done.json["jobs"]}
    assert "nowhere.safetensors" in done.told + done.out


def test_what_is_broken_makes_exit_code_1_unless_it_is_allowed(here, small, done):
    assert done.code == 1, done
    words = (
        "run",
        "--local",
        small.root,
        *QUICK,
        "--no-save-results",
        "--solutions",
        "whole",
        "of_stored",
        "--format",
        "json",
    )
    assert here(*words).code == 1
    assert here(*words, "--allow-broken").code == 0


def test_strict_runs_nothing_where_something_is_broken(here, small):
    done = here("run", "--local", small.root, "--strict", "--no-save-results")
    assert (done.code, "strict" in done.text, ": PASSED" in done.text) == (1, True, False)


def test_what_was_not_asked_for_may_be_broken(here, small):
    words = ("run", "--local", small.root, "--solutions", "of_sized", "--workloads", "s1", *QUICK, "--no-save-results")
    assert here(*words, "--dry-run").code in (0, 1)
