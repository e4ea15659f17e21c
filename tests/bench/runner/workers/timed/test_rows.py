"""Rows of bytes that are copied and compared together."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed.rows import copy_rows, find_changed, find_differing, slots_in
from flashinfer_bench.worker.arena import Slot
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu


def make_rows(count=8, size=40, step=64):
    block = torch.arange(count * step, dtype=torch.int64).to(torch.uint8)
    return block.as_strided((count, size), (step, 1), 8)


@pytest.mark.parametrize("indices", [[], [3], [7, 1], list(range(8))], ids=str)
@pytest.mark.parametrize(("size", "step"), [(40, 64), (37, 64), (40, 61), (0, 64)])
def test_rows_are_copied_in_the_order_that_is_asked_for_by_one_operation(indices, size, step):
    held = make_rows(size=size, step=step)
    with counting_operations() as counted:
        copied = copy_rows(held, indices)
    assert (counted.launches(), counted.waits(), copied.dtype) == (1, 0, torch.uint8)
    assert [row.tolist() for row in copied] == [held[index].tolist() for index in indices]
    held.fill_(1)
    assert size == 0 or not (copied == 1).all(dim=1).any()


@pytest.mark.parametrize("size", [0, 8, 37, 40])
def test_rows_that_differ_anywhere_are_told_of_all_pairs_at_once(size):
    """One row stands for all."""
    rows = make_rows(size=size)
    others = rows.clone()
    others[2, :1] += 1
    others[5, -1:] += 1
    one = rows[:1].expand(3, -1).clone()
    one[1, 7:8] += 1
    with counting_operations() as counted:
        found = find_differing([(rows, others), (one, rows[:1])])
    assert counted.waits() == 1
    assert found == [[size > 0 and at in (2, 5) for at in range(8)], [False, size > 7, False]]
    assert find_differing([]) == []


@pytest.mark.parametrize("most", [1, 3, 100])
def test_what_lies_between_slots_is_left_out(most):
    given = make_rows()
    found = list(given.clone().unbind())
    slots = [Slot(0, (4,), torch.float32), Slot(24, (3,), torch.uint8)]
    for row, byte in ((1, 20), (2, 30), (3, 26), (7, 15)):  # the first two lie between them and behind
        found[row][byte] += 1
    assert find_changed(found, given, slots, most) == [False] * 3 + [True] + [False] * 3 + [True]
    assert (find_changed(found, given, [], most), find_changed([], given, slots, most)) == ([False] * 8, [])


def test_slots_of_a_block_are_found_again():
    block = torch.zeros(1024, dtype=torch.uint8)
    slots = [Slot(256, (4, 2), torch.float16), Slot(0, (0,), torch.float32)]
    assert slots_in(block, [slots[0].view(block), None, slots[1].view(block)]) == [slots[0], None, slots[1]]
