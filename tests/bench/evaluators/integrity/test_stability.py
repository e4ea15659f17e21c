"""What the inputs of a call do not settle: found by rounding them, within time, and only as far as needed."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.integrity import stability
from flashinfer_bench.bench.evaluators.integrity.stability import (
    REGIME_ROUNDING,
    Stability,
    add_rounding,
    call_with_other_ties,
)

pytestmark = pytest.mark.cpu


def count_calls(suspects, *, times=1):
    """Return which of two rows, one at an edge, are not settled, and the draws."""
    calls = []

    def reference(inputs):
        calls.append(inputs)
        return [torch.where(inputs[0] - 1.0 > 0, 2.0, 1.0).expand(-1, 32).contiguous()]

    inputs = [torch.tensor([[1.001], [3.0]]), torch.arange(3), None, 0.5]
    looks = Stability(reference, inputs, reference(inputs), seed=1)
    found = [looks.find_unsettled(0, 0.1, torch.tensor(suspects)).tolist() for _ in range(times)]
    return found[-1], len(calls) - 1


def test_a_row_at_an_edge_is_not_settled_and_draws_end_or_are_kept_for_later_questions():
    found, draws = count_calls([True, False])
    assert found == [True, False]
    assert 1 <= draws < 16
    assert count_calls([True, True], times=2) == ([True, False], 16)


def test_a_reference_that_is_too_slow_blames_nobody(monkeypatch):
    ticks = iter(range(0, 10_000, 30))
    monkeypatch.setattr(stability.time, "monotonic", lambda: next(ticks))
    found, draws = count_calls([True, True])
    assert found == [True, True]
    assert draws < 4


def test_floats_of_8_bits_become_neighbours_of_theirs_and_stay_finite():
    value = torch.linspace(-3, 3, 4096).to(torch.float8_e4m3fn)
    value[0] = torch.finfo(value.dtype).max
    (found,) = add_rounding([value], REGIME_ROUNDING, 3)
    steps = (found.view(torch.uint8).int() - value.view(torch.uint8).int()).abs()
    assert 200 < int((steps > 0).sum()) < 3000
    assert int(steps.max()) <= 3
    assert found.float().isfinite().all()


def test_a_row_that_is_off_by_far_more_than_rounding_moves_it_is_judged_though_it_is_not_settled():
    def square(inputs):
        return [inputs[0] ** 2]

    x, suspects = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), torch.ones(4, dtype=torch.bool)
    shares = torch.tensor([0.2, 1.0, 8.0, 30.0])
    stress = Stability(square, [x], square([x]), 1, REGIME_ROUNDING)
    assert stress.find_unsettled(0, 0.05, suspects).all()
    assert stress.find_unsettled(0, 0.05, suspects, shares).tolist() == [True, True, False, False]
    usual = Stability(square, [x], square([x]), 1)
    assert usual.find_unsettled(0, 0.001, suspects, shares).all()


SATURATED = torch.tensor([[30.0, 40.0, 50.0, 1.0], [5.0, 1.0, 3.0, 2.0]])
ONES = torch.eye(4).repeat_interleave(8, 1)


@pytest.mark.parametrize(
    ("choice", "tied"),
    [
        ("p.topk(1).indices[:, 0]", True),
        ("p.max(dim=1).indices", True),
        ("p.neg().argmin(dim=1)", True),
        ("p.argsort(dim=1, descending=True, stable=True)[:, 0]", False),
    ],
)
def test_a_row_in_which_the_chosen_value_ties_is_not_settled(choice, tied):
    def reference(inputs):
        return [ONES[eval(choice, {"p": torch.sigmoid(inputs[0])})]]

    looks = Stability(reference, [SATURATED], reference([SATURATED]), 1, REGIME_ROUNDING)
    for shares in (None, torch.full((2,), 100.0)):
        assert looks.find_unsettled(0, 0.1, torch.ones(2, dtype=torch.bool), shares).tolist() == [tied, False]


@pytest.mark.parametrize(("wrong", "is_excused"), [(2, True), (60, False)])
def test_if_rows_tie_with_one_another_some_may_be_wrong_that_no_call_moved(wrong, is_excused):
    def reference(inputs):
        chosen = torch.sigmoid(inputs[0]).topk(1, dim=0).indices
        return [torch.ones(400, 16).index_fill(0, chosen, 2.0)]

    scores = torch.full((400,), 50.0)
    looks = Stability(reference, [scores], reference([scores]), 1, REGIME_ROUNDING)
    suspects = torch.arange(400) >= 400 - wrong
    assert bool(looks.find_unsettled(0, 0.1, suspects)[suspects].all()) is is_excused


def test_a_reference_that_runs_under_no_mode_is_called_without_one():
    def picky(inputs):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise NotImplementedError("no rule registered for this mode")
        return [inputs[0].topk(1).values]

    outputs, has_chosen = call_with_other_ties(picky, [torch.tensor([1.0, 3.0, 2.0])], seed=1)
    assert (outputs[0].tolist(), has_chosen) == ([3.0], False)
