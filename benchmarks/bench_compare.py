"""Time the comparison of one large output against its goal, and check what it finds.

python benchmarks/bench_compare.py [--gigabytes 1] [--dtype bfloat16] [--repeats 10] [--device cpu]

For a required matched ratio of 1 and below, and outputs that are equal, nearly equal and wrong: the time of a
comparison, beyond that of reading both tensors twice, and the device memory that it takes. The goal, held against 1 GB
on an H200: under 50 ms beyond that, under 300 MB; missed, or a planted fault not found, it exits with 1. On a CPU times
are shown and not judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.rule import Comparison, Tolerance

GOAL_MS = 50.0
GOAL_BYTES = 300_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    elements = int(arguments.gigabytes * 1e9) // dtype.itemsize // 8 * 8
    expected = make_output(elements, dtype, device)
    got = expected.clone()
    reading_ms = 2 * time_calls(lambda: [side.view(torch.int64).sum() for side in (expected, got)], device, arguments)
    missed, rows = [], []
    for kind in ("equal", "near", "wrong"):
        spoil(got, kind)
        for ratio in (1.0, 0.95):
            took_ms, extra, found = measure(expected, got, Tolerance(1e-2, 1e-2, ratio), device, arguments)
            rows.append((kind, ratio, took_ms, took_ms - reading_ms, extra / 1e6))
            missed += check(found, kind, elements)
            if device.type == "cuda" and (took_ms - reading_ms >= GOAL_MS or extra >= GOAL_BYTES):
                missed.append(f"{kind}, ratio {ratio}: over {GOAL_MS:g} ms or {GOAL_BYTES / 1e6:.0f} MB")
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    print(f"{arguments.gigabytes:g} GB of {arguments.dtype} on {where}; reading both twice: {reading_ms:.2f} ms")
    print(f"{'output':<8}{'ratio':>6}{'ms':>10}{'ms beyond':>12}{'extra MB':>10}")
    for kind, ratio, took_ms, beyond_ms, megabytes in rows:
        print(f"{kind:<8}{ratio:>6}{took_ms:>10.2f}{beyond_ms:>12.2f}{megabytes:>10.1f}")
    if missed:
        raise SystemExit("\n".join(missed))


def make_output(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make a flat output of normal values."""
    output = torch.empty(elements, dtype=dtype, device=device)
    generator = torch.Generator(device=device).manual_seed(0)
    for start in range(0, elements, 1 << 26):
        part = output[start : start + (1 << 26)]
        part.copy_(torch.randn(part.shape, generator=generator, device=device))
    return output


def spoil(got: torch.Tensor, kind: str) -> None:
    """Change an output in place: not at all, within the tolerance, or one element beyond it."""
    if kind == "near":
        for start in range(0, got.numel(), 1 << 26):
            part = got[start : start + (1 << 26)]
            part.copy_(part.float() * 1.004)
    elif kind == "wrong":
        got[got.numel() * 3 // 4] = 100.0


def measure(
    expected: torch.Tensor,
    got: torch.Tensor,
    tolerance: Tolerance,
    device: torch.device,
    arguments: argparse.Namespace,
) -> tuple[float, int, Comparison]:
    """Give the time of a comparison in ms, the extra device memory in bytes, and what it found."""
    took_ms = time_calls(lambda: compare(expected, got, tolerance), device, arguments)
    if device.type != "cuda":
        return took_ms, 0, compare(expected, got, tolerance)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = compare(expected, got, tolerance)
    return took_ms, torch.cuda.max_memory_allocated() - before, found


def check(found: Comparison, kind: str, elements: int) -> list[str]:
    """Say where a comparison did not find what was planted."""
    wanted = (1, (elements * 3 // 4,)) if kind == "wrong" else (0, found.worst and found.worst.index)
    seen = (found.mismatched, found.worst and found.worst.index)
    return [] if seen == wanted else [f"{kind}: found {seen}, expected {wanted}"]


def time_calls(call: Callable[[], object], device: torch.device, arguments: argparse.Namespace) -> float:
    """Give the median wall time of a call, in ms; the first, which compiles, does not count."""
    taken_ms = []
    for _ in range(arguments.repeats + 1):
        start = perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken_ms.append((perf_counter() - start) * 1e3)
    return median(taken_ms[1:])


if __name__ == "__main__":
    main()
