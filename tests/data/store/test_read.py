"""Loading a set: everything wrong is found at once, at its place, and the rest stays usable."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

DEFINITION = "definitions/test/double.json"
SOLUTION = "solutions/alice/test/double/s.json"
WORKLOADS = "workloads/test/double.jsonl"
TRACES = "traces/alice/test/double.jsonl"


def _load(tmp_path, files=None, **models):
    """Load a set of the kit's definition, and of these files; give it with its issues in short."""
    models.setdefault("definitions", [make_definition()])
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files, **models))
    return loaded, [
        (issue.severity, issue.file.relative_to(tmp_path).as_posix(), issue.line, issue.field, issue.reason)
        for issue in loaded.issues
    ]


def _only(issues, severity, file, line, field, words):
    ((found_severity, found_file, found_line, found_field, reason),) = issues
    assert (found_severity, found_file, found_line, found_field) == (severity, file, line, field)
    assert words in reason


def test_who_needs_a_broken_definition_is_not_told_of_once_more(tmp_path):
    files = {DEFINITION: '{"name": "double",', TRACES: [make_trace().to_dict()]}
    lines = [make_trace(solution=None, workload=make_workload())]
    _, issues = _load(tmp_path, files, definitions=[], solutions=[make_solution()], workloads=lines)
    _only(issues, "error", DEFINITION, 1, None, "not JSON")


@pytest.mark.parametrize(
    ("file", "item", "owner", "wrong", "right"),
    [
        (DEFINITION, make_definition(), (), "constraint", "constraints"),
        (DEFINITION, make_definition(), (), "tag", "tags"),
        (SOLUTION, make_solution("s"), ("spec",), "dependancies", "dependencies"),
        (TRACES, make_trace(), ("evaluation",), "performence", "performance"),
    ],
)
def test_a_misspelt_key_that_is_always_written_is_warned_of(tmp_path, file, item, owner, wrong, right):
    raw = item.to_dict()
    if right == "performance":
        raw["evaluation"] |= {"status": "TIMEOUT", "correctness": None}
    holder = raw[owner[0]] if owner else raw
    holder.pop(right, None)
    holder[wrong] = []
    parts = {"definitions": []} if file == DEFINITION else {}
    _, issues = _load(tmp_path, {file: [raw] if file == TRACES else raw}, **parts)
    assert [issue[3:] for issue in issues if "unknown key" in issue[-1]] == [
        (".".join((*owner, wrong)), f"unknown key, kept without effect; did you mean {right!r}?")
    ]


def test_a_root_that_is_not_there_is_an_error_and_is_not_made(tmp_path):
    with pytest.raises(DataSetError, match="does not exist"):
        TraceSet.from_path(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_root_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataSetError, match="is not a folder"):
        TraceSet.from_path(tmp_path / "file")


@pytest.fixture
def unreadable(monkeypatch):
    """Let folders of this name be unreadable, for root too."""
    scandir = os.scandir

    def refuse(path="."):
        if Path(path).name == "secret":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)


@pytest.mark.usefixtures("unreadable")
def test_a_folder_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "definitions/secret").mkdir(parents=True)
    _, issues = _load(tmp_path)
    _only(issues, "error", "definitions/secret", None, None, "cannot be read: Permission denied")


@pytest.mark.usefixtures("unreadable")
def test_a_root_that_cannot_be_read_is_refused(tmp_path, capsys):
    (tmp_path / "secret").mkdir()
    assert main(["validate", "--local", str(tmp_path / "secret")]) == 2
    assert "cannot be read: Permission denied" in capsys.readouterr().err


def test_what_is_no_regular_file_is_an_error_and_is_not_opened(tmp_path):
    write_trace_set(tmp_path)
    for folder in ("solutions", "workloads", "traces", "definitions"):
        (tmp_path / folder).mkdir()
    os.mkfifo(tmp_path / "definitions/pipe.json")
    os.mkfifo(tmp_path / "traces/pipe.jsonl")
    (tmp_path / "solutions/zero.json").symlink_to("/dev/zero")
    (tmp_path / "workloads/zero.jsonl").symlink_to("/dev/zero")
    _, issues = _load(tmp_path)
    reasons = [f"cannot be read: this is {what}, and no regular file" for what in ("a pipe", "a device")]
    assert sorted(issue[-1] for issue in issues) == sorted(reasons * 2)


def test_a_set_without_definitions_says_so_and_offers_the_folder_below(tmp_path):
    write_trace_set(tmp_path / "inner", definitions=[make_definition()])
    (issue,) = TraceSet.from_path(tmp_path).issues
    assert "has no definitions" in issue.reason
    assert str(tmp_path / "inner") in issue.reason


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [(b'{\n "name": "x",\n oops\n}', 3, "not JSON"), (b"", 1, "not JSON"), (b"\xff\xfe", None, "not UTF-8"),
     (b"[" * 100_000, None, "not JSON"), (b"3", 1, "a JSON object is expected"), (b'"x"', 1, "object is expected")],
    ids=["syntax", "empty", "encoding", "depth", "number", "text"],
)  # fmt: skip
def test_a_file_that_is_no_object_is_left_out(tmp_path, content, line, words):
    loaded, issues = _load(tmp_path, {"definitions/test/bad.json": content})
    _only(issues, "error", "definitions/test/bad.json", line, None, words)
    assert list(loaded.definitions) == ["double"]


def test_every_wrong_field_is_an_issue_with_its_line(tmp_path):
    raw = make_definition("bad").to_dict()
    raw["inputs"]["x"]["dtype"] = "float3"
    raw["axes"]["n"] = {"type": "const", "value": -1}
    raw["op_type"] = ""
    _, issues = _load(tmp_path, {"definitions/test/bad.json": json.dumps(raw, indent=1)})
    lines = json.dumps(raw, indent=1).splitlines()
    for severity, _, line, field, _ in issues:
        assert severity == "error"
        assert field == "op_type" or field.split(".")[-1] in lines[line - 1]
    assert sorted(field for _, _, _, field, _ in issues) == ["axes.n.value", "inputs.x.dtype", "op_type"]


def test_a_missing_field_names_the_key_that_may_be_a_misspelling_of_it(tmp_path):
    raw = make_definition("bad").to_dict()
    raw["refrence"] = raw.pop("reference")
    _, issues = _load(tmp_path, {"definitions/test/bad.json": raw})
    _only(issues, "error", "definitions/test/bad.json", 1, "reference", "'refrence' a misspelling")


def test_a_near_miss_of_a_known_key_is_a_warning_and_the_key_is_kept(tmp_path):
    solution = make_solution("s", destination_passing_stlye=False)
    loaded, issues = _load(tmp_path, solutions=[solution])
    _only(issues, "warning", SOLUTION, 1, "spec.destination_passing_stlye", "did you mean 'destination_passing_style'?")
    assert loaded.solutions["double"] == [solution]
    assert solution.spec.declared_style is None


def test_a_near_miss_in_a_line_is_a_warning(tmp_path):
    raw = make_trace().to_dict()
    raw["evaluation"]["extras"] = {}
    loaded, issues = _load(tmp_path, {TRACES: [make_trace(), raw]}, solutions=[make_solution()])
    _only(issues, "warning", TRACES, 2, "evaluation.extras", "did you mean 'extra'?")
    assert len(loaded.traces["double"]) == 2


def test_a_key_next_to_a_known_one_that_is_there_is_somebody_s_own(tmp_path):
    raw = make_trace().to_dict()
    raw["evaluation"]["performance"]["latency_us"] = 1000.0
    raw["evaluation"]["something_else"] = 1
    _, issues = _load(tmp_path, {TRACES: [raw]}, solutions=[make_solution()])
    assert issues == []


def test_a_key_that_stands_twice_is_a_warning(tmp_path):
    text = make_definition("twice").to_json().replace('"tags":[]', '"tags":[],"tags":["a"]')
    loaded, issues = _load(tmp_path, {"definitions/test/twice.json": text})
    _only(issues, "warning", "definitions/test/twice.json", None, "tags", "twice")
    assert loaded.definitions["twice"].tags == ["a"]


def test_a_second_definition_of_one_name_is_left_out(tmp_path):
    other = make_definition(op_type="other")  # its folder is another one
    loaded, issues = _load(tmp_path, {"definitions/zzz/double.json": other})
    _only(issues, "error", "definitions/zzz/double.json", 1, None, "definition 'double' is in")
    assert loaded.definitions["double"].op_type == "test"


def test_a_definition_that_lies_elsewhere_than_it_says_displaces_none(tmp_path):
    other = make_definition(reference="def run(x):\n    return x * 0\n")
    loaded, issues = _load(tmp_path, {"definitions/aaa/double.json": other})
    _only(issues, "error", "definitions/aaa/double.json", 1, None, "definition 'double' is in")
    assert loaded.definitions["double"].reference != other.reference


def test_of_definitions_that_differ_and_lie_where_they_say_none_is_used(tmp_path):
    loaded, issues = _load(tmp_path, {"definitions/other/double.json": make_definition(op_type="other")})
    assert loaded.definitions == {}
    reasons = [reason for severity, *_, reason in issues if severity == "error"]
    assert len(reasons) == 2
    assert all("they differ" in reason and "none is used" in reason for reason in reasons)


def test_a_second_solution_of_one_name_is_left_out(tmp_path):
    first = make_solution("s")
    copy = make_solution("s", source="def run(x):\n    return x\n")
    loaded, issues = _load(tmp_path, {"solutions/alice/test/double/copy.json": copy}, solutions=[first])
    _only(issues, "error", "solutions/alice/test/double/copy.json", 1, None, "solution 's' is in")
    assert loaded.solutions["double"] == [first]


def test_a_solution_that_bears_the_name_of_anothers_displaces_nobody(tmp_path):
    files = {"solutions/aaa/test/double/other.json": make_solution("s", author="aaa")}
    loaded, issues = _load(tmp_path, files, solutions=[make_solution("s")])
    _only(issues, "error", "solutions/aaa/test/double/other.json", 1, None, "solution 's' is in")
    assert loaded.solutions["double"] == [make_solution("s")]


@pytest.mark.parametrize(
    ("rival", "place", "words"),
    [
        ("aaa", "solutions/aaa/test/double/s.json", "each in the folder of its author"),
        ("alice", "solutions/alice/test/s.json", "each in the folder of its author"),
        ("aaa", "solutions/bob/test/double/s.json", "none in its author's folder"),
    ],
    ids=["two authors", "one author twice", "neither"],
)
def test_of_solutions_of_one_name_none_is_used_where_both_or_neither_lie_where_they_say(tmp_path, rival, place, words):
    first = "solutions/alice/test/double/s.json" if "each" in words else "solutions/alice/test/double/t.json"
    files = {first: make_solution("s"), place: make_solution("s", author=rival, description="another one")}
    loaded, issues = _load(tmp_path, files)
    assert loaded.solutions == {}
    told = [reason for severity, *_, reason in issues if severity == "error"]
    assert len(told) == 2
    assert all(words in reason and first in reason and place in reason for reason in told)


def test_things_of_an_unknown_definition_are_kept_with_a_warning_each_file(tmp_path):
    loaded, issues = _load(
        tmp_path,
        solutions=[make_solution("s", definition="doubel")],
        workloads=[make_trace(definition="doubel", solution=None, workload=make_workload(u)) for u in "ab"],
        traces=[make_trace(definition="doubel")] * 3,
    )
    assert [(severity, line) for severity, _, line, _, _ in issues] == [("warning", 1)] * 3
    assert all("'doubel' is not there; did you mean 'double'?" in reason for *_, reason in issues)
    assert "2 workloads" in issues[1][4]
    assert [len(loaded.solutions["doubel"]), len(loaded.workloads["doubel"]), len(loaded.traces["doubel"])] == [1, 2, 3]


@pytest.mark.parametrize(
    ("models", "file", "words"),
    [
        ({"files": {"definitions/wrong/d.json": make_definition("d")}}, "definitions/wrong/d.json", "'wrong'"),
        ({"files": {"definitions/test/e.json": make_definition("d")}}, "definitions/test/e.json", "'e'"),
        (
            {"files": {"solutions/bob/test/double/s.json": make_solution("s")}},
            "solutions/bob/test/double/s.json",
            "'bob'",
        ),
        ({"files": {"workloads/no/double.jsonl": [make_trace(solution=None)]}}, "workloads/no/double.jsonl", "'no'"),
        ({"files": {"traces/a/no/double.jsonl": [make_trace()] * 2}}, "traces/a/no/double.jsonl", "'no'"),
    ],
    ids=["op type", "file name", "author", "workloads", "traces"],
)
def test_a_path_that_contradicts_the_file_is_a_warning(tmp_path, models, file, words):
    _, issues = _load(tmp_path, **models)
    _only(issues, "warning", file, None, None, words)


@pytest.mark.parametrize(
    ("workload", "field", "words"),
    [
        (make_workload(axes={}), "workload.axes.n", "has no value"),
        (make_workload(axes={"n": 1, "m": 2}), "workload.axes.m", "has no axis 'm'"),
        (make_workload(axes={"n": 1, "h": 5}), "workload.axes.h", "fixes axis 'h' at 4"),
        (make_workload(inputs={"y": "random"}), "workload.inputs.y", "has no input 'y'"),
        (make_workload(inputs={"x": 3}), "workload.inputs.x", "a scalar cannot fill it"),
        (make_workload(inputs={"s": 300}), "workload.inputs.s.value", "whole numbers from 0 to 255"),
        (make_workload(inputs={"x": {"type": "custom"}}), "workload.inputs.x", "no custom_inputs_entrypoint"),
        (make_workload(inputs={"x": {"type": "generated", "how": "?"}}), "workload.inputs.x", "another engine"),
        (
            make_workload(inputs={"x": {"type": "safetensors", "path": "../x", "tensor_key": "k"}}),
            "workload.inputs.x.path",
            "leads out of the set",
        ),
    ],
    ids=["axis missing", "axis unknown", "const", "input", "scalar", "range", "custom", "generated", "blob path"],
)
def test_a_workload_that_does_not_fit_is_left_out(tmp_path, workload, field, words):
    definition = make_definition(axes={"n": None, "h": 4}, inputs={"x": "float32[n]", "s": "uint8"})
    fitting = make_trace(solution=None, workload=make_workload("fits", axes={"n": 0, "h": 4}))
    lines = [make_trace(solution=None, workload=workload), fitting]
    loaded, issues = _load(tmp_path, definitions=[definition], workloads=lines)
    _only(issues, "error", WORKLOADS, 1, field, words)
    assert loaded.workloads["double"] == [fitting]


def test_a_workload_may_leave_out_its_inputs_and_is_written_with_them(tmp_path):
    line = {"definition": "double", "workload": {"uuid": "w0", "axes": {"n": 8}}}
    loaded, issues = _load(tmp_path, {WORKLOADS: [line]})
    assert issues == []
    assert loaded.workloads["double"][0].to_dict()["workload"] == {"uuid": "w0", "axes": {"n": 8}, "inputs": {}}


def test_misspelt_inputs_are_not_taken_for_inputs_that_are_left_out(tmp_path):
    line = {"definition": "double", "workload": {"uuid": "w0", "axes": {"n": 8}, "input": {"x": {"type": "random"}}}}
    loaded, issues = _load(tmp_path, {WORKLOADS: [line]})
    _only(issues, "error", WORKLOADS, 1, "workload", "inputs is missing; is 'input' a misspelling of it?")
    assert loaded.workloads == {}


def test_an_expression_axis_that_a_workload_breaks_is_an_issue(tmp_path):
    definition = make_definition(axes={"n": None, "m": "n / 3"}, outputs={"y": "float32[m]"})
    _, issues = _load(tmp_path, definitions=[definition], workloads=[make_trace(solution=None)])
    _only(issues, "error", WORKLOADS, 1, "workload.axes", "which is not whole")


def test_a_uuid_of_two_workloads_is_an_error_and_of_a_repeated_one_a_warning(tmp_path):
    one, other = make_workload("u"), make_workload("u", axes={"n": 9})
    lines = [make_trace(solution=None, workload=workload) for workload in (one, other, one)]
    loaded, issues = _load(tmp_path, workloads=lines)
    assert [issue[:4] for issue in issues] == [
        ("error", WORKLOADS, 2, "workload.uuid"),
        ("warning", WORKLOADS, 3, "workload"),
    ]
    assert loaded.workloads["double"] == lines[:1]


def test_a_line_that_is_wrong_leaves_the_lines_around_it(tmp_path):
    good = make_trace()
    lines = [good, "{broken", '{"definition": "double"}', "[]", good]
    loaded, issues = _load(tmp_path, {TRACES: lines}, solutions=[make_solution()])
    assert [(line, field) for _, _, line, field, _ in issues] == [(2, None), (3, "workload"), (4, None)]
    assert loaded.traces["double"] == [good, good]


def test_a_trace_without_evaluation_is_no_trace(tmp_path):
    loaded, issues = _load(tmp_path, {TRACES: [make_trace(solution=None)]})
    _only(issues, "error", TRACES, 1, None, "has no evaluation")
    assert loaded.traces == {}


def test_an_evaluation_in_a_workloads_file_is_dropped_with_a_warning(tmp_path):
    loaded, issues = _load(tmp_path, {WORKLOADS: [make_trace()]})
    _only(issues, "warning", WORKLOADS, 1, None, "dropped")
    assert loaded.workloads["double"][0].is_workload_trace()


def test_an_issue_reads_as_one_line(tmp_path):
    loaded, _ = _load(tmp_path, {TRACES: ["{broken", ""]})
    assert str(loaded.issues[0]).startswith(f"error: {tmp_path / TRACES}:1: not JSON")


@pytest.mark.published
def test_the_public_data_set_loads_whole(published):
    loaded = TraceSet.from_path(published)
    assert len(loaded.definitions) == 156
    assert sum(map(len, loaded.workloads.values())) == 447
    assert all(definition.is_runnable for definition in loaded.definitions.values())
    assert [issue for issue in loaded.issues if issue.severity == "error"] == []
    assert [issue.missing_definition for issue in loaded.issues] == ["fused_add_rmsnorm_h6144", "rmsnorm_h6144"]


@pytest.mark.published
def test_every_file_of_the_public_data_set_survives_a_round_trip(published):
    loaded = TraceSet.from_path(published)
    for name, file in loaded.definition_files.items():
        raw = {"tags": [], "constraints": [], **json.loads(file.read_bytes())}
        assert loaded.definitions[name].to_dict() == raw
    for name, lines in loaded.workloads.items():
        file = next(published.glob(f"workloads/*/{name}.jsonl"))
        assert [trace.to_dict() for trace in lines] == [json.loads(line) for line in file.read_bytes().splitlines()]
