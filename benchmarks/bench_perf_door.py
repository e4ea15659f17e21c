"""Does `perf` time the same kernel alike, and how much does compiling ahead save? One GPU, flashinfer-python.

    python benchmarks/bench_perf_door.py                  A/A: each backend that runs here, as two solutions
    python benchmarks/bench_perf_door.py --jit             a cold testlist with and without compiling ahead
    python benchmarks/bench_perf_door.py --testlist FILE   other cases than the sample's

A/A: two solutions with one source in workers of their own; the medians differ by at most --most-percent (2). --jit runs
the sample's lines that this GPU can run twice, each time with an empty folder of compiled kernels: all at once with
--jit_jobs 8, and one by one without; the first takes at most a third of the time. Exits with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.cli.perf_cases import Request, read_requests
from flashinfer_bench.cli.perf_rows import read_timing
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.routines.materials import write_material
from flashinfer_bench.routines.spec import TORCH
from flashinfer_bench.routines.support import find_place

SAMPLE = Path(__file__).with_name("samples") / "sample_testlist.txt"
SCRIPT = Path(__file__).with_name("flashinfer_benchmark.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--testlist", default=str(SAMPLE))
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--most-percent", type=float, default=2.0)
    parser.add_argument("--jit", action="store_true")
    args = parser.parse_args()
    device = discover_devices(None)[0]
    requests = read_requests([], args.testlist, find_place(device.name, device.capability))
    runnable = [request for request in requests if any(name != TORCH for name in request.backends)]
    return compare_compiling(runnable) if args.jit else compare_twins(runnable, args)


def compare_twins(requests: list[Request], args: argparse.Namespace) -> int:
    missed = 0
    print(f"{'backend':15} {'first us':>10} {'second us':>10} {'percent':>8}  definition")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for request in requests:
            for backend in [name for name in request.backends if name != TORCH]:
                missed += compare_one(request, backend, root, args)
    print(f"{missed} of the pairs differ by more than {args.most_percent:g} %, or did not pass")
    return 1 if missed else 0


def compare_one(request: Request, backend: str, root: Path, args: argparse.Namespace) -> bool:
    """Time one solution under two names; tell whether the goal is missed."""
    material = request.material
    assert material is not None
    write_material(root, material)
    name, first = material.definition.name, material.solutions[backend]
    second = first.model_copy(update={"name": f"{first.name}__again"})
    trace_set = TraceSet(
        root=root,
        definitions={name: material.definition},
        solutions={name: [first, second]},
        workloads={name: [Trace(definition=name, workload=material.workload)]},
    )
    check = request.case.check
    section = {
        "rtol": check.rtol,
        "atol": check.atol,
        "required_matched_ratio": check.ratio,
        "extra": dict(check.extra),
    }
    config = BenchmarkConfig.default(
        definition_config={name: section},
        iterations=args.iterations,
        num_trials=1,
        profile_baseline=False,
        seed=42,
        timeout_seconds=900,
    )
    with Benchmark(trace_set, config) as benchmark:
        events = [event for event in benchmark.run(benchmark.plan(), False) if isinstance(event, JobFinished)]
    passed = [event.trace.evaluation for event in events if event.trace.is_successful()]
    if len(passed) < 2:
        reasons = {event.trace.evaluation.log.strip().splitlines()[0][:100] for event in events if event.trace}
        print(f"{backend:15} {'':>10} {'':>10} {'failed':>8}  {name}: {'; '.join(reasons)}")
        return True
    times = [read_timing(evaluation).median_ms * 1e3 for evaluation in passed]
    percent = (max(times) / min(times) - 1) * 100
    print(f"{backend:15} {times[0]:10.3f} {times[1]:10.3f} {percent:8.2f}  {name}", flush=True)
    return percent > args.most_percent


def compare_compiling(requests: list[Request]) -> int:
    lines = [" ".join(map(shlex.quote, request.words)) for request in requests]
    with tempfile.TemporaryDirectory() as folder:
        together = run_cold(Path(folder) / "a", lines, ["--jit_jobs", "8"])
        alone = sum(run_cold(Path(folder) / "b", [line], ["--jit_jobs", "0"]) for line in lines)
    print(f"{len(lines)} cases: {together:.1f} s together, {alone:.1f} s one by one, {together / alone:.2f} of it")
    return 1 if together * 3 > alone else 0


def run_cold(home: Path, lines: list[str], flags: list[str]) -> float:
    """Run a testlist with a folder of compiled kernels of its own; return the seconds that it took."""
    home.mkdir(exist_ok=True)
    testlist = home / "list.txt"
    testlist.write_text("\n".join(lines), encoding="utf-8")
    started = time.monotonic()
    command = [sys.executable, str(SCRIPT), "--testlist", str(testlist), "--timeout", "900", *flags]
    subprocess.run(command, env={**os.environ, "FLASHINFER_WORKSPACE_BASE": str(home)}, check=False)
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
