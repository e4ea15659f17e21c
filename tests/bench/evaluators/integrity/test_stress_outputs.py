"""Outputs on stress inputs: who is blamed for those that usual inputs never change, and which rows are judged."""

from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks, find_constants, keep_finite
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
INF, NAN = float("inf"), float("nan")
ZEROS, SOME = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 3, 0, 0])


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([[SOME], [SOME.clone()]], [0]),
        ([[ZEROS]], [0]),
        ([[SOME]], []),
        ([[SOME]] * 2, []),  # where memory is short, trials share what is expected
        ([[ZEROS.float(), ZEROS.bool()], [ZEROS.float(), ZEROS.bool()]], [0, 1]),
        ([[ZEROS.float()]], []),
        ([[ZEROS + INF], [ZEROS + INF]], []),
        ([], []),
    ],
)
def test_outputs_that_are_the_same_in_all_calls_are_constant(calls, found):
    calls[1:] = [call if call[0] is SOME else [one.clone() for one in call] for call in calls[1:]]
    assert list(find_constants(calls)) == found


def count_large(inputs):
    return [(inputs[0] > 8).sum(dim=-1)]


def share_of_large(inputs):
    return [(inputs[0] > 8).float().mean(dim=-1)]


CHECKS = StressChecks(make_definition(), NormRule(0.1, judges_output=True, row_rule=None))


def context_of(reference):
    return JudgeContext(3, Path(), reference, profile_baseline=False, measure_reference=None, notes={})


def look(solution, x, reference=count_large):
    expected = reference([x])
    call, usual = JudgedCall([x], [solution(x)], expected), {0: torch.zeros_like(expected[0])}
    verdict = CHECKS.judge_constants("larger", call, usual, context_of(reference))
    return verdict.integrity["evidence"] if isinstance(verdict, Rejected) else None


def zeros(x):
    return torch.zeros(len(x), dtype=torch.int64)


X = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * 10


def test_zeros_for_a_count_or_a_share_are_found_and_counted():
    found = look(zeros, X)
    assert (found["output"], found["regime"], found["wrong"]) == ("y", "larger", found["changed"])
    assert found["changed"] > 50
    for factor, is_found in ((0.0, True), (NAN, False), (1.03, False), (0.97, False)):
        assert (look(lambda x, by=factor: share_of_large([x])[0] * by, X, share_of_large) is not None) is is_found


@pytest.mark.parametrize(
    ("solution", "x", "is_blamed"),
    [
        *((lambda x, to=dtype: count_large([x.to(to).float()])[0], X[:, :8], False)
          for dtype in (torch.bfloat16, torch.float8_e4m3fn)),
        (zeros, torch.full((1, 1), 8.01), False),  # rounding turns it
        (zeros, torch.full((1, 1), 16.01), True),
        (lambda x: zeros(x) + 1, X.clamp(max=1), False),  # the reference's stays as it is
    ],
)  # fmt: skip
def test_who_rounds_his_inputs_is_not_blamed(solution, x, is_blamed):
    assert (look(solution, x) is not None) is is_blamed


def spoil(*places, by=INF):
    value = torch.ones(6, 16)
    for row, column in places:
        value[row, column] = by
    return value


ROWS = range(6)
USUAL = [[spoil()]]
MASKED = spoil(*((row, 0) for row in ROWS), by=-INF)
MASKS = [[spoil((0, 0), by=-INF)], [spoil((0, 1), by=-INF)]]


@pytest.mark.parametrize(
    ("expected", "got", "usual", "kept"),
    [
        *((spoil((1, 3), by=NAN), spoil((4, 0), by=by), USUAL, [row not in (1, 4) for row in ROWS])
          for by in (NAN, INF)),
        *((spoil((1, 3), by=by), spoil((4, 0)), USUAL, [False] * 6) for by in (INF, -INF)),  # it overflows
        (spoil((3, 3), (4, 4)), spoil(), [[spoil((0, 0))], [spoil((1, 1), (2, 2), by=NAN)]], None),  # as usual
        (MASKED, MASKED, MASKS, None),  # infinities that are meant
        (MASKED + spoil((2, 5), by=NAN), MASKED, MASKS, [row != 2 for row in ROWS]),
        (MASKED + spoil((3, 5)), MASKED, MASKS, [False] * 6),
    ],
)  # fmt: skip
def test_rows_in_which_either_is_not_finite_are_left_out(expected, got, usual, kept):
    part = keep_finite(JudgedCall([], [got], [expected]), context_of(lambda inputs: [expected * 2]), usual)
    if kept is None:
        assert part is None
        return
    call, context = part
    for value, all_rows in ((call.expected, expected), (call.got, got), (context.reference([]), expected * 2)):
        torch.testing.assert_close(value[0], all_rows[kept], equal_nan=True)
