"""What a measurement costs: 3 trials of 10 + 50 calls of a 2 µs kernel in a process that is up.

Prints the wall time and how long of it the GPU was busy with flushes, spins and calls. Goals: under 80 ms, and at least
60 %. Exits with 1 when one is missed.

    python benchmarks/bench_measurement_cost.py                        (one GPU with CUPTI; some seconds)
"""

from __future__ import annotations

import sys
import time

import torch

from flashinfer_bench.timing.clocks import CuptiClock
from flashinfer_bench.timing.cupti import CuptiRecorder
from flashinfer_bench.timing.flush import GpuQueue
from flashinfer_bench.timing.procedure import Procedure, take_trial
from flashinfer_bench.timing.timeline import Operation, busy_time

GOAL_MS = 80.0
GOAL_SHARE = 0.6


class Tally(CuptiRecorder):
    """A recorder that also sums how long the GPU was busy with anything."""

    busy_ns = 0

    def take(self) -> list[Operation]:
        """Return what was recorded since the last time."""
        operations = super().take()
        self.busy_ns += busy_time(operations)
        return operations


def main() -> int:
    """Run the benchmark."""
    device = torch.device("cuda", 0)
    x = torch.randn(64, 4096, device=device).bfloat16()
    y = torch.empty_like(x)

    def call() -> object:
        return torch.add(x, 1, out=y)

    recorder = Tally()
    lane = GpuQueue(device)
    clock = CuptiClock(lane, recorder)
    recipe = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)
    holds = True
    for run in range(4):
        recorder.busy_ns = 0
        start = time.perf_counter()
        for _ in range(3):
            take_trial(lambda _index: call, clock, recipe)
        wall_ms = (time.perf_counter() - start) * 1e3
        share = recorder.busy_ns / 1e6 / wall_ms
        print(f"run {run}: {wall_ms:6.2f} ms of wall time, the GPU busy for {share:.0%} of it")
        holds = run == 0 or (holds and wall_ms < GOAL_MS and share >= GOAL_SHARE)  # the first run warms up
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
