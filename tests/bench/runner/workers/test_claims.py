"""What a solution returned, and its signature, held against the definition."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers.claims import OutputSpec, check_returned, choose_style
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.main import describe_value
from flashinfer_bench.worker.protocol import Returned, Signature

pytestmark = pytest.mark.cpu
NOTHING = Returned.model_validate(describe_value(None))


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [("y", "INCORRECT_DTYPE", r"nothing \(None\) for output 'y'"), ("yz", "INCORRECT_SHAPE", r"nothing \(None\);.*2")],
)
def test_a_function_that_returns_nothing_is_told_so(names, status, said):
    outputs = [OutputSpec(name, (2,), torch.float32) for name in names]
    with pytest.raises(SolutionFailure, match=said) as failure:
        check_returned([NOTHING], outputs, "cpu")
    assert failure.value.status == status


def sign(minimum, maximum):
    return Signature(text="(...)", minimum=minimum, maximum=maximum)


@pytest.mark.parametrize(
    ("signature", "declared", "style"),
    [
        (sign(3, 3), None, "dps"),
        (sign(2, 2), None, "value"),
        (sign(2, 3), None, "value"),
        (sign(0, 9), None, "value"),
        (sign(0, None), False, "value"),
        (sign(0, None), True, "dps"),
        (sign(2, 3), False, "value"),
        (sign(3, 3), True, "dps"),
        (None, None, "dps"),
        (None, False, "value"),
    ],
)
def test_the_declared_style_decides_and_else_the_arity(signature, declared, style):
    assert choose_style(signature, inputs=2, outputs=1, declared=declared) == style


@pytest.mark.parametrize("minimum", [0, 2])
def test_any_number_of_arguments_tells_no_style(minimum):
    told = r"run\(\.\.\.\) takes any number .* set destination_passing_style"
    with pytest.raises(SolutionFailure, match=told) as failure:
        choose_style(sign(minimum, None), inputs=2, outputs=1, declared=None)
    assert failure.value.status == "COMPILE_ERROR"


@pytest.mark.parametrize(("signature", "declared"), [(sign(2, 2), True), (sign(3, 3), False), (sign(4, 5), None)])
def test_a_signature_that_fits_no_style_shows_both(signature, declared):
    with pytest.raises(SolutionFailure, match=r"(?s)expected .* arguments.*found run\(\.\.\.\)"):
        choose_style(signature, inputs=2, outputs=1, declared=declared)
