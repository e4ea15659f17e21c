"""Sets that other engines save in our layout: omitted defaults, bare lines, solutions in other languages."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu
DEFINITION, WORKLOADS = "definitions/test/double.json", "workloads/test/double.jsonl"


def load(root, files, **models):
    return TraceSet.from_path(write_trace_set(root, files, **models))


def line_of(**changes):
    """Return a line of the usual definition with a changed workload."""
    return {"definition": "double", "workload": {**make_workload().to_dict(), **changes}}


def test_axes_and_inputs_may_leave_out_their_type(tmp_path):
    raw = make_definition(inputs={"x": "float32[n]", "s": "float32", "t": "float32[n]"}).to_dict()
    raw["axes"] = {"n": {}, "k": {"value": 4}, "m": {"expression": "n * k"}, "v": {"type": None, "value": None}}
    inputs = {"x": {}, "s": {"value": 3}, "t": {"path": "blob/x.safetensors", "tensor_key": "t"}}
    line = line_of(axes={"n": 2, "v": 1}, inputs=inputs)
    trace = {**line, "solution": "s", "evaluation": make_evaluation().to_dict()}
    loaded = load(tmp_path, {DEFINITION: raw, WORKLOADS: [line], "traces/test/double.jsonl": [trace]})
    assert loaded.issues == []
    assert [axis.type for axis in loaded.definitions["double"].axes.values()] == ["var", "const", "expr", "var"]
    for group in (loaded.workloads, loaded.traces):
        (read,) = group["double"]
        assert [one.type for one in read.workload.inputs.values()] == ["random", "scalar", "safetensors"]


@pytest.mark.parametrize(
    ("folder", "op_type"), [("definitions/norm", "norm"), ("definitions/deep/norm", "norm"), ("definitions", "custom")]
)
def test_an_op_type_that_is_left_out_is_the_folders(tmp_path, folder, op_type):
    raw = {key: value for key, value in make_definition().to_dict().items() if key != "op_type"}
    loaded = load(tmp_path, {f"{folder}/double.json": raw})
    assert loaded.definitions["double"].op_type == op_type
    assert [(issue.severity, issue.field) for issue in loaded.issues] == [("warning", "op_type")]


@pytest.mark.parametrize(
    ("languages", "path", "language", "dependencies"),
    [
        (["pytorch"], "main.py", "python", []),
        (["triton", "pytorch"], "main.py", "triton", []),
        (["cute_dsl"], "main.py", "python", ["cute-dsl"]),
        (["cutile", "cublas"], "main.py", "python", ["cutile"]),
        (["cudnn_frontend"], "main.py", "python", ["cudnn"]),
        (["cuda_cpp", "cutlass"], "main.cu", "cuda", ["cutlass"]),
        (["cuda_cpp", "cudnn", "cublas"], "main.cpp", "cuda", ["cudnn", "cublas"]),
        *((name, "main.py", name, []) for name in ("cutedsl", "cutile")),
        ("cute_dsl", "main.py", "python", ["cute-dsl"]),
        ("cutlass", "main.cu", "cutlass", []),
        ("cutlass", "main.py", "python", ["cutlass"]),
    ],
)
def test_languages_choose_a_builder_and_name_what_they_need(tmp_path, languages, path, language, dependencies):
    key = "languages" if isinstance(languages, list) else "language"
    spec = {key: languages, "target_hardware": ["LOCAL"], "entry_point": f"{path}::run"}
    spec["compile_options"] = {"cuda_cflags": ["-O3"], "cflags": None} if language == "cuda" else None
    solution = {"name": "s", "definition": "double", "author": "a", "spec": spec, "sources": [{"path": path}]}
    files = {"solutions/a/test/double/s.json": solution, f"solutions/a/test/double/{path}": "text"}
    loaded = load(tmp_path, files, definitions=[make_definition()])
    (read,) = loaded.solutions["double"]
    assert (read.spec.language.value, read.spec.dependencies) == (language, dependencies)
    assert read.get_entry_source().content == "text"
    assert language != "cuda" or read.spec.compile_options.cuda_cflags == ["-O3"]
    assert {issue.severity for issue in loaded.issues} <= {"warning"}


def test_a_list_of_languages_beside_the_language_has_no_warning(tmp_path):
    spec = {"language": "triton", "languages": ["triton"], "target_hardware": ["LOCAL"], "entry_point": "main.py::run"}
    sources = [{"path": "main.py", "content": "text"}]
    solution = {"name": "s", "definition": "double", "author": "a", "spec": spec, "sources": sources}
    loaded = load(tmp_path, {"solutions/a/test/double/s.json": solution}, definitions=[make_definition()])
    assert [*map(str, loaded.issues)] == []


def test_an_input_that_is_null_is_left_out(tmp_path):
    bias = {"dtype": "float32", "shape": ["n"], "optional": True}
    definition = make_definition(inputs={"x": "float32[n]", "bias": bias}, reference="def run(x, bias): return x * 2\n")
    line = line_of(inputs={"x": {"type": "random"}, "bias": None})
    loaded = load(tmp_path, {WORKLOADS: [line]}, definitions=[definition])
    assert list(loaded.workloads["double"][0].workload.inputs) == ["x"]
    assert [(issue.severity, issue.field) for issue in loaded.issues] == [("warning", "workload.inputs.bias")]


def test_keys_without_effect_and_unknown_keys_are_reported_at_any_level(tmp_path):
    raw = make_definition(
        axes={"n": {"type": "var", "parent": "batch"}},
        inputs={"x": {"dtype": "float32", "shape": ["n"], "strange_2": 2}},
        hf_id="org/m",
        check="x",
        strange_1=1,
    )
    line = line_of(tolerance={"rtol": 0.5, "allow_negative_inf": True}, strange_3=3) | {"strange_4": 4, "absent": None}
    solution = make_solution(strange_5=5).to_dict() | {"strange_6": 6}
    solution["spec"] |= {"binding": "torch", "compile_options": {"cflags": ["-O3"]}}
    verdict = make_trace(environment={"hardware": "h", "libs": {}, "strange_7": 7}, strange_8=8)
    files = {DEFINITION: raw, WORKLOADS: [line], "solutions/alice/test/double/double_python.json": solution}
    loaded = load(tmp_path, files, traces=[verdict])
    assert loaded.workloads["double"][0].workload.tolerance.max_rtol == 0.5
    assert {issue.severity for issue in loaded.issues} == {"warning"}
    assert {issue.reason.partition(": ")[2] for issue in loaded.issues} >= {
        "check, hf_id, parent, strange_1, strange_2",
        "allow_negative_inf, strange_3, strange_4",
        "strange_5, strange_6",
    }
    assert any("binding, compile_options" in issue.reason for issue in loaded.issues)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
def test_solutions_may_lie_right_in_their_folder(tmp_path, names):
    one, other = (make_solution(name, author="me").to_dict() for name in names)
    loaded = load(tmp_path, {"solutions/a.json": one, "solutions/other.json": other}, definitions=[make_definition()])
    is_clash = names[0] == names[1]
    assert len(loaded.solutions.get("double", [])) == 2 * (not is_clash)
    errors = [issue.reason for issue in loaded.issues if issue.severity == "error"]
    assert len([reason for reason in errors if "all are skipped" in reason]) == len(errors) == 2 * is_clash


@pytest.mark.parametrize("tolerance", [{"max_atol": -1}, {"max_rtol": "small"}, {"required_matched_ratio": 0}, 3])
def test_a_tolerance_that_cannot_be_obeyed_leaves_its_workload_out(tmp_path, tolerance):
    loaded = load(tmp_path, {WORKLOADS: [line_of(tolerance=tolerance)]}, definitions=[make_definition()])
    assert loaded.workloads == {}
    (issue,) = loaded.issues
    assert (issue.severity, issue.field[:18]) == ("error", "workload.tolerance")
