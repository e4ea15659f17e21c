"""The same code must give the same number: identical solutions, each in a worker of its own, timed through the engine.

Twenty kernels of 1 to 12 GPU operations, 1.5 µs to 5 ms, six identical solutions each. Every second one is called
Triton, so that its worker gets a context of one connection; the others get fast ones of all connections. Prints one row
a kernel with the spread over its six workers, (max - min) / min, of busy time and latency, and the ratios of all pairs
of workers. Exits with 1 when a goal is missed: busy time 1 % above 5 µs and 3 % below, latency 2 % above 20 µs and 4 %
below; 95 % of the ratios within 1.5 % of 1 and none beyond 4 %. A kernel for which the GPU slowed itself down is shown,
not held.

    python benchmarks/bench_repeatability.py --json out.json            (one GPU with CUPTI; about a minute)
    python benchmarks/bench_repeatability.py --workloads 4              each worker times each kernel four times
    python benchmarks/bench_repeatability.py --precision 0.005 0.01 0.02        a table for each, and what each costs
    python benchmarks/bench_repeatability.py --simulate --precision 0.01  no GPU: pairs of jobs on made-up readings
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.timing.procedure import EXTRA_SHARE
from flashinfer_bench.timing.settings import PRECISION
from flashinfer_bench.timing.stopping import StoppingRule

WORKERS = 6
SIMULATED_JOBS = 1000
SCATTERS = (0.01, 0.02, 0.05, 0.07, 0.1)
COSTS = attrgetter("readings"), attrgetter("reached"), attrgetter("seconds")
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

LANGUAGES = ("python", "triton")
"""Of the first, third, … worker, and of the others."""


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
    readings: list[int] = field(default_factory=list)
    """Readings of each job, over its trials."""
    reached: list[float] = field(default_factory=list)
    """Share to which the worst trial of each job is known, where there are readings enough to tell."""
    seconds: list[float] = field(default_factory=list)
    """Wall time of each job but a worker's first, which holds its start."""

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
                        "language": LANGUAGES[index % 2],
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
    seen: set[str] = set()
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
        row.readings.append(record["samples"])
        row.reached += [record["precision_reached"]] if record["precision_reached"] is not None else []
        row.seconds += [event.seconds] if event.job.solution.name in seen else []
        seen.add(event.job.solution.name)
        print(f"{event.job.solution.name}: {record['trials_ms']} busy {record.get('busy_ms')}", file=sys.stderr)
    for fault in benchmark.faults:
        raise SystemExit(fault.message)
    return list(rows.values())


def report(rows: list[Row], precision: float) -> bool:
    """Print the table for one precision and say whether every goal is met."""
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
    readings, reached, seconds = ([value for row in rows for value in found(row)] for found in COSTS)
    later = f", {median(seconds):.3f} s a job (median, without the first of a worker)" if seconds else ""
    known = f"; trials known to {median(reached):.2%} (median), {max(reached):.2%} (worst)" if reached else ""
    print(f"precision {precision:g}: {fmean(readings):.0f} readings a job (mean){later}{known}")
    return all(row.holds for row in held) and within >= 0.95 and worst <= 0.04


def simulate(precision: float, scatter: float) -> tuple[float, list[float]]:
    """Return readings a job (mean), and ratios of pairs of jobs whose readings are independent of each other.

    Args:
        precision: what is asked for.
        scatter: standard deviation of the logarithm of a reading.
    """
    chance, rule = random.Random(0), StoppingRule(50, 1e9, 50 * EXTRA_SHARE, precision)
    latencies, taken = [], 0
    for _job in range(SIMULATED_JOBS):
        medians = []
        for _trial in range(3):
            spans: list[int] = []
            while not isinstance(batch := rule.next_batch(spans, spent_s=0.0, per_call_s=1e-6), str):
                spans += [round(3e6 * chance.lognormvariate(0.0, scatter)) for _ in range(batch)]
            medians.append(median(spans))
            taken += len(spans)
        latencies.append(fmean(medians))
    return taken / SIMULATED_JOBS, [a / b for a, b in zip(latencies[::2], latencies[1::2], strict=True)]


def report_simulated(precision: float) -> None:
    """Print what a precision gives and costs for calls that scatter more and more."""
    for scatter in SCATTERS:
        readings, ratios = simulate(precision, scatter)
        off = sorted(abs(ratio - 1) for ratio in ratios)
        within = sum(one <= 0.015 for one in off) / len(off)
        print(
            f"precision {precision:5g}, scatter {scatter:4.0%}: {readings:5.0f} readings a job, {within:6.1%} of pairs"
            f" within 1.5 %, 95 % within {off[int(0.95 * len(off))]:.2%}"
        )


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--workers", type=int, default=WORKERS, help="identical solutions (default: %(default)s)")
    parser.add_argument("--workloads", type=int, default=1, help="identical workloads (default: %(default)s)")
    parser.add_argument(
        "--precision", type=float, nargs="+", default=[PRECISION], metavar="P", help="try each of these"
    )
    parser.add_argument("--simulate", action="store_true", help="time nothing; take made-up readings by the same rule")
    parser.add_argument("--settings", type=json.loads, default={}, help='more settings, such as {"cuda_graphs": false}')
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    if args.simulate:
        for precision in args.precision:
            report_simulated(precision)
        return 0
    tables: dict[float, list[Row]] = {}
    for precision in args.precision:
        settings = {**args.settings, "precision": precision}
        tables[precision] = measure(args.kernels, args.workers, args.workloads, settings)
        if not tables[precision]:
            raise SystemExit("nothing was measured; `flashinfer-bench doctor` says what this machine can time")
    if args.json:
        written = {f"{precision:g}": [asdict(row) for row in rows] for precision, rows in tables.items()}
        args.json.write_text(json.dumps(written, indent=1))
    held = [report(rows, precision) for precision, rows in tables.items()]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
