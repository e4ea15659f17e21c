"""Loading a set: all problems are found at once with their locations, the rest stays usable, and dialects are read."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data import TraceSet
from tests.kit import DOUBLE, make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.strange import STRANGE

DEFINITION = "definitions/test/double.json"
BAD = "definitions/test/bad.json"
SOLUTION = "solutions/alice/test/double/s.json"
WORKLOADS = "workloads/test/double.jsonl"
TRACES = "traces/alice/test/double.jsonl"
PLACES = (BAD, "solutions/a/x.json", "workloads/test/x.jsonl", "traces/a/x.jsonl", "traces/a/x.json")
HERE = (make_definition(),)


def load(root, files=None, definitions=HERE, **models):
    """Load a set with the kit's definition and these files; return it with its abbreviated issues."""
    loaded = TraceSet.from_path(write_trace_set(root, files, definitions=definitions, **models))
    return loaded, [
        (issue.severity, issue.file.relative_to(root).as_posix(), issue.line, issue.field, issue.reason)
        for issue in loaded.issues
    ]


def without(item, *names, **changes):
    """Return a model as plain JSON, with some keys removed and others replaced."""
    return {key: value for key, value in {**item.to_dict(), **changes}.items() if key not in names}


def line_of(**parts):
    return make_trace(solution=None, workload=make_workload(**parts))


NEAR = without(make_trace())
NEAR["evaluation"]["extras"] = {}
INDENTED = json.dumps(without(make_definition("bad"), inputs={"x": {"shape": ["n"], "dtype": "float3"}}), indent=1)
MISSPELT = without(make_definition("bad"), "reference", refrence="")
TORN = ["{broken", '{"definition": "double"}', "[]"]
LINE = {"definition": "double", "workload": {"uuid": "w", "axes": {"n": 8}}}
MISSPELT_LINE = {"definition": "double", "workload": {**LINE["workload"], "input": {}}}
ISSUES = {
    "syntax": (BAD, b'{\n "name": "x",\n oops\n}', ["error 3 None not JSON"]),
    "encoding": (BAD, b"\xff\xfe", ["error None None can't decode"]),
    "field": (BAD, INDENTED, ["error 14 inputs.x.dtype did you mean 'float32'?"]),
    "missing": (BAD, MISSPELT, ["error 1 reference 'refrence' a misspelling"]),
    "near key": (
        SOLUTION,
        make_solution("s", destination_passing_stlye=False),
        ["warning 1 spec.destination_passing_stlye did you mean 'destination_passing_style'?"],
    ),
    "near key in a line": (TRACES, [make_trace(), NEAR], ["warning 2 evaluation.extras mean 'extra'?"]),
    "a line that is wrong": (
        TRACES,
        [make_trace(), *TORN, make_trace()],
        ["error 2 None at column 2", "error 3 workload missing", "error 4 None "],
    ),
    "a torn tail": (TRACES, make_trace().to_json()[:100], ["warning 1 None cut off in the middle"]),
    "no evaluation": (TRACES, [line_of()], ["error 1 None has no evaluation"]),
    "an evaluation": (WORKLOADS, [make_trace()], ["warning 1 None dropped"]),
    "misspelt inputs": (WORKLOADS, [MISSPELT_LINE], ["error 1 workload inputs is missing; is 'input' a misspelling"]),
    "one uuid": (
        WORKLOADS,
        [line_of(), line_of(axes={"n": 9}), line_of()],
        ["error 2 workload.uuid ", "warning 3 workload remove one copy"],
    ),
    "op type": ("definitions/wrong/d.json", make_definition("d"), ["warning None None 'wrong'"]),
    "author": ("solutions/bob/test/double/s.json", make_solution("s"), ["warning None None 'bob'"]),
    "traces": ("traces/a/no/double.jsonl", [make_trace()] * 2, ["warning None None 'no'"]),
    "an own key": (TRACES, [make_trace(something_else=1)], []),
    "no inputs": (WORKLOADS, [LINE], []),
}


@pytest.mark.parametrize(("location", "content", "wanted"), ISSUES.values(), ids=ISSUES)
def test_each_problem_is_an_issue_at_its_location(tmp_path, location, content, wanted):
    _, issues = load(tmp_path, {location: content})
    assert len(issues) == len(wanted)
    for (severity, file, line, field, reason), words in zip(issues, wanted, strict=True):
        assert file == location
        assert words.startswith(start := f"{severity} {line} {field} ")
        assert words.removeprefix(start) in reason


STORED = {"type": "safetensors", "path": "x", "tensor_key": "k"}


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ({"axes": {}}, "axes.n", "has no value"),
        ({"axes": {"n": 1, "m": 2}}, "axes.m", "has no axis 'm'"),
        ({"axes": {"n": 1, "k": 5}}, "axes.k", "fixes axis 'k' at 2"),
        ({"axes": {"n": 2**62 + 1}}, "axes", "is larger than"),
        ({"inputs": {"y": "random"}}, "inputs.y", "has no input 'y'"),
        ({"inputs": {"x": 3}}, "inputs.x", "a scalar cannot fill it"),
        ({"inputs": {"s": 300}}, "inputs.s.value", "whole numbers from 0 to 255"),
        ({"inputs": {"x": {**STORED, "path": "../x"}}}, "inputs.x.path", "leads out of"),
    ],
)
def test_a_workload_that_does_not_fit_is_left_out(tmp_path, parts, field, words):
    definition = make_definition(axes={"n": None, "h": 4, "k": "n * 2"}, inputs={"x": "float32[n]", "s": "uint8"})
    fitting = line_of(uuid="fits", axes={"n": 0, "h": 4})
    loaded, [issue] = load(tmp_path, definitions=[definition], workloads=[line_of(**parts), fitting])
    assert issue[:4] == ("error", WORKLOADS, 1, f"workload.{field}")
    assert words in issue[4]
    assert loaded.workloads["double"] == [fitting]


OTHER = make_definition(op_type="other")
MINE, RIVAL = make_solution("s"), make_solution("s", author="aaa")
FOLDER = "solutions/alice/test/double"
AAA = "solutions/aaa/test/double/s.json"
CLAIMS = {
    "a copy": ({SOLUTION: MINE, f"{FOLDER}/copy.json": MINE}, ["copy.json"], ["double", "s"]),
    "a rival": ({SOLUTION: MINE, "solutions/aaa/test/double/other.json": RIVAL}, ["other.json"], ["double", "s"]),
    "two authors": ({SOLUTION: MINE, AAA: RIVAL}, ["s.json"] * 2, ["double"]),
    "neither": ({f"{FOLDER}/t.json": MINE, "solutions/bob/s.json": RIVAL}, ["s.json", "t.json"], ["double"]),
    "definition elsewhere": ({"definitions/zzz/double.json": OTHER}, ["double.json"], ["double"]),
    "definitions": ({"definitions/other/double.json": OTHER}, ["double.json"] * 2, []),
}


@pytest.mark.parametrize(("files", "left_out", "kept"), CLAIMS.values(), ids=CLAIMS)
def test_among_files_with_the_same_name_the_file_at_its_location_counts(tmp_path, files, left_out, kept):
    loaded, issues = load(tmp_path, files)
    errors = [issue for issue in issues if issue[0] == "error"]
    assert sorted(issue[1].rpartition("/")[2] for issue in errors) == left_out
    assert [*loaded.definitions, *(item.name for item in loaded.solutions.get("double", []))] == kept
    reason = "names are unique" if len(left_out) == 1 else "all are skipped until one is left"
    assert all(reason in issue[4] for issue in errors)


def test_a_broken_definition_is_reported_once_and_an_unknown_definition_once_per_file(tmp_path):
    models = {"solutions": [make_solution()], "traces": [make_trace()] * 3, "workloads": [line_of(), line_of(uuid="b")]}
    _, issues = load(tmp_path / "broken", {DEFINITION: '{"name": "double",'}, [], **models)
    assert [issue[:3] for issue in issues] == [("error", DEFINITION, 1)]
    loaded, issues = load(tmp_path / "unknown", definitions=[make_definition("doubled")], **models)
    assert [issue[::2] for issue in issues] == [("warning", 1, issue[4]) for issue in issues]
    assert all("'double' is not there; did you mean 'doubled'?" in issue[4] for issue in issues)
    assert "2 workloads" in issues[1][4]
    assert [len(group["double"]) for group in (loaded.solutions, loaded.workloads, loaded.traces)] == [1, 2, 3]


@pytest.fixture
def root(tmp_path):
    return write_trace_set(tmp_path, definitions=HERE, solutions=[make_solution()], workloads=[line_of()])


def only_issue(root):
    """Load a set; check that the good files are loaded, and return its single issue."""
    loaded = TraceSet.from_path(root)
    assert [len(group["double"]) for group in (loaded.solutions, loaded.workloads)] == [1, 1]
    (issue,) = loaded.issues
    assert "\n" not in str(issue)
    assert len(str(issue)) < 3000
    return issue


LONG = {"recursion limit": '{"a":' * 300 + "1" + "}" * 300, "number out of range": "1" * 5000}


@pytest.mark.parametrize("words", sorted({*STRANGE, *LONG} - {"a folder"}))
@pytest.mark.parametrize("location", PLACES)
def test_an_unusable_or_slow_file_affects_only_itself(root, location, words):
    (root / location).parent.mkdir(parents=True, exist_ok=True)
    if words in STRANGE:
        STRANGE[words](root / location)
    else:
        (root / location).write_text(f"{LONG[words]}\n")
    issue = only_issue(root)
    assert (issue.file, words in issue.reason) == (root / location, True)


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
    assert sum("the rest of the file is skipped" in issue[4] for issue in issues) == 2
    assert len(issues) == 7  # equal faults of lines are one issue


@pytest.mark.parametrize("path", ["absent.py", "../../../../secret.py", "link.py", *STRANGE])
def test_a_source_that_is_not_a_file_beside_its_solution_is_refused(root, path):
    (root / "secret.py").write_text("secret")
    folder = root / "solutions/alice/test/double"
    (folder / "link.py").symlink_to(root / "secret.py")
    if path in STRANGE:
        STRANGE[path](folder / path)
    other = make_solution("other", sources={"main.py": "", "b.py": ""})
    (folder / "other.json").write_text(json.dumps(without(other, sources=["main.py", path])))
    (folder / "main.py").write_text("def run(x): ...")
    loaded = TraceSet.from_path(root)
    assert "sources.1.content" in [issue.field for issue in loaded.issues]
    assert [solution.name for solution in loaded.solutions["double"]] == ["double_python"]


# # Dialects: a file, its converted form, and the fields of the warnings.


def in_definition(*left_out, **changes):
    return {DEFINITION: without(make_definition(), *left_out, **changes)}


def in_solution(spec=None, **changes):
    raw = without(make_solution(), **changes)
    return {"solutions/alice/test/double/double_python.json": {**raw, "spec": {**raw["spec"], **(spec or {})}}}


def said_of_definition(one):
    return one.name, one.op_type, one.constraints, *one.get_input_shapes({"n": 3})


def said_of_solution(one):
    return one.spec.entry_point, one.spec.target_hardware, one.spec.declared_style, one.get_entry_source().content


SAY = {"definitions": said_of_definition, "solutions": said_of_solution}
USUAL = ("double", "test", [], (3,))
TWO = [{"path": path, "content": "def go(x): pass"} for path in ("a.py", "b.py")]
EMPTY = without(line_of(), solution="")
SOURCE = "def run(x): return x"
BESIDE = f"{FOLDER}/main.py"
DIALECTS = {
    "digits and further dtypes": (
        in_definition(inputs={"x": {"shape": ["1", 2, "n"], "dtype": "uint32"}}),
        [],
        "definitions",
        [("double", "test", [], (1, 2, 3))],
    ),
    "null lists": (in_definition("op_type", constraints=None, tags=None, type="test"), [], "definitions", [USUAL]),
    "a list": (
        {DEFINITION: json.dumps([make_definition("a").to_dict(), {"axes": 3}, make_definition().to_dict()])},
        ...,
        "definitions",
        [("a", *USUAL[1:]), USUAL],
    ),
    "entry": (
        in_solution({"entry_point": "main.py:run", "destination_passing_style": None}),
        ["spec.entry_point"],
        "solutions",
        [("main.py::run", ["any"], None, DOUBLE)],
    ),
    "entry in all sources": (
        in_solution({"entry_point": "go"}, sources=[{"path": "a.py", "content": ""}, TWO[1]]),
        ["spec.entry_point"],
        "solutions",
        [("b.py::go", ["any"], None, "def go(x): pass")],
    ),
    "entry in two sources": (in_solution({"entry_point": "go"}, sources=TWO), ["spec.entry_point"], "solutions", []),
    **{
        f"beside {source}": (
            {**in_solution({"binding": "torch", "target_hardware": "H200"}, sources=[source]), BESIDE: SOURCE},
            ["spec"],
            "solutions",
            [("main.py::run", ["H200"], None, SOURCE)],
        )
        for source in ("main.py", {"path": "main.py", "content": None})
    },
    "empty entry": (
        in_solution(sources=[{"path": "main.py", "content": ""}]),
        [],
        "solutions",
        [("main.py::run", ["any"], None, "")],
    ),
    "empty solution": ({WORKLOADS: [EMPTY]}, [], "workloads", [line_of()]),
    "trace of its own file": ({"traces/alice/one.json": make_trace()}, [], "traces", [make_trace()]),
}


@pytest.mark.parametrize(("files", "fields", "kind", "said"), DIALECTS.values(), ids=DIALECTS)
def test_a_dialect_is_read_in_the_form_of_the_format(tmp_path, files, fields, kind, said):
    loaded, issues = load(tmp_path, files)
    assert fields is ... or [issue[3] for issue in issues] == fields
    read = getattr(loaded, kind)
    models = list(read.values()) if kind == "definitions" else read.get("double", [])
    assert [SAY[kind](model) if kind in SAY else model for model in models] == said


def test_a_cost_that_is_none_is_left_out_and_its_workload_stays(tmp_path):
    right = line_of(cost={"flops": 8.0, "bytes": 16.0, "unit": "fp16"})
    wrong = {**LINE, "workload": {**LINE["workload"], "cost": {"flops": -1, "bytes": 8, "unit": "fp32"}}}
    loaded, [issue] = load(tmp_path, {WORKLOADS: [right, wrong]})
    assert loaded.workloads["double"] == [right, line_of(uuid="w", inputs={})]
    assert issue[:4] == ("warning", WORKLOADS, 2, "workload.cost")
    assert "guessed from the definition: flops: Input should be greater than" in issue[4]


def test_lines_may_be_long_and_the_last_without_an_end(tmp_path):
    lines = [make_trace(log="x" * 10_000), make_trace(log="y" * 2_000_000)]
    text = "\r\n".join(trace.to_json() for trace in lines)
    loaded, issues = load(tmp_path, {TRACES: text.encode()}, solutions=[make_solution()])
    assert (issues, loaded.traces["double"]) == ([], lines)


@pytest.mark.parametrize("folder", ["definitions", "solutions"])
@pytest.mark.parametrize("raw", [{}, {"axes": 1, "sources": 2, "spec": 3}, {"sources": [1, {}]}], ids=str)
def test_nonsense_is_refused_and_never_breaks_the_load(tmp_path, folder, raw):
    loaded, issues = load(tmp_path, {f"{folder}/test/bad.json": raw})
    assert (list(loaded.definitions), {issue[0] for issue in issues}) == (["double"], {"error"})


@pytest.mark.parametrize(("folder", "found"), [("a/b/c/d", ["double"]), ("a/b/c/d/e", [])])
def test_problems_are_found_four_folders_deep(tmp_path, folder, found):
    loaded, _ = load(tmp_path, {f"{folder}/definition.json": make_definition()}, [])
    assert list(loaded.definitions) == found


@pytest.mark.published
def test_the_public_data_set_loads_whole_and_survives_a_round_trip(published):
    loaded = TraceSet.from_path(published)
    assert (len(loaded.definitions), sum(map(len, loaded.workloads.values()))) == (156, 447)
    assert all(definition.is_runnable for definition in loaded.definitions.values())
    assert [issue.missing_definition for issue in loaded.issues] == ["fused_add_rmsnorm_h6144", "rmsnorm_h6144"]
    for path in published.glob("definitions/*/*.json"):
        raw = json.loads(path.read_bytes())
        assert loaded.definitions[raw["name"]].to_dict() == {"tags": [], "constraints": [], **raw}
