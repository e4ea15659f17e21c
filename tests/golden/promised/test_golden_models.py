"""The public models and functions: names, signatures, what pydantic refuses, what it keeps.

Spec: spec/engine.md ("Names that existing scripts use"), spec/trace-format.md ("Definition", "Solution", "Workload and
Trace"), spec/compat.md (3); docs/migration.md ("Names", "What is not here", "What differs: In Python").
"""

from __future__ import annotations

import importlib
import inspect
import json
import math

import pytest
from pydantic import ValidationError

NAMES = {
    "flashinfer_bench": (
        "Benchmark BenchmarkConfig Definition Solution Trace TraceSet AxisConst AxisVar TensorSpec SourceFile "
        "BuildSpec SupportedLanguages RandomInput SafetensorsInput Workload Correctness Performance Environment "
        "Evaluation EvaluationStatus __version__ __version_tuple__ Engine EngineLimits FFI_PROMPT "
        "FFI_PROMPT_SIMPLE EvalConfig"
    ),
    "flashinfer_bench.bench": "Benchmark BenchmarkConfig EvalConfig ResolvedEvalConfig",
    "flashinfer_bench.data": (
        "Definition Solution Trace TraceSet AxisConst AxisVar TensorSpec SourceFile BuildSpec SupportedLanguages "
        "RandomInput SafetensorsInput Workload Correctness Performance Environment Evaluation EvaluationStatus "
        "ScalarInput SupportedBindings AxisSpec InputSpec save_json_file load_json_file save_jsonl_file "
        "load_jsonl_file append_jsonl_file SpeedupMetrics TraceSetSummary CustomInput"
    ),
    "flashinfer_bench.data.definition": "DType Definition AxisConst AxisVar TensorSpec",
    "flashinfer_bench.data.trace": "Trace Evaluation EvaluationStatus Performance Correctness Environment",
    "flashinfer_bench.data.json_utils": (
        "load_json_file save_json_file load_jsonl_file save_jsonl_file append_jsonl_file"
    ),
    "flashinfer_bench.bench.evaluators": (
        "Evaluator resolve_evaluator DefaultEvaluator SamplingEvaluator LowBitEvaluator DsaSparseAttentionEvaluator "
        "DsaTopkIndexerEvaluator"
    ),
    "flashinfer_bench.bench.evaluators.evaluator": "Evaluator Accepted Rejected Baseline JudgedCall",
    "flashinfer_bench.bench.evaluators.default": (
        "DefaultEvaluator build_baseline check_reference check_elements eval_performance"
    ),
    "flashinfer_bench.bench.evaluators.verdict": "check_form",
    "flashinfer_bench.bench.evaluators.registry": "_EVALUATORS",
    "flashinfer_bench.bench.evaluators.utils": "allocate_outputs normalize_result",
    "flashinfer_bench.bench.utils": "gen_inputs load_safetensors",
    "flashinfer_bench.bench.timing": "time_runnable",
    "flashinfer_bench.compile": "Builder BuilderRegistry BuildError Runnable RunnableMetadata",
    "flashinfer_bench.testing": "bench_gpu_time",
    "flashinfer_bench.agents": (
        "pack_solution_from_files extract_solution_to_files flashinfer_bench_list_ncu_options flashinfer_bench_run_ncu "
        "flashinfer_bench_run_sanitizer function_to_schema get_all_tool_schemas FFI_PROMPT FFI_PROMPT_SIMPLE"
    ),
    "flashinfer_bench.client": "Client",
    "flashinfer_bench.env": "get_fib_dataset_path get_fib_cache_path",
    "flashinfer_bench.errors": "WorkloadFault TaskFailed QueueFull EngineClosed ConfigError",
    "flashinfer_bench.cli.main": "cli",
}
LEFT_OUT = "apply enable_apply disable_apply ApplyConfig enable_tracing disable_tracing TracingConfig integration"


@pytest.mark.parametrize("module", NAMES)
def test_a_documented_name_can_be_imported(module):
    there = importlib.import_module(module)
    assert [name for name in NAMES[module].split() if not hasattr(there, name)] == []


@pytest.mark.parametrize("name", LEFT_OUT.split())
def test_a_name_that_stays_out_says_so(name):
    with pytest.raises(ImportError, match=r"migration\.md"):
        exec(f"from flashinfer_bench import {name}")


PARAMETERS = {
    "flashinfer_bench:TraceSet.from_path": "path",
    "flashinfer_bench:TraceSet.get_best_trace": "definition axes max_abs_error=0.01 max_rel_error=0.01 def_name",
    "flashinfer_bench:TraceSet.filter_traces": "definition atol=0.01 rtol=0.01 def_name",
    "flashinfer_bench:TraceSet.summary": "baseline_author='baseline' op_type=None definition_name=None",
    "flashinfer_bench:TraceSet.rank_authors": "baseline_author='baseline' op_type=None definition_name=None",
    "flashinfer_bench:TraceSet.get_author_score": "author baseline_author='baseline' op_type=None definition_name=None",
    "flashinfer_bench:TraceSet.get_solution_score": "name baseline_author='baseline'",
    "flashinfer_bench:TraceSet.add_traces": "traces",
    "flashinfer_bench:TraceSet.add_workload_traces": "traces",
    "flashinfer_bench:TraceSet.add_workload_blob_tensor": "def_name workload_uuid tensors",
    "flashinfer_bench:TraceSet.get_workload_blob_tensor": "path",
    "flashinfer_bench:TraceSet.backup_traces": "",
    "flashinfer_bench:TraceSet.to_dict": "",
    "flashinfer_bench:TraceSet.to_dataframe": "",
    "flashinfer_bench:TraceSet.get_solution": "name",
    "flashinfer_bench:Benchmark": "trace_set config",
    "flashinfer_bench:Benchmark.run_all": "save_results=True resume=False dump_traces progress on_event",
    "flashinfer_bench:Benchmark.get_trace_set": "",
    "flashinfer_bench:Benchmark.close": "",
    "flashinfer_bench:BenchmarkConfig.default": "overrides",
    "flashinfer_bench:BenchmarkConfig.from_yaml": "path overrides",
    "flashinfer_bench:BenchmarkConfig.resolve_eval_config": "definition",
    "flashinfer_bench:Engine": "trace_set config limits",
    "flashinfer_bench:Engine.submit": "solution workloads priority=0 submitter save_results=True use_recorded=False",
    "flashinfer_bench:Engine.close": "drain=False",
    "flashinfer_bench:Engine.state": "",
    "flashinfer_bench:Engine.subscribe": "callback",
    "flashinfer_bench:Definition.get_axes_values": "input_shapes",
    "flashinfer_bench:Definition.get_axes_values_from_inputs": "values inputs",
    "flashinfer_bench:Definition.get_input_shapes": "var_values var_axes_values",
    "flashinfer_bench:Definition.get_output_shapes": "var_values var_axes_values",
    "flashinfer_bench:Definition.merge_kwargs_to_args": "args kwargs",
    "flashinfer_bench:Solution.get_entry_path": "",
    "flashinfer_bench:Solution.get_entry_symbol": "",
    "flashinfer_bench:Solution.get_entry_source": "",
    "flashinfer_bench:Solution.hash": "",
    "flashinfer_bench:Solution.with_unique_name": "",
    "flashinfer_bench:Trace.is_workload_trace": "",
    "flashinfer_bench:Trace.is_successful": "",
    "flashinfer_bench.cli.main:cli": "argv=None",
    "flashinfer_bench.testing:bench_gpu_time": (
        "fn args kwargs enable_cupti=True use_cuda_graph=False num_iters=None dry_run_iters=None cold_l2_cache=True "
        "rotate_buffers=False"
    ),
    "flashinfer_bench.bench.evaluators:Evaluator.can_evaluate": "definition",
    "flashinfer_bench.bench.evaluators:Evaluator.build_baseline": "definition workload cfg device context",
    "flashinfer_bench.bench.evaluators:Evaluator.check_correctness": (
        "definition sol_runnable inputs ref_outputs cfg context"
    ),
    "flashinfer_bench.bench.evaluators:Evaluator.eval_performance": (
        "definition sol_runnable inputs ref_mean_latency_ms cfg context"
    ),
    "flashinfer_bench.bench.evaluators.evaluator:Baseline": "inputs outputs mean_latency_ms measurement",
    "flashinfer_bench.bench.evaluators.evaluator:Accepted": "correctness",
    "flashinfer_bench.bench.evaluators.evaluator:Rejected": "status message correctness=None",
    "flashinfer_bench.bench.utils:gen_inputs": "definition workload device safe_tensors=None",
    "flashinfer_bench.bench.utils:load_safetensors": "definition workload root",
    "flashinfer_bench.agents:pack_solution_from_files": "path spec name definition author description=''",
    "flashinfer_bench.agents:extract_solution_to_files": "solution base_path",
    "flashinfer_bench.agents:flashinfer_bench_list_ncu_options": "ncu_path='ncu'",
    "flashinfer_bench.agents:flashinfer_bench_run_ncu": (
        "solution workload device='cuda:0' trace_set_path=None set='detailed' sections=None kernel_name=None "
        "page='details' ncu_path='ncu' timeout=60 tmpdir=None max_lines=None"
    ),
    "flashinfer_bench.agents:flashinfer_bench_run_sanitizer": (
        "solution workload device='cuda:0' trace_set_path=None sanitizer_types=None sanitizer_path='compute-sanitizer' "
        "timeout=300 tmpdir=None max_lines=None"
    ),
    "flashinfer_bench.client:Client": "url='http://127.0.0.1:8000' token submitter",
    "flashinfer_bench.client:Client.evaluate": "solution workloads priority=0",
    "flashinfer_bench.client:Client.submit": "solution workloads priority=0",
    "flashinfer_bench.client:Client.batch": "task_ids timeout_s",
    "flashinfer_bench.client:Client.events": "task_id",
}


@pytest.mark.parametrize("place", PARAMETERS)
def test_a_documented_function_takes_these_parameters(place):
    """Further parameters never fail; those in this order may be given by position as far as they could before."""
    module, _, dotted = place.partition(":")
    found = importlib.import_module(module)
    for name in dotted.split("."):
        found = getattr(found, name)
    there = inspect.signature(found).parameters
    for word in PARAMETERS[place].split():
        name, _, default = word.partition("=")
        assert name in there
        if default:
            assert repr(there[name].default) == default


def definition(**more):
    from flashinfer_bench import Definition

    content = {
        "name": "rows",
        "op_type": "custom",
        "axes": {
            "m": {"type": "var"},
            "n": {"type": "const", "value": 8},
            "k": {"type": "expr", "expression": "m * 2"},
        },
        "inputs": {"x": {"shape": ["m", "n"], "dtype": "bfloat16"}, "scale": {"shape": None, "dtype": "float32"}},
        "outputs": {"y": {"shape": ["k", "n"], "dtype": "float8_e4m3fn"}, "total": {"shape": [], "dtype": "float32"}},
        "reference": "def run(x, scale):\n    return x, x\n",
    }
    return Definition(**content | more)


def build_spec(**more):
    from flashinfer_bench import BuildSpec

    return BuildSpec(**{"language": "python", "target_hardware": ["cpu"], "entry_point": "a.py::run"} | more)


def solution(**more):
    from flashinfer_bench import Solution

    content = {"name": "one", "definition": "rows", "author": "me", "sources": [{"path": "a.py", "content": "x = 1"}]}
    return Solution(**content | {"spec": build_spec()} | more)


def test_a_definition_tells_axes_shapes_and_dtypes():
    import torch

    rows = definition()
    assert rows.const_axes == {"n": 8}
    assert list(rows.var_axes) == ["m"]
    assert rows.var_axes_bindings == {"m": ("x", 0)}
    assert [list(shape) if shape is not None else None for shape in rows.get_input_shapes({"m": 3})] == [[3, 8], None]
    assert [list(shape) for shape in rows.get_output_shapes(var_axes_values={"m": 3})] == [[6, 8], []]
    assert rows.get_axes_values([(3, 8), None])["m"] == 3
    assert rows.get_axes_values_from_inputs(inputs=[torch.zeros(5, 8), 0.5])["m"] == 5
    assert rows.torch_input_dtypes == [torch.bfloat16, torch.float32]
    assert rows.torch_output_dtypes == [torch.float8_e4m3fn, torch.float32]
    with pytest.raises(ValueError, match="n"):
        rows.get_axes_values([(3, 9), None])


def test_arguments_are_brought_into_order():
    rows = definition()
    assert tuple(rows.merge_kwargs_to_args([1], {"scale": 2})) == (1, 2)
    assert tuple(rows.merge_kwargs_to_args([1, 2], {"total": 4, "y": 3})) == (1, 2, 3, 4)
    for args, kwargs in [([1], {"x": 2}), ([1, 2, 3, 4, 5], {}), ([1], {"nobody": 2})]:
        with pytest.raises(TypeError):
            rows.merge_kwargs_to_args(args, kwargs)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"name": ""}, "name"),
        ({"op_type": ""}, "op_type"),
        ({"reference": "def run(:"}, "reference"),
        ({"inputs": {"x": {"shape": ["q"], "dtype": "bfloat16"}}}, "q"),
        ({"inputs": {"x": {"shape": ["m"], "dtype": "complex64"}}}, "dtype"),
        ({"outputs": {"x": {"shape": ["m"], "dtype": "int8"}}}, "x"),
        ({"axes": {"m": {"type": "var"}, "n": {"type": "const", "value": -1}, "k": {"type": "var"}}}, "value"),
    ],
)
def test_a_definition_that_contradicts_itself_is_a_validation_error(more, field):
    with pytest.raises(ValidationError, match=field):
        definition(**more)


def test_a_solution_tells_its_entry_and_a_digest_of_its_content():
    one, other = solution(), solution(name="two", author="you", description="a copy")
    assert str(one.get_entry_path()) == "a.py"
    assert one.get_entry_symbol() == "run"
    assert one.get_entry_source().content == "x = 1"
    assert one.hash() == other.hash() != solution(sources=[{"path": "a.py", "content": "x = 2"}]).hash()
    assert one != other
    assert len({one, solution()}) == 1
    assert one.with_unique_name().name.startswith("one")
    assert one.with_unique_name().name != "one"
    assert one.spec.destination_passing_style is True


@pytest.mark.parametrize(
    "more",
    [
        {"sources": [{"path": "../a.py", "content": ""}]},
        {"sources": [{"path": "/a.py", "content": ""}]},
        {"sources": [{"path": "a.py", "content": ""}, {"path": "a.py", "content": "1"}]},
        {"sources": [{"path": "b.py", "content": ""}]},
        {"name": ""},
    ],
)
def test_a_solution_that_cannot_be_is_a_validation_error(more):
    with pytest.raises(ValidationError):
        solution(**more)


@pytest.mark.parametrize(
    "more",
    [
        {"entry_point": "a.py::b::c"},
        {"target_hardware": []},
        {"language": "cobol"},
        {"binding": "cffi"},
        {"dependencies": 3},
    ],
)
def test_a_build_spec_that_cannot_be_is_a_validation_error(more):
    with pytest.raises(ValidationError):
        build_spec(**more)


def test_models_are_frozen_and_copied_with_changes():
    one = solution()
    with pytest.raises(ValidationError):
        one.author = "you"
    assert one.model_copy(update={"author": "you"}).author == "you"


def test_unknown_keys_of_data_are_kept_and_a_default_is_left_where_it_was():
    rows = definition(hf_id="some/model")
    assert json.loads(rows.model_dump_json())["hf_id"] == "some/model"
    assert rows.tags == rows.constraints == []
    assert rows.description is None


def test_kinds_of_axes_and_inputs_are_told_apart():
    from flashinfer_bench.data import (
        AxisConst,
        AxisSpec,
        AxisVar,
        InputSpec,
        RandomInput,
        SafetensorsInput,
        ScalarInput,
        Workload,
    )

    axes = definition().axes
    assert isinstance(axes["n"], AxisConst)
    assert isinstance(axes["m"], AxisVar)
    assert isinstance(axes["m"], AxisSpec)
    stored = {"type": "safetensors", "path": "blob/x", "tensor_key": "x"}
    inputs = {"a": {"type": "random"}, "b": {"type": "scalar", "value": 2}, "c": stored}
    workload = Workload(uuid="w", axes={"m": 3}, inputs=inputs)
    kinds = [type(source) for source in workload.inputs.values()]
    assert kinds == [RandomInput, ScalarInput, SafetensorsInput]
    assert all(isinstance(source, InputSpec) for source in workload.inputs.values())
    assert workload.inputs["b"].value == 2
    with pytest.raises(ValidationError):
        Workload(uuid="w", axes={"m": -1}, inputs={})


def evaluation(status="PASSED", **more):
    from flashinfer_bench import Correctness, Environment, Evaluation, Performance

    parts = {
        "correctness": Correctness(),
        "performance": Performance(latency_ms=1, reference_latency_ms=2, speedup_factor=2),
    }
    content = {"status": status, "timestamp": "2026-01-02T03:04:05", "environment": Environment(hardware="cpu")}
    return Evaluation(**content | (parts if status == "PASSED" else {}) | more)


def test_an_evaluation_has_the_parts_of_its_status():
    from flashinfer_bench import Correctness, EvaluationStatus

    names = "PASSED INCORRECT_SHAPE INCORRECT_NUMERICAL INCORRECT_DTYPE RUNTIME_ERROR COMPILE_ERROR TIMEOUT"
    assert {member.value for member in EvaluationStatus} == set(names.split())
    assert evaluation().log == ""
    assert evaluation("INCORRECT_NUMERICAL", correctness=Correctness(max_absolute_error=math.inf)).performance is None
    for broken in (lambda: evaluation(performance=None), lambda: evaluation("TIMEOUT", correctness=Correctness())):
        with pytest.raises(ValidationError):
            broken()


def test_figures_that_cannot_be_are_validation_errors():
    from flashinfer_bench import Correctness, Environment, Performance

    for make in (
        lambda: Correctness(max_relative_error=-1),
        lambda: Environment(hardware=""),
        lambda: Performance(latency_ms=-1),
    ):
        with pytest.raises(ValidationError):
            make()


def test_traces_tell_what_they_are_and_write_infinities_as_words():
    from flashinfer_bench import Correctness, Trace, Workload

    workload = Workload(uuid="w", axes={}, inputs={})
    assert Trace(definition="rows", workload=workload).is_workload_trace()
    passed = Trace(definition="rows", workload=workload, solution="one", evaluation=evaluation())
    assert (passed.is_workload_trace(), passed.is_successful()) == (False, True)
    figures = Correctness(max_absolute_error=math.inf, max_relative_error=math.nan)
    wrong = Trace(
        definition="rows",
        workload=workload,
        solution="one",
        evaluation=evaluation("INCORRECT_NUMERICAL", correctness=figures),
    )
    assert not wrong.is_successful()
    text = wrong.model_dump_json()
    assert '"Infinity"' in text
    assert '"NaN"' in text
    back = Trace.model_validate_json(text).evaluation.correctness
    assert math.isinf(back.max_absolute_error)
    assert math.isnan(back.max_relative_error)


def test_files_of_models_are_written_and_read_back(tmp_path):
    from flashinfer_bench.data import (
        Definition,
        Solution,
        append_jsonl_file,
        load_json_file,
        load_jsonl_file,
        save_json_file,
        save_jsonl_file,
    )

    save_json_file(definition(), tmp_path / "d.json")
    assert load_json_file(Definition, tmp_path / "d.json") == definition()
    save_jsonl_file([solution()], tmp_path / "s.jsonl")
    append_jsonl_file([solution(name="two")], tmp_path / "s.jsonl")
    assert [one.name for one in load_jsonl_file(Solution, tmp_path / "s.jsonl")] == ["one", "two"]


def test_dtypes_are_texts_that_equal_their_names():
    from flashinfer_bench.data.definition import DType

    assert definition().inputs["x"].dtype == "bfloat16" == DType.BFLOAT16


def test_folders_come_of_the_environment(monkeypatch, tmp_path):
    from flashinfer_bench.env import get_fib_cache_path, get_fib_dataset_path

    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "data"))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    assert (get_fib_dataset_path(), get_fib_cache_path()) == (tmp_path / "data", tmp_path / "cache")
    monkeypatch.delenv("FIB_CACHE_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert get_fib_cache_path() == tmp_path / ".cache" / "flashinfer_bench" / "cache"


def test_agents_get_texts_and_schemas(tmp_path):
    from flashinfer_bench import agents

    schemas = {entry["function"]["name"] for entry in agents.get_all_tool_schemas()}
    assert schemas == {
        "flashinfer_bench_list_ncu_options",
        "flashinfer_bench_run_ncu",
        "flashinfer_bench_run_sanitizer",
    }
    assert agents.flashinfer_bench_list_ncu_options(ncu_path=str(tmp_path / "no_ncu")).startswith("ERROR")
    assert agents.flashinfer_bench_run_ncu("nobody", "nothing", trace_set_path=str(tmp_path)).startswith("ERROR")
    assert len(agents.FFI_PROMPT) > len(agents.FFI_PROMPT_SIMPLE) > 100
    folder = agents.extract_solution_to_files(solution(), tmp_path / "out")
    packed = agents.pack_solution_from_files(folder, build_spec(), "one", "rows", "me")
    assert packed.hash() == solution().hash()

    def look(path: str, depth: int = 2) -> str:
        """Look at a file."""

    schema = agents.function_to_schema(look)
    assert (schema["type"], schema["function"]["name"]) == ("function", "look")
    assert schema["function"]["parameters"]["required"] == ["path"]
