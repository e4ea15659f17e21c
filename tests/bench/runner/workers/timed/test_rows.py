"""Rows of bytes that are copied and compared together."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed.rows import copy_rows, find_changed, find_differing
from flashinfer_bench.worker.arena import Slot
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu


def make_rows(count=8, size=40, step=64):
    block = torch.arange(count * step, dtype=torch.int64).to(torch.uint8)
    return block.as_strided((count, size), (step, 1), 8)


@pytest.mark.parametrize("indices", [[], [3], [7, 1], list(range(8)), [0, 2, 3, 5, 7]], ids=str)
@pytest.mark.parametrize(("size", "step"), [(40, 64), (37, 64), (40, 61), (0, 64)])
def test_rows_are_copied_in_the_order_that_is_asked_for(indices, size, step):
    held = make_rows(size=size, step=step)
    copied = copy_rows(held, indices)
    assert copied.dtype == torch.uint8
    assert [row.tolist() for row in copied] == [held[index].tolist() for index in indices]
    held.fill_(1)
    assert size == 0 or not (copied == 1).all(dim=1).any()


@pytest.mark.parametrize("count", [1, 4, 8])
def test_however_many_rows_are_copied_by_one_operation(count):
    held = make_rows()
    with counting_operations() as counted:
        copy_rows(held, list(range(count)))
    assert counted.launches() == 1
    assert counted.waits() == 0


@pytest.mark.parametrize("size", [1, 8, 37, 40])
def test_rows_that_differ_anywhere_are_found(size):
    one = make_rows(size=size)
    other = one.clone()
    other[2, 0] += 1
    other[5, -1] += 1
    (differing,) = find_differing([(one, other)])
    assert [row for row, differs in enumerate(differing) if differs] == [2, 5]


def test_one_row_stands_for_all_and_all_pairs_are_told_at_once():
    given = make_rows()[:1]
    one = given.expand(3, -1).clone()
    one[1, 7] += 1
    pairs = [(one, given), (one[:2], one[:2].clone())]
    with counting_operations() as counted:
        differing = find_differing(pairs)
    assert differing == [[False, True, False], [False, False]]
    assert counted.waits() == 1


def test_nothing_differs_where_there_is_nothing():
    assert find_differing([]) == []
    assert find_differing([(torch.empty(2, 0, dtype=torch.uint8), torch.empty(1, 0, dtype=torch.uint8))]) == [
        [False, False]
    ]
    assert find_changed([], make_rows(), [Slot(0, (8,), torch.uint8)], 3) == []
    assert find_changed([make_rows()[0]], make_rows(), [], 3) == [False]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_what_lies_between_slots_is_left_out(most):
    given = make_rows()
    found = list(given.clone().unbind())
    slots = [Slot(0, (4,), torch.float32), Slot(24, (3,), torch.uint8)]
    found[1][20] += 1  # between
    found[2][30] += 1  # behind
    found[3][26] += 1
    found[7][15] += 1
    assert find_changed(found, given, slots, most) == [False, False, False, True, False, False, False, True]
