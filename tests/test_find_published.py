"""The public data set is looked for where the environment says, else in a folder above the checkout."""

import pytest

from tests.kit.published import USUAL, VARIABLE, find_published


@pytest.fixture
def checkout(tmp_path):
    return tmp_path / "work" / "project"


def make_set(root):
    (root / "definitions").mkdir(parents=True)
    return root


def test_without_a_variable_it_is_the_one_nearest_to_the_checkout(tmp_path, checkout):
    make_set(tmp_path / USUAL)
    near = make_set(checkout.parent / USUAL)
    assert find_published(checkout, {}) == near


def test_a_variable_goes_before_what_lies_near(tmp_path, checkout):
    make_set(checkout.parent / USUAL)
    named = make_set(tmp_path / "elsewhere")
    assert find_published(checkout, {VARIABLE: str(named)}) == named


@pytest.mark.parametrize("environment", [{}, {VARIABLE: "/not/there"}], ids=["not named", "named in vain"])
def test_a_set_that_is_not_there_is_none(checkout, environment):
    assert find_published(checkout, environment) is None


def test_a_set_inside_the_checkout_is_not_taken(checkout):
    make_set(checkout / USUAL)
    assert find_published(checkout, {}) is None
