"""What the writer for a GPU is told to write; that it writes it is tested on a GPU."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.writer import KernelWriter

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [1, 40])
def test_rows_are_filled_where_a_view_of_each_lies(count):
    block = torch.zeros(256 * 12, dtype=torch.uint8)
    held = block.as_strided((10, count), (256, 1), 64)
    one, all_rows = KernelWriter(CPU, None), KernelWriter(CPU, None)
    for row in (0, 3, 9):
        one.fill(held[row], 0xA5)
    all_rows.fill_rows(held, [0, 3, 9], 0xA5)
    assert (all_rows._pieces, all_rows._number, all_rows._tiles) == (one._pieces, one._number, one._tiles)


def test_rows_that_are_not_aligned_are_filled_at_once():
    block = torch.zeros(33, dtype=torch.uint8)
    writer = KernelWriter(CPU, None)
    writer.fill_rows(block[1:].view(4, 8)[:, :5], [1, 2], 7)
    assert writer._number == 0
    assert block[1:].view(4, 8).sum(1).tolist() == [0, 35, 35, 0]
