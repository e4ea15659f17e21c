"""Loading a set: everything wrong is found at once, at its place, and the rest stays usable; all dialects are read."""

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
from tests.kit.strange import STRANGE

DEFINITION = "definitions/test/double.json"
BAD = "definitions/test/bad.json"
SOLUTION = "solutions/alice/test/double/s.json"
WORKLOADS = "workloads/test/double.jsonl"
TRACES = "traces/alice/test/double.jsonl"
PLACES = (BAD, "solutions/a/x.json", "workloads/test/x.jsonl", "traces/a/x.jsonl", "traces/a/x.json")
HERE = (make_definition(),)


def load(root, files=None, definitions=HERE, **models):
    """Load a set of the kit's definition, and of these files; give it with its issues in short."""
    loaded = TraceSet.from_path(write_trace_set(root, files, definitions=definitions, **models))
    return loaded, [
        (issue.severity, issue.file.relative_to(root).as_posix(), issue.line, issue.field, issue.reason)
        for issue in loaded.issues
    ]


def without(item, *names, **changes):
    """Return a model as plain JSON, without some keys and with others."""
    return {key: value for key, value in {**item.to_dict(), **changes}.items() if key not in names}


def line_of(**parts):
    return make_trace(solution=None, workload=make_workload(**parts))


def renamed(wrong, right, holder=None, **changes):
    """Return a definition, or with a holder a solution or trace, one of whose keys is misspelt."""
    raw = without(make_definition() if holder is None else holder, **changes)
    raw[wrong] = raw.pop(right, [])
    return raw


BROKEN_TRACE = without(make_trace())
BROKEN_TRACE["evaluation"] |= {"status": "TIMEOUT", "correctness": None, "performence": []}
del BROKEN_TRACE["evaluation"]["performance"]
NEAR = without(make_trace())
NEAR["evaluation"]["extras"] = {}
INDENTED = json.dumps(without(make_definition("bad"), inputs={"x": {"shape": ["n"], "dtype": "float3"}}), indent=1)
TWICE = make_definition("twice").to_json().replace('"tags":[]', '"tags":[],"tags":["a"]')
ISSUES = {
    "syntax": ({BAD: b'{\n "name": "x",\n oops\n}'}, [("error", BAD, 3, None, "not JSON")]),
    "empty": ({BAD: b""}, [("error", BAD, 1, None, "not JSON")]),
    "encoding": ({BAD: b"\xff\xfe"}, [("error", BAD, None, None, "not UTF-8")]),
    "number": ({BAD: b"3"}, [("error", BAD, 1, None, "a JSON object is expected")]),
    "field": ({BAD: INDENTED}, [("error", BAD, 14, "inputs.x.dtype", "did you mean 'float32'?")]),
    "missing": (
        {BAD: renamed("refrence", "reference", name="bad")},
        [("error", BAD, 1, "reference", "'refrence' a misspelling")],
    ),
    "twice": (
        {"definitions/test/twice.json": TWICE},
        [("warning", "definitions/test/twice.json", None, "tags", "twice")],
    ),
    "near key": (
        {SOLUTION: make_solution("s", destination_passing_stlye=False)},
        [("warning", SOLUTION, 1, "spec.destination_passing_stlye", "did you mean 'destination_passing_style'?")],
    ),
    "near key of a list": ({DEFINITION: renamed("tag", "tags")}, [("warning", DEFINITION, 1, "tag", "mean 'tags'?")]),
    "near key of a part": (
        {TRACES: [BROKEN_TRACE]},
        [("warning", TRACES, 1, "evaluation.performence", "did you mean")],
    ),
    "near key in a line": (
        {TRACES: [make_trace(), NEAR]},
        [("warning", TRACES, 2, "evaluation.extras", "mean 'extra'?")],
    ),
    "a line that is wrong": (
        {TRACES: [make_trace(), "{broken", '{"definition": "double"}', "[]", make_trace()]},
        [
            ("error", TRACES, 2, None, "not JSON"),
            ("error", TRACES, 3, "workload", "missing"),
            ("error", TRACES, 4, None, ""),
        ],
    ),
    "no evaluation": ({TRACES: [line_of()]}, [("error", TRACES, 1, None, "has no evaluation")]),
    "an evaluation": ({WORKLOADS: [make_trace()]}, [("warning", WORKLOADS, 1, None, "dropped")]),
    "misspelt inputs": (
        {WORKLOADS: [{"definition": "double", "workload": {"uuid": "w", "axes": {"n": 8}, "input": {}}}]},
        [("error", WORKLOADS, 1, "workload", "inputs is missing; is 'input' a misspelling of it?")],
    ),
    "one uuid": (
        {WORKLOADS: [line_of(), line_of(axes={"n": 9}), line_of()]},
        [("error", WORKLOADS, 2, "workload.uuid", ""), ("warning", WORKLOADS, 3, "workload", "once is enough")],
    ),
    "op type": (
        {"definitions/wrong/d.json": make_definition("d")},
        [("warning", "definitions/wrong/d.json", None, None, "'wrong'")],
    ),
    "file name": (
        {"definitions/test/e.json": make_definition("d")},
        [("warning", "definitions/test/e.json", None, None, "'e'")],
    ),
    "author": (
        {"solutions/bob/test/double/s.json": make_solution("s")},
        [("warning", "solutions/bob/test/double/s.json", None, None, "'bob'")],
    ),
    "workloads": (
        {"workloads/no/double.jsonl": [line_of()]},
        [("warning", "workloads/no/double.jsonl", None, None, "'no'")],
    ),
    "traces": (
        {"traces/a/no/double.jsonl": [make_trace()] * 2},
        [("warning", "traces/a/no/double.jsonl", None, None, "'no'")],
    ),
    "generated": (
        {
            WORKLOADS: [
                line_of(uuid=f"w{number}", inputs={"x": {"type": "generated", "how": "?"}}) for number in range(9)
            ]
        },
        [
            (
                "error",
                WORKLOADS,
                1,
                "workload.inputs.x",
                "another engine; use random, scalar or safetensors (so in 9 lines",
            )
        ],
    ),
    "nothing wrong": (
        {
            TRACES: [make_trace(something_else=1)],
            WORKLOADS: [{"definition": "double", "workload": {"uuid": "w", "axes": {"n": 8}}}],
        },
        [],
    ),
}


@pytest.mark.parametrize(("files", "wanted"), ISSUES.values(), ids=ISSUES)
def test_what_is_wrong_is_an_issue_at_its_place(tmp_path, files, wanted):
    _, issues = load(tmp_path, files)
    assert [issue[:4] for issue in issues] == [issue[:4] for issue in wanted]
    assert all(words in reason for (*_, words), (*_, reason) in zip(wanted, issues, strict=True))


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ({"axes": {}}, "axes.n", "has no value"),
        ({"axes": {"n": 1, "m": 2}}, "axes.m", "has no axis 'm'"),
        ({"axes": {"n": 1, "h": 5}}, "axes.h", "fixes axis 'h' at 4"),
        ({"axes": {"n": 1, "k": 5}}, "axes.k", "fixes axis 'k' at 2"),
        ({"axes": {"n": 2**62 + 1}}, "axes", "is larger than"),
        ({"inputs": {"y": "random"}}, "inputs.y", "has no input 'y'"),
        ({"inputs": {"x": 3}}, "inputs.x", "a scalar cannot fill it"),
        ({"inputs": {"s": 300}}, "inputs.s.value", "whole numbers from 0 to 255"),
        ({"inputs": {"x": {"type": "custom"}}}, "inputs.x", "no custom_inputs_entrypoint"),
        (
            {"inputs": {"x": {"type": "safetensors", "path": "../x", "tensor_key": "k"}}},
            "inputs.x.path",
            "leads out of",
        ),
    ],
)
def test_a_workload_that_does_not_fit_is_left_out(tmp_path, parts, field, words):
    definition = make_definition(axes={"n": None, "h": 4, "k": "n * 2"}, inputs={"x": "float32[n]", "s": "uint8"})
    fitting = line_of(uuid="fits", axes={"n": 0, "h": 4})
    loaded, [issue] = load(tmp_path, definitions=[definition], workloads=[line_of(**parts), fitting])
    assert issue[:4] == ("error", WORKLOADS, 1, f"workload.{field}")
    assert words in issue[4]
    assert loaded.workloads["double"] == [fitting]


def solution_at(place, author="alice", **others):
    return {place: make_solution("s", author=author, **others)}


OTHER = make_definition(op_type="other")
CLAIMS = {
    "a copy": ({**solution_at(SOLUTION), **solution_at("solutions/alice/test/double/copy.json")}, ["copy.json"], "s"),
    "a rival": (
        {**solution_at(SOLUTION), **solution_at("solutions/aaa/test/double/other.json", "aaa")},
        ["other.json"],
        "s",
    ),
    "two authors": (
        {**solution_at(SOLUTION), **solution_at("solutions/aaa/test/double/s.json", "aaa")},
        ["s.json"] * 2,
        "",
    ),
    "one author": ({**solution_at(SOLUTION), **solution_at("solutions/alice/test/s.json")}, ["s.json"] * 2, ""),
    "neither": (
        {**solution_at("solutions/alice/test/double/t.json"), **solution_at("solutions/bob/test/double/s.json", "aaa")},
        ["t.json", "s.json"],
        "",
    ),
    "definition elsewhere": ({"definitions/zzz/double.json": OTHER}, ["zzz/double.json"], "double"),
    "definitions": ({"definitions/other/double.json": OTHER}, ["double.json"] * 2, ""),
}


@pytest.mark.parametrize(("files", "left_out", "kept"), CLAIMS.values(), ids=CLAIMS)
def test_of_files_that_claim_one_name_the_one_in_its_place_counts(tmp_path, files, left_out, kept):
    loaded, issues = load(tmp_path, files)
    errors = [issue for issue in issues if issue[0] == "error"]
    assert all(
        issue[1].endswith(name) for issue, name in zip(sorted(errors, key=lambda one: one[1]), left_out, strict=True)
    )
    names = [*loaded.definitions, *(item.name for item in loaded.solutions.get("double", []))]
    assert (kept in names) == (kept != "")
    reason = "none is used until one is left" if not kept else "names are unique"
    assert all(reason in issue[4] for issue in errors)


def test_what_needs_a_broken_or_unknown_definition(tmp_path):
    lines = {"solutions": [make_solution()], "traces": [make_trace()], "workloads": [line_of()]}
    _, issues = load(tmp_path / "broken", {DEFINITION: '{"name": "double",'}, [], **lines)
    assert [issue[:3] for issue in issues] == [("error", DEFINITION, 1)]
    parts = {"definition": "doubel"}
    workloads = [make_trace(**parts, solution=None, workload=make_workload(uuid)) for uuid in "ab"]
    loaded, issues = load(
        tmp_path / "unknown", solutions=[make_solution(**parts)], workloads=workloads, traces=[make_trace(**parts)] * 3
    )
    assert [(severity, line) for severity, _, line, _, _ in issues] == [("warning", 1)] * 3
    assert all("'doubel' is not there; did you mean 'double'?" in reason for *_, reason in issues)
    assert "2 workloads" in issues[1][4]
    assert [len(group["doubel"]) for group in (loaded.solutions, loaded.workloads, loaded.traces)] == [1, 2, 3]


def test_roots_that_are_none(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    for name, words in (("none", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(DataSetError, match=words):
            TraceSet.from_path(tmp_path / name)
    assert not (tmp_path / "none").exists()
    write_trace_set(tmp_path / "outer/inner", definitions=HERE)
    (issue,) = TraceSet.from_path(tmp_path / "outer").issues
    assert (
        f"has no definitions (definitions/<op_type>/<definition>.json); did you mean '{tmp_path}/outer/inner'"
        in str(issue)
    )
    scandir = os.scandir

    def refuse(path="."):
        if Path(path).name == "secret":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # for root, too
    (tmp_path / "set/definitions/secret").mkdir(parents=True)
    _, [issue] = load(tmp_path / "set")
    assert issue == ("error", "definitions/secret", None, None, "cannot be read: Permission denied")
    (tmp_path / "secret").mkdir()
    assert main(["validate", "--local", str(tmp_path / "secret")]) == 2
    assert "cannot be read: Permission denied" in capsys.readouterr().err


@pytest.fixture
def root(tmp_path):
    return write_trace_set(tmp_path, definitions=HERE, solutions=[make_solution()], workloads=[line_of()])


def only_issue(root):
    """Load a set; return its one issue, and see that the good files are there."""
    loaded = TraceSet.from_path(root)
    assert [len(group["double"]) for group in (loaded.solutions, loaded.workloads)] == [1, 1]
    (issue,) = loaded.issues
    assert "\n" not in str(issue)
    assert len(str(issue)) < 3000
    return issue


@pytest.mark.parametrize("words", sorted(set(STRANGE) - {"a folder"}))
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_costs_itself(root, place, words):
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    STRANGE[words](root / place)
    issue = only_issue(root)
    assert (issue.file, words in issue.reason) == (root / place, True)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested too deeply"),
        ("1" * 5000, "4300 digits"),
        ("[" + "1," * 1_000_000 + "1]", "more than 1,000,000 values"),
    ],
    ids=["deep", "deeper than pydantic goes", "integer", "many"],
)
def test_json_that_would_take_long_costs_itself(root, place, text, words):
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(f"{text}\n")
    assert words in only_issue(root).reason


def test_links_out_of_the_set_folders_too_deep_and_lists_of_wrong_objects(root, monkeypatch):
    top = root / "traces/strange"
    top.mkdir(parents=True)
    (top / "system").symlink_to("/")
    assert "leads out" in only_issue(root).reason
    (top / "system").unlink()
    (top / "/".join("d" * 40)).mkdir(parents=True)
    assert "folders deep" in only_issue(root).reason
    monkeypatch.setattr("flashinfer_bench.data.store.parse.MOST_WRONG", 3)
    _, issues = load(root, {BAD: "[" + "1," * 100 + "1]", TRACES: ["1"] * 100})
    assert sum("the rest of it is left out" in issue[4] for issue in issues) == 2
    assert len(issues) == 7  # equal faults of lines are one issue


@pytest.mark.parametrize("path", ["absent.py", "../../../../secret.py", "link.py"])
def test_a_source_that_is_not_beside_its_solution_is_refused(tmp_path, path):
    (tmp_path / "secret.py").write_text("secret")
    (tmp_path / SOLUTION).parent.mkdir(parents=True)
    (tmp_path / SOLUTION).with_name("link.py").symlink_to(tmp_path / "secret.py")
    loaded, issues = load(
        tmp_path,
        {SOLUTION: without(make_solution(entry_point=f"{path[-9:]}::run", sources={path[-9:]: ""}), sources=[path])},
    )
    assert loaded.solutions == {}
    assert "sources.0.content" in [issue[3] for issue in issues]


# Dialects: a file, what becomes of it, and the fields of the warnings.


def definition_of(loaded):
    return loaded.definitions["double"]


def spec_of(loaded):
    return loaded.solutions["double"][0].spec


def changed_solution(spec=None, **changes):
    raw = without(make_solution(), **changes)
    raw["spec"] = {key: value for key, value in {**raw["spec"], **(spec or {})}.items() if value is not ...}
    return {"solutions/alice/test/double/double_python.json": raw}


PARENT = {"n": {"type": "var", "parent": "batch"}, "m": {"type": "expr", "expression": "n * 2", "parent": None}}
KEPT = {"init": "x", "check": "y", "custom_inputs_entrypoint": "f", "hf_id": "org/model"}
EARLY = without(make_trace())
EARLY["evaluation"] |= {"environment": {"device": "B200", "libs": None}, "log_file": "logs/1.txt", "log": None}
TWO = {"a.py": "def go(x): pass", "b.py": "def go(x): pass"}
CUSTOM = make_trace(workload=make_workload(inputs={"x": {"type": "custom", "seed": 1}}))
EMPTY = without(line_of(), solution="")
EMPTY["workload"] |= {"axes": {"n": 0}}
DIALECTS = {
    "style null": (
        changed_solution({"destination_passing_style": None}),
        [],
        lambda s: spec_of(s).declared_style is None,
    ),
    "axes": (
        {DEFINITION: without(make_definition(outputs={"y": {"shape": ["n"], "dtype": "float32"}}), axes=PARENT)},
        [None],
        lambda s: definition_of(s).to_dict()["axes"] == PARENT,
    ),
    "const without value": (
        {DEFINITION: without(make_definition(), axes={"n": {"type": "const"}})},
        ["axes.n"],
        lambda s: definition_of(s).var_axes == ["n"],
    ),
    "digits and further dtypes": (
        {DEFINITION: without(make_definition(), inputs={"x": {"shape": ["1", 2, "n"], "dtype": "uint32"}})},
        [],
        lambda s: definition_of(s).get_input_shapes({"n": 3}) == [(1, 2, 3)],
    ),
    "keys without effect": (
        {DEFINITION: without(make_definition(), **KEPT)},
        [None],
        lambda s: KEPT.items() <= definition_of(s).to_dict().items(),
    ),
    "null lists": (
        {DEFINITION: without(make_definition(), "op_type", constraints=None, tags=None, type="test")},
        [],
        lambda s: (definition_of(s).op_type, definition_of(s).to_dict()["constraints"]) == ("test", []),
    ),
    "a list": (
        {DEFINITION: json.dumps([make_definition("a").to_dict(), {"axes": 3}, make_definition("double").to_dict()])},
        None,
        lambda s: list(s.definitions) == ["a", "double"],
    ),
    "no run": (
        {DEFINITION: make_definition(reference="def _f(x): return x")},
        ["reference"],
        lambda s: not definition_of(s).is_runnable,
    ),
    "language": (changed_solution({"language": "Triton"}), [], lambda s: spec_of(s).language.value == "triton"),
    "other language": (
        changed_solution({"language": "cute_dsl"}),
        ["spec"],
        lambda s: spec_of(s).language.value == "python",
    ),
    "languages": (
        changed_solution({"language": ..., "languages": ["PyTorch", "Triton"]}),
        ["spec"],
        lambda s: spec_of(s).language.value == "triton",
    ),
    "a compiled language": (
        changed_solution(
            {"language": ..., "languages": ["cuda_cpp"], "entry_point": "k.cpp::run"},
            sources=[{"path": "k.cpp", "content": "x"}],
        ),
        ["spec"],
        lambda s: spec_of(s).language.value == "cuda",
    ),
    "unknown language": (changed_solution({"language": "fortran"}), ["spec.language"], lambda s: s.solutions == {}),
    **{
        f"entry {entry}": (
            changed_solution({"entry_point": entry}),
            ["spec.entry_point"],
            lambda s: spec_of(s).entry_point == "main.py::run",
        )
        for entry in ("run", "main.py", "main.py:run")
    },
    "entry in all sources": (
        changed_solution({"entry_point": "go"}, sources={**TWO, "a.py": "", "c.txt": "def go"}),
        ["spec.entry_point"],
        lambda s: spec_of(s).entry_point == "b.py::go",
    ),
    "entry in two sources": (
        changed_solution({"entry_point": "go"}, sources=TWO),
        ["spec.entry_point"],
        lambda s: s.solutions == {},
    ),
    **{
        f"beside {source}": (
            {**changed_solution(sources=[source]), "solutions/alice/test/double/main.py": "def run(x): return x"},
            [],
            lambda s: s.solutions["double"][0].get_entry_source().content == "def run(x): return x",
        )
        for source in ("main.py", {"path": "main.py", "content": None})
    },
    "empty entry": (changed_solution(sources=[{"path": "main.py", "content": ""}]), [None], spec_of),
    "binding on python": (
        changed_solution({"binding": "torch", "target_hardware": "H200"}),
        ["spec"],
        lambda s: spec_of(s).target_hardware == ["H200"],
    ),
    "empty solution": (
        {WORKLOADS: [EMPTY]},
        [],
        lambda s: s.workloads["double"][0].to_dict() == {**EMPTY, "solution": None},
    ),
    "bare": (
        {WORKLOADS: [make_workload("bare")]},
        ["definition"],
        lambda s: s.workloads == {"double": [line_of(uuid="bare")]},
    ),
    "custom in workloads": (
        {WORKLOADS: [without(CUSTOM, "evaluation", solution=None)]},
        None,
        lambda s: s.workloads == {},
    ),
    "custom in traces": ({TRACES: [CUSTOM]}, [], lambda s: s.traces["double"] == [CUSTOM]),
    "early trace": ({TRACES: [EARLY]}, [], lambda s: "logs/1.txt" in s.traces["double"][0].evaluation.log),
    "trace of its own file": (
        {"traces/alice/one.json": make_trace()},
        [],
        lambda s: s.traces["double"] == [make_trace()],
    ),
}


@pytest.mark.parametrize(("files", "fields", "holds"), DIALECTS.values(), ids=DIALECTS)
def test_a_dialect_is_read_in_the_form_of_the_format(tmp_path, files, fields, holds):
    loaded, issues = load(tmp_path, files)
    assert fields is None or [issue[3] for issue in issues] == fields
    assert holds(loaded)
    again, _ = load(tmp_path / "again", definitions=list(loaded.definitions.values()))
    assert again.definitions == loaded.definitions


def test_a_workload_without_uuid_gets_the_same_one_each_time(tmp_path):
    raw = [{"axes": {"n": size}, "inputs": {}} for size in (1, 2)]
    first, again = (load(tmp_path, {WORKLOADS: lines})[0].workloads["double"] for lines in (raw, raw[::-1]))
    uuids = [trace.workload.uuid for trace in first]
    assert len(set(uuids)) == 2
    assert uuids == [trace.workload.uuid for trace in again][::-1]


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ({"flops": -1, "bytes": 8, "unit": "fp32"}, "flops: Input should be greater than or equal to 0"),
        ({"flops": "Infinity", "bytes": True, "unit": "fp32"}, "flops: Input should be a valid number; bytes: "),
        ({"flops": 8, "bytes": 10**400, "unit": "fp32"}, "bytes: "),
        ({"flops": 8, "bytes": 8}, "unit: Field required"),
        (3.5, "Input should be a valid dictionary"),
        ({"flops": 8.0, "bytes": 16.0, "unit": "fp16"}, None),
    ],
)
def test_a_cost_that_is_none_is_left_out_and_its_workload_stays(tmp_path, cost, words):
    raw = line_of().to_dict()
    loaded, issues = load(tmp_path, {WORKLOADS: [{**raw, "workload": {**raw["workload"], "cost": cost}}]})
    (line,) = loaded.workloads["double"]
    assert line.workload.digest() == make_workload().digest()
    if words is None:
        assert (issues, line.workload.to_dict()["cost"]) == ([], cost)
    else:
        assert [issue[:4] for issue in issues] == [("warning", WORKLOADS, 1, "workload.cost")]
        assert f"guessed from the definition: {words}" in issues[0][4]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_line_ends_and_a_last_line_without_one(tmp_path, ending, last):
    lines = [make_trace(log="x" * 10_000), make_trace(log="y" * 2_000_000)]
    text = ending.join(trace.to_json() for trace in lines) + (ending if last else "")
    loaded, issues = load(tmp_path, {TRACES: text.encode()}, solutions=[make_solution()])
    assert (issues, loaded.traces["double"]) == ([], lines)


@pytest.mark.parametrize("folder", ["definitions", "solutions"])
@pytest.mark.parametrize("raw", [{}, {"axes": 1, "sources": 2, "spec": 3}, {"spec": {}}, {"sources": [1, {}]}], ids=str)
def test_nonsense_is_refused_and_never_breaks_the_load(tmp_path, folder, raw):
    loaded, issues = load(tmp_path, {f"{folder}/test/bad.json": raw})
    assert (list(loaded.definitions), {issue[0] for issue in issues}) == (["double"], {"error"})


@pytest.mark.published
def test_the_public_data_set_loads_whole_and_survives_a_round_trip(published):
    loaded = TraceSet.from_path(published)
    assert (len(loaded.definitions), sum(map(len, loaded.workloads.values()))) == (156, 447)
    assert all(definition.is_runnable for definition in loaded.definitions.values())
    assert [issue.missing_definition for issue in loaded.issues] == ["fused_add_rmsnorm_h6144", "rmsnorm_h6144"]
    for name, file in loaded.definition_files.items():
        assert loaded.definitions[name].to_dict() == {"tags": [], "constraints": [], **json.loads(file.read_bytes())}
    for name, lines in loaded.workloads.items():
        file = next(published.glob(f"workloads/*/{name}.jsonl"))
        assert [trace.to_dict() for trace in lines] == [json.loads(line) for line in file.read_bytes().splitlines()]
