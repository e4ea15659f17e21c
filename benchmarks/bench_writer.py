"""What it takes to write inputs of calls: copied, varied (shuffled in rows and multiplied), and drawn anew.

    python benchmarks/bench_writer.py                                   (one GPU; some seconds)
    python benchmarks/bench_writer.py --device cpu                      (half a minute)

Prints the nanoseconds that an element takes, the least of several calls. Exits with 1 where a call on a GPU takes MOST
times as long as a copy, or longer, and with 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer

SHAPES = {
    "cuda": ((1 << 14, 1 << 12), (1 << 19, 128), (1 << 22,), (1 << 26,)),
    "cpu": ((1 << 8, 1 << 12), (1 << 13, 128), (1 << 20,), (1 << 10, 1 << 12), (1 << 22,)),
}
CALLS = 12
MOST = 12.0
"""Times as long as a copy: a row that lies in no cache is gathered by sectors of 32 bytes, of which 2 or 4 are used."""


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_calls(call, value: torch.Tensor) -> float:
    """Return the nanoseconds of an element, the least of some calls."""
    taken = []
    for number in range(CALLS):
        wait(value.device.type)
        begin = time.perf_counter_ns()
        call(number)
        wait(value.device.type)
        taken.append(time.perf_counter_ns() - begin)
    return min(taken) / value.numel()


def time_writing(value: torch.Tensor, deviation: float | None) -> float:
    """Return the nanoseconds of an element of one call's input: varied where no deviation is given, else drawn."""
    into = torch.empty_like(value)[None]
    contents = Contents([value], [VariedInput("x", "scaled", deviation=deviation)], 3, -1)

    def write(number: int) -> None:
        writer = open_writer(value.device)
        contents.write_all([number], [into], [0], writer)
        writer.finish()

    return time_calls(write, value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=[*SHAPES], default="cuda")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU", file=sys.stderr)
        return 2
    print(torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads")
    worst = 0.0
    for shape in SHAPES[device]:
        for dtype in (torch.float32, torch.bfloat16):
            value = torch.randn(shape, device=device).to(dtype)
            copied = time_calls(lambda _, value=value: value.clone(), value)
            varied, drawn = (time_writing(value, deviation) for deviation in (None, 1.0))
            worst = max(worst, varied / copied, drawn / copied)
            name = f"{list(shape)} {str(dtype).removeprefix('torch.')}"
            print(f"{name:24} copied {copied:7.4f}, varied {varied:7.4f}, drawn {drawn:7.4f} ns an element")
    return int(device == "cuda" and worst >= MOST)


if __name__ == "__main__":
    sys.exit(main())
