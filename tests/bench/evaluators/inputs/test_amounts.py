"""Computations that are turned round: which values an input may have, so that what comes of it is a valid index."""

import itertools

import pytest

from flashinfer_bench.bench.evaluators.inputs.integers.amounts import (
    LONGEST,
    Applied,
    Extent,
    Formula,
    Given,
    Reach,
    combine,
    evaluate,
    find_range,
)

pytestmark = pytest.mark.cpu

STEPS = {
    "+": lambda value, by: value + by,
    "*": lambda value, by: value * by,
    "//": lambda value, by: value // by,
    "%": lambda value, by: value % by,
    "negate": lambda value, by: -value,
    "least": max,
    "most": min,
}
CHAINS = [
    (Applied("+", 1, 1),),
    (Applied("+", -3, -3),),
    (Applied("*", 3, 3), Applied("+", 0, 2)),
    (Applied("//", 4, 4), Applied("+", 1, 1)),
    (Applied("//", 2, 4),),
    (Applied("negate"), Applied("+", 9, 9)),
    (Applied("+", -5, -5), Applied("least", 0, 0)),
    (Applied("+", -5, -5), Applied("most", 9, 9), Applied("least", 0, 0)),
    (Applied("*", 2, 2), Applied("negate"), Applied("//", 3, 3), Applied("+", 8, 8)),
    (Applied("+", 3, 3), Applied("%", 7, 7)),
    (Applied("+", 3, 3), Applied("%", 20, 20), Applied("+", 2, 2)),
    (Applied("%", 5, 5), Applied("+", -2, -2)),
    (Applied("%", 5, 7), Applied("+", -1, -1)),
]


def name_of(applied):
    return " ".join(f"{step.kind}{step.least}:{step.most}" for step in applied)


def is_valid(value, applied, size):
    """Whether all results of the computations are valid."""
    for amounts in itertools.product(*(range(step.least, step.most + 1) for step in applied)):
        result = value
        for step, by in zip(applied, amounts, strict=True):
            result = STEPS[step.kind](result, by)
        if not 0 <= result < size:
            return False
    return True


@pytest.mark.parametrize("applied", CHAINS, ids=name_of)
def test_all_values_of_a_range_are_valid_and_none_beside_it(applied):
    least, most = find_range(Reach(12, applied), lambda leaf: None)
    values = range(max(least, -40), min(most, 80) + 1)
    assert all(is_valid(value, applied, 12) for value in values)
    if "%" not in name_of(applied):
        assert not any(is_valid(value, applied, 12) for value in range(-40, 81) if value not in values)


def test_a_size_has_a_value_once_its_parts_have():
    size = combine("+", combine("*", Extent("t", 0), 2), Given("n"))
    assert evaluate(size, {Extent("t", 0): 5, Given("n"): 3}.get) == 13
    assert evaluate(size, {Extent("t", 0): 5}.get) is None
    assert evaluate(combine("//", 4, combine("-", Given("n"), 3)), {Given("n"): 3}.get) is None


def test_formulas_that_double_with_each_name_have_no_value():
    size = Extent("t", 0)
    for _ in range(100):
        size = combine("+", size, size)
    assert isinstance(size, Formula)
    assert size.parts <= LONGEST
    assert evaluate(size, lambda leaf: 1) is None


@pytest.mark.parametrize(
    "step", [Applied("*", 0, 0), Applied("//", -1, -1), Applied("%", 0, 0), Applied("+", 3, 1), Applied("most", -1, -1)]
)
def test_what_cannot_be_turned_round_has_no_range(step):
    assert find_range(Reach(12, (step,)), lambda leaf: None) is None
