"""What the engine says of a solution that is the reference: its speed-up should be 1.

    python benchmarks/bench_reference_as_solution.py [--runs 20] [--calls-us 5 20 100 1000 10000] [--styles value dps]
    python benchmarks/bench_reference_as_solution.py --root ROOT [--runs 3] [--workloads 2] [--op-types gemm]

The first makes a definition for each length of a call on a CPU, and for each style a solution that computes what the
reference does, runs the engine so many times, each time on all of them, and prints median and quartiles of the
speed-ups. The solution that returns its output is the reference's text. One that fills its output (dps) computes the
same and writes the last step into the output that it is given, so it allocates one tensor less; it is told for what it
is. Goal: the median of the first lies within 0.95 to 1.05.

The second takes the references of a trace set, on its own workloads, and on the GPU where there is one; there the goal
is 1.5 % on either side. Exits with 1 where a goal is missed or a reference is rejected. Nothing is saved.

Each verdict is told on stderr when it comes, with what its two measurements differ in, the reference's first.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.sweep_published import spread
from tests.kit.small_workloads import input_bytes, missing_blobs
from tests.kit.twins import make_twin

GOALS = {"cpu": (0.95, 1.05), "cuda": (0.985, 1.015)}
FACTS = (
    *("trials_ms", "samples", "stop", "launch", "graphs", "operations", "streams", "waits_inside"),
    *("spin_ns", "enqueue_ns", "lead_ns", "chain_gap_ns", "launch_gap_ns", "claimed_ms", "bound", "flags"),
)
"""What of two measurements may say why they differ."""
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


def take_set(root: Path, op_types: list[str] | None, count: int) -> TraceSet:
    """Return the set with each reference as its own solution, on so many workloads, from small to large (0: all)."""
    whole = TraceSet.from_path(root)
    chosen = {name: one for name, one in whole.definitions.items() if not op_types or one.op_type in op_types}
    trace_set = TraceSet(root, definitions=chosen)
    for name, definition in chosen.items():
        traces = whole.workloads.get(name, [])
        traces = [trace for trace in traces if not missing_blobs(whole, definition, trace.workload)]
        traces.sort(key=lambda trace: input_bytes(definition, trace.workload))
        trace_set.workloads[name] = spread(traces, count)
        trace_set.solutions[name] = [make_twin(definition, style="value")]
    return trace_set


def run_once(benchmark: Benchmark) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Run the engine once; return speed-up and reference's latency (ms) by definition, workload and style.

    A reference that is rejected has a speed-up of 0, a job that is a fault none.
    """
    found = {}
    for event in benchmark.run(benchmark.plan(), save_results=False):
        if isinstance(event, JobFaulted):
            print(f"fault: {event.job.solution.name}: {event.message}", file=sys.stderr)
        if isinstance(event, JobFinished):
            trace, evaluation = event.trace, event.trace.evaluation
            style = "dps" if str(trace.solution).endswith("_dps") else "value"
            key = (trace.definition, trace.workload.uuid[:8] if trace.workload else "", style)
            if evaluation is None or evaluation.performance is None:
                print(f"{trace.solution}: {evaluation and (evaluation.status, evaluation.log)}", file=sys.stderr)
                found[key] = (0.0, 0.0)
                continue
            performance = evaluation.performance
            found[key] = (performance.speedup_factor, performance.reference_latency_ms)
            line = f"{' '.join(key)}: {performance.speedup_factor:.3f}"
            print(line, *find_differences(evaluation.extra or {}), sep="  ", file=sys.stderr, flush=True)
    return found


def find_differences(extra: dict[str, Any]) -> list[str]:
    """Return in what the measurements of the reference and of the solution differ, by what a trace carries of them."""
    measured = [extra.get(name) or {} for name in ("baseline", "measurement")]
    told = [[one.get(fact) for one in measured] for fact in FACTS]
    return [f"{fact} {told[0]} | {told[1]}" for fact, told in zip(FACTS, told, strict=True) if told[0] != told[1]]


def main() -> int:
    """Run the engine and print a line for each definition, workload and style."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--calls-us", type=float, nargs="+", default=list(SIZES))
    parser.add_argument("--styles", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--root", type=Path, help="take the references of this set")
    parser.add_argument("--op-types", nargs="+", help="with --root: only these")
    parser.add_argument("--workloads", type=int, default=2, help="with --root: most of a definition; 0 takes all")
    args = parser.parse_args()
    seen: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        if args.root:
            trace_set = take_set(args.root, args.op_types, args.workloads)
        else:
            trace_set = make_set(Path(folder), args.calls_us, args.styles)
        config = BenchmarkConfig.default(**({} if args.root else {"devices": ["cpu"]}))
        for _ in range(args.runs):
            benchmark = Benchmark(trace_set, config)
            for key, value in run_once(benchmark).items():
                seen[key].append(value)
            benchmark.close()
    print(
        f"{benchmark.machine.hardware}, load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {args.runs} runs"
    )
    return print_ratios(seen, GOALS[benchmark.machine.kind])


def print_ratios(seen: dict[tuple[str, str, str], list[tuple[float, float]]], goal: tuple[float, float]) -> int:
    """Print a line for each definition, workload and style; return 1 where one misses the goal."""
    headings = " ".join(f"{name:>6}" for name in ("q25", "q75", "least", "most"))
    print(f"{'definition':48} {'workload':8} {'style':6} {'reference us':>12} {'median':>7} {headings}")
    missed = 0
    for (definition, workload, style), values in seen.items():
        ratios = sorted(ratio for ratio, _ in values)
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        latency_us = median(latency for _, latency in values) * 1e3
        figures = f"{median(ratios):7.3f} {low:6.3f} {high:6.3f} {ratios[0]:6.3f} {ratios[-1]:6.3f}"
        is_missed = style == "value" and not goal[0] <= median(ratios) <= goal[1]
        missed += is_missed
        print(
            f"{definition:48.48} {workload:8.8} {style:6} {latency_us:12.2f} {figures}{'  missed' if is_missed else ''}"
        )
    print(f"{len(seen)} rows, {missed} outside {goal[0]} to {goal[1]}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
