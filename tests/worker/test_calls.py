"""How a worker calls what it has loaded."""

import pytest

from flashinfer_bench.worker.calls import bind_by_name

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x, y),
        lambda y, x: (x, y),
        lambda y, x, eps=1e-6: (x, y),
        lambda eps=1e-6, x=0, y=0: (x, y),
        lambda *, x, y: (x, y),
        lambda x, *, y: (x, y),
        lambda **given: (given["x"], given["y"]),
    ],
)
def test_arguments_reach_a_reference_by_their_names(function):
    assert bind_by_name(function, {"x": 1, "y": 2})() == (1, 2)


def test_a_reference_with_the_inputs_first_is_called_by_position_as_a_solution_is():
    assert bind_by_name(lambda y, x, eps=1e-6: None, {"x": 1, "y": 2}).args == (2, 1)
