"""What a worker for each job costs: the same jobs with the persistent and with the isolated runner, in turn.

    python benchmarks/bench_isolated.py [--rounds 5] [--devices cpu] [--solutions 8] [--workloads 8]

It makes a set of its own: Python solutions of one definition, times workloads. Nothing is saved. Prints the seconds
from the first verdict to the last of each run, and the median ratio, isolated to persistent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import TraceSet

REFERENCE = """import torch

def run(x, weight):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale).to(x.dtype) * weight
"""
DEFINITION = {
    "name": "rmsnorm_h1024",
    "op_type": "rmsnorm",
    "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 1024}},
    "inputs": {
        "x": {"shape": ["batch", "hidden"], "dtype": "float32"},
        "weight": {"shape": ["hidden"], "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["batch", "hidden"], "dtype": "float32"}},
    "reference": REFERENCE,
}


def write_set(root: Path, *, solutions: int, workloads: int) -> None:
    """Write the set."""
    lines = []
    for number in range(workloads):
        inputs = {name: {"type": "random"} for name in DEFINITION["inputs"]}
        workload = {"uuid": f"w{number}", "axes": {"batch": number + 1}, "inputs": inputs}
        lines.append(json.dumps({"definition": DEFINITION["name"], "solution": None, "workload": workload}))
    files = {
        f"definitions/rmsnorm/{DEFINITION['name']}.json": json.dumps(DEFINITION),
        f"workloads/rmsnorm/{DEFINITION['name']}.jsonl": "\n".join(lines) + "\n",
    }
    for number in range(solutions):
        name = f"torch_{number}"
        spec = {
            "language": "python",
            "target_hardware": ["CPU", "NVIDIA H200", "NVIDIA H100"],
            "entry_point": "main.py::run",
            "destination_passing_style": False,
        }
        source = f"# solution {number}\n{REFERENCE}"
        solution = {
            "name": name,
            "definition": DEFINITION["name"],
            "author": "bench",
            "spec": spec,
            "sources": [{"path": "main.py", "content": source}],
        }
        files[f"solutions/bench/rmsnorm/{DEFINITION['name']}/{name}.json"] = json.dumps(solution)
    for place, text in files.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)


def time_run(root: Path, *, isolated: bool, devices: list[str] | None) -> float:
    """Return the seconds from the first verdict to the last."""
    config = BenchmarkConfig.default(use_isolated_runner=isolated, devices=devices)
    benchmark = Benchmark(TraceSet.from_path(root), config)
    times = []
    for event in benchmark.run(benchmark.plan(), save_results=False):
        if isinstance(event, JobFaulted):
            raise SystemExit(event.message)
        if isinstance(event, JobFinished):
            if event.trace.evaluation.status.value != "PASSED":
                raise SystemExit(f"{event.trace.evaluation.status.value}: {event.trace.evaluation.log}")
            times.append(time.monotonic())
    return times[-1] - times[0]


def main() -> None:
    """Take the rounds and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", nargs="*")
    parser.add_argument("--solutions", type=int, default=8)
    parser.add_argument("--workloads", type=int, default=8)
    asked = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        write_set(Path(folder), solutions=asked.solutions, workloads=asked.workloads)
        for _ in range(asked.rounds):
            persistent, isolated = (
                time_run(Path(folder), isolated=isolated, devices=asked.devices) for isolated in (False, True)
            )
            ratios.append(isolated / persistent)
            print(f"persistent {persistent:.2f} s, isolated {isolated:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
