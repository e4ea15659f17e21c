"""Runs the fused comparison in Triton's interpreter, on many small examples, against the one by chunks.

A program of its own, for Triton reads TRITON_INTERPRET when it decorates a kernel: `test_compare_fused` starts it.
It prints a line for each example on which the two do not agree, and how many there were last.
"""

from __future__ import annotations

import itertools

import torch

from flashinfer_bench.bench.evaluators.compare.chunks import measure_chunks
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
TOLERANCES = [
    Tolerance(*limits, ratio)
    for limits, ratio in itertools.product([(1e-2, 1e-2), (0.0, 0.0), (0.5, 0.0), (0.0, 1e-3)], [1.0, 0.9])
]
TOLERANCES.append(Tolerance(1e-2, 1e-2, is_sum=True))
ODD = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, 1.009, -1.0, 3e38, -3e38, 6e4, 1e-40, 1e-38, 2.0])


def draw(kind: str, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make two flat float32 tensors: alike, of odd values, or with a stretch of equal ones."""
    generator = torch.Generator().manual_seed(seed)
    expected = torch.randn(size, generator=generator)
    got = expected + 0.01 * torch.randn(size, generator=generator)
    if kind == "equal":
        return expected, expected.clone()
    if kind == "odd":
        return tuple(ODD[torch.randint(len(ODD), (size,), generator=generator)] for _ in range(2))
    if kind == "stretch":
        start = int(torch.randint(size, (), generator=generator))
        got[start : start + 100] = ODD[seed % len(ODD)]
    return expected, got


def main() -> None:
    from flashinfer_bench.bench.evaluators.compare.fused import TILE, make_example, measure_fused

    cpu = torch.device("cpu")
    sizes = (1, TILE - 1, TILE, 2 * TILE + 77)
    kinds = ("equal", "near", "odd", "stretch")
    count = 0
    # Each type meets each tolerance, at two of the sizes: at all four over two tolerances.
    shapes = [
        (dtype, tolerance, size)
        for (at, dtype), (of, tolerance) in itertools.product(enumerate(DTYPES), enumerate(TOLERANCES))
        for size in sizes[(at + of) % 2 :: 2]
    ]
    for number, (dtype, tolerance, size) in enumerate(shapes):
        kind = kinds[number // 3 % len(kinds)]
        sides = make_example(dtype, cpu) if number % 16 == 0 else [side.to(dtype) for side in draw(kind, size, number)]
        found, wanted = measure_fused(*sides, tolerance), measure_chunks(*sides, tolerance)
        count += 1
        if repr(found) != repr(wanted):
            print(f"{dtype}, {tolerance}, {size} elements, {kind}: {found}, not {wanted}")
    print(f"{count} examples")


if __name__ == "__main__":
    main()
