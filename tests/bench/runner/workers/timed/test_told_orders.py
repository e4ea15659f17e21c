"""Results of a relay on a GPU that fill memory in another order than their outputs are committed to as they lie."""

import ctypes

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed.gpu_relay import lay_as_told
from flashinfer_bench.worker.calls import find_order

pytestmark = pytest.mark.cpu

SHAPE = (3, 4, 5)
DENSE = {
    "as the slot": (torch.arange(60).view(SHAPE), [0, 1, 2]),
    "transposed": (torch.arange(60).view(5, 4, 3).permute(2, 1, 0), [2, 1, 0]),
    "one dimension moved": (torch.arange(60).view(5, 3, 4).permute(1, 2, 0), [2, 0, 1]),
    "of one element along a dimension": (torch.arange(12).view(4, 1, 3).permute(2, 1, 0), [0, 1, 2]),
    "a number": (torch.tensor(7), []),
    "no element": (torch.zeros(3, 0, 2), [0, 1, 2]),
}
WITH_GAPS = {
    "a slice": torch.arange(120).view(3, 4, 10)[:, :, :5],
    "every second row": torch.arange(120).view(6, 4, 5)[::2],
    "a row that is there once": torch.arange(5).expand(3, 4, 5),
    "a slice of what is transposed": torch.arange(80).view(5, 4, 4).permute(2, 1, 0)[:3],
}


def bytes_at(value):
    return ctypes.string_at(value.data_ptr(), value.nbytes) if value.numel() else b""


@pytest.mark.parametrize("name", DENSE)
def test_what_lies_in_memory_comes_of_the_output_and_the_order(name):
    result, order = DENSE[name]
    found = find_order(result)
    assert found is not None
    assert sorted(found) == list(range(result.ndim))
    if name != "of one element along a dimension":  # it may be named anywhere
        assert found == order
    output = torch.empty(result.shape, dtype=result.dtype).copy_(result)
    ((laid,),) = lay_as_told([[output]], [[found]])
    assert bytes_at(laid.contiguous()) == bytes_at(result)


@pytest.mark.parametrize("name", WITH_GAPS)
def test_memory_with_gaps_has_no_order(name):
    assert find_order(WITH_GAPS[name]) is None


def test_outputs_are_as_they_are_where_no_order_is_told():
    outputs = [[torch.zeros(SHAPE)], [torch.ones(SHAPE)]]
    assert lay_as_told(outputs, []) is outputs


WRONG = {
    "a call fewer": [[[0, 1, 2], [0]]],
    "a call more": [[[0, 1, 2], [0]]] * 3,
    "an output fewer": [[[0, 1, 2]]] * 2,
    "an output more": [[[0, 1, 2], [0], [0]]] * 2,
    "a dimension fewer": [[[0, 1], [0]]] * 2,
    "a dimension twice": [[[0, 1, 1], [0]]] * 2,
    "a dimension that is not there": [[[0, 1, 3], [0]]] * 2,
    "wrong in one call": [[[0, 1, 2], [0]], [[0, 2], [0]]],
}


@pytest.mark.parametrize("name", WRONG)
def test_orders_that_outputs_cannot_have_are_refused(name):
    outputs = [[torch.zeros(SHAPE), torch.zeros(4)] for _ in range(2)]
    assert lay_as_told(outputs, WRONG[name]) is None
    assert lay_as_told(outputs, [[[2, 0, 1], [0]]] * 2) is not None
