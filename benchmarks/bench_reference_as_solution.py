"""What the engine says of a solution that is the reference: its speed-up should be 1.

    python benchmarks/bench_reference_as_solution.py [--runs 20] [--calls-us 5 20 100 1000 10000] [--styles value dps]

Makes a definition for each length of a call on a CPU, and for each style a solution that computes what the reference
does, runs the engine so many times, each time on all of them, and prints median and quartiles of the speed-ups. The
solution that returns its output is the reference's text. One that fills its output (dps) computes the same and writes
the last step into the output that it is given, so it allocates one tensor less; it is told for what it is. Goal: the
median of the first lies within 0.95 to 1.05. Exits with 1 where it does not. Nothing is saved.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles

import torch

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload

GOAL = (0.95, 1.05)
SIZES = {5: 64, 20: 2048, 100: 8192, 1_000: 8192, 10_000: 16384}
"""Microseconds of a call → elements: few enough that one thread computes them (MKL splits a sine of 2,048 in two, and
waking a thread takes longer than the call). Other lengths take the nearest's."""
STEPS = """
def steps(x, count):
    for _ in range(count):
        x = torch.neg(x)
    return x
"""
VALUE = "import torch\n" + STEPS + "\ndef run(x):\n    return torch.neg(steps(x, {count}))\n"
DPS = "import torch\n" + STEPS + "\ndef run(x, y):\n    torch.neg(steps(x, {count}), out=y)\n"
SOURCES = {"value": VALUE, "dps": DPS}


def count_steps(call_us: float, size: int) -> int:
    """Return how many steps before the last one make a call of this length on this machine."""
    x = torch.rand(size)
    torch.set_num_threads(1)
    taken_us = []
    for _ in range(50):
        start = time.perf_counter_ns()
        for _ in range(20):
            torch.neg(x)
        taken_us.append((time.perf_counter_ns() - start) / 20e3)
    return max(0, round(call_us / median(taken_us)) - 1)


def make_set(root: Path, calls_us: list[float], styles: list[str]) -> TraceSet:
    """Return a set with a definition for each length, and a solution for each style."""
    trace_set = TraceSet(root=root)
    for call_us in calls_us:
        size = SIZES[min(SIZES, key=lambda known: abs(known - call_us))]
        count = count_steps(call_us, size)
        name = f"call_of_{call_us:g}us"
        definition = Definition.model_validate(
            {
                "name": name,
                "op_type": "reference_as_solution",
                "axes": {"n": {"type": "var"}},
                "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
                "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
                "reference": VALUE.format(count=count),
            }
        )
        trace_set.definitions[name] = definition
        workload = Workload.model_validate({"axes": {"n": size}, "inputs": {"x": {"type": "random"}}, "uuid": name})
        trace_set.workloads[name] = [Trace(definition=name, workload=workload)]
        trace_set.solutions[name] = [make_solution(name, style, count) for style in styles]
    return trace_set


def make_solution(definition: str, style: str, count: int) -> Solution:
    """Return the reference as a solution in a style."""
    return Solution.model_validate(
        {
            "name": f"{definition}_{style}",
            "definition": definition,
            "author": "reference",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "dependencies": ["torch"],
                "destination_passing_style": style == "dps",
            },
            "sources": [{"path": "main.py", "content": SOURCES[style].format(count=count)}],
        }
    )


def run_once(trace_set: TraceSet, config: BenchmarkConfig) -> dict[tuple[str, str], tuple[float, float]]:
    """Run the engine once; return speed-up and reference's latency (ms) by definition and style."""
    found = {}
    engine = Benchmark(trace_set, config)
    for event in engine.run(engine.plan(), save_results=False):
        if isinstance(event, JobFinished):
            evaluation = event.trace.evaluation
            if evaluation is None or evaluation.performance is None:
                sys.exit(f"{event.trace.solution}: {evaluation and (evaluation.status, evaluation.log)}")
            style = str(event.trace.solution).rpartition("_")[2]
            performance = evaluation.performance
            key = (event.trace.definition, style)
            found[key] = (performance.speedup_factor, performance.reference_latency_ms)
    engine.close()
    return found


def main() -> int:
    """Run the engine and print a line for each definition and style."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--calls-us", type=float, nargs="+", default=list(SIZES))
    parser.add_argument("--styles", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    args = parser.parse_args()
    seen: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        trace_set = make_set(Path(folder), args.calls_us, args.styles)
        for _ in range(args.runs):
            for key, value in run_once(trace_set, BenchmarkConfig()).items():
                seen[key].append(value)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {args.runs} runs")
    headings = " ".join(f"{name:>6}" for name in ("q25", "q75", "least", "most"))
    print(f"{'definition':20} {'style':6} {'reference us':>12} {'median':>7} {headings}")
    missed = False
    for (definition, style), values in seen.items():
        ratios = sorted(ratio for ratio, _ in values)
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        latency_us = median(latency for _, latency in values) * 1e3
        figures = f"{median(ratios):7.3f} {low:6.3f} {high:6.3f} {ratios[0]:6.3f} {ratios[-1]:6.3f}"
        is_missed = style == "value" and not GOAL[0] <= median(ratios) <= GOAL[1]
        missed = missed or is_missed
        print(f"{definition:20} {style:6} {latency_us:12.2f} {figures}{'  missed' if is_missed else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
