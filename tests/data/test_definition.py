"""Definitions: what is refused, how axes are bound, what the digest covers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import Definition
from tests.kit import make_definition


def _faults(**parts):
    with pytest.raises(ValidationError) as caught:
        make_definition(**parts)
    return {".".join(map(str, error["loc"])): error["msg"] for error in caught.value.errors()}


@pytest.mark.parametrize(
    ("parts", "place", "words"),
    [
        ({"name": ""}, "name", "at least 1"),
        ({"axes": {"n": -1}}, "axes.n.const.value", "greater than or equal to 0"),
        ({"inputs": {"x": "float32[m]"}}, "inputs.x.shape", "no axis 'm'"),
        ({"inputs": {"x": "float3[n]"}}, "inputs.x.dtype", "did you mean 'float32'"),
        ({"outputs": {"x": "float32[n]"}}, "outputs.x", "an input as well"),
        ({"reference": "def run(x:"}, "reference", "not Python"),
        ({"reference": "def run(x): pass\0"}, "reference", "not Python"),
        ({"constraints": ["n > 0", "n >"]}, "constraints.1", "not a Python expression"),
        ({"axes": {"n": None, "m": "k + 1"}}, "axes.m.expression", "there is no axis 'k'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_part_is_refused_at_its_place(parts, place, words):
    assert words in _faults(**parts)[place]


def test_everything_that_disagrees_is_found_at_once():
    faults = _faults(inputs={"x": "float32[m]"}, outputs={"x": "float32[k]"}, constraints=["("])
    assert sorted(faults) == ["constraints.0", "inputs.x.shape", "outputs.x", "outputs.x.shape"]


@pytest.mark.parametrize(
    ("parts", "shapes"),
    [
        ({"inputs": {"x": {"shape": ["n", 4, "2"], "dtype": "float32"}}}, [(3, 4, 2)]),
        ({"inputs": {"x": "float32[n]", "eps": "float32", "k": "int32[]"}}, [(3,), None, ()]),
        ({"axes": {"n": None, "m": "ceil_div(n, 2) + 1"}, "inputs": {"x": "float32[m]"}}, [(3,)]),
    ],
)
def test_shapes_follow_from_var_axes(parts, shapes):
    assert make_definition(outputs={}, **parts).get_input_shapes({"n": 3}) == shapes
    with pytest.raises(ValueError, match="no value for axis n"):
        make_definition().get_output_shapes({})


def test_const_and_var_axes_are_told_apart():
    definition = make_definition(axes={"n": None, "h": 4096, "m": "n * 2"})
    assert definition.const_axes == {"h": 4096}
    assert definition.var_axes == ["n"]


BIAS = {"shape": ["n"], "dtype": "float32", "optional": True}


@pytest.mark.parametrize(
    ("inputs", "shapes", "found"),
    [
        ({"x": "float32[n, h]", "w": "float32[h]"}, [(7, 4), (4,)], {"n": 7}),
        ({"x": "float32[n]", "bias": BIAS}, [(5,), None], {"n": 5}),
        ({"x": "float32[n]", "eps": "float32"}, [(5,), None], {"n": 5}),
        ({"x": "float32[n]", "w": "float32[n]"}, [(7,), (8,)], "axis 'n' is 7, got 8"),
        *(({"x": "float32[n, h]"}, shapes, "double") for shapes in ([(7, 5)], [(7,)], [None], [(7, 4), (4,)])),
    ],
)
def test_var_axes_are_bound_from_shapes(inputs, shapes, found):
    definition = make_definition(axes={"n": None, "h": 4}, inputs=inputs)
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            definition.get_axes_values(shapes)
    else:
        assert definition.get_axes_values(shapes) == found
        values = [None if shape is None else SimpleNamespace(shape=shape) for shape in shapes]
        assert definition.get_axes_values_from_inputs(values) == found


def test_a_definition_without_run_is_kept_and_not_runnable():
    definition = make_definition(reference="def helper(x): ...\ndef reference(x): return x")
    assert not definition.is_runnable
    assert "'reference'" in definition.not_runnable_reason


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("async def run(x):\n    return x", "async"),
        ("def run(x):\n    yield x", "generator"),
        ("class run:\n    def __call__(self, x):\n        return x", "class"),
        ("import torch as run", "module"),
        ("run = 3", "constant"),
        ("if __name__ == '__main__':\n    def run(x): ...", "no top-level function"),
    ],
)
def test_a_run_that_gives_no_tensors_is_refused_with_the_reason(reference, words):
    assert words in make_definition(reference=reference).not_runnable_reason


@pytest.mark.parametrize(
    ("parameters", "words"),
    [("", "too many"), ("x, k", "'k'"), ("x, *, k", "'k'"), ("x, k=1", None), ("*rest", None), ("*, x", None)],
)
def test_a_run_that_cannot_be_called_with_the_inputs_is_told(parameters, words):
    why = make_definition(reference=f"def run({parameters}): ...").why_no_call_works
    assert (why is None) if words is None else (words in why)


def test_a_definition_without_outputs_is_not_runnable():
    assert "no outputs" in make_definition(outputs={}).not_runnable_reason


@pytest.mark.parametrize(
    ("reference", "parameters"),
    [
        ("def run(a, b=1, *, c): pass", ["a", "b", "c"]),
        ("def run(*inputs): pass", None),
        ("def run(a, /): pass", None),
        ("def f(a): pass\nrun = f", None),
        ("from torch import matmul as run", None),
        ("if True:\n    def run(a): ...", ["a"]),
    ],
)
def test_parameters_of_the_reference_are_read_off_its_source(reference, parameters):
    definition = make_definition(reference=reference)
    assert definition.is_runnable
    assert definition.reference_parameters == parameters


def test_an_invalid_escape_in_a_reference_warns_nobody():
    assert make_definition(reference='def run(x):\n    "\\ "\n').is_runnable


@pytest.mark.parametrize(
    "change",
    [
        {"reference": "def run(x): return x + x"},
        {"op_type": "other"},
        {"axes": {"n": 4}},
        {"inputs": {"x": "float16[n]"}},
        {"constraints": ["n > 0"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_covers_what_decides_a_verdict(change):
    assert make_definition(**change).digest() != make_definition().digest()


def test_the_digest_knows_the_order_of_inputs_and_no_description():
    one = make_definition(inputs={"x": "float32[n]", "w": "float32[n]"})
    other = make_definition(inputs={"w": "float32[n]", "x": "float32[n]"})
    assert one.digest() != other.digest()
    assert one.digest() == one.model_copy(update={"description": "d", "tags": ["t"]}).digest()


def test_what_is_written_reads_back_equal_and_invents_nothing():
    definition = make_definition(axes={"n": None, "h": 4, "m": "n*h"}, vendor_key={"a": [1]})
    again = Definition.model_validate_json(definition.to_json())
    assert again == definition
    assert list(definition.to_dict()) == [
        "name", "op_type", "axes", "inputs", "outputs", "reference", "tags", "constraints", "vendor_key",
    ]  # fmt: skip
    assert definition.to_dict()["inputs"]["x"] == {"shape": ["n"], "dtype": "float32"}


@pytest.mark.parametrize(
    "parts",
    [
        {"axes": {"n": None, **{f"a{number}": "n + 1" for number in range(300)}}},
        {"axes": {"n": None, "a": f"min({', '.join(['n'] * 3_000)})"}},
        {"constraints": ["n"] * 300},
    ],
)
def test_more_expressions_than_a_person_writes_are_refused(parts):
    with pytest.raises(ValidationError, match=r"at most 256 items|longer than"):
        make_definition(**parts)


def test_only_the_first_faults_are_looked_up_and_reported():
    faults = _faults(inputs={f"x{number}": "float32[nn]" for number in range(1_500)})
    assert len(faults) == 20
    assert "no axis 'nn'; did you mean 'n'?" in faults["inputs.x0.shape"]
