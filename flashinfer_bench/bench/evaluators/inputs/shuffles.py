"""Varies tensors with torch: shuffles their elements within rows by a key, and multiplies each by a factor of its own.

On a CPU an order takes 10 ns an element to make, and elements that are looked up one by one come slowly from memory.
So rows share two secret orders, and long rows are shuffled in lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

LARGEST_FACTOR: Final = 1.25
"""Factors of varied tensors lie between this and its inverse: outputs stay of the size that the tolerances are for."""
ROOT: Final = math.sqrt(LARGEST_FACTOR)
"""The same for a row's factor and an element's own, whose product it is. The kernel has the same bounds."""
LINE: Final = 4096
"""Places that torch shuffles by one pair of orders at the most; to make an order takes 10 ns a place on a CPU."""
BLOCK: Final = 16
"""Elements of a long row that belong to one line: 64 bytes of float32, which come from memory together."""
VARIED_TOGETHER: Final = 1 << 19
"""Elements that torch varies at once: 3 ms on a CPU."""
FEW: Final = 2048
"""No more elements are varied in few operations, each row in an order of its own."""
SEEDS: Final = 1 << 63
"""Seeds are below this."""

FindPlaces = Callable[[], torch.Tensor]
"""Returns from which column of its row each of some elements comes: int64 [rows, columns]."""
Shuffle = tuple[slice, slice, FindPlaces]
"""Rows and columns that are shuffled at once, and what tells how."""


@dataclass(frozen=True)
class RowPart:
    """What is varied at once."""

    source: torch.Tensor
    """[rows, columns of a row]: what it is made of."""
    into: torch.Tensor
    """[rows, columns]: where it is written."""
    factors: torch.Tensor
    """[rows, 1]: float32, the factor that all elements of a row share."""


class _Rotors:
    """Shuffles lines of one length by two secret orders, each turned by another number for each line.

    So each line has an order of its own, and none takes as long to make as the two. An element's place is looked up in
    the first order, moved on, and looked up in the second one. `stride` is from a line's block to its next.
    """

    def __init__(self, length: int, lines: int, generator: torch.Generator, stride: int = BLOCK) -> None:
        device = generator.device
        orders = [torch.randperm(length, generator=generator, device=device) for _ in range(2)]
        first, second = (torch.cat((order, order)) for order in orders)  # twice, so that none has to begin again
        if stride != BLOCK:
            second = second // BLOCK * stride + second % BLOCK
        self.length = length
        self._windows = first.unfold(0, length, 1)
        self._second = second
        self._turns = torch.randint(length, (2, lines), generator=generator, device=device)

    def shuffle(self, begin: int, end: int) -> torch.Tensor:
        """Return from which place each element of some lines comes: int64 [lines, length]."""
        places = torch.index_select(self._windows, 0, self._turns[0, begin:end])
        places += self._turns[1, begin:end, None]
        return torch.index_select(self._second, 0, places.view(-1)).view(end - begin, self.length)


def _list_long_shuffles(row: int, columns: int, generator: torch.Generator) -> list[Shuffle]:
    """Return how one long row is shuffled, part by part.

    It is made of lines: line number i has every so many-th block of elements, beginning with the i-th. Each is shuffled
    by itself, and their order is secret. All lines look alike, so none tells what part of the row it is.
    """
    lines = -(-columns // LINE)
    stride = BLOCK * lines
    length = -(-columns // stride) * BLOCK
    rotors = _Rotors(length, lines, generator, stride)
    order = torch.randperm(lines, generator=generator, device=generator.device)
    left = columns - (length - BLOCK) * lines  # elements that the last blocks of all lines have together
    counts = (left - BLOCK * order).clamp(0, BLOCK) + (length - BLOCK)
    ends = [0, *counts.cumsum(0).tolist()]

    def find_places(begin: int, end: int) -> torch.Tensor:
        places = rotors.shuffle(begin, end).add_(BLOCK * order[begin:end, None]).view(-1)
        return (places if left == stride else places[places < columns]).view(1, -1)

    step = VARIED_TOGETHER // LINE
    bounds = [(begin, min(begin + step, lines)) for begin in range(0, lines, step)]
    one = slice(row, row + 1)
    return [(one, slice(ends[low], ends[high]), partial(find_places, low, high)) for low, high in bounds]


def _list_shuffles(rows: int, columns: int, generator: torch.Generator) -> list[Shuffle]:
    """Return how rows are shuffled, some at a time."""
    if columns > LINE:
        return [one for row in range(rows) for one in _list_long_shuffles(row, columns, generator)]
    rotors, step = _Rotors(columns, rows, generator), max(1, VARIED_TOGETHER // columns)
    bounds = [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
    return [(slice(low, high), slice(None), partial(rotors.shuffle, low, high)) for low, high in bounds]


def list_pieces(
    tensors: tuple[torch.Tensor, torch.Tensor], key: int, sign: float, columns: int
) -> list[Callable[[], None]]:
    """Return what varies a tensor that has been moved along, the first one, into the second one, piece by piece.

    Args:
        tensors: both are contiguous.
        key: a secret below 2**63.
        sign: 1, or -1 where all elements are negated.
        columns: elements of a row; the last row may have fewer.
    """
    count, device = tensors[0].numel(), tensors[0].device
    if count <= FEW and count % columns == 0:
        source, into = (one.view(-1, columns) for one in tensors)
        return [partial(_vary_few, source, into, key, sign)]
    generator = torch.Generator(device).manual_seed(key)
    pieces: list[Callable[[], None]] = []
    whole = count - count % columns
    for begin, end, length in ((0, whole, columns), (whole, count, count - whole)):
        if begin == end:
            continue
        values, targets = (one.view(-1)[begin:end].view(-1, length) for one in tensors)
        factors = torch.empty(len(values), 1, device=device).uniform_(1 / ROOT, ROOT, generator=generator).mul_(sign)
        for some, across, find_places in _list_shuffles(len(values), length, generator):
            part = RowPart(values[some], targets[some, across], factors[some])
            pieces.append(partial(_vary, part, find_places, (key + 1 + len(pieces)) % SEEDS))
    return pieces


def _vary(part: RowPart, find_places: FindPlaces, seed: int) -> None:
    """Write some rows shuffled and multiplied. Four factors come of 64 random bits: each would take twice as long."""
    torch.gather(part.source, 1, find_places(), out=part.into)
    generator = torch.Generator(part.into.device).manual_seed(seed)
    bits = torch.empty(-(-part.into.numel() // 4), dtype=torch.int64, device=part.into.device)
    bits.random_(-SEEDS, None, generator=generator)  # all 64
    shares = bits.view(torch.int16)[: part.into.numel()].view(part.into.shape)
    factors = torch.mul(shares, part.factors * ((ROOT - 1 / ROOT) / 2**16)).add_(part.factors * ((ROOT + 1 / ROOT) / 2))
    part.into.mul_(factors)


def _vary_few(source: torch.Tensor, into: torch.Tensor, key: int, sign: float) -> None:
    """Write few elements, [rows, columns], shuffled and multiplied, in few operations: each takes 3 to 20 us."""
    columns = source.shape[1]
    generator = torch.Generator(into.device).manual_seed(key)
    drawn = torch.rand(len(source), 2 * columns + 1, generator=generator, device=into.device)
    factors = drawn[:, columns:].mul_(ROOT - 1 / ROOT).add_(1 / ROOT)
    torch.gather(source, 1, drawn[:, :columns].argsort(-1), out=into)
    into.mul_(factors[:, :-1] * (factors[:, -1:] * sign))
