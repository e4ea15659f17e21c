"""How far the times of references that a run keeps are from those that later runs take anew, on one device.

    python benchmarks/bench_baseline_cache.py [--root flashinfer-trace] [--runs 5] [--workloads 2] [--op-types gemm]

Takes the references of a set, each as its own solution. The first run times every reference and keeps the times, in a
cache of this script's own. So many runs then time them again (`fresh_baselines`), each in new processes. The last run
takes over what is kept. Prints, for each workload, the time of the first run and the ratios of the later ones to it,
and what the runs took. Goal: each median within 2 % of 1, or the cache has to be off on such a device.

On a CPU nothing is kept; the ratios say what would come of it. Exits with 1 where the goal is missed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_reference_as_solution import take_set
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache
from flashinfer_bench.data import TraceSet

GOAL = 0.02
Key = tuple[str, str]


@dataclass
class Taken:
    """What one run took."""

    latencies_ms: dict[Key, float] = field(default_factory=dict)
    cached: int = 0
    """References whose time was taken over."""
    first_s: float = 0.0
    """Seconds to the first verdict."""
    all_s: float = 0.0


def run_once(trace_set: TraceSet, cache: Path, devices: list[str] | None, *, fresh: bool) -> Taken:
    """Run the engine once and return what the references took."""
    given = {"devices": devices} if devices else {}
    taken, start = Taken(), time.monotonic()
    with Benchmark(trace_set, BenchmarkConfig.default(fresh_baselines=fresh, **given), cache=cache) as benchmark:
        for event in benchmark.run(benchmark.plan(), save_results=False):
            if isinstance(event, JobFaulted):
                print(f"fault: {event.job.solution.name}: {event.message}", file=sys.stderr)
            if not isinstance(event, JobFinished):
                continue
            taken.first_s = taken.first_s or time.monotonic() - start
            evaluation = event.trace.evaluation
            record = (evaluation.extra or {}).get("baseline") if evaluation else None
            if evaluation is None or evaluation.performance is None or record is None:
                print(f"no time: {event.trace.solution}: {evaluation and evaluation.log}", file=sys.stderr)
                continue
            key = (event.trace.definition, event.trace.workload.uuid)
            taken.latencies_ms[key] = evaluation.performance.reference_latency_ms
            taken.cached += record.get("source") == "cached"
    taken.all_s = time.monotonic() - start
    return taken


def main() -> int:
    """Run the engine and print a line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("flashinfer-trace"), help="the set (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="runs that time every reference again")
    parser.add_argument("--workloads", type=int, default=2, help="most of a definition; 0 takes all")
    parser.add_argument("--op-types", nargs="+", help="only these")
    parser.add_argument("--devices", nargs="+", help="one device")
    args = parser.parse_args()
    trace_set = take_set(args.root, args.op_types, args.workloads)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        first = run_once(trace_set, cache, args.devices, fresh=True)
        kept = sum(file.baseline is not None for file in BaselineCache(cache).files())
        later = [run_once(trace_set, cache, args.devices, fresh=True) for _ in range(args.runs)]
        last = run_once(trace_set, cache, args.devices, fresh=False)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print(f"kept {kept} of {len(first.latencies_ms)} times; taken over by the last run: {last.cached}")
    for name, one in (("fresh", later[-1] if later else first), ("cached", last)):
        print(f"{name:6}: first verdict after {one.first_s:.1f} s, all after {one.all_s:.1f} s")
    return print_ratios(first, later)


def print_ratios(first: Taken, later: list[Taken]) -> int:
    """Print a line for each workload; return 1 where a median misses the goal."""
    ratios: dict[Key, list[float]] = defaultdict(list)
    for run in later:
        for key, latency_ms in run.latencies_ms.items():
            if key in first.latencies_ms:
                ratios[key].append(latency_ms / first.latencies_ms[key])
    print(f"{'definition':48} {'workload':8} {'first us':>10} {'median':>7} {'least':>6} {'most':>6}")
    missed = 0
    for (definition, workload), values in ratios.items():
        is_missed = abs(median(values) - 1) > GOAL
        missed += is_missed
        first_us = first.latencies_ms[definition, workload] * 1e3
        figures = f"{median(values):7.3f} {min(values):6.3f} {max(values):6.3f}"
        print(f"{definition:48.48} {workload:8.8} {first_us:10.2f} {figures}{'  missed' if is_missed else ''}")
    pairs = [value for values in ratios.values() for value in values]
    near = sum(abs(value - 1) <= GOAL for value in pairs)
    print(
        f"{len(ratios)} workloads, {missed} medians beyond {GOAL:.0%}; {near} of {len(pairs)} pairs within {GOAL:.0%}"
    )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
