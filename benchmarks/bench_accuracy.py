"""Single kernels held against two other tools in one run: Nsight Compute and cuda-bench.

* `ncu --clock-control none --cache-control all`, metric gpu__time_duration: against our latency (launch gap and span).
* cuda-bench (NVBench for Python), cold measurement: it reads CUDA events round the call after a flush that writes. So
  it is held against our event clock after a flush that writes, and each tool's own reading of an empty kernel is taken
  off, since the events' constant differs between the tools.

Interquartile ranges and standard deviations stand beside the times.

Goals: within 3 % or 0.2 µs, and a spread (standard deviation of our latency) no larger than cuda-bench's. Exits with 1
when one is missed.

    python benchmarks/bench_accuracy.py      (one GPU with CUPTI, ncu on the PATH, cuda-bench installed; half a minute)
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from flashinfer_bench.timing.clocks import event_clock, make_clock
from flashinfer_bench.timing.lane import GpuLane, Lead
from flashinfer_bench.timing.recipe import Recipe, take_trial
from flashinfer_bench.timing.summary import summarise

CALLS = 12
Call = Callable[[], object]


class TheirReading(NamedTuple):
    """What cuda-bench says of a call, in microseconds."""

    mean: float
    iqr: float
    std: float


class WritingLane(GpuLane):
    """A lane whose flush writes, as cuda-bench's does."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, cold=False)
        size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
        self._written = torch.empty(size, dtype=torch.uint8, device=device)

    def lead_up(self, lead: Lead) -> None:
        """Write a buffer, then spin."""
        self._written.zero_()
        super().lead_up(lead)


def make_calls() -> dict[str, Call]:
    """Return calls of one kernel each, on data of full entropy."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

    small, large, huge = draw(64, 4096), draw(4096, 4096), draw(16384, 4096)
    small_out, large_out, huge_out = (torch.empty_like(tensor) for tensor in (small, large, huge))
    one, a, b, c = torch.zeros(1, device="cuda"), draw(2048, 2048), draw(2048, 2048), draw(2048, 2048)
    return {
        "empty": lambda: one.zero_(),
        "add 256k": lambda: torch.add(small, 1, out=small_out),
        "add 16m": lambda: torch.add(large, 1, out=large_out),
        "add 64m": lambda: torch.add(huge, 1, out=huge_out),
        "softmax 16m": lambda: torch.softmax(large, -1),
        "matmul 2k": lambda: torch.mm(a, b, out=c),
    }


def run_ncu() -> dict[str, float]:
    """Return ncu's median duration of each call, in microseconds."""
    command = ["ncu", "--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off", "--csv"]
    command += ["--metrics", "gpu__time_duration.sum", sys.executable, __file__, "ncu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))
    values = [float(row["Metric Value"].replace(",", "")) / 1e3 for row in rows]
    names = list(make_calls())
    if len(values) != CALLS * len(names):
        raise SystemExit(f"ncu saw {len(values)} kernels, not {CALLS} of each of {len(names)} calls")
    return {name: median(values[i * CALLS : (i + 1) * CALLS]) for i, name in enumerate(names)}


def make_ncu_calls() -> None:
    """Be the process that ncu looks at."""
    calls = make_calls()
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for call in calls.values():
        for _ in range(CALLS):
            call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def run_cuda_bench() -> dict[str, TheirReading]:
    """Return what cuda-bench read for each call."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        subprocess.run([sys.executable, __file__, "cuda-bench", str(out)], capture_output=True, check=True)
        benchmarks = json.loads(out.read_text())["benchmarks"]
    found = {}
    for benchmark, name in zip(benchmarks, make_calls(), strict=True):
        summaries = {one["tag"]: float(one["data"][0]["value"]) for one in benchmark["states"][0]["summaries"]}
        gpu = {name: summaries[f"nv/cold/time/gpu/{name}"] * 1e6 for name in ("mean", "iqr/absolute", "stdev/absolute")}
        found[name] = TheirReading(*gpu.values())
    return found


def make_cuda_bench_calls(out: str) -> None:
    """Be the process in which cuda-bench measures."""
    from cuda import bench

    for name, call in make_calls().items():

        def measure(state: bench.State, call: Call = call) -> None:
            def launch(launched: bench.Launch) -> None:
                stream = torch.cuda.ExternalStream(launched.get_stream().addressof())
                with torch.cuda.stream(stream):
                    call()

            state.exec(launch, batched=False)

        measure.__name__ = name.replace(" ", "_")
        bench.register(measure).set_timeout(0.7)
    bench.run_all_benchmarks(["bench", "--json", out])


def run_ours() -> dict[str, dict[str, float]]:
    """Return our latency, busy time and spread, and the event clock's reading after a writing flush."""
    device = torch.device("cuda", 0)
    calls = make_calls()
    cupti, events = make_clock(device), event_clock(WritingLane(device), "to compare")
    gap_ns = cupti.launch_gap_ns()
    recipe = Recipe(warmup_runs=10, iterations=50, budget_s=10.0)
    found = {}
    for name, call in calls.items():
        by_events = summarise([take_trial(lambda _i, call=call: call, events, recipe)]).record
        trials = [take_trial(lambda _i, call=call: call, cupti, recipe) for _ in range(3)]
        measured = summarise(trials, launch_gap_ns=gap_ns)
        found[name] = {
            "latency": measured.latency_ms * 1e3,
            "busy": measured.record["busy_ms"] * 1e3,
            "events": by_events["median_ms"] * 1e3,
            "iqr": (by_events["q75_ms"] - by_events["q25_ms"]) * 1e3,
            "std": by_events["std_ms"] * 1e3,
            "own_iqr": (measured.record["q75_ms"] - measured.record["q25_ms"]) * 1e3,
            "own_std": measured.record["std_ms"] * 1e3,
        }
    return found


def agrees(ours: float, theirs: float) -> bool:
    """Say whether two times in microseconds are within 3 % or 0.2 µs."""
    return abs(ours - theirs) <= max(0.2, 0.03 * theirs)


def main() -> int:
    """Run the benchmark."""
    if sys.argv[1:2] == ["ncu"]:
        make_ncu_calls()
        return 0
    if sys.argv[1:2] == ["cuda-bench"]:
        make_cuda_bench_calls(sys.argv[2])
        return 0
    if shutil.which("ncu") is None:
        raise SystemExit("ncu is not on the PATH; it comes with the CUDA toolkit (Nsight Compute)")
    ours, ncu, theirs = run_ours(), run_ncu(), run_cuda_bench()
    print(
        "us            latency    busy     ncu          events   cuda-bench  (each less its empty)"
        "  iqr: ours, events, theirs  std: ours, events, theirs"
    )
    holds = True
    for name, row in ours.items():
        net, their_net = row["events"] - ours["empty"]["events"], theirs[name].mean - theirs["empty"].mean
        fine = [agrees(row["latency"], ncu[name]), agrees(net, their_net), row["own_std"] <= theirs[name].std]
        fine = fine if name != "empty" else [True]
        verdict = "" if all(fine) else f"  MISSED {fine}"
        holds &= all(fine)
        their = theirs[name]
        iqr = f"{row['own_iqr']:9.3f} {row['iqr']:7.3f} {their.iqr:7.3f}"
        spreads = f"{iqr} {row['own_std']:10.3f} {row['std']:7.3f} {their.std:7.3f}"
        print(
            f"{name:12} {row['latency']:8.2f} {row['busy']:7.2f} {ncu[name]:7.2f} {row['events']:15.2f}"
            f" {theirs[name].mean:12.2f} {net:10.2f} {their_net:10.2f}{spreads}{verdict}"
        )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
