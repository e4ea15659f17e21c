"""Files of other dialects: each loads in today's form, or is refused at its place while the rest loads."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data import Definition, Solution, TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

FILE = {"definition": "definitions/test/double.json", "solution": "solutions/alice/test/double/double_python.json"}


def _load_definition(tmp_path, **changes):
    raw = {key: value for key, value in {**make_definition().to_dict(), **changes}.items() if value is not ...}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, {FILE["definition"]: raw}))
    return loaded.definitions.get("double"), loaded.issues


def _load_solution(tmp_path, spec=None, files=None, **changes):
    raw = {**make_solution().to_dict(), **changes}
    raw["spec"] = {key: value for key, value in {**raw["spec"], **(spec or {})}.items() if value is not ...}
    files = {FILE["solution"]: raw, **(files or {})}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files, definitions=[make_definition()]))
    return next(iter(loaded.solutions.get("double", [])), None), loaded.issues


def _load_lines(tmp_path, *lines, file="workloads/test/double.jsonl"):
    models = {"definitions": [make_definition(axes={"n": None, "h": 4})], "solutions": [make_solution()]}
    return TraceSet.from_path(write_trace_set(tmp_path, {file: list(lines)}, **models))


def test_1_a_style_that_is_not_declared_stays_so(tmp_path):
    solution, issues = _load_solution(tmp_path)
    assert issues == []
    assert solution.spec.declared_style is None
    null, _ = _load_solution(tmp_path, spec={"destination_passing_style": None})
    assert null.spec.declared_style is None


def test_2_a_reference_may_order_its_parameters_in_its_own_way(tmp_path):
    definition, issues = _load_definition(
        tmp_path,
        inputs={name: {"shape": ["n"], "dtype": "float32"} for name in "ab"},
        reference="def run(b, a):\n    return a - b",
    )
    assert issues == []
    assert definition.reference_parameters == ["b", "a"]


def test_3_an_axis_may_be_an_expression_and_have_a_parent(tmp_path):
    axes = {"n": {"type": "var", "parent": "batch"}, "m": {"type": "expr", "expression": "n * 2", "parent": None}}
    definition, issues = _load_definition(tmp_path, axes=axes, outputs={"y": {"shape": ["m"], "dtype": "float32"}})
    assert [issue.reason for issue in issues] == ["kept without effect: parent"]
    assert definition.get_output_shapes({"n": 3}) == [(6,)]
    assert definition.to_dict()["axes"] == axes


def test_3_a_const_axis_without_value_is_read_as_a_var_axis(tmp_path):
    definition, issues = _load_definition(tmp_path, axes={"n": {"type": "const"}})
    assert definition.var_axes == ["n"]
    assert [(issue.severity, issue.field) for issue in issues] == [("warning", "axes.n")]


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "float64", "float4_e2m1fn_x2"])
def test_3_literal_dimensions_and_further_dtypes(tmp_path, dtype):
    definition, issues = _load_definition(tmp_path, inputs={"x": {"shape": ["1", 2, "n"], "dtype": dtype}})
    assert issues == []
    assert definition.get_input_shapes({"n": 3}) == [(1, 2, 3)]


def test_4_keys_without_effect_are_kept_and_told_in_one_line(tmp_path):
    others = {"init": "x", "check": "y", "custom_inputs_entrypoint": "f", "hf_id": "org/model"}
    definition, (issue,) = _load_definition(tmp_path, **others)
    assert (issue.severity, issue.reason) == ("warning", "kept without effect: check, hf_id, init")
    assert {key: definition.to_dict()[key] for key in others} == others


def test_4_null_lists_optional_inputs_and_type_for_op_type(tmp_path):
    bias = {"shape": ["n"], "dtype": "float32", "optional": True}
    inputs = {**make_definition().to_dict()["inputs"], "bias": bias}
    definition, issues = _load_definition(
        tmp_path, constraints=None, tags=None, op_type=..., type="test", inputs=inputs
    )
    assert issues == []
    assert (definition.op_type, definition.tags, definition.constraints) == ("test", [], [])
    assert definition.inputs["bias"].optional
    assert definition.to_dict()["constraints"] == []


def test_4_a_file_may_hold_a_list_and_each_object_stands_alone(tmp_path):
    bad = {**make_definition("bad").to_dict(), "axes": 3}
    content = [make_definition("a").to_dict(), bad, make_definition("b").to_dict()]
    loaded = TraceSet.from_path(write_trace_set(tmp_path, {"definitions/test/a.json": json.dumps(content, indent=1)}))
    assert list(loaded.definitions) == ["a", "b"]
    assert [issue.field for issue in loaded.issues if issue.severity == "error"] == ["1.axes"]


def test_5_a_reference_without_run_loads_and_is_flagged(tmp_path):
    definition, (issue,) = _load_definition(tmp_path, reference="def _reference(x):\n    return x")
    assert not definition.is_runnable
    assert (issue.severity, issue.field) == ("warning", "reference")
    assert "'_reference'" in issue.reason


@pytest.mark.parametrize(
    ("spec", "language"),
    [
        ({"language": "Triton"}, "triton"),
        ({"language": "PYTHON"}, "python"),
        ({"language": "cute_dsl"}, "python"),
        ({"language": ..., "languages": ["pytorch"]}, "python"),
        ({"language": ..., "languages": ["PyTorch", "Triton"]}, "triton"),
        ({"language": ..., "languages": ["cutile", "cudnn"]}, "python"),
    ],
    ids=str,
)
def test_6_languages_of_other_engines_find_their_builder(tmp_path, spec, language):
    solution, issues = _load_solution(tmp_path, spec=spec)
    assert solution.spec.language.value == language
    assert all(issue.severity == "warning" for issue in issues)


@pytest.mark.parametrize(
    ("path", "languages", "language"),
    [("k.cu", ["cuda_cpp", "cutlass"], "cuda"), ("k.cpp", ["cpp"], "cpp"), ("k.cpp", ["cuda_cpp"], "cuda")],
)
def test_6_the_file_of_the_entry_point_decides_among_compilers(tmp_path, path, languages, language):
    spec = {"language": ..., "languages": languages, "entry_point": f"{path}::run"}
    options = {"cuda_cflags": ["-O3"]}
    sources = [{"path": path, "content": "x"}]
    solution, _ = _load_solution(tmp_path, spec={**spec, "compile_options": options}, sources=sources)
    assert solution.spec.language.value == language
    assert solution.spec.compile_options.cuda_cflags == ["-O3"]


def test_6_a_language_that_nobody_knows_is_refused(tmp_path):
    solution, (issue,) = _load_solution(tmp_path, spec={"language": "fortran"})
    assert solution is None
    assert (issue.severity, issue.field) == ("error", "spec.language")


@pytest.mark.parametrize("entry_point", ["run", "main.py", "main.py:run"])
def test_6_an_entry_point_without_two_colons_is_completed(tmp_path, entry_point):
    solution, (issue,) = _load_solution(tmp_path, spec={"entry_point": entry_point})
    assert solution.spec.entry_point == "main.py::run"
    assert (issue.severity, issue.field) == ("warning", "spec.entry_point")


def test_6_an_entry_function_is_looked_for_in_all_sources(tmp_path):
    sources = {"a.py": "def helper(): pass", "b.py": "def go(x): pass", "c.txt": "def go"}
    solution, _ = _load_solution(tmp_path, spec={"entry_point": "go"}, sources=sources)
    assert solution.spec.entry_point == "b.py::go"


def test_6_an_entry_function_that_two_sources_have_is_refused(tmp_path):
    sources = {"a.py": "def go(x): pass", "b.py": "def go(x): pass"}
    solution, (issue,) = _load_solution(tmp_path, spec={"entry_point": "go"}, sources=sources)
    assert solution is None
    assert issue.field == "spec.entry_point"


def test_6_sources_may_be_a_dict(tmp_path):
    solution, issues = _load_solution(tmp_path, sources={"main.py": "def run(x): ...", "util.py": ""})
    assert issues == []
    assert [source.path for source in solution.sources] == ["main.py", "util.py"]


@pytest.mark.parametrize("source", ["main.py", {"path": "main.py"}, {"path": "main.py", "content": None}], ids=str)
def test_6_a_source_may_lie_beside_its_solution(tmp_path, source):
    beside = {"solutions/alice/test/double/main.py": "def run(x): return x"}
    solution, issues = _load_solution(tmp_path, sources=[source], files=beside)
    assert issues == []
    assert solution.get_entry_source().content == "def run(x): return x"


@pytest.mark.parametrize("path", ["absent.py", "../../../../secret.py", "link.py"])
def test_6_a_source_that_is_not_beside_its_solution_is_refused(tmp_path, path):
    (tmp_path / "secret.py").write_text("secret")
    folder = tmp_path / "solutions/alice/test/double"
    folder.mkdir(parents=True)
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    solution, issues = _load_solution(tmp_path, sources=[path], spec={"entry_point": f"{path}::run"})
    assert solution is None
    assert "sources.0.content" in [issue.field for issue in issues]


def test_6_an_empty_entry_source_is_a_warning(tmp_path):
    solution, (issue,) = _load_solution(tmp_path, sources=[{"path": "main.py", "content": ""}])
    assert solution is not None
    assert (issue.severity, "main.py, is empty" in issue.reason) == ("warning", True)


def test_6_a_binding_on_python_and_one_target_as_text(tmp_path):
    solution, issues = _load_solution(tmp_path, spec={"binding": "torch", "target_hardware": "NVIDIA H200"})
    assert [(issue.severity, issue.field) for issue in issues] == [("warning", "spec")]
    assert solution.spec.target_hardware == ["NVIDIA H200"]


def test_7_an_empty_solution_is_none_and_const_axes_may_be_repeated(tmp_path):
    raw = {**make_trace(solution=None).to_dict(), "solution": ""}
    raw["workload"] |= {"axes": {"n": 0, "h": 4}}
    loaded = _load_lines(tmp_path, raw)
    assert loaded.issues == []
    assert loaded.workloads["double"][0].to_dict() == {**raw, "solution": None}


def test_7_a_bare_workload_belongs_to_the_definition_of_its_file(tmp_path):
    loaded = _load_lines(tmp_path, make_workload("bare"))
    assert [issue.severity for issue in loaded.issues] == ["warning"]
    assert loaded.workloads == {"double": [make_trace(solution=None, workload=make_workload("bare"))]}


def test_7_a_workload_without_uuid_gets_the_same_one_each_time(tmp_path):
    raw = [{"axes": {"n": size}, "inputs": {}} for size in (1, 2)]
    first = _load_lines(tmp_path, *raw).workloads["double"]
    again = _load_lines(tmp_path, *raw[::-1]).workloads["double"]
    uuids = [trace.workload.uuid for trace in first]
    assert len(set(uuids)) == 2
    assert uuids == [trace.workload.uuid for trace in again][::-1]


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ({"flops": -1, "bytes": 8, "unit": "fp32"}, "flops: Input should be greater than or equal to 0"),
        ({"flops": "Infinity", "bytes": True, "unit": "fp32"}, "flops: Input should be a valid number; bytes: "),
        ({"flops": 8, "bytes": 8, "unit": "warp"}, "unit: Input should be 'fp64', 'fp32', 'tf32',"),
        ({"flops": 8, "bytes": 8}, "unit: Field required"),
        ({"flops": 8, "bytes": 10**400, "unit": "fp32"}, "bytes: "),
        (3.5, "Input should be a valid dictionary"),
    ],
    ids=["negative", "words", "unit", "missing", "digits", "number"],
)
def test_a_cost_that_is_none_is_left_out_and_its_workload_stays(tmp_path, cost, words):
    raw = make_trace(solution=None, workload=make_workload("w")).to_dict()
    loaded = _load_lines(tmp_path, {**raw, "workload": {**raw["workload"], "cost": cost}})
    (line,) = loaded.workloads["double"]
    assert line.workload == make_workload("w")
    (issue,) = loaded.issues
    assert (issue.severity, issue.line, issue.field) == ("warning", 1, "workload.cost")
    assert f"guessed from the definition: {words}" in issue.reason


def test_a_cost_survives_a_round_trip_and_decides_no_verdict(tmp_path):
    cost = {"flops": 8.0, "bytes": 16.0, "unit": "fp16"}
    workload = make_workload("w", cost=cost)
    loaded = _load_lines(tmp_path, make_trace(solution=None, workload=workload))
    (line,) = loaded.workloads["double"]
    assert loaded.issues == []
    assert line.workload.to_dict()["cost"] == cost
    assert line.workload.digest() == make_workload("w").digest()


def test_7_workloads_of_other_engines_are_refused_in_workloads_and_kept_in_traces(tmp_path):
    custom = make_workload(inputs={"x": {"type": "custom", "seed": 1}})
    assert "double" not in _load_lines(tmp_path / "a", make_trace(solution=None, workload=custom)).workloads
    trace = make_trace(workload=custom)
    loaded = _load_lines(tmp_path / "b", trace, file="traces/alice/test/double.jsonl")
    assert (loaded.issues, loaded.traces["double"]) == ([], [trace])


def test_8_an_early_trace_is_read_in_todays_form(tmp_path):
    raw = make_trace().to_dict()
    raw["evaluation"] |= {"environment": {"device": "NVIDIA B200", "libs": None}, "log_file": "logs/1.txt", "log": None}
    loaded = _load_lines(tmp_path, raw, file="traces/test/double.jsonl")
    evaluation = loaded.traces["double"][0].evaluation
    assert loaded.issues == []
    assert (evaluation.environment.hardware, evaluation.environment.libs) == ("NVIDIA B200", {})
    assert "logs/1.txt" in evaluation.log


def test_8_repeated_traces_are_all_kept_and_a_trace_may_be_a_file(tmp_path):
    lines = [make_trace(speedup=3.0), make_trace(speedup=2.0)]
    files = {"traces/alice/test/double.jsonl": lines, "traces/alice/test/one.json": make_trace(solution="other")}
    write_trace_set(tmp_path, files, definitions=[make_definition()], solutions=[make_solution()])
    loaded = TraceSet.from_path(tmp_path)
    assert loaded.issues == []
    assert loaded.traces["double"] == [*lines, make_trace(solution="other")]
    assert loaded.latest_traces("double") == loaded.traces["double"][1:]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_9_line_ends_and_a_last_line_without_one(tmp_path, ending, last):
    lines = [make_trace(log="x" * 10_000), make_trace(log="y" * 2_000_000)]
    text = ending.join(trace.to_json() for trace in lines) + (ending if last else "")
    loaded = _load_lines(tmp_path)
    (tmp_path / "traces/alice/test").mkdir(parents=True)
    (tmp_path / "traces/alice/test/double.jsonl").write_bytes(text.encode())
    loaded = TraceSet.from_path(tmp_path)
    assert (loaded.issues, loaded.traces["double"]) == ([], lines)


def test_what_was_read_in_another_dialect_is_written_in_todays(tmp_path):
    raw = {**make_definition().to_dict(), "constraints": None, "axes": {"n": {"type": "const"}}}
    loaded = TraceSet.from_path(write_trace_set(tmp_path / "a", {FILE["definition"]: raw}))
    again = TraceSet.from_path(write_trace_set(tmp_path / "b", definitions=list(loaded.definitions.values())))
    assert (again.issues, again.definitions) == ([], loaded.definitions)


@pytest.mark.parametrize("model", [Definition, Solution])
@pytest.mark.parametrize("raw", [{}, {"axes": 1, "sources": 2, "spec": 3}, {"spec": {}}, {"sources": [1, {}]}], ids=str)
def test_nonsense_is_refused_and_never_breaks_the_load(tmp_path, model, raw):
    folder = f"{model.__name__.lower()}s"
    loaded = TraceSet.from_path(
        write_trace_set(tmp_path, {f"{folder}/test/bad.json": raw}, definitions=[make_definition()])
    )
    assert list(loaded.definitions) == ["double"]
    assert {issue.severity for issue in loaded.issues} == {"error"}
