"""Definitions that a library dumps: the readable parts are read, and a message says what to add."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.data import TraceSet
from tests.kit import make_definition

pytestmark = pytest.mark.cpu
REFERENCE = """import torch

def helper(x):
    return x

@torch.no_grad()
def _double_reference(x, **_unused):
    return helper(x) * 2
"""


def dumped(name: str, **changes: Any) -> dict[str, Any]:
    """Return a definition as a library dumps it; ... omits a key."""
    raw = {**make_definition(name).to_dict(), "tags": ["fi_api:lib.double"], "init": "def init(): ..."}
    return {key: value for key, value in {**raw, "reference": REFERENCE, **changes}.items() if value is not ...}


def load(tmp_path, *definitions):
    for raw in definitions:
        (tmp_path / f"{raw['name']}.json").write_text(json.dumps(raw, indent=1))
    return TraceSet.from_path(tmp_path)


def test_the_last_function_of_a_dump_is_its_reference(tmp_path):
    import torch

    loaded = load(tmp_path, dumped("a"))
    (y,) = Reference.compile(loaded.definitions["a"])([torch.ones(4)])
    assert y.tolist() == [2.0] * 4
    assert "'_double_reference', is taken as 'run'" in loaded.issues[0].reason
    assert "kept without effect: init" in loaded.issues[1].reason


@pytest.mark.parametrize("reference", [..., None, ""])
def test_a_dump_without_reference_loads_and_reports_the_missing_part(tmp_path, reference):
    loaded = load(tmp_path, dumped("a", reference=reference))
    assert not loaded.definitions["a"].is_runnable
    assert {issue.severity for issue in loaded.issues} == {"warning"}
    assert "no top-level function 'run'" in loaded.issues[-1].reason


def test_what_a_dump_does_not_know_is_taken_from_elsewhere_or_given_by_workloads(tmp_path):
    axes = {"n": {"type": "var"}, "page": {"type": "const"}}
    inputs = {"x": {"shape": ["n", "page", "block"], "dtype": "unknown", "optional": True}}
    outputs = {"x": {"shape": ["n"], "dtype": "float32"}}
    loaded = load(tmp_path, dumped("a", axes=axes, inputs=inputs, outputs=outputs))
    definition = loaded.definitions["a"]
    assert list(definition.outputs) == ["x_out"]
    assert (definition.inputs["x"].dtype, definition.inputs["x"].optional) == ("float32", True)
    assert definition.var_axes == ["n", "page", "block"]
    assert {"axes.page", "axes.block"} <= {issue.field for issue in loaded.issues}


def test_each_unknown_dtype_is_reported(tmp_path):
    inputs = {name: {"shape": ["n"], "dtype": "unknown"} for name in ("x", "i")}
    loaded = load(tmp_path, dumped("a", inputs=inputs), dumped("b"))
    assert list(loaded.definitions) == ["b"]
    errors = [issue for issue in loaded.issues if issue.severity == "error"]
    assert [(error.file.name, error.field) for error in errors] == [("a.json", f"inputs.{name}.dtype") for name in "xi"]
    assert "write its name there" in errors[0].reason


def test_a_definition_that_is_no_dump_keeps_its_own_names(tmp_path):
    raw = make_definition("a").to_dict() | {"reference": "def double(x):\n    return x * 2\n"}
    definition = load(tmp_path, raw).definitions["a"]
    assert (definition.is_runnable, definition.reference) == (False, raw["reference"])
