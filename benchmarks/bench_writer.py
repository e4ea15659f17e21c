"""What it takes a GPU to write inputs of calls: multiplied by known factors, and drawn anew.

    python benchmarks/bench_writer.py                                   (one GPU; a second)

Prints the milliseconds of a float32 input of 256 MB. Exits with 1 where drawing takes four times as long, or longer,
and with 2 where there is no GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer

ELEMENTS = 1 << 26
CALLS = 10
MOST = 4.0


def time_writing(value: torch.Tensor, deviation: float | None) -> float:
    """Return the milliseconds of one call's input: multiplied where no deviation is given, else drawn."""
    into = torch.empty_like(value)
    contents = Contents([value], [VariedInput("x", "scaled", deviation=deviation)], 3, -1)
    contents.make(CALLS)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for number in range(CALLS):
        writer = open_writer(value.device)
        contents.write_all([number], [[into]], writer)
        writer.finish()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / CALLS


def main() -> int:
    if not torch.cuda.is_available():
        print("there is no GPU", file=sys.stderr)
        return 2
    value = torch.randn(ELEMENTS, device="cuda")
    multiplied_ms, drawn_ms = (time_writing(value, deviation) for deviation in (None, 1.0))
    print(f"{torch.cuda.get_device_name()}: multiplied {multiplied_ms:.3f} ms, drawn {drawn_ms:.3f} ms")
    return int(drawn_ms >= MOST * multiplied_ms)


if __name__ == "__main__":
    sys.exit(main())
