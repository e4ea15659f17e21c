"""The table of dtypes against torch, and the nearest known name."""

from __future__ import annotations

import pytest

from flashinfer_bench.data.dtypes import DTYPES, check_dtype, torch_dtype
from flashinfer_bench.data.names import did_you_mean, nearest_name
from tests.kit import make_definition


@pytest.mark.cpu
@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_has_the_size_and_kind_that_torch_gives_it(name):
    import torch

    found, entry = torch_dtype(name), DTYPES[name]
    assert found.itemsize * 8 == (8 if name == "float4_e2m1" else entry.bits)
    assert found.is_floating_point == (entry.kind == "float")
    assert (found == torch.bool) == (entry.kind == "bool")


@pytest.mark.cpu
def test_a_definition_gives_the_torch_dtypes_of_its_inputs_and_outputs():
    import torch

    definition = make_definition(inputs={"x": "bfloat16[n]", "k": "int32"}, outputs={"y": "float4_e2m1[n]"})
    assert definition.torch_input_dtypes == [torch.bfloat16, torch.int32]
    assert definition.torch_output_dtypes == [torch.float4_e2m1fn_x2]


def test_an_unknown_dtype_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'bfloat16'"):
        check_dtype("bfloat61")


def test_the_nearest_name_may_be_none():
    assert nearest_name("Gemm_N128", ["gemm_n128", "rope"]) == "gemm_n128"
    assert did_you_mean("zzz", ["gemm_n128", "rope"]) == ""
