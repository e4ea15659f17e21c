"""How an entry function may be called, read from what each binding tells."""

import pytest

from flashinfer_bench.worker.load import read_pybind_signature, read_tvm_schema

NAMED = (
    '{"type":"ffi.Function","named_args":{"return":[{"type":"None"}],"params":[{"type":"DLTensor*"},{"type":"int"}]}}'
)
PLAIN = '{"type":"ffi.Function","args":[{"type":"ffi.Array","args":[{"type":"ffi.Tensor"}]},{"type":"ffi.Tensor"}]}'


@pytest.mark.parametrize(
    ("doc", "counts"),
    [
        ("run(arg0: torch.Tensor, arg1: torch.Tensor) -> None\n", (2, 2)),
        ("run() -> None", (0, 0)),
        ("run(x: Tuple[int, List[int]], y: int = 3, z: str = 'a') -> Dict[str, int]\n\nWords.", (1, 3)),
        ("run(x: int, *args, **kwargs) -> object", (1, None)),
    ],
)
def test_a_docstring_of_pybind11_tells_how_many_arguments(doc, counts):
    signature = read_pybind_signature(doc)
    assert (signature.minimum, signature.maximum) == counts


@pytest.mark.parametrize("doc", ["", "words", "run(*args, **kwargs) -> x\nOverloaded function.\n\n1. run(a: int) -> x"])
def test_other_docstrings_tell_nothing(doc):
    assert read_pybind_signature(doc) is None


def test_both_forms_of_tvm_ffis_metadata_are_read():
    assert read_tvm_schema(NAMED) == (["DLTensor*", "int"], "None")
    assert read_tvm_schema(PLAIN) == (["ffi.Tensor"], "ffi.Array")


@pytest.mark.parametrize("schema", [None, "", "[]", "{}", '{"args":[]}', '{"args":[1]}', '{"type":"ffi.Function"}'])
def test_metadata_that_is_missing_or_odd_tells_nothing(schema):
    assert read_tvm_schema(schema) == (None, None)
