"""Scripts that make and read the models of a set: every import as the public package's documents write it."""

from __future__ import annotations

import inspect
import math

import pytest
from pydantic import BaseModel, ValidationError

import flashinfer_bench
from flashinfer_bench import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    SupportedLanguages,
    TensorSpec,
    Workload,
)
from flashinfer_bench.data import AxisSpec, InputSpec, ScalarInput
from flashinfer_bench.data.definition import DType
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.json_utils import load_json_file, load_jsonl_file, save_json_file, save_jsonl_file
from flashinfer_bench.data.trace import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import DataSetError

GEMM = Definition(
    name="gemm_n16",
    op_type="gemm",
    axes={"M": AxisVar(), "N": AxisConst(value=16)},
    inputs={
        "A": TensorSpec(shape=["M", "N"], dtype=DType.FLOAT32),
        "B": TensorSpec(shape=["N", "N"], dtype="float32"),
        "alpha": TensorSpec(shape=None, dtype="float32"),
    },
    outputs={"C": TensorSpec(shape=["M", "N"], dtype="float32")},
    reference="def run(A, B, alpha):\n    return alpha * (A @ B)\n",
)


def make_solution(content="def run(A, B, alpha):\n    return alpha * (A @ B)\n", **changes):
    spec = BuildSpec(
        language=SupportedLanguages.PYTHON,
        target_hardware=["cpu"],
        entry_point="main.py::run",
        destination_passing_style=False,
    )
    parts = {"name": "mine", "definition": "gemm_n16", "author": "me", "spec": spec} | changes
    return Solution(sources=[SourceFile(path="main.py", content=content)], **parts)


def test_the_version_is_a_text_and_a_tuple():
    assert flashinfer_bench.__version__ == ".".join(map(str, flashinfer_bench.__version_tuple__))


def test_kinds_of_axes_and_inputs_can_be_told_by_isinstance():
    assert all(isinstance(axis, AxisSpec) for axis in GEMM.axes.values())
    assert isinstance(RandomInput(), InputSpec)
    assert isinstance(ScalarInput(value=2), InputSpec)
    assert not isinstance(GEMM, AxisSpec)


def test_dtypes_are_members_with_the_names_of_files():
    assert [member.value for member in DType] == list(DTYPES)
    assert type(GEMM.inputs["A"].dtype) is str
    assert GEMM.inputs["A"].dtype == DType.FLOAT32 == "float32"
    assert GEMM.to_dict()["inputs"]["A"] == {"shape": ["M", "N"], "dtype": "float32"}


def test_shapes_are_had_by_either_keyword_and_equal_lists_and_tuples():
    assert GEMM.get_input_shapes(var_axes_values={"M": 4}) == [[4, 16], [16, 16], None]
    assert GEMM.get_output_shapes(var_axes_values={"M": 4}) == GEMM.get_output_shapes({"M": 4}) == [(4, 16)]
    (shape,) = GEMM.get_output_shapes({"M": 4})
    assert (shape != [4, 17], hash(shape) == hash((4, 16)), shape == "no shape") == (True, True, False)
    with pytest.raises(TypeError, match="two names"):
        GEMM.get_output_shapes({"M": 4}, var_axes_values={"M": 4})


def test_axes_are_bound_from_inputs_by_keyword_and_the_script_learns_where_from():
    class Tensor:
        def __init__(self, *shape):
            self.shape = shape

    assert GEMM.get_axes_values_from_inputs(inputs=[Tensor(4, 16), Tensor(16, 16), 2.0]) == {"M": 4}
    assert GEMM.var_axes_bindings == {"M": ("A", 0)}


def test_arguments_by_name_are_put_behind_those_by_position():
    assert GEMM.merge_kwargs_to_args(("a",), {"alpha": 2, "B": "b"}) == ("a", "b", 2)
    assert GEMM.merge_kwargs_to_args((), {"C": "c", "alpha": 2, "B": "b", "A": "a"}) == ("a", "b", 2, "c")


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (("a", "b"), {"B": "b", "alpha": 2}, "'B' is given twice"),
        (("a", "b", 2, "c", "d"), {}, "takes 4 arguments"),
        (("a", "b"), {"alpha": 2, "alhpa": 3}, "no argument 'alhpa'.*alpha"),
        (("a", "b"), {}, "no value for argument alpha"),
    ],
)
def test_arguments_that_do_not_fit_are_a_type_error(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        GEMM.merge_kwargs_to_args(args, kwargs)


def test_solutions_can_be_put_into_sets_and_are_equal_by_content():
    assert len({make_solution(), make_solution()}) == 1
    assert make_solution() == make_solution()
    assert make_solution() != make_solution(content="def run(A, B, alpha):\n    return A\n")
    assert make_solution().hash() == make_solution(author="other").hash()
    assert make_solution() != "mine"


def test_a_unique_name_follows_from_the_content():
    first, other = make_solution().with_unique_name(), make_solution("def run(): ...").with_unique_name()
    assert first == make_solution().with_unique_name()
    assert first.name.startswith("mine_")
    assert first.name != other.name
    assert first.hash() == make_solution().hash()


@pytest.mark.parametrize(
    "spec", [{"entry_point": "main.py::a::run"}, {"target_hardware": []}], ids=lambda spec: next(iter(spec))
)
def test_a_build_spec_that_says_nothing_of_use_is_refused(spec):
    given = {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"}
    with pytest.raises(ValidationError, match=next(iter(spec))):
        BuildSpec(**{**given, **spec})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Correctness(max_relative_error=-1),
        lambda: Correctness(max_absolute_error=-1e-9),
        lambda: Environment(hardware=""),
        lambda: Performance(latency_ms=-1.0),
    ],
)
def test_impossible_results_are_refused(make):
    with pytest.raises(ValidationError):
        make()


def test_an_evaluation_needs_no_log_and_errors_may_be_nan():
    evaluation = Evaluation(
        status=EvaluationStatus.INCORRECT_NUMERICAL,
        timestamp="2025-01-02T03:04:05Z",
        environment=Environment(hardware="cpu"),
        correctness=Correctness(max_absolute_error=math.nan, max_relative_error=math.inf),
    )
    assert evaluation.log == ""
    assert evaluation.to_dict()["log"] == ""
    assert evaluation.to_dict()["correctness"]["max_absolute_error"] == "NaN"


class Note(BaseModel):
    """A model of the script's own."""

    text: str


def test_any_pydantic_model_is_saved_and_loaded(tmp_path):
    save_json_file(Note(text="one"), tmp_path / "note.json")
    save_jsonl_file([Note(text="one"), Note(text="two")], tmp_path / "notes.jsonl")
    assert load_json_file(Note, tmp_path / "note.json") == Note(text="one")
    assert load_jsonl_file(Note, tmp_path / "notes.jsonl") == [Note(text="one"), Note(text="two")]
    save_json_file(GEMM, tmp_path / "gemm.json")
    assert load_json_file(Definition, tmp_path / "gemm.json") == GEMM


@pytest.mark.parametrize("text", ["{", '{"text": 1}'])
def test_a_file_of_another_model_is_refused_with_its_place(tmp_path, text):
    path = tmp_path / "notes.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{text}\n')
    with pytest.raises(DataSetError, match=r"notes\.jsonl:2 cannot be used"):
        load_jsonl_file(Note, path)
    with pytest.raises(DataSetError, match="cannot be used"):
        load_json_file(Note, tmp_path)


def test_a_workload_is_made_as_documents_show_it():
    workload = Workload(uuid="w0", axes={"M": 4}, inputs={"A": RandomInput(), "alpha": ScalarInput(value=2.0)})
    assert workload.to_dict()["inputs"]["alpha"] == {"type": "scalar", "value": 2.0}


def test_no_signature_of_the_package_shows_the_environment():
    from flashinfer_bench.data import TraceSet  # as help() looks at it

    assert "environ(" not in str(inspect.signature(TraceSet.from_path))
