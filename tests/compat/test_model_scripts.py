"""Scripts that make and read the models of a set: every import as the public package's documents write it."""

from __future__ import annotations

import inspect

import pytest
from pydantic import BaseModel

import flashinfer_bench
from flashinfer_bench import (
    AxisConst,
    AxisVar,
    Definition,
    RandomInput,
    TensorSpec,
    Workload,
)
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


def test_the_version_is_a_text_and_a_tuple():
    assert flashinfer_bench.__version__ == ".".join(map(str, flashinfer_bench.__version_tuple__))


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


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (("a", "b"), {"B": "b", "alpha": 2}, "multiple values for argument 'B'"),
        (("a", "b", 2, "c", "d"), {}, "too many positional arguments"),
        (("a", "b"), {"alpha": 2, "alhpa": 3}, "unexpected keyword argument 'alhpa'"),
        (("a", "b"), {}, "no value for argument alpha"),
    ],
)
def test_arguments_that_do_not_fit_are_a_type_error(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        GEMM.merge_kwargs_to_args(args, kwargs)


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
