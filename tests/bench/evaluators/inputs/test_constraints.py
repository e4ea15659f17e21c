"""Constraints of definitions: what is understood, and that nothing of a data set is executed."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.constraints import check_constraints
from flashinfer_bench.errors import WorkloadFault

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


def test_all_broken_constraints_are_named():
    with pytest.raises(WorkloadFault) as fault:
        check_constraints(["n == 5", "n == 4", "m == 9"], VALUES)
    assert "'n == 5'" in str(fault.value)
    assert "'m == 9'" in str(fault.value)
    assert "'n == 4'" not in str(fault.value)
