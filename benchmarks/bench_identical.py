"""Twelve byte-identical solutions on four workloads: how many pairs of intervals do not meet? At most 1 in 20 may.

    python -m benchmarks.bench_identical                    runs them in three ways, each with what it knows
    python -m benchmarks.bench_identical --simulate         no device: the same on drawn latencies

Each way is a run as a user makes it, with a cache of its own: "default", where nothing is known of this machine;
"repeated", with `--repeat`, so that intervals come from several workers; and "learned", one worker again, after the
repeated run has told what this machine's spread is. Told are the pairs that do not meet, the share of times that are
`noisy`, half an interval in the middle, and the machine's load, since other programs disturb a CPU. Exits with 1 where
more than 1 pair in 20 does not meet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations
from math import exp
from random import Random
from statistics import median

from benchmarks.bench_compare_decisions import NAME, make_set, make_solution
from flashinfer_bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.report.intervals import TimeInterval, read_interval
from flashinfer_bench.timing.between_workers import interval_of_workers, learned_spread, sum_squares, widened_interval

SIZES = {"cuda": (1 << 12, 1 << 14, 1 << 16, 1 << 18), "cpu": (1 << 11, 1 << 12, 1 << 13, 1 << 14)}
"""Elements of each workload. On a CPU so few are the work of one thread."""
STEPS = 25
MOST_APART = 0.05
SPREADS = (0.003, 0.02, 0.1, 0.25)
"""Standard deviations between workers that are simulated."""


def share_apart(groups: Sequence[Sequence[TimeInterval]]) -> dict[str, float]:
    """Return how many pairs of a group do not meet; each group is of one workload."""
    pairs = [pair for group in groups for pair in combinations(group, 2)]
    apart = sum(not one.meets(other) for one, other in pairs)
    halves = [one.half_share for group in groups for one in group]
    return {"pairs": len(pairs), "apart": apart, "share_apart": apart / len(pairs), "half": median(halves)}


def run(solutions: int, repeats: int, device: str, settings: dict[str, object]) -> dict[str, object]:
    """Run identical solutions once, and return how their intervals meet."""
    kind = discover_devices([device])[0].kind
    trace_set = make_set(STEPS, SIZES[kind])
    # Names differ, sources do not; a byte that differs would make a difference of code possible.
    listed = [make_solution("one", STEPS, 0).model_copy(update={"name": f"copy_{index}"}) for index in range(solutions)]
    trace_set.solutions[NAME] = listed
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(devices=[device], profile_baseline=False, **settings))
    benchmark.repeat(repeats)
    groups: dict[str, list[TimeInterval]] = {}
    noisy = []
    for event in benchmark.run(benchmark.plan(), save_results=False):
        if isinstance(event, JobFinished):
            evaluation = event.trace.evaluation
            interval = read_interval(evaluation) if evaluation is not None else None
            if evaluation is None or interval is None:
                raise SystemExit(f"{event.job.solution.name}: {evaluation}")
            groups.setdefault(event.job.workload.uuid, []).append(interval)
            noisy.append("noisy" in evaluation.extra["measurement"].get("flags", []))
    for fault in benchmark.faults:
        raise SystemExit(fault.message)
    return {**share_apart(list(groups.values())), "noisy": sum(noisy) / len(noisy), "load": os.getloadavg()[0]}


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """Run in all three ways, each after the one before."""
    device = args.device or ("cpu" if discover_devices(None)[0].kind == "cpu" else "0")
    settings = {"iterations": args.iterations} if args.iterations else {}
    found = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FIB_CACHE_PATH"] = cache
        for way, repeats in (("default", 1), ("repeated", args.repeats), ("learned", 1)):
            found.append({"way": way, **run(args.solutions, repeats, device, settings)})
            print(json.dumps(found[-1]), flush=True)
    return found


def simulate(args: argparse.Namespace) -> list[dict[str, object]]:
    """Draw latencies of workers that differ by a known spread, and look at their intervals in the same ways."""
    random = Random(1)
    found = []
    for spread in SPREADS:
        drawn = [
            [[exp(random.gauss(0, spread)) for _ in range(args.repeats)] for _ in range(args.solutions)]
            for _ in range(4 * args.count)
        ]
        known = learned_spread("cpu", *sum_squares([group for groups in drawn[:4] for group in groups]))
        repeated = [[TimeInterval(*interval_of_workers(group), "") for group in groups] for groups in drawn]
        learned = [[TimeInterval(*widened_interval(group[0], None, known), "") for group in groups] for groups in drawn]
        for way, groups in (("repeated", repeated), ("learned", learned)):
            found.append({"way": way, "spread": spread, **share_apart(groups)})
            print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    """Read the arguments, print a line of JSON for each way, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3, help="workers of each time in the repeated run")
    parser.add_argument("--device", help="cpu, 0, cuda:1 or a GPU's uuid (default: the first)")
    parser.add_argument("--iterations", type=int, help="timed calls per trial")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--count", type=int, default=100, help="sets that are simulated")
    args = parser.parse_args()
    found = simulate(args) if args.simulate else measure(args)
    sys.exit(any(float(str(one["share_apart"])) > MOST_APART for one in found))


if __name__ == "__main__":
    main()
