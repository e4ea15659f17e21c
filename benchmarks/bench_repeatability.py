"""The same code must give the same number: identical solutions, each in a worker of its own, timed through the engine.

Twenty kernels of 1 to 12 GPU operations, 1.5 µs to 5 ms, six identical solutions each. Prints one row a kernel with the
spread over its six workers, (max - min) / min, of busy time and latency, and the ratios of all pairs of workers.
Exits with 1 when a goal is missed: busy time 1 % above 5 µs and 3 % below, latency 2 % above 20 µs and 4 % below; 95 %
of the ratios within 1.5 % of 1 and none beyond 4 %. A kernel for which the GPU slowed itself down is shown, not held.

    python benchmarks/bench_repeatability.py --json out.json            (one GPU with CUPTI; about a minute)
    python benchmarks/bench_repeatability.py --workloads 4              each worker times each kernel four times
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload

WORKERS = 6
RMS = "h = x.float()\nh = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)\nreturn (h * h.sign()).to(x.dtype)"
CHAIN = "y = x\nfor _ in range({count}):\n    y = y + 1\nreturn y"
BRANCHES = """if not STREAMS:
    STREAMS.append(torch.cuda.Stream())
side = STREAMS[0]
now = torch.cuda.current_stream()
side.wait_stream(now)
a = x + 1
with torch.cuda.stream(side):
    b = x * 2
    b = b + 1
a = a * 2
now.wait_stream(side)
return a + b"""
KERNELS: dict[str, tuple[tuple[int, int], str]] = {
    "add_16k": ((4, 4096), "return x + 1"),
    "add_256k": ((64, 4096), "return x + 1"),
    "add_16m": ((4096, 4096), "return x + 1"),
    "add_64m": ((16384, 4096), "return x + 1"),
    "add_512m": ((131072, 4096), "return x + 1"),
    "add_2g": ((524288, 4096), "return x + 1"),
    "softmax_2m": ((512, 4096), "return torch.softmax(x, -1)"),
    "softmax_16m": ((4096, 4096), "return torch.softmax(x, -1)"),
    "layer_norm_256k": ((64, 4096), "return torch.nn.functional.layer_norm(x, (x.shape[-1],))"),
    "matmul_1k": ((1024, 1024), "return x @ x"),
    "matmul_2k": ((2048, 2048), "return x @ x"),
    "matmul_4k": ((4096, 4096), "return x @ x"),
    "matmul_8k": ((8192, 8192), "return x @ x"),
    "chain_2": ((64, 4096), CHAIN.format(count=2)),
    "chain_12": ((64, 4096), CHAIN.format(count=12)),
    "chain_12_large": ((110592, 4096), CHAIN.format(count=12)),
    "rms_1": ((1, 4096), RMS),
    "rms_64": ((64, 4096), RMS),
    "rms_4096": ((4096, 4096), RMS),
    "branches": ((64, 4096), BRANCHES),
}


@dataclass
class Row:
    """What one kernel came to; times in microseconds."""

    kernel: str
    operations: int
    launch: str
    latency_us: list[float]
    busy_us: list[float]
    flags: list[str]
    samples_ns: list[dict[str, list[list[int]]]]
    """Every reading of each worker, by trial, with the setting keep_samples."""

    @property
    def latency_spread(self) -> float:
        """(max - min) / min over the workers."""
        return spread(self.latency_us)

    @property
    def busy_spread(self) -> float:
        """(max - min) / min over the workers."""
        return spread(self.busy_us)

    @property
    def ratios(self) -> list[float]:
        """The ratio of the latencies of every pair of workers."""
        return [a / b for a, b in itertools.combinations(self.latency_us, 2)]

    @property
    def is_held(self) -> bool:
        """Whether the goals are for this kernel: not where the GPU slowed itself down, and said so."""
        return "throttled" not in self.flags

    @property
    def holds(self) -> bool:
        """Whether the goals for one kernel are met."""
        busy_goal = 0.01 if min(self.busy_us) > 5 else 0.03
        latency_goal = 0.02 if min(self.latency_us) > 20 else 0.04
        return self.busy_spread <= busy_goal and self.latency_spread <= latency_goal


def spread(values: list[float]) -> float:
    """Return (max - min) / min."""
    return (max(values) - min(values)) / min(values) if min(values) else 0.0


def make_source(body: str, name: str) -> str:
    """Return a solution's source; the comment makes it a solution of its own, in a worker of its own."""
    indented = "\n    ".join(body.splitlines())
    return f"# {name}\nimport torch\n\nSTREAMS = []\n\n\n@torch.no_grad()\ndef run(x):\n    {indented}\n"


def make_trace_set(names: list[str], workers: int, workloads_each: int) -> TraceSet:
    """Return a trace set with one definition a kernel, identical solutions and identical workloads of each."""
    definitions, solutions, workloads = {}, {}, {}
    for name in names:
        (rows, columns), body = KERNELS[name]
        axes = {"m": {"type": "const", "value": rows}, "n": {"type": "const", "value": columns}}
        tensor = {"shape": ["m", "n"], "dtype": "bfloat16"}
        definition = Definition.model_validate(
            {
                "name": name,
                "op_type": "elementwise",
                "axes": axes,
                "inputs": {"x": tensor},
                "outputs": {"y": tensor},
                "reference": make_source(body, name),
            }
        )
        definitions[name] = definition
        solutions[name] = [
            Solution.model_validate(
                {
                    "name": f"{name}_{index}",
                    "definition": name,
                    "author": "bench",
                    "spec": {
                        "language": "python",
                        "target_hardware": ["cuda", "cpu"],
                        "entry_point": "main.py::run",
                        "destination_passing_style": False,
                    },
                    "sources": [{"path": "main.py", "content": make_source(body, f"{name} {index}")}],
                }
            )
            for index in range(workers)
        ]
        inputs = {"x": {"type": "random"}}
        alike = [{"uuid": f"{name}_{index}", "axes": {}, "inputs": inputs} for index in range(workloads_each)]
        workloads[name] = [Trace(definition=name, workload=Workload.model_validate(fields)) for fields in alike]
    return TraceSet(root=None, definitions=definitions, solutions=solutions, workloads=workloads, traces={})


def measure(names: list[str], workers: int, workloads: int, settings: dict[str, object]) -> list[Row]:
    """Time every kernel in every worker, for every workload, and return a row each."""
    config = BenchmarkConfig.default(profile_baseline=False, **settings)
    benchmark = Benchmark(make_trace_set(names, workers, workloads), config)
    rows: dict[str, Row] = {}
    for event in benchmark.run(benchmark.plan(), save_results=False):
        if not isinstance(event, JobFinished):
            continue
        evaluation = event.trace.evaluation
        if evaluation is None or evaluation.performance is None:
            raise SystemExit(f"{event.job.solution.name}: {evaluation}")
        record = (evaluation.extra or {})["measurement"]
        name = event.job.definition.name
        row = rows.setdefault(name, Row(name, record.get("operations", 0), record.get("launch", ""), [], [], [], []))
        row.flags += [flag for flag in record.get("flags", []) if flag not in row.flags]
        row.samples_ns += [record["samples_ns"]] if "samples_ns" in record else []
        row.latency_us.append(evaluation.performance.latency_ms * 1e3)
        row.busy_us.append(record.get("busy_ms", 0.0) * 1e3)
        print(f"{event.job.solution.name}: {record['trials_ms']} busy {record.get('busy_ms')}", file=sys.stderr)
    for fault in benchmark.faults:
        raise SystemExit(fault.message)
    return list(rows.values())


def report(rows: list[Row]) -> bool:
    """Print the table and say whether every goal is met."""
    print(f"{'kernel':16} {'ops':>3} {'launch':6} {'latency us':>10} {'spread':>7} {'busy us':>9} {'spread':>7}")
    for row in rows:
        print(
            f"{row.kernel:16} {row.operations:3} {row.launch:6} {min(row.latency_us):10.2f} {row.latency_spread:7.2%}"
            f" {min(row.busy_us):9.2f} {row.busy_spread:7.2%}  {'' if row.holds else 'MISSED '}{' '.join(row.flags)}"
        )
    held = [row for row in rows if row.is_held]
    ratios = [ratio for row in held for ratio in row.ratios]
    within = sum(abs(ratio - 1) <= 0.015 for ratio in ratios) / len(ratios)
    worst = max(abs(ratio - 1) for ratio in ratios)
    print(f"{len(ratios)} ratios of identical solutions: {within:.1%} within 1.5 % of 1, the worst {worst:.2%} off")
    return all(row.holds for row in held) and within >= 0.95 and worst <= 0.04


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--workers", type=int, default=WORKERS, help="identical solutions (default: %(default)s)")
    parser.add_argument("--workloads", type=int, default=1, help="identical workloads (default: %(default)s)")
    parser.add_argument("--settings", type=json.loads, default={}, help='more settings, such as {"cuda_graphs": false}')
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    rows = measure(args.kernels, args.workers, args.workloads, args.settings)
    if not rows:
        raise SystemExit("nothing was measured; `flashinfer-bench doctor` says what this machine can time")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if report(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
