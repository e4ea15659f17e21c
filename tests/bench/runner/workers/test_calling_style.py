"""The calling style of a solution that does not declare it, from its signature, its text, or a call."""

import re

import pytest
import torch

from flashinfer_bench.bench.runner.workers.calling_style import choose_style
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.load import describe_signature
from flashinfer_bench.worker.protocol import Signature

pytestmark = pytest.mark.cpu
NAMES = {"inputs": ["a", "b"], "outputs": ["y"]}


def sign(minimum, maximum):
    return Signature(text="(...)", minimum=minimum, maximum=maximum)


@pytest.mark.parametrize(
    ("signature", "declared", "style"),
    [
        (sign(3, 3), None, "dps"),
        (sign(2, 3), None, "value"),
        (sign(0, None), False, "value"),
        (sign(3, None), None, "dps"),
        (None, None, "dps"),
        (None, False, "value"),
    ],
)
def test_the_declared_style_decides_and_else_the_arity(signature, declared, style):
    chosen = choose_style(signature, **NAMES, declared=declared, is_python=False)
    assert chosen.is_known
    assert chosen.style == style
    assert (chosen.to_note() is None) == (declared is not None)


@pytest.mark.parametrize(
    ("signature", "declared", "expected"),
    [
        (sign(2, 2), True, "(a, b, y)"),
        (sign(3, 3), False, "(a, b)"),
        (sign(4, 5), None, "(a, b) or (a, b, y)"),
    ],
)
def test_a_signature_that_fits_no_style_shows_both(signature, declared, expected):
    words = f"the entry function takes (...), not the definition's arguments {expected}"
    with pytest.raises(SolutionFailure, match=f"{re.escape(words)}$"):
        choose_style(signature, **NAMES, declared=declared, is_python=True)


def takes_inputs(a, b, *args, **kwargs):
    """Takes further arguments, too."""


def takes_all(a, b, y, *args, **kwargs):
    """Takes further arguments, too."""


def takes_others(first, second, *more):
    """Has names of its own."""


BY_NAMES, BY_NUMBER = "its parameters are the inputs", "the number of its parameters"


@pytest.mark.parametrize(
    ("function", "style", "told_by"),
    [
        (takes_inputs, "value", BY_NAMES),
        (takes_all, "dps", BY_NUMBER),
        *((one, None, None) for one in (lambda *args: args[0], takes_others)),  # a call has to tell
    ],
)
def test_any_number_of_arguments_leaves_it_to_names(function, style, told_by):
    chosen = choose_style(describe_signature(function), **NAMES, declared=None, is_python=True)
    assert chosen.is_known is (style is not None)
    assert style is None or chosen.to_note() == {"style": style, "told_by": told_by}


def test_a_solution_that_fails_in_both_styles_reports_its_first_call(open_kernel):
    source = "def fail(*args):\n    raise ValueError(len(args))\nrun = lambda *args: fail(*args)"
    with open_kernel(source) as kernel, pytest.raises(SolutionFailure, match="ValueError in the call: 1"):
        kernel.settle_style([torch.rand(4)])
