"""The rules besides the tolerance: zeros, lost rows, ill-conditioned rows, and how each rule is switched off."""

import math
from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity import stability
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule, find_limit, surely_pass
from flashinfer_bench.bench.evaluators.integrity.stability import STRESS_ROUNDING, Stability
from tests.bench.evaluators.judging import Judging, define, expect
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
RULE = NormRule(0.1, judges_output=True, row_rule="norm")
PRODUCT, SMALL = "return x @ w", "return x @ w * 1e-4"
INFINITE = "y = x @ w * 1e-4\ny[2, 3] = torch.inf\nreturn y"


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def judging(body, **settings):
    inputs, outputs = {"x": "float32[n, 32]", "w": "float32[32, 48]"}, {"y": "float32[n, 48]"}
    return Judging(define(inputs, body, outputs=outputs), {"n": 64}, **settings)


def coarse(x, w):
    return 1e-4 * (x.to(torch.float8_e4m3fn).float() @ w.to(torch.float8_e4m3fn).float())


def lost(x, w):
    return (x @ w).index_copy(0, torch.tensor(3), (x @ w)[4:5])


def with_a_row(by):
    return lambda x, w: x @ w * 1e-4 * torch.where(torch.arange(len(x)) == 3, by, 1.0)[:, None]


LOOSE = {"required_matched_ratio": 0.95, "extra": {"max_error_norm": 0.3}}


@pytest.mark.parametrize(
    ("body", "solution", "settings", "switch", "evidence"),
    [
        (SMALL, coarse, {}, None, None),
        (SMALL, with_a_row(1.09), {}, None, None),
        (SMALL, with_a_row(1.11), {}, "norm_rule", {"row": 3}),
        (SMALL, lambda x, w: x.new_zeros(len(x), 48), {}, "norm_rule", {"limit": 0.1}),
        (SMALL, lambda x, w: 2e-4 * (x[:, ::2] @ w[::2]), {}, "norm_rule", {"limit": 0.1}),  # values below atol
        (
            INFINITE,
            lambda x, w: (x @ w * 0).index_put((torch.tensor(2), torch.tensor(3)), torch.tensor(math.inf)),
            {},
            "norm_rule",
            {"limit": 0.1},
        ),
        (PRODUCT, lost, LOOSE, "lost_rows_rule", {"row": 3, "limit": 0.3}),
    ],
)
def test_values_and_rows_may_not_be_omitted_unless_the_rule_is_off(body, solution, settings, switch, evidence):
    verdict = judging(body, **settings).check(solution)
    expect(verdict, switch and f"rule {switch.removesuffix('_rule')!r}")
    if switch:
        assert verdict.integrity["evidence"].items() >= evidence.items()
        expect(judging(body, **settings, **{switch: False}).check(solution), None)


LIMITS = [("float32", 0.02, 0.2), ("float8_e4m3fn", 0.01, 0.2), ("float4_e2m1fn_x2", 0.01, 0.25)]


@pytest.mark.parametrize(("dtype", "rtol", "limit"), LIMITS)
def test_the_limit_follows_the_tolerance_and_the_dtypes(dtype, rtol, limit):
    assert find_limit(make_definition(inputs={"x": f"{dtype}[n]"}), rtol) == limit


WIDE, USUAL = Tolerance(rtol=1.0, atol=1.0), Tolerance(rtol=0.01, atol=0.01)
ROWS, LARGE = drawn(6, 64, seed=3), [JudgedCall([], [1e3 * drawn(6, 64)], [1e3 * drawn(6, 64)])]
BOOLS = [torch.full((64,), one, dtype=torch.uint8).view(torch.bool) for one in (1, 0xA5)]


def lose(value, at=2):
    changed = ROWS.clone()
    changed[at] = value
    return changed


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "passes"),
    [
        *((one, one, USUAL, True) for one in (ROWS, ROWS.int(), ROWS.to(torch.float8_e4m3fn), ROWS.mT, ROWS[:0])),
        *((ROWS, ROWS * 1.02, tolerance, not tolerance) for tolerance in (USUAL, None)),
        *(
            (ROWS, ROWS, replace(USUAL, **{name: 0.9}), False)
            for name in ("max_absolute_error", "required_matched_ratio")
        ),
        *((ROWS, lose(bad, (3, 5)), tolerance, False) for bad in (math.nan, math.inf) for tolerance in (USUAL, None)),
        (ROWS * 1e-4, ROWS * 0, USUAL, False),
        *((ROWS, lose(0.0), tolerance, False) for tolerance in (WIDE, None)),
        (lose(0.005 * ROWS[2]), lose(0.0), WIDE, True),  # a row far below the usual one
        *((ROWS[0, :1], ROWS[0, :1] * 0, tolerance, bool(tolerance)) for tolerance in (Tolerance(3.0, 3.0), None)),
        (ROWS.int(), ROWS.int() + 1, None, True),  # they have no norms
        (*BOOLS, USUAL, False),  # unwritten bytes
        (1e-3 * ROWS, 1.3e-3 * ROWS, WIDE, False),  # compared with its own norm, next to large calls
    ],
)
def test_a_call_next_to_right_calls_passes_the_quick_check_only_if_it_surely_passes(expected, got, tolerance, passes):
    for calls in [], LARGE * ((expected.shape, expected.dtype) == (ROWS.shape, ROWS.dtype)):
        found = surely_pass([*calls, JudgedCall([], [got], [expected])], RULE, tolerance)
        assert (found is not None) is passes


# Ill-conditioned rows of a call.


def find_ill_conditioned(reference, inputs, suspects, *shares, limit=0.1, rounding=STRESS_ROUNDING):
    stability = Stability(reference, inputs, reference(inputs), 1, rounding)
    return stability.find_ill_conditioned(0, limit, torch.as_tensor(suspects), *shares).tolist()


@pytest.mark.parametrize(
    ("suspects", "seconds", "found", "most"),
    [([True, False], 0, [True, False], 15), ([True, True], 0, [True, False], 16), ([True, True], 30, [True, True], 3)],
    ids=["at an edge", "well-conditioned", "too slow to blame a row"],
)
def test_draws_end_when_all_is_known_or_time_is_up(monkeypatch, suspects, seconds, found, most):
    ticks, calls = iter(range(10**6)), []
    monkeypatch.setattr(stability.time, "monotonic", lambda: seconds * next(ticks))

    def reference(inputs):
        calls.append(inputs)
        return [torch.where(inputs[0] - 1.0 > 0, 2.0, 1.0).expand(-1, 32).contiguous()]

    inputs = [torch.tensor([[1.001], [3.0]]), torch.arange(3), None, 0.5]
    assert find_ill_conditioned(reference, inputs, suspects) == found
    assert 1 <= len(calls) - 1 <= most


ONES = torch.eye(4).repeat_interleave(8, 1)
CHOICES = {
    "p.topk(1).indices[:, 0]": True,
    "p.max(dim=1).indices": True,
    "p.neg().argmin(dim=1)": True,
    "p.argsort(dim=1, descending=True, stable=True)[:, 0]": False,
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_row_in_which_the_chosen_value_ties_is_ill_conditioned(choice):
    saturated = torch.tensor([[30.0, 40.0, 50.0, 1.0], [5.0, 1.0, 3.0, 2.0]])
    reference = lambda inputs: [ONES[eval(choice, {"p": torch.sigmoid(inputs[0])})]]  # noqa: E731
    for shares in (None, torch.full((2,), 100.0)):
        assert find_ill_conditioned(reference, [saturated], [True, True], shares) == [CHOICES[choice], False]


@pytest.mark.parametrize(("wrong", "is_excused"), [(2, True), (60, False)])
def test_if_rows_tie_with_one_another_some_may_be_wrong_that_no_call_moved(wrong, is_excused):
    def reference(inputs):
        return [torch.ones(400, 16).index_fill(0, torch.sigmoid(inputs[0]).topk(1, dim=0).indices, 2.0)]

    suspects = torch.arange(400) >= 400 - wrong
    assert all(find_ill_conditioned(reference, [torch.full((400,), 50.0)], suspects)[-wrong:]) is is_excused


def test_a_reference_that_runs_under_no_mode_is_called_without_one():
    def picky(inputs):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise NotImplementedError("no rule registered for this mode")
        return [inputs[0].topk(1).values]

    outputs, has_chosen = stability.call_with_other_ties(picky, [torch.tensor([1.0, 3.0, 2.0])], seed=1)
    assert (outputs[0].tolist(), has_chosen) == ([3.0], False)
