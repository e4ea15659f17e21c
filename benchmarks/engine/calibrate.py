"""How many matrix products take so many milliseconds here: for a reference that is as slow as asked for.

    python -m benchmarks.engine.calibrate --milliseconds 24 --rows 2232 --width 4096

Prints the number.
"""

from __future__ import annotations

import argparse
import time

import torch

CALLS = 5


def time_products(x: torch.Tensor, weight: torch.Tensor, steps: int) -> float:
    """Return the seconds of so many products, the best of a few calls."""
    best_s = float("inf")
    for _ in range(CALLS):
        begin_s = time.perf_counter()
        for _ in range(steps):
            x @ weight
        if x.is_cuda:
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - begin_s)
    return best_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(asked.rows, asked.width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(asked.width, asked.width, device=device, dtype=torch.bfloat16)
    steps = 1
    while (seconds := time_products(x, weight, steps)) < asked.milliseconds / 1e3:
        steps *= 2
    print(max(1, round(steps * asked.milliseconds / 1e3 / seconds)))


if __name__ == "__main__":
    main()
