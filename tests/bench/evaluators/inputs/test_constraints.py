"""Constraints of definitions: what is understood, and that nothing of a data set is executed."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.constraints import (
    check_constraints,
    find_broken_by_axes,
    find_strange_names,
)
from flashinfer_bench.errors import WorkloadFault
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

VALUES = {"n": 4, "m": 8, "scale": 0.5, "x": torch.zeros(4, 3), "indptr": torch.tensor([0, 2, 4]), "left_out": None}


@pytest.mark.parametrize(
    "constraint",
    [
        "m == 2 * n",
        "n < m <= 8",
        "x.shape[0] == n",
        "x.shape[-1] == 3",
        "len(x.shape) == 2 and x.ndim == 2",
        "n == indptr[-1].item()",
        "n == indptr[-1]",
        "(indptr[1:] >= indptr[:-1]).all()",
        "indptr.max() > x.max() and x == 0",
        "indptr.max().item() <= n",
        "not n > m or scale == 1",
        "n % 2 == 0",
        "m // n == 2 and m / n == 2.0 and n - m == -4",
    ],
)
def test_a_constraint_that_holds_passes_and_its_opposite_does_not(constraint):
    assert check_constraints([constraint], VALUES) == []
    with pytest.raises(WorkloadFault, match="does not hold"):
        check_constraints([f"not ({constraint})"], VALUES)


@pytest.mark.parametrize(
    "constraint",
    [
        "__import__('os').system('true') == 0",
        "x.__class__ == n",
        "x.tolist() == n",
        "[i for i in x] == n",
        "n ** m > 0",
        "left_out.shape[0] == n",
        "unknown == n",
        "x.shape[7] == n",
        "n.shape[0] == 1",
        "n / 0 == 1",
        "'a' == n",
    ],
)
def test_what_is_not_understood_is_reported_and_not_run(constraint):
    assert len(check_constraints([constraint], VALUES)) == 1


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        ("n >= 8", "'n >= 8' does not hold (4 and 8)"),
        ("len(x) == n + 1", "'len(x) == n + 1' does not hold (4 and 5)"),
        ("x.dim() == x.ndim + 1", "'x.dim() == x.ndim + 1' does not hold (2 and 3)"),
        ("n == 5 and x.max() < 3", "'n == 5 and x.max() < 3' does not hold"),
        ("n == 5 or x.max() < 3", None),
        ("x[0] == 5", None),
        ("left_out.shape[0] == 5", None),
    ],
)
def test_what_axes_alone_break_is_told_from_what_needs_values(constraint, told):
    definition = make_definition(
        axes={"n": None, "m": "half * 4", "half": "n // 2"},
        inputs={
            "x": "float32[n, 3]",
            "scale": "float32",
            "left_out": {"shape": ["n"], "dtype": "float32", "optional": True},
        },
        constraints=[constraint],
    )
    found = find_broken_by_axes(definition, make_workload(axes={"n": 4}, inputs={}))
    assert found == ({constraint: told} if told else {})


def test_axes_without_a_size_break_nothing():
    definition = make_definition(constraints=["n == 5"])
    assert find_broken_by_axes(definition, make_workload(axes={})) == {}


def test_names_that_a_definition_lacks_are_found():
    constraints = ["n <= token", "x.max() < n", "len(x) == n", "prod(x) > m"]
    definition = make_definition(constraints=constraints)
    assert find_strange_names(definition) == {"n <= token": ["token"], "prod(x) > m": ["m", "prod"]}
