"""Outputs that are the same on all usual inputs: which, and who is blamed elsewhere."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity.constants import differs, find_constants, find_left_out

pytestmark = pytest.mark.cpu

ZEROS, SOME = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 3, 0, 0])


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([[ZEROS], [ZEROS.clone()]], [0]),
        ([[SOME], [SOME.clone()]], [0]),
        ([[ZEROS], [SOME]], []),
        ([[ZEROS]], [0]),
        ([[SOME]], []),
        ([[torch.zeros(4), ZEROS.bool()], [torch.zeros(4), ZEROS.bool()]], [0, 1]),
        ([[torch.zeros(4)]], []),
        ([[torch.arange(4.0)], [torch.arange(4.0)]], []),
        ([[torch.full((4,), torch.inf)], [torch.full((4,), torch.inf)]], []),
        ([[ZEROS[:0]], [ZEROS[:0]]], []),
        ([], []),
    ],
)
def test_outputs_that_are_the_same_in_all_calls_are_constant(calls, found):
    assert list(find_constants(calls)) == found


def test_trials_that_share_what_is_expected_are_one_call():
    shared = [SOME]
    assert list(find_constants([shared, shared])) == []


def count_large(inputs):
    return [(inputs[0] > 8).sum(dim=-1)]


def look(solution, x):
    expected = count_large([x])
    return find_left_out({0: torch.zeros_like(expected[0])}, JudgedCall([x], [solution(x)], expected), count_large, 3)


X = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * 10


def test_zeros_for_a_count_are_found_and_counted():
    found = look(lambda x: torch.zeros(len(x), dtype=torch.int64), X)
    assert (found.output, found.wrong) == (0, found.changed)
    assert found.changed > 50


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_who_rounds_his_inputs_is_not_blamed(dtype):
    for seed in range(10):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed)) * 6
        assert look(lambda x: (x.to(dtype).float() > 8).sum(dim=-1), x) is None


def test_a_number_that_rounding_turns_blames_nobody():
    x = torch.full((1, 1), 8.01)
    assert look(lambda x: torch.zeros(1, dtype=torch.int64), x) is None
    assert look(lambda x: torch.zeros(1, dtype=torch.int64), x + 8) is not None


def test_an_output_that_stays_as_it_is_blames_nobody():
    assert look(lambda x: torch.ones(len(x), dtype=torch.int64), X.clamp(max=1)) is None


def test_a_reference_that_is_slow_blames_nobody():
    x, ticks = X, iter(range(0, 10_000, 20))
    expected = count_large([x])
    call = JudgedCall([x], [torch.zeros_like(expected[0])], expected)
    assert find_left_out({0: torch.zeros_like(expected[0])}, call, count_large, 3, lambda: next(ticks)) is None


def share_of_large(inputs):
    return [(inputs[0] > 8).float().mean(dim=-1)]


def test_zeros_for_a_share_are_found_and_roundings_of_one_are_not():
    expected = share_of_large([X])
    usual = {0: torch.zeros_like(expected[0])}
    for got, is_found in ((usual[0], True), (expected[0] * 1.03, False), (expected[0] * 0.97, False)):
        found = find_left_out(usual, JudgedCall([X], [got], expected), share_of_large, 3)
        assert (found is not None) is is_found


@pytest.mark.parametrize(
    ("value", "usual", "does"),
    [(0.0, 0.0, False), (1e-40, 0.0, False), (1e-9, 0.0, True), (1.001, 1.0, False), (0.9, 1.0, True)],
)
def test_a_float_differs_by_more_than_rounding(value, usual, does):
    assert bool(differs(torch.tensor([value]), torch.tensor([usual]))) is does
    assert bool(differs(torch.tensor([torch.nan]), torch.tensor([usual])))
