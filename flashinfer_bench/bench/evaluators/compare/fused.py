"""Compare in one pass over device memory: a Triton kernel reads each element once and stores no intermediate tensor.

It finds the same numbers as `chunks`. It is used for large outputs on a GPU, after it found the same numbers there on a
small example. Each program of the kernel takes every n-th tile and keeps counts and the largest errors in each lane. At
its end it writes one line of numbers. The elements after the last whole tile are compared in chunks.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from triton.errors import TritonError

from flashinfer_bench.bench.evaluators.compare.chunks import measure_chunks
from flashinfer_bench.bench.evaluators.compare.kernel_cache import own_kernels
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.rule import WINDOW, Findings, Tolerance

TILE: Final = 512
"""Elements in a tile. With four warps each thread has four elements; with eight elements, the registers that a thread
needs would leave too few warps on a processor."""
PROGRAMS_PER_PROCESSOR: Final = 12
"""Programs of the kernel for each multiprocessor of the GPU."""
FIELDS: Final = 8
"""Numbers in the line that a program writes."""
DIRECT: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Types that Triton converts to float32. Types of one byte are looked up in a table of their 256 values."""
_NONE: Final = 2**62
"""Index that means that no window looks unwritten; it is larger than every real index."""

_log = logging.getLogger(__name__)


def is_usable(dtype: torch.dtype, device: torch.device, tolerance: Tolerance) -> bool:
    """Tell whether the kernel can compare outputs of this type; the first call tests the kernel on an example."""
    is_byte = dtype.is_floating_point and dtype.itemsize == 1 and not is_packed(dtype)
    return (dtype in DIRECT or is_byte) and _has_proved_itself(dtype, device, by_ratio=tolerance.by_ratio)


def measure_fused(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> Findings:
    """Compare two flat tensors that are not empty, on one device, of a type that `is_usable` takes."""
    tiles, rest = divmod(expected.numel(), TILE)
    found = [_measure_tiles(expected, got, tolerance, tiles=tiles)] if tiles else []
    if rest:
        ends = [side[tiles * TILE :].cpu() for side in (expected, got)]
        found.append(measure_chunks(ends[0], ends[1], tolerance).moved(tiles * TILE))
    return Findings.combine(found)


def _measure_tiles(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, *, tiles: int) -> Findings:
    programs = min(tiles, PROGRAMS_PER_PROCESSOR * _processors(expected.device))
    lines = torch.empty((programs, FIELDS), dtype=torch.float64, device=expected.device)
    table = expected
    if expected.dtype not in DIRECT:
        table = _values_of_bytes(expected.dtype, expected.device)
        expected, got = expected.view(torch.uint8), got.view(torch.uint8)
    limits = torch.finfo(torch.float32)
    with own_kernels(), _on(expected.device):
        _compare[(programs,)](
            expected,
            got,
            table,
            lines,
            tiles,
            min(float(tolerance.rtol), limits.max),
            min(float(tolerance.added), limits.max),
            min(float(max(tolerance.atol, limits.tiny)), limits.max),
            limits.max,
            LOOK_UP=table is not expected,
            BY_RATIO=tolerance.by_ratio,
            TILE_SIZE=TILE,
            WINDOW_SIZE=WINDOW,
            LINE_SIZE=FIELDS,
            NONE=_NONE,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return _sum_up(lines.cpu())


@triton.jit(do_not_specialize=["tiles"])  # type: ignore[untyped-decorator] # Triton has no types
def _compare(
    expected_ptr: tl.tensor,
    got_ptr: tl.tensor,
    table_ptr: tl.tensor,
    lines_ptr: tl.tensor,
    tiles: tl.tensor,
    rtol: tl.tensor,
    added: tl.tensor,
    least_bound: tl.tensor,
    most_bound: tl.tensor,
    LOOK_UP: tl.constexpr,
    BY_RATIO: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    WINDOW_SIZE: tl.constexpr,
    LINE_SIZE: tl.constexpr,
    NONE: tl.constexpr,
) -> None:
    WINDOWS: tl.constexpr = TILE_SIZE // WINDOW_SIZE
    program = tl.program_id(0)
    lane = tl.arange(0, TILE_SIZE)
    mismatched = tl.zeros((TILE_SIZE,), dtype=tl.int32)
    nonfinite = tl.zeros((TILE_SIZE,), dtype=tl.int32)
    max_abs = tl.zeros((TILE_SIZE,), dtype=tl.float32)
    max_rel = tl.zeros((TILE_SIZE,), dtype=tl.float32)
    max_expected = tl.zeros((TILE_SIZE,), dtype=tl.float32)
    max_score = tl.full((TILE_SIZE,), -1.0, dtype=tl.float32)
    worst_tile = tl.zeros((TILE_SIZE,), dtype=tl.int32)
    unwritten = tl.full((WINDOWS,), NONE, dtype=tl.int64)
    for tile in range(program, tiles, tl.num_programs(0)):
        at = tl.cast(tile, tl.int64) * TILE_SIZE + lane
        expected, got = _read(expected_ptr + at, got_ptr + at, table_ptr, LOOK_UP)
        bound = tl.minimum(tl.maximum(tl.abs(expected) * rtol + added, least_bound), most_bound)
        failed, is_nonfinite, error, relative, magnitude, score = _judge(expected, got, bound)
        mismatched += failed.to(tl.int32)
        nonfinite += (failed & is_nonfinite).to(tl.int32)
        max_abs = tl.maximum(max_abs, error)
        max_rel = tl.maximum(max_rel, relative)
        max_expected = tl.maximum(max_expected, magnitude)
        worst_tile = tl.where(score > max_score, tile, worst_tile)
        max_score = tl.maximum(max_score, score)
        if BY_RATIO:
            first = tl.cast(tile, tl.int64) * TILE_SIZE + tl.arange(0, WINDOWS) * WINDOW_SIZE
            looks_unwritten = _find_unwritten(got, failed, WINDOWS, WINDOW_SIZE)
            unwritten = tl.minimum(unwritten, tl.where(looks_unwritten, first, NONE))

    worst_score = tl.max(max_score)
    worst_at = tl.where(max_score == worst_score, tl.cast(worst_tile, tl.int64) * TILE_SIZE + lane, NONE)
    line = lines_ptr + program * LINE_SIZE  # `_sum_up` reads it
    tl.store(line, tl.sum(mismatched).to(tl.float64))
    tl.store(line + 1, tl.sum(nonfinite).to(tl.float64))
    tl.store(line + 2, tl.max(max_abs).to(tl.float64))
    tl.store(line + 3, tl.max(max_rel).to(tl.float64))
    tl.store(line + 4, tl.max(max_expected).to(tl.float64))
    tl.store(line + 5, worst_score.to(tl.float64))
    tl.store(line + 6, tl.min(worst_at).to(tl.float64))
    tl.store(line + 7, tl.min(unwritten).to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def _read(expected_at: tl.tensor, got_at: tl.tensor, table_ptr: tl.tensor, LOOK_UP: tl.constexpr) -> tl.tuple:
    """Return the elements of a tile on both sides as float32."""
    expected_raw = tl.load(expected_at)
    got_raw = tl.load(got_at)
    if LOOK_UP:
        expected = tl.load(table_ptr + expected_raw.to(tl.int32))
        got = tl.load(table_ptr + got_raw.to(tl.int32))
    else:
        expected = expected_raw.to(tl.float32)
        got = got_raw.to(tl.float32)
    return expected, got


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def _judge(expected: tl.tensor, got: tl.tensor, bound: tl.tensor) -> tl.tuple:
    """Return of each element: failed, not finite on a side, error, relative error, expected magnitude, score.

    The steps are those of `chunks`, with the same roundings; the operator `/` would be approximate here.
    """
    infinity = float("inf")
    magnitude = tl.abs(expected)
    error = tl.abs(got - expected)
    score = _divide(error, bound)
    is_finite = magnitude < infinity
    alike = (got == expected) | ((got != got) & (expected != expected))
    failed = ~(score <= 1.0) & ~alike
    error = tl.where(error != error, tl.where(failed, infinity, 0.0), error)
    score = tl.where(is_finite & (error < infinity), score, error)
    magnitude = tl.where(is_finite, magnitude, 0.0)
    relative = _divide(error, magnitude)
    relative = tl.where(relative < infinity, relative, 0.0)
    is_nonfinite = ~(is_finite & (tl.abs(got) < infinity))
    return failed, is_nonfinite, error, relative, magnitude, score


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def _divide(error: tl.tensor, by: tl.tensor) -> tl.tensor:
    # Dividing zero or by zero would take the slow path for a whole warp. Most errors and many expected values are zero.
    quotient = tl.div_rn(tl.where(error == 0.0, 1.0, error), tl.where(by == 0.0, 1.0, by))
    return tl.where((error == 0.0) | (by == 0.0), 0.0, quotient)


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def _find_unwritten(got: tl.tensor, failed: tl.tensor, WINDOWS: tl.constexpr, WINDOW_SIZE: tl.constexpr) -> tl.tensor:
    """Tell of each window whether its elements are equal numbers, half of them wrong at the least."""
    windows = tl.reshape(got, (WINDOWS, WINDOW_SIZE))
    equal = tl.max(windows, axis=1) == tl.min(windows, axis=1)
    nans = tl.sum(tl.reshape((got != got).to(tl.int32), (WINDOWS, WINDOW_SIZE)), axis=1)
    wrong = tl.sum(tl.reshape(failed.to(tl.int32), (WINDOWS, WINDOW_SIZE)), axis=1)
    return equal & (nans == 0) & (wrong * 2 >= WINDOW_SIZE)


def _sum_up(lines: torch.Tensor) -> Findings:
    """Return what the lines of all programs say together."""
    mismatched, nonfinite = lines[:, :2].sum(dim=0).tolist()
    max_abs, max_rel, max_expected, worst_score = lines[:, 2:6].max(dim=0).values.tolist()
    worst_at = float(lines[lines[:, 5] == worst_score, 6].min())
    unwritten_at = float(lines[:, 7].min())
    return Findings(
        mismatched=int(mismatched),
        nonfinite_mismatched=int(nonfinite),
        max_abs_error=max_abs,
        max_rel_error=max_rel,
        max_expected=max_expected,
        worst_score=worst_score,
        worst_at=int(worst_at),
        unwritten_at=int(unwritten_at) if unwritten_at < _NONE else None,
    )


@cache
def _has_proved_itself(dtype: torch.dtype, device: torch.device, *, by_ratio: bool) -> bool:
    """Test the kernel on an example with every kind of element: it has to find what `chunks` finds."""
    tolerance = Tolerance(1e-2, 1e-2, 0.5 if by_ratio else 1.0)
    expected, got = make_example(dtype, device)
    try:
        found = measure_fused(expected, got, tolerance)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError, TritonError) as error:
        _log.warning("outputs are compared in chunks, which takes longer: the fused kernel cannot run: %s", error)
        return False
    wanted = measure_chunks(expected, got, tolerance)
    if found != wanted:
        _log.warning("outputs are compared in chunks: the fused kernel finds %s, expected %s", found, wanted)
        return False
    return True


def make_example(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Give two flat tensors that differ in every way that the comparison tells apart."""
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(7 * TILE + WINDOW + 7, generator=generator)
    got = expected + 0.02 * torch.randn(expected.shape, generator=generator)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-6, 200.0])
    expected[: odd.numel() ** 2], got[: odd.numel() ** 2] = torch.cartesian_prod(odd, odd).T
    got[2 * TILE + 5 : 2 * TILE + 3 * WINDOW] = 0.25
    return expected.to(dtype).to(device), got.to(dtype).to(device)


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make a device the current one, because Triton launches on the current device."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def _values_of_bytes(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype).float().to(device)
