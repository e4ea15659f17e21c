"""Definitions: refused parts, binding of axes, the digest, the dtypes, and the nearest known name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.check import find_reference_issues
from flashinfer_bench.data.dtypes import DTYPES, check_dtype, torch_dtype, why_not_held
from flashinfer_bench.data.names import did_you_mean, nearest_name
from tests.kit import make_definition


def _faults(**parts):
    with pytest.raises(ValidationError) as caught:
        make_definition(**parts)
    return {".".join(map(str, error["loc"])): error["msg"] for error in caught.value.errors()}


@pytest.mark.parametrize(
    ("parts", "location", "words"),
    [
        ({"axes": {"n": -1}}, "axes.n.const.value", "greater than or equal to 0"),
        ({"inputs": {"x": "float3[n]"}}, "inputs.x.dtype", "did you mean 'float32'"),
        ({"reference": "def run(x): pass\0"}, "reference", "not Python"),
        ({"reference": f"def run(x: {'+'.join('1' * 2_000)}): pass"}, "reference", "not Python"),
        ({"axes": {"n": None, "m": "k + 1"}}, "axes.m.expression", "there is no axis 'k'"),
        ({"constraints": ["n"] * 300}, "constraints", "at most 256 items"),
        ({"axes": {"n": None, "a": f"min({', '.join(['n'] * 3_000)})"}}, "axes.a.expression", "longer than"),
    ],
)
def test_a_wrong_part_is_refused_at_its_location(parts, location, words):
    assert words in _faults(**parts)[location]


def test_everything_that_disagrees_is_found_at_once_up_to_a_limit():
    faults = _faults(inputs={"x": "float32[m]"}, outputs={"x": "float32[k]"}, constraints=["("])
    assert sorted(faults) == ["constraints.0", "inputs.x.shape", "outputs.x", "outputs.x.shape"]
    faults = _faults(inputs={f"x{number}": "float32[nn]" for number in range(1_500)})
    assert len(faults) == 20
    assert "no axis 'nn'; did you mean 'n'?" in faults["inputs.x0.shape"]
    assert "at most 256 items" in _faults(axes={f"a{number}": "1" for number in range(300)})["axes"]


BIAS = {"shape": ["n"], "dtype": "float32", "optional": True}


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([(7, 4), None, None], {"n": 7}),
        ([(7, 4), (8,), None], "axis 'n' is 7, got 8"),
        ([(7, 5), None, None], "axis 'h' is 4, got 5"),
        ([(7,), None, None], "should have shape"),
        ([(7, 4)], "has 3 inputs"),
    ],
)
def test_var_axes_are_bound_from_shapes(shapes, found):
    inputs = {"x": "float32[n, h]", "bias": BIAS, "eps": "float32"}
    definition = make_definition(axes={"n": None, "h": 4}, inputs=inputs)
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            definition.get_axes_values(shapes)
    else:
        assert definition.get_axes_values(shapes) == found
    with pytest.raises(ValueError, match="no value for axis n"):
        definition.get_output_shapes({})


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"outputs": {}}, "no outputs"),
        ({"reference": "def helper(x): ...\ndef reference(x): return x"}, "'reference'"),
        *(
            ({"reference": reference}, words)
            for reference, words in (
                ("async def run(x):\n    return x", "async"),
                ("def run(x):\n    yield x", "generator"),
                ("class run:\n    def __call__(self, x):\n        return x", "class"),
                ("import torch as run", "module"),
                ("run = 3", "constant"),
                ("if __name__ == '__main__':\n    def run(x): ...", "no top-level function"),
            )
        ),
    ],
)
def test_a_definition_that_gives_no_tensors_is_kept_with_the_reason(parts, words):
    assert words in make_definition(**parts).not_runnable_reason


@pytest.mark.parametrize(
    ("parameters", "words"),
    [("", "too many"), ("x, *, k", "'k'"), ("x, k=1", None), ("*rest", None), ("*, x", None)],
)
def test_a_run_that_cannot_be_called_with_the_inputs_is_told(parameters, words):
    trace_set = TraceSet()
    issues = find_reference_issues(trace_set, [make_definition(reference=f"def run({parameters}): ...")])
    reported = [issue.reason for issue in issues if issue.severity == "error"]
    assert (reported == []) if words is None else (words in reported[0])


def test_the_digest_covers_exactly_the_parts_that_decide_a_verdict():
    first = make_definition(inputs={"x": "float32[n]", "w": "float32[n]"})
    changes = [
        {"inputs": {"w": "float32[n]", "x": "float32[n]"}},
        {"reference": "def run(x): return x + x"},
        {"op_type": "other"},
        {"axes": {"n": 4}},
        {"constraints": ["n > 0"]},
    ]
    others = [make_definition(**{"inputs": first.to_dict()["inputs"], **change}) for change in changes]
    assert len({definition.digest() for definition in (first, *others)}) == 6
    assert first.digest() == first.model_copy(update={"description": "d", "tags": ["t"]}).digest()


@pytest.mark.cpu
@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_has_the_size_and_kind_that_torch_gives_it(name):
    import torch

    found, entry = torch_dtype(name), DTYPES[name]
    assert found.itemsize * 8 == (8 if name == "float4_e2m1" else entry.bits)
    assert found.is_floating_point == (entry.kind == "float")
    assert (found == torch.bool) == (entry.kind == "bool")


def test_an_unknown_name_is_refused_with_the_nearest_also_among_thousands():
    with pytest.raises(ValueError, match="did you mean 'bfloat16'"):
        check_dtype("bfloat61")
    assert nearest_name("Gemm_N128", ["gemm_n128", "rope"]) == "gemm_n128"
    assert did_you_mean("zzz", ["gemm_n128", "rope"]) == ""
    known = [f"{word}_{number}_h4096" for word in ("gemm", "fused_rms", "decode") for number in range(600)]
    assert nearest_name("Fused_rope_qukv_h4096", [*known, "fused_rope_qkv_h4096"]) == "fused_rope_qkv_h4096"


@pytest.mark.parametrize(
    ("name", "held", "others"),
    [
        ("uint8", [0, 255, 7.0, True], [-1, 256, 1.5, float("nan"), float("inf")]),
        ("float16", [65504, float("inf"), float("nan")], [70000.0, 65505, -(10**400)]),
        ("bool", [True, False], [2, 1, 0.0]),
    ],
)
def test_a_dtype_says_which_numbers_it_does_not_hold(name, held, others):
    assert [why_not_held(name, value) for value in held] == [None] * len(held)
    assert all(name in (why_not_held(name, value) or "") for value in others)
