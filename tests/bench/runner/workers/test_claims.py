"""What a solution returned, held against the definition."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers.claims import OutputSpec, check_returned
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.main import describe_value
from flashinfer_bench.worker.protocol import Returned

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


def test_a_dict_with_other_keys_is_told_with_them():
    outputs = [OutputSpec(name, (2,), torch.float32) for name in ("y", "z")]
    given = Returned.model_validate(describe_value({"y": torch.zeros(2), "lse": torch.zeros(2)}))
    with pytest.raises(SolutionFailure, match=r"returned a builtins.dict with the keys y, lse; .*: y, z"):
        check_returned([given], outputs, "cpu")
