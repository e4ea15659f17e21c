"""Rows whose norms differ by many powers of ten: once those that rounding moves are left out, the next ones count."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, find_excess, measure_outputs
from flashinfer_bench.bench.evaluators.integrity.stability import REGIME_ROUNDING, Stability

pytestmark = pytest.mark.cpu
RULE = NormRule(0.1, True, NORM)
ROWS = 32


def reference(inputs):
    (x,) = inputs
    return [torch.exp(x).sum(-1, keepdim=True) * torch.linspace(1, 2, 64)]


def spread(most):
    """Return inputs whose largest number grows from row to row up to `most`."""
    x = torch.randn(ROWS, 128, generator=torch.Generator().manual_seed(1))
    x[:, 0] = torch.linspace(1, most, ROWS)
    return x


def judge(x, got):
    expected = reference([x])
    stability = Stability(reference, [x], expected, seed=1, rounding=REGIME_ROUNDING)
    return find_excess(RULE, measure_outputs(expected, got), ["y"], stability)


@pytest.mark.parametrize("most", [20.0, 60.0, 85.0])
def test_exponentials_of_bfloat16_pass_whichever_row_outweighs_the_others(most):
    x = spread(most)
    rounded = x.bfloat16().float()
    assert judge(x, reference([rounded])) is None


@pytest.mark.parametrize("most", [20.0, 60.0, 85.0])
def test_half_of_the_work_is_found_in_the_rows_that_are_settled(most):
    x = spread(most)
    (got,) = reference([x])
    excess = judge(x, [got * 0.5])
    assert excess is not None
    assert excess.evidence["error_norm"] == pytest.approx(0.5)
