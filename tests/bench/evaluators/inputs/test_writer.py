"""What the writer for a GPU is told to write; that it writes it is tested on a GPU."""

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput, choose_moves
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
    (pieces, tiles), (told, in_all) = one.take_pieces(), all_rows.take_pieces()
    assert tiles == in_all == 3
    assert pieces.tolist() == told.tolist()
    assert pieces[:, 0].tolist() == [0, 1, 2]


def test_rows_that_are_not_aligned_are_filled_at_once():
    block = torch.zeros(33, dtype=torch.uint8)
    writer = KernelWriter(CPU, None)
    writer.fill_rows(block[1:].view(4, 8)[:, :5], [1, 2], 0x0707070707070707)
    assert not len(writer.take_pieces()[0])
    assert block[1:].view(4, 8).sum(1).tolist() == [0, 35, 35, 0]


def test_a_row_of_calls_is_told_as_the_same_pieces_as_one_call_after_the_other():
    base = [torch.randn(6, 40), torch.arange(10), torch.randn(3, 8).bfloat16(), 2.0]
    ways = [
        VariedInput("x", "scaled"),
        VariedInput("i", "fixed"),
        VariedInput("y", "rolled"),
        VariedInput("s", "fixed"),
    ]
    contents = Contents(base, ways, seed=9, base_number=66)
    numbers = list(range(60, 70))  # the base among them, and the secrets of two blocks
    into = [[torch.empty_like(one) for _ in numbers] if isinstance(one, torch.Tensor) else None for one in base]
    together, each = KernelWriter(CPU, None), KernelWriter(CPU, None)
    contents.write_all(numbers, into, together)
    for at, number in enumerate(numbers):
        contents.write_all([number], [None if own is None else own[at : at + 1] for own in into], each)
    told, one_by_one = (writer.take_pieces()[0][:, 1:].tolist() for writer in (together, each))
    assert sorted(told) == sorted(one_by_one)
    assert len(told) == 3 * len(numbers)


def test_torch_writes_a_row_of_calls_as_one_call_after_the_other():
    base = [torch.randn(6, 40), torch.arange(10), torch.randint(0, 9, (7, 3))]
    ways = [VariedInput("x", "scaled"), VariedInput("i", "fixed"), VariedInput("j", "rolled")]
    contents = Contents(base, ways, seed=9, base_number=1)
    rows = contents.make_all([0, 1, 2])
    for number, row in enumerate(rows):
        assert all(torch.equal(one, other) for one, other in zip(row, contents.make(number), strict=True))
    assert all(torch.equal(one, other) for one, other in zip(rows[1], base, strict=True))
    assert not torch.equal(rows[0][0], rows[2][0])


@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 5), (3, 4), (7, 1), (4, 4)])
def test_no_move_is_by_whole_rows(shape):
    value = torch.zeros(shape)
    secrets = np.arange(0, 2**62, 2**62 // 1_000, dtype=np.uint64)
    moves = choose_moves(value, secrets)
    assert moves.dtype == np.uint64
    count = value.numel()
    if count < 2:
        assert not moves.any()
        return
    assert moves.min() >= 1
    assert count == 2 or moves.max() < count or shape[-1] == count
    if 1 < shape[-1] < count:
        assert (moves % shape[-1]).all()
