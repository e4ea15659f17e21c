"""Writes the inputs of timed calls: copies, rotated or shuffled values, normal values, flipped bits. Fills outputs.

On a GPU all writes are collected, and one launch of `content_kernel.cu` does them. With torch each write would take
several launches, which cost more than the writing. On a CPU numpy and torch write immediately, and the input's rule
draws normal values. GPU and CPU draw different numbers, so the same key gives the same values only on the same kind of
device. `contents.py` decides the content.

Elements are shuffled within rows. Each element comes from a secret position, and is multiplied by a factor of its row
and by its own factor. Positions and factors cannot be computed without the key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from flashinfer_bench.bench.evaluators.inputs.fills import fill
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.timing import driver

Unsigned = NDArray[np.uint64]
"""Unsigned 64-bit numbers: addresses, moves, keys."""
MULTIPLIED: Final = {torch.bfloat16: 2, torch.float16: 3, torch.float32: 4, torch.float64: 5}
"""Dtype that can be shuffled and multiplied → the kernel's number for it."""
DRAWN: Final = {torch.bfloat16: 6, torch.float16: 7, torch.float32: 8}
"""Dtype of random normal values → the kernel's number for it. The kernel's random numbers have 24 bits, too few for
float64."""
FILL: Final = 0
MOVE: Final = 1
LARGEST_FACTOR: Final = 1.25
"""Factors lie between this and its inverse, so that outputs keep the magnitude for which tolerances are chosen."""
ROOT: Final = math.sqrt(LARGEST_FACTOR)
"""Upper bound of a row's factor and of an element's own factor. The kernel has the same bound."""
NEGATED: Final = 1 << 63
"""Bit of a key that negates all elements. The secrets in keys are below this bit."""
WORDS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → dtype in which numpy moves it, since numpy has no bfloat16."""
TILE: Final = 16_384
"""Elements that a block writes at once; a multiple of eight."""
BLOCKS_PER_PROCESSOR: Final = 8
THREADS: Final = 256
PIECE_FIELDS: Final = 8
"""Number of fields that describe a piece of the kernel's work. The first field is the number of tiles before the
piece."""
COUNT: Final = 4
"""Index of the field with the number of elements."""
FLIPPED_TOGETHER: Final = 1 << 26
"""Maximum bytes whose bits are flipped together. The random bits need the same memory, and indices into a table need
four times as much."""


class Writer:
    """Writes tensors: on a CPU at once, on a GPU in one launch at `finish`. The caller must keep all tensors alive
    until `finish`.

    Args:
        device: device of all tensors.
        launch: launches the kernel on a stream; None on a CPU.
    """

    def __init__(self, device: torch.device, launch: driver.Launcher | None = None) -> None:
        self._device = device
        self._launch = launch
        self._pieces: list[Unsigned] = []
        self._flips: list[tuple[torch.Tensor, int, torch.Tensor]] = []

    def fill_rows(self, held: torch.Tensor, rows: Sequence[int], word: int) -> None:
        """Fill some rows of bytes [rows, bytes] with a word of 64 bits, repeated along each row.

        On a GPU, rows must begin at addresses that are multiples of eight.
        """
        if self._launch is None:
            for row in rows:
                fill(held[row], word)
            return
        self._add(FILL, word, addresses_of(held, rows), held.shape[1])

    def move_rows(self, value: torch.Tensor, into: torch.Tensor, rows: Sequence[int], by: Unsigned) -> None:
        """Write a tensor to some rows, rotated by a number of elements: the first elements come last.

        Args:
            value: contiguous.
            into: [all rows, *shape] of its dtype; each row is contiguous.
            rows: the rows to write.
            by: [rows]: the number of elements by which each row is rotated.
        """
        size = value.dtype.itemsize
        if self._launch is not None:
            addresses = addresses_of(into, rows)
            self._add(MOVE, value.data_ptr(), addresses, value.numel() * size, by * np.uint64(size))
            return
        source = value.view(-1).view(torch.uint8)
        for row, move in zip(rows, by.tolist(), strict=True):
            torch.cat((source[move * size :], source[: move * size]), out=into[row].view(-1).view(torch.uint8))

    def vary_rows(
        self, value: torch.Tensor, into: torch.Tensor, rows: Sequence[int], by: Unsigned, keys: Unsigned, columns: int
    ) -> None:
        """Write a tensor to some rows, rotated, then shuffled in lines and multiplied by factors.

        Args:
            value: contiguous, of a dtype in MULTIPLIED, not empty.
            into: [all rows, *shape] of its dtype; each row is contiguous.
            rows: the rows to write.
            by: [rows]: elements by which the tensor is rotated.
            keys: [rows]: secrets below 2**63, plus NEGATED if elements are negated.
            columns: elements of a line, below 2**23; the last line may have fewer.
        """
        if self._launch is not None:
            addresses = addresses_of(into, rows)
            self._add(MULTIPLIED[value.dtype], value.data_ptr(), addresses, value.numel(), by, keys, columns)
            return
        self.move_rows(value, into, rows, by)
        whole = value.numel() // columns * columns
        for row, key in zip(rows, keys.tolist(), strict=True):
            chance = np.random.Generator(np.random.Philox(key=key % NEGATED))
            flat = into[row].view(-1)
            for lines in (flat[:whole].view(-1, columns), flat[whole:].view(1, -1)):
                words = lines.view(WORDS[lines.dtype.itemsize]).numpy()
                chance.permuted(words, axis=1, out=words)
                of_lines = _draw_factors(chance, (len(lines), 1)) * (-1.0 if key & NEGATED else 1.0)
                lines.mul_(_draw_factors(chance, lines.shape).mul_(of_lines))

    def draws(self, dtype: torch.dtype) -> bool:
        """Return whether `draw_rows` makes values of a dtype. On a CPU torch itself is as fast."""
        return self._launch is not None and dtype in DRAWN

    def draw_rows(self, into: torch.Tensor, rows: Sequence[int], keys: Unsigned, deviation: float) -> None:
        """Write normal values around zero to some rows, on a GPU.

        Args:
            into: [all rows, *shape] of a dtype in DRAWN; each row is contiguous.
            rows: the rows to write.
            keys: [rows]: secrets below 2**63.
            deviation: the values' standard deviation.
        """
        bits = int(np.float32(deviation).view(np.uint32))
        self._add(DRAWN[into.dtype], bits, addresses_of(into, rows), into[0].numel(), keys)

    def flip_rows(self, into: torch.Tensor, rows: Sequence[int], keys: Unsigned, flips: torch.Tensor) -> None:
        """Flip the bits of half of the bytes, once all else is written.

        Args:
            into: [all rows, *shape]; each row is contiguous.
            rows: the rows to change.
            keys: [rows]: secrets below 2**63.
            flips: uint8 [256]: byte → the bits that are flipped together.
        """
        self._flips += [(into[row], key, flips) for row, key in zip(rows, keys.tolist(), strict=True)]

    def _add(self, kind: int, source: int, addresses: Unsigned, *fields: int | Unsigned) -> None:
        """Add a piece for each address. Its fields are kind, source, address and count, then the move, the key and the
        columns."""
        pieces = np.zeros((len(addresses), PIECE_FIELDS), np.uint64)
        for column, field in enumerate((kind, source, addresses, *fields), start=1):
            pieces[:, column] = field
        self._pieces.append(pieces)

    def finish(self) -> None:
        """Launch the kernel, and then flip bits on the same stream. This does not wait for the GPU."""
        if self._launch is not None and self._pieces:
            pieces = np.concatenate(self._pieces)
            ends = np.cumsum(-(-pieces[:, COUNT].astype(np.int64) // TILE))
            pieces[1:, 0] = ends[:-1]
            reported = torch.from_numpy(pieces.view(np.int64)).to(self._device)
            stream = torch.cuda.current_stream(self._device).cuda_stream
            self._launch(stream, reported.data_ptr(), len(pieces), int(ends[-1]), TILE)
        for target, key, flips in self._flips:
            _flip(target, key, flips)
        self._pieces.clear()
        self._flips.clear()


def addresses_of(held: torch.Tensor, rows: Sequence[int]) -> Unsigned:
    """Return the addresses of some rows of a tensor. Making a view of each row would take longer than all other work on
    it."""
    step = np.uint64(held.stride(0) * held.dtype.itemsize)
    addresses: Unsigned = np.asarray(rows, np.uint64) * step + np.uint64(held.data_ptr())
    return addresses


def open_writer(device: torch.device) -> Writer:
    """Return a writer for a device.

    Raises:
        DeviceFault: the driver of a GPU rejects the kernel.
    """
    return Writer(device, _find_kernel(device) if device.type == "cuda" else None)


@cache
def _find_kernel(device: torch.device) -> driver.Launcher:
    torch.cuda.current_stream(device)  # makes the context
    source = Path(__file__).with_name("content_kernel.ptx").read_bytes()
    blocks = torch.cuda.get_device_properties(device).multi_processor_count * BLOCKS_PER_PROCESSOR
    try:
        return driver.Module(driver.assemble(source)).launcher("flashinfer_bench_write", 4, blocks, THREADS)
    except (OSError, driver.DriverError) as error:
        raise DeviceFault(f"the kernel that writes inputs of calls does not load: {error}") from error


def _draw_factors(chance: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    drawn = torch.from_numpy(chance.random(shape, dtype=np.float32))
    return drawn.mul_(ROOT - 1 / ROOT).add_(1 / ROOT)


def _flip(into: torch.Tensor, key: int, flips: torch.Tensor) -> None:
    generator = torch.Generator(into.device).manual_seed(key)
    for held in torch.split(into.view(-1).view(torch.uint8), FLIPPED_TOGETHER):
        words = torch.empty(-(-len(held) // 8), dtype=torch.int64, device=into.device)
        pattern = words.random_(-(1 << 63), None, generator=generator).view(torch.uint8)[: len(held)]
        held.bitwise_xor_(flips.index_select(0, held.int()).bitwise_and_(pattern.bitwise_and_(1).neg_()))
