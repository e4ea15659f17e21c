"""Scripts that make and read the models of a set: every import as the public package's documents write it."""

from __future__ import annotations

import inspect

import pytest
from pydantic import BaseModel, RootModel

import flashinfer_bench
from flashinfer_bench import AxisConst, AxisVar, Definition, RandomInput, TensorSpec, TraceSet, Workload
from flashinfer_bench.data import ScalarInput
from flashinfer_bench.data.definition import DType
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.json_utils import load_json_file, load_jsonl_file, save_json_file, save_jsonl_file
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


def test_names_equal_the_names_in_files_and_documents():
    assert flashinfer_bench.__version__ == ".".join(map(str, flashinfer_bench.__version_tuple__))
    assert [member.value for member in DType] == list(DTYPES)
    assert GEMM.to_dict()["inputs"]["A"] == {"shape": ["M", "N"], "dtype": "float32"}
    workload = Workload(uuid="w0", axes={"M": 4}, inputs={"A": RandomInput(), "alpha": ScalarInput(value=2.0)})
    assert workload.to_dict()["inputs"]["alpha"] == {"type": "scalar", "value": 2.0}
    assert "environ(" not in str(inspect.signature(TraceSet.from_path))  # as help() shows it


def test_shapes_are_had_by_either_keyword_and_equal_lists_and_tuples():
    assert GEMM.get_input_shapes(var_axes_values={"M": 4}) == [[4, 16], [16, 16], None]
    (shape,) = GEMM.get_output_shapes({"M": 4})
    assert (shape == (4, 16), shape != [4, 17], hash(shape) == hash((4, 16)), shape == "no shape") == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (("a", "b"), {"B": "b", "alpha": 2}, "multiple values for argument 'B'"),
        (("a", "b"), {"alpha": 2, "alhpa": 3}, "unexpected keyword argument 'alhpa'"),
        (("a", "b"), {}, "no value for argument alpha"),
    ],
)
def test_arguments_that_do_not_fit_are_a_type_error(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        GEMM.merge_kwargs_to_args(args, kwargs)


class Note(BaseModel, strict=True):
    """A model of the script's own."""

    text: str
    position: tuple[int, int] = (1, 2)


class Numbers(RootModel[list[int]]):
    """A model of the script's own that is no object."""


@pytest.mark.parametrize("models", [[Note(text="one"), Note(text="two")], [Numbers([1, 2]), Numbers([])]])
def test_any_pydantic_model_is_saved_and_loaded(tmp_path, models):
    kind = type(models[0])
    save_json_file(models[0], tmp_path / "one.json")
    save_jsonl_file(models, tmp_path / "all.jsonl")
    assert load_json_file(kind, tmp_path / "one.json") == models[0]
    assert load_jsonl_file(kind, tmp_path / "all.jsonl") == models


@pytest.mark.parametrize("text", ["{", '{"text": 1}'])
def test_a_file_of_another_model_is_refused_with_its_location(tmp_path, text):
    (tmp_path / "notes.jsonl").write_text(f'{{"text": "fine"}}\n{text}\n')
    with pytest.raises(DataSetError, match=r"notes\.jsonl:2: "):
        load_jsonl_file(Note, tmp_path / "notes.jsonl")
    with pytest.raises(DataSetError, match="cannot be read"):
        load_json_file(Note, tmp_path)
