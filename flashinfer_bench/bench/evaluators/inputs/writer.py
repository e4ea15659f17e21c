"""Writes tensors that other tensors are made of: as they are, moved along, varied, or filled; or draws them.

A tensor is varied by a key: its elements are moved along, then shuffled within rows, and each is multiplied by a factor
of its own. Who knows the tensor and not the key cannot tell which element comes to which place.

`TorchWriter` does each at once. `KernelWriter` collects them, and writes all of them in one launch on a GPU
(`content_kernel.cu`): a call has several tensors, and a row of calls has many; with torch each takes three launches or
more, which cost the host more time than the GPU. Both move to the same bits. Both draw normal values and vary, each by
its own random numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench.evaluators.inputs.fills import fill
from flashinfer_bench.bench.evaluators.inputs.nudges import CHANGED_TOGETHER, Flips
from flashinfer_bench.bench.evaluators.inputs.shuffles import LARGEST_FACTOR, ROOT, SEEDS, list_pieces
from flashinfer_bench.bench.evaluators.inputs.targets import addresses_of
from flashinfer_bench.bench.evaluators.inputs.threads import one_thread
from flashinfer_bench.timing import driver

Unsigned = NDArray[np.uint64]
"""Unsigned 64-bit numbers: addresses, moves, secrets."""
MULTIPLIED: Final = {torch.bfloat16: 2, torch.float16: 3, torch.float32: 4, torch.float64: 5}
"""The dtypes that can be varied → the kernel's number for it; others are moved along only."""
DRAWN: Final = {torch.bfloat16: 6, torch.float16: 7, torch.float32: 8}
"""The dtypes that can be drawn → the kernel's number for it. Its numbers have 24 bits, too few for float64."""
FILL: Final = 0
MOVE: Final = 1
KERNEL: Final = "flashinfer_bench_write"
TILE: Final = 16_384
"""Elements of a piece that a block writes before it looks for the next ones; a multiple of eight."""
THREADS: Final = 256
PIECE_FIELDS: Final = 8
"""Numbers of a piece; the first one counts the tiles before it."""
COUNT: Final = 4
"""Which of them is the count."""
BLOCKS_PER_PROCESSOR: Final = 8
DRAWN_TOGETHER: Final = 1 << 18
"""Elements that torch draws by one seed: 0.7 ms on a CPU."""
FLIPPED_TOGETHER: Final = 65_521
"""Bytes after which a pattern of flipped bits comes again. A prime number, so hardly any rows of a matrix have the same
one. With 1 << 16 weights were converted once, and sums of products over all rows of one pattern were flipped."""
LARGER_ON_GPU: Final = 16
"""So many times as many bytes as on a CPU are flipped by one row of launches on a GPU."""
FEW_PIECES: Final = 4
FEW_ELEMENTS: Final = 1 << 21
"""Fewer such pieces, or pieces of fewer elements together, are made one after the other: to begin and end threads takes
1.6 ms on two cores, in which torch draws 350,000 elements."""
MOST_THREADS: Final = 4
"""Threads that make pieces at once, at the most."""
EXAMPLE_SHAPE: Final = torch.Size((17, 1_000))
"""Shape of what is varied to see whether the kernel does it right: more elements than a tile has."""
EXAMPLE_DIGITS: Final = 3
"""Digits of a place in it, to the base of 32: in 16 bits, too, each can be told from the next one."""
EXAMPLE_MOVE: Final = 5_003
"""How many elements it is moved along."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Changes:
    """How each of some targets differs from the tensor that they are made of."""

    by: Unsigned
    """[targets]: how many elements it is moved along."""
    keys: Unsigned
    """[targets]: secrets below 2**63, by which elements are shuffled and factors drawn."""
    is_negated: NDArray[np.bool_]
    """[targets]: whether all its elements are negated."""
    columns: int
    """Elements that are shuffled as one row, below 2**23; the last row may have fewer."""


class Writer(Protocol):
    """Writes tensors. What it was told is written after `finish`. All tensors are contiguous and on one device, and who
    told of them holds them until then."""

    def fill_rows(self, held: torch.Tensor, rows: Sequence[int], word: int) -> None:
        """Fill some rows of bytes, [rows, bytes], with a word of 64 bits, written over and over along each."""

    def move_rows(self, value: torch.Tensor, into: Sequence[torch.Tensor], by: Unsigned) -> None:
        """Write a tensor's elements moved along by a number of them, for each target; what falls off comes first.

        Args:
            value: the tensor.
            into: targets of its shape and dtype.
            by: [targets]: how many elements it is moved.
        """

    def vary_rows(self, value: torch.Tensor, into: Sequence[torch.Tensor], changes: Changes) -> None:
        """Write a tensor's elements varied, for each target; the same key gives the same order and factors.

        Args:
            value: of a dtype in MULTIPLIED; not empty.
            into: targets of its shape and dtype.
            changes: how each target differs.
        """

    def draw_rows(self, into: Sequence[torch.Tensor], keys: Unsigned, deviation: float) -> None:
        """Write normal values around zero to each target; the same key gives the same values.

        Args:
            into: targets of one size, and of a dtype in DRAWN.
            keys: [targets]: secrets.
            deviation: the values' standard deviation.
        """

    def flip_rows(self, into: Sequence[torch.Tensor], keys: Unsigned, flips: Flips) -> None:
        """Flip bits of targets that were told of before, by a pattern that a key gives; the same key gives the same.

        Args:
            into: targets of one size.
            keys: [targets]: secrets.
            flips: which bits of each byte may be flipped.
        """

    def finish(self) -> None:
        """Launch what is left to be written. Nobody waits for it."""


class TorchWriter:
    """Writes at once, with torch, on every device."""

    def fill_rows(self, held: torch.Tensor, rows: Sequence[int], word: int) -> None:
        """Fill some rows; all at once if they lie one behind the other."""
        begin, end = min(rows, default=0), max(rows, default=-1) + 1
        for some in [held[begin:end]] if list(rows) == list(range(begin, end)) else [held[row] for row in rows]:
            fill(some, word)

    def move_rows(self, value: torch.Tensor, into: Sequence[torch.Tensor], by: Unsigned) -> None:
        """Write a tensor's elements moved along, for each target."""
        for target, move in zip(into, by.tolist(), strict=True):
            _move(value, target, move)

    def vary_rows(self, value: torch.Tensor, into: Sequence[torch.Tensor], changes: Changes) -> None:
        """Write a tensor's elements varied, for each target; of many each core makes some."""
        signs = np.where(changes.is_negated, -1.0, 1.0)
        for target, by, key, sign in zip(into, changes.by.tolist(), changes.keys.tolist(), signs.tolist(), strict=True):
            moved = torch.empty_like(target)
            _move(value, moved, by)
            _run_all(list_pieces((moved, target), key, sign, changes.columns), target.device, target.numel())

    def draw_rows(self, into: Sequence[torch.Tensor], keys: Unsigned, deviation: float) -> None:
        """Write normal values around zero to each target; of many each core makes some."""
        pieces = [
            (piece, (key + at) % SEEDS)
            for target, key in zip(into, keys.tolist(), strict=True)
            for at, piece in enumerate(_split(target.view(-1)))
        ]
        count = sum(target.numel() for target in into)
        _run_all([partial(_draw, piece, deviation=deviation) for piece in pieces], into[0].device, count)

    def flip_rows(self, into: Sequence[torch.Tensor], keys: Unsigned, flips: Flips) -> None:
        """Flip bits of targets."""
        for target, key in zip(into, keys.tolist(), strict=True):
            _flip(target, key, flips)

    def finish(self) -> None:
        """Do nothing: all is written."""


def _move(value: torch.Tensor, into: torch.Tensor, by: int) -> None:
    if not by:
        into.copy_(value)
        return
    size = value.dtype.itemsize
    source, target = value.reshape(-1).view(torch.uint8), into.view(-1).view(torch.uint8)
    left = source.numel() - by * size
    target[:left].copy_(source[by * size :])
    target[left:].copy_(source[: by * size])


def _flip(into: torch.Tensor, key: int, flips: Flips) -> None:
    """Flip bits by a pattern that comes again after FLIPPED_TOGETHER bytes: as quick as a copy.

    Who looks at so many bytes knows the pattern, and still has to find out anew what each byte means.
    """
    flat = into.view(-1).view(torch.uint8)
    if not len(flat):
        return
    length = min(len(flat), FLIPPED_TOGETHER)
    generator = torch.Generator(into.device).manual_seed(key % SEEDS)
    pattern = torch.empty(length, dtype=torch.uint8, device=into.device).random_(0, 256, generator=generator)
    whole = len(flat) // length * length
    together = CHANGED_TOGETHER * (1 if into.device.type == "cpu" else LARGER_ON_GPU)
    for rows in torch.split(flat[:whole].view(-1, length), together // FLIPPED_TOGETHER):
        flips.change(rows, pattern)
    if whole < len(flat):
        flips.change(flat[whole:], pattern[: len(flat) - whole])


def _run_all(pieces: Sequence[Callable[[], None]], device: torch.device, count: int) -> None:
    """Make pieces of targets, so many elements together; many on a CPU in threads."""
    if len(pieces) < FEW_PIECES or count < FEW_ELEMENTS or device.type != "cpu":
        for make in pieces:
            make()
        return
    count = min(MOST_THREADS, usable_cores())
    with one_thread(), ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        for _ in threads.map(lambda make: make(), pieces):
            pass


def _split(flat: torch.Tensor) -> Sequence[torch.Tensor]:
    return [flat] if flat.numel() <= DRAWN_TOGETHER else torch.split(flat, DRAWN_TOGETHER)


def _draw(piece: tuple[torch.Tensor, int], *, deviation: float) -> None:
    """Write normal values. Those of 16 bits are rounded from float32, in two thirds of the time that torch takes."""
    into, seed = piece
    values = into if into.dtype is torch.float32 else torch.empty(into.shape, dtype=torch.float32, device=into.device)
    values.normal_(0.0, deviation, generator=torch.Generator(into.device).manual_seed(seed))
    if values is not into:
        into.copy_(values)


class KernelWriter:
    """Collects what is to be written on a GPU, and writes it in one launch.

    Args:
        device: where all tensors lie.
        launch: launches the kernel on a stream.
    """

    def __init__(self, device: torch.device, launch: driver.Launcher) -> None:
        self._device = device
        self._launch = launch
        self._added: list[Unsigned] = []
        self._held: list[torch.Tensor] = []
        self._flips: list[tuple[torch.Tensor, int, Flips]] = []

    def fill(self, into: torch.Tensor, word: int) -> None:
        """Fill bytes."""
        if into.data_ptr() % 8:
            fill(into, word)
            return
        self._add(FILL, word, np.array([into.data_ptr()], np.uint64), into.numel())

    def fill_rows(self, held: torch.Tensor, rows: Sequence[int], word: int) -> None:
        """Fill some rows. A view of each, which `fill` would want, takes longer than all else that is done for it."""
        first, step, count = held.data_ptr(), held.stride(0), held.shape[1]
        if first % 8 or step % 8 or held.stride(1) != 1:
            for row in rows:
                self.fill(held[row], word)
            return
        self._add(FILL, word, first + step * np.asarray(rows, np.uint64), count)

    def move_rows(self, value: torch.Tensor, into: Sequence[torch.Tensor], by: Unsigned) -> None:
        """Write a tensor's elements moved along, for each target."""
        size = value.dtype.itemsize
        self._add(MOVE, self._address(value), addresses_of(into), value.numel() * size, by * np.uint64(size))

    def vary_rows(self, value: torch.Tensor, into: Sequence[torch.Tensor], changes: Changes) -> None:
        """Write a tensor's elements varied, for each target."""
        keys = changes.keys | changes.is_negated.astype(np.uint64) << np.uint64(63)
        kind, source = MULTIPLIED[value.dtype], self._address(value)
        self._add(kind, source, addresses_of(into), value.numel(), changes.by, keys, changes.columns)

    def draw_rows(self, into: Sequence[torch.Tensor], keys: Unsigned, deviation: float) -> None:
        """Write normal values around zero to each target."""
        bits = int(np.float32(deviation).view(np.uint32))
        self._add(DRAWN[into[0].dtype], bits, addresses_of(into), into[0].numel(), keys)

    def flip_rows(self, into: Sequence[torch.Tensor], keys: Unsigned, flips: Flips) -> None:
        """Flip bits of targets, by torch, once the kernel has written them."""
        self._flips += [(target, key, flips) for target, key in zip(into, keys.tolist(), strict=True)]

    def _address(self, value: torch.Tensor) -> int:
        if not value.is_contiguous():
            value = value.contiguous()
            self._held.append(value)  # until the kernel is launched: the stream keeps the order after that
        return value.data_ptr()

    def _add(self, kind: int, source: int, into: Unsigned, *fields: int | Unsigned) -> None:
        """Add a piece for each target: kind, source, target, count; then the move, the key, the columns."""
        pieces = np.zeros((len(into), PIECE_FIELDS), np.uint64)
        for column, field in enumerate((kind, source, into, *fields), start=1):
            pieces[:, column] = field
        self._added.append(pieces)

    def take_pieces(self) -> tuple[Unsigned, int]:
        """Return what was added since the last call, [pieces, PIECE_FIELDS], and its tiles."""
        pieces = np.concatenate(self._added) if self._added else np.zeros((0, PIECE_FIELDS), np.uint64)
        ends = np.cumsum(-(-pieces[:, COUNT].astype(np.int64) // TILE))
        pieces[1:, 0] = ends[:-1]
        self._added.clear()
        return pieces, int(ends[-1]) if len(ends) else 0

    def finish(self) -> None:
        """Launch the kernel."""
        pieces, tiles = self.take_pieces()
        if not len(pieces):
            return
        told = torch.from_numpy(pieces.view(np.int64)).to(self._device)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._launch(stream, told.data_ptr(), len(pieces), tiles, TILE)
        self._held.clear()
        self.flip_written()

    def flip_written(self) -> None:
        """Flip bits of what the kernel writes, behind it on the same stream."""
        for target, key, flips in self._flips:
            _flip(target, key, flips)
        self._flips.clear()


def open_writer(device: torch.device) -> Writer:
    """Return a writer for a device."""
    launch = find_kernel(device) if device.type == "cuda" else None
    return TorchWriter() if launch is None else KernelWriter(device, launch)


@cache
def find_kernel(device: torch.device) -> driver.Launcher | None:
    """Return what launches the kernel on a GPU; None where it does not write what torch writes there."""
    try:
        torch.cuda.current_stream(device)
        module = driver.Module(driver.assemble(Path(__file__).with_name("content_kernel.ptx").read_bytes()))
        blocks = int(torch.cuda.get_device_properties(device).multi_processor_count) * BLOCKS_PER_PROCESSOR
        launch = driver.Launcher(module.kernel(KERNEL), blocks=blocks, threads=THREADS, arguments=4)
    except (OSError, driver.DriverError) as error:
        _log.warning("inputs of calls are written by torch, which takes longer: %s", error)
        return None
    with one_thread():
        is_same = all(torch.equal(*write_example(dtype, launch, device)) for dtype in (*MULTIPLIED, torch.uint8))
        is_drawn = is_same and all(looks_drawn(draw_example(dtype, launch, device)) for dtype in DRAWN)
        writer = KernelWriter(device, launch)
        is_right = is_drawn and all(looks_varied(vary_example(dtype, writer, device)) for dtype in MULTIPLIED)
    if not is_right:
        _log.warning("inputs of calls are written by torch, which takes longer: our kernel writes something else here")
        return None
    return launch


def write_example(dtype: torch.dtype, launch: driver.Launcher, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Write the same with both writers; return what each wrote, as bytes on the CPU.

    torch writes on the CPU: on a GPU the driver would load the code of some twenty operations for it, in 0.1 s.
    """
    count = 3 * TILE + 5
    value = (torch.arange(count) * 37 % 251 - 125).to(dtype)
    written = []
    writers: tuple[tuple[Writer, torch.device], ...] = (
        (TorchWriter(), torch.device("cpu")),
        (KernelWriter(device, launch), device),
    )
    for writer, place in writers:
        source = value.to(place)  # it has to be there until all is written
        parts = torch.zeros(3 * count, dtype=dtype).to(place).view(3, count)
        writer.move_rows(source, [parts[0], parts[1]], np.array([0, 1_001], np.uint64))
        writer.fill_rows(parts[2].view(torch.uint8)[None], [0], 0xF1E2D3C4B5A69788)
        writer.finish()
        written.append(parts.view(torch.uint8).cpu())
    return tuple(written)


def draw_example(dtype: torch.dtype, launch: driver.Launcher, device: torch.device) -> torch.Tensor:
    """Draw values of deviation 3 by two keys; return them as float64 on the CPU, [2, values]."""
    count = TILE + 4_001
    parts = torch.zeros(2 * count, dtype=dtype).to(device).view(2, count)
    writer = KernelWriter(device, launch)
    writer.draw_rows([parts[0], parts[1]], np.array([1, 2**62 + 1], np.uint64), 3.0)
    writer.finish()
    return parts.cpu().double()


def looks_drawn(drawn: torch.Tensor) -> bool:
    """Say whether two rows look like normal values of deviation 3 that have nothing to do with one another."""
    values = drawn / 3.0
    moments = torch.stack([values.mean(-1), values.square().mean(-1) - 1.0, values.pow(4).mean(-1) / 3.0 - 1.0])
    alike = (values[0] * values[1]).mean()
    return bool(moments.abs().amax() < 0.1 and alike.abs() < 0.05 and values.abs().amax() < 6.0)


def vary_example(dtype: torch.dtype, writer: Writer, device: torch.device) -> torch.Tensor:
    """Vary tensors that tell where their elements stand by one key, negated; return what was written.

    Returns:
        float64 [EXAMPLE_DIGITS + 1, *EXAMPLE_SHAPE] on the CPU: for each digit of an element's place a tensor of the
        digits and one, the lowest first, and a tensor of ones.
    """
    places = torch.arange(EXAMPLE_SHAPE.numel(), dtype=torch.int32).view(EXAMPLE_SHAPE)
    planes = [(places >> 5 * digit & 31) + 1 for digit in range(EXAMPLE_DIGITS)] + [torch.ones_like(places)]
    values = torch.stack(planes).to(dtype).to(device)
    made = torch.zeros(values.shape, dtype=dtype).to(device)
    by, key = np.array([EXAMPLE_MOVE], np.uint64), np.array([2**62 + 1], np.uint64)
    changes = Changes(by, key, np.array([True]), EXAMPLE_SHAPE[-1])
    for value, target in zip(values, made, strict=True):
        writer.vary_rows(value, [target], changes)
    writer.finish()
    return made.cpu().double()


def find_places(varied: torch.Tensor) -> torch.Tensor:
    """Return at which place of its row each element of an example stood when it had been moved along: [rows, columns].

    Args:
        varied: what `vary_example` returns; all its planes have the same factors.
    """
    rows, columns = EXAMPLE_SHAPE
    digits = (varied[:-1] / varied[-1]).round() - 1
    sources = (digits * 32.0 ** torch.arange(EXAMPLE_DIGITS)[:, None, None]).sum(0).long()
    return (sources - EXAMPLE_MOVE) % (rows * columns) - columns * torch.arange(rows)[:, None]


def looks_varied(varied: torch.Tensor) -> bool:
    """Say whether an example's rows are shuffled, each in an order of its own, by factors that are spread as wanted."""
    places, factors = find_places(varied), -varied[-1]
    rows, columns = (torch.arange(size) for size in EXAMPLE_SHAPE)
    counts = (places + len(columns) * rows[:, None]).view(-1).bincount(minlength=places.numel())
    if bool(((places < 0) | (places >= len(columns))).any() or (counts != 1).any()):
        return False  # some are in another row, lost, or twice there
    alike = torch.stack([(places == columns).double().mean(), (places[1:] == places[:-1]).double().mean()])
    beside = (places.diff(dim=-1).abs() == 1).double().mean()
    means = factors.mean(-1, keepdim=True)
    own = (factors / means - 1) / ((ROOT - 1 / ROOT) / math.sqrt(12))  # of deviation one
    is_spread = abs(float(own.std()) - 1) < 0.1 and 0.02 < float(means.std()) < 0.12
    is_known = float((own[:, 1:] * own[:, :-1]).mean().abs()) > 0.05
    is_near = 0.99 / LARGEST_FACTOR < float(factors.min()) < float(factors.max()) < 1.01 * LARGEST_FACTOR
    return is_spread and is_near and not is_known and bool(alike.max() < 0.01 and beside < 0.02)
