"""The table of dtypes against torch, and the nearest known name."""

from __future__ import annotations

import random

import pytest

from flashinfer_bench.data.dtypes import DTYPES, check_dtype, torch_dtype, why_not_held
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


def test_one_slip_among_thousands_of_long_names_is_found():
    words = random.Random(1)
    known = ["_".join(words.choices(["gemm", "cuda", "fused", "rms", "h4096", "decode"], k=12)) for _ in range(1_999)]
    assert nearest_name("Fused_rope_qukv_h4096", [*known, "fused_rope_qkv_h4096"]) == "fused_rope_qkv_h4096"
    assert nearest_name(f"{known[1_500]}x", known) == known[1_500]


@pytest.mark.parametrize(
    ("name", "held", "others"),
    [
        ("uint8", [0, 255, 7.0, True], [-1, 256, 1.5, float("nan"), float("inf"), 1e300]),
        ("int32", [-(2**31), 2**31 - 1], [2**31, 2**40, -(2**31) - 1, float("-inf")]),
        ("uint64", [2**64 - 1], [2**64, -1, 10**400]),
        ("float16", [65504, -65504.0, float("inf"), float("nan")], [70000.0, 65505, -(10**400)]),
        ("float8_e4m3fn", [448, float("nan")], [449, float("inf")]),
        ("float64", [1e308, float("-inf")], [10**400]),
        ("bool", [True, False], [2, 1, 0.0]),
    ],
)
def test_a_dtype_says_which_numbers_it_does_not_hold(name, held, others):
    assert [why_not_held(name, value) for value in held] == [None] * len(held)
    assert all(name in (why_not_held(name, value) or "") for value in others)
