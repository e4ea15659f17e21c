"""Sets that other engines save in our layout: defaults left out, bare lines, solutions of other languages."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import AxisConst, AxisExpr, AxisVar, TraceSet
from flashinfer_bench.data.workload import RandomInput, SafetensorsInput, ScalarInput
from tests.kit import make_definition, make_evaluation, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu


def test_axes_and_inputs_may_leave_out_their_type(tmp_path):
    raw = make_definition(inputs={"x": "float32[n]", "s": "float32", "t": "float32[n]"}).to_dict()
    raw["axes"] = {"n": {}, "k": {"value": 4}, "m": {"expression": "n * k"}, "v": {"type": None, "value": None}}
    stored = {"path": "blob/x.safetensors", "tensor_key": "t"}
    inputs = {"x": {}, "s": {"value": 3}, "t": stored}
    line = {"definition": "double", "workload": {"uuid": "w", "axes": {"n": 2, "v": 1}, "inputs": inputs}}
    trace = {**line, "solution": "s", "evaluation": make_evaluation().to_dict()}
    files = {
        "definitions/test/double.json": raw,
        "workloads/test/double.jsonl": [line],
        "traces/test/double.jsonl": [trace],
    }
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files))
    assert loaded.issues == []
    kinds = [type(axis) for axis in loaded.definitions["double"].axes.values()]
    assert kinds == [AxisVar, AxisConst, AxisExpr, AxisVar]
    for group in (loaded.workloads, loaded.traces):
        (read,) = group["double"]
        assert [type(source) for source in read.workload.inputs.values()] == [
            RandomInput,
            ScalarInput,
            SafetensorsInput,
        ]


@pytest.mark.parametrize(
    ("folder", "op_type"), [("definitions/norm", "norm"), ("definitions/deep/norm", "norm"), ("definitions", "custom")]
)
def test_an_op_type_that_is_left_out_is_the_folders(tmp_path, folder, op_type):
    raw = {key: value for key, value in make_definition().to_dict().items() if key != "op_type"}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, {f"{folder}/double.json": raw}))
    assert loaded.definitions["double"].op_type == op_type
    assert [(issue.severity, issue.field) for issue in loaded.issues] == [("warning", "op_type")]


@pytest.mark.parametrize(
    ("languages", "entry", "language", "dependencies"),
    [
        (["pytorch"], "main.py::run", "python", []),
        (["triton", "pytorch"], "main.py::run", "triton", []),
        (["cute_dsl"], "main.py::run", "python", ["cute-dsl"]),
        (["cutile", "cublas"], "main.py::run", "python", ["cutile"]),
        (["cudnn_frontend"], "main.py::run", "python", ["cudnn"]),
        (["cuda_cpp", "cutlass"], "main.cu::run", "cuda", ["cutlass"]),
        (["cuda_cpp", "cudnn", "cublas"], "main.cpp::run", "cuda", ["cudnn", "cublas"]),
    ],
)
def test_languages_choose_a_builder_and_name_what_they_need(tmp_path, languages, entry, language, dependencies):
    spec = {"languages": languages, "target_hardware": ["LOCAL"], "entry_point": entry}
    spec["compile_options"] = {"cuda_cflags": ["-O3"], "cflags": None} if language == "cuda" else None
    path = entry.partition("::")[0]
    solution = {"name": "s", "definition": "double", "author": "a", "spec": spec, "sources": [{"path": path}]}
    files = {"solutions/a/test/double/s.json": solution, f"solutions/a/test/double/{path}": "text"}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files, definitions=[make_definition()]))
    (read,) = loaded.solutions["double"]
    assert (read.spec.language.value, read.spec.dependencies) == (language, dependencies)
    assert read.get_entry_source().content == "text"
    if language == "cuda":
        assert read.spec.compile_options.cuda_cflags == ["-O3"]
    assert {issue.severity for issue in loaded.issues} <= {"warning"}


def test_an_input_that_is_null_is_left_out(tmp_path):
    bias = {"dtype": "float32", "shape": ["n"], "optional": True}
    definition = make_definition(inputs={"x": "float32[n]", "bias": bias}, reference="def run(x, bias): return x * 2\n")
    line = make_trace(solution=None, workload=make_workload()).to_dict()
    line["workload"]["inputs"]["bias"] = None
    loaded = TraceSet.from_path(
        write_trace_set(tmp_path, {"workloads/test/double.jsonl": [line]}, definitions=[definition])
    )
    assert list(loaded.workloads["double"][0].workload.inputs) == ["x"]
    (issue,) = loaded.issues
    assert (issue.severity, issue.field) == ("warning", "workload.inputs.bias")


def test_what_is_known_and_has_no_effect_is_always_told(tmp_path):
    raw = make_definition(axes={"n": {"type": "var", "parent": "batch"}}).to_dict() | {"hf_id": "org/m", "check": "x"}
    workload = make_workload().to_dict() | {"tolerance": {"rtol": 0.5, "allow_negative_inf": True}}
    solution = make_solution().to_dict()
    solution["spec"] |= {"binding": "torch", "compile_options": {"cflags": ["-O3"]}}
    files = {
        "definitions/test/double.json": raw,
        "workloads/test/double.jsonl": [{"definition": "double", "workload": workload}],
        "solutions/alice/test/double/double_python.json": solution,
    }
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files))
    assert loaded.workloads["double"][0].workload.tolerance.max_rtol == 0.5
    assert [issue.severity for issue in loaded.issues] == ["warning"] * 3
    told = " ".join(issue.reason for issue in loaded.issues)
    assert all(word in told for word in ("check, hf_id, parent", "binding, compile_options", "allow_negative_inf"))


def test_a_key_that_nobody_knows_is_told_wherever_it_stands(tmp_path):
    raw = make_definition(strange_1=1, inputs={"x": {"dtype": "float32", "shape": ["n"], "strange_2": 2}}).to_dict()
    line = make_trace(solution=None, workload=make_workload(strange_3=3)).to_dict() | {"strange_4": 4, "absent": None}
    solution = make_solution(strange_5=5).to_dict() | {"strange_6": 6}
    verdict = make_trace(environment={"hardware": "h", "libs": {}, "strange_7": 7}, strange_8=8)
    files = {"definitions/test/double.json": raw, "solutions/s.json": solution, "workloads/test/double.jsonl": [line]}
    issues = TraceSet.from_path(write_trace_set(tmp_path, files, traces=[verdict])).issues
    told = {issue.file.name: issue.reason for issue in issues if "strange" in issue.reason}
    assert {name: reason.partition(": ")[2] for name, reason in told.items()} == {
        "double.json": "strange_1, strange_2",
        "double.jsonl": "strange_3, strange_4",
        "s.json": "strange_5, strange_6",
    }


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
def test_solutions_may_lie_right_in_their_folder(tmp_path, names):
    solutions = [make_solution(name, author="me").to_dict() for name in names]
    files = {"solutions/a.json": solutions[0], "solutions/other.json": solutions[1]}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files, definitions=[make_definition()]))
    is_clash = names[0] == names[1]
    assert len(loaded.solutions.get("double", [])) == (0 if is_clash else 2)
    assert ["none is used" in issue.reason for issue in loaded.issues if issue.severity == "error"] == [
        True
    ] * 2 * is_clash


@pytest.mark.parametrize("tolerance", [{"max_atol": -1}, {"max_rtol": "small"}, {"required_matched_ratio": 0}, 3])
def test_a_tolerance_that_cannot_be_obeyed_leaves_its_workload_out(tmp_path, tolerance):
    line = make_trace(solution=None, workload=make_workload()).to_dict()
    line["workload"]["tolerance"] = tolerance
    files = {"workloads/test/double.jsonl": [line]}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files, definitions=[make_definition()]))
    assert loaded.workloads == {}
    (issue,) = loaded.issues
    assert issue.severity == "error"
    assert issue.field.startswith("workload.tolerance")


def test_workloads_that_differ_in_tolerance_are_different():
    usual, strict = make_workload(), make_workload(tolerance={"max_rtol": 1e-6})
    assert usual.digest() != strict.digest()
