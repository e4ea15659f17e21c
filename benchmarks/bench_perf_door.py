"""Does `perf` time the same kernel alike, and how much does compiling ahead save? Needs GPUs and flashinfer-python.

    python benchmarks/bench_perf_door.py                  A/A: each backend that runs here, as two solutions
    python benchmarks/bench_perf_door.py --jit             a cold testlist with and without compiling ahead
    python benchmarks/bench_perf_door.py --jit ahead       the first half of that alone (inline: the second)
    python benchmarks/bench_perf_door.py --testlist FILE   other cases than the sample's

A/A: two solutions with one source in workers of their own; the medians differ by at most --most-percent (2). Backends
that draw random numbers take a different time for each draw; they are shown and not held.

--jit: the sample's lines that these GPUs can run, and MORE, from an empty folder of compiled kernels: first as the
command does it by itself, on all GPUs, then one case after the other on one GPU, each compiling what it needs. The
first takes at most a third of the time; so the second is stopped once it has taken three times as long, or --limit-s.

Exits with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.cli.perf.cases import Request, read_requests
from flashinfer_bench.data import Evaluation, Trace, TraceSet
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.routines.case.materials import write_material
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.routines.case.support import find_platform

SAMPLE = Path(__file__).with_name("samples") / "sample_testlist.txt"
SCRIPT = Path(__file__).with_name("flashinfer_benchmark.py")
DECODE = "--routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 --page_size 16 --batch_size 8 --s_kv 1024"
PREFILL = "--routine BatchPrefillWithPagedKVCacheWrapper --page_size 16 --batch_size 4 --s_qo 512 --s_kv 512 --causal"
MORE = (
    f"{DECODE} --num_qo_heads 32 --num_kv_heads 8 --head_dim_qk 64",
    f"{DECODE} --num_qo_heads 16 --num_kv_heads 16 --head_dim_qk 128 --q_dtype float16 --kv_dtype float16",
    f"{PREFILL} --backends fa2 fa3 --num_qo_heads 16 --num_kv_heads 4 --head_dim_qk 64",
    f"{PREFILL} --backends fa2 --num_qo_heads 16 --num_kv_heads 4 --head_dim_qk 128 --q_dtype float16 "
    "--kv_dtype float16",
)
"""Cases with kernels of their own, beside the sample's."""
SHARE = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--testlist", default=str(SAMPLE))
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--most-percent", type=float, default=2.0)
    parser.add_argument("--jit", nargs="?", const="both", choices=("both", "ahead", "inline"))
    parser.add_argument("--limit-s", type=float, help="stop the inline half after so many seconds")
    args = parser.parse_args()
    device = discover_devices(None)[0]
    place = find_platform(device.name, device.capability)
    requests = read_requests([], args.testlist, place)
    if args.jit:
        requests += [request for line in MORE for request in read_requests(shlex.split(line), None, place)]
    runnable = [request for request in requests if any(name != TORCH for name in request.backends)]
    return compare_compiling(runnable, args) if args.jit else compare_twins(runnable, args)


def compare_twins(requests: list[Request], args: argparse.Namespace) -> int:
    """Time every backend under two names; print a line each and tell whether any pair differs too much."""
    with tempfile.TemporaryDirectory() as folder:
        trace_set, sections = make_twins(requests, Path(folder))
        config = BenchmarkConfig.default(
            definition_config=sections,
            iterations=args.iterations,
            num_trials=1,
            profile_baseline=False,
            seed=42,
            timeout_seconds=900,
        )
        found: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
        missed = 0
        print(f"{'first us':>10} {'second us':>10} {'percent':>8}  solution", flush=True)
        with Benchmark(trace_set, config) as benchmark:
            for event in benchmark.run(benchmark.plan(), save_results=False):
                if isinstance(event, JobFinished) and event.trace.evaluation is not None:
                    solution = event.job.solution.name.removesuffix("__again")
                    pair = found[event.job.definition.name, solution]
                    pair.append(event.trace.evaluation)
                    missed += len(pair) == 2 and tell_pair(solution, pair, args)
    missed += sum([tell_pair(solution, pair, args) for (_, solution), pair in found.items() if len(pair) < 2])
    print(f"{missed} of {len(found)} pairs differ by more than {args.most_percent:g} %, or did not pass")
    return 1 if missed or not found else 0


def make_twins(requests: list[Request], root: Path) -> tuple[TraceSet, dict[str, dict]]:
    """Return a trace set with every library backend under two names, and how each definition is judged."""
    trace_set = TraceSet(root=root, definitions={}, solutions={}, workloads={}, traces={})
    sections: dict[str, dict] = {}
    for request in requests:
        material, case = request.material, request.case
        assert material is not None
        assert case is not None
        write_material(root, material)
        name = material.definition.name
        chosen = [material.solutions[backend] for backend in request.backends if backend != TORCH]
        again = [one.model_copy(update={"name": f"{one.name}__again"}) for one in chosen]
        trace_set.definitions[name] = material.definition
        trace_set.solutions[name] = [*chosen, *again]
        trace_set.workloads[name] = [Trace(definition=name, workload=material.workload)]
        sections[name] = case.check.settings()
        sections[name]["extra"]["measure_rejected"] = True
    return trace_set, sections


def tell_pair(solution: str, evaluations: list[Evaluation], args: argparse.Namespace) -> bool:
    """Print a pair's times; tell whether it misses the goal."""
    measured = [read_measurement(one) for one in evaluations]
    times = [one.median_ms if one.kernel_ms is None else one.kernel_ms for one in measured]
    if len(times) < 2 or None in times:
        reasons = {(one.log.strip().splitlines() or [one.status.value])[0][:100] for one in evaluations}
        print(f"{'':>10} {'':>10} {'failed':>8}  {solution}: {'; '.join(sorted(reasons))}")
        return True
    first, second = (time_ms * 1e3 for time_ms in times)
    percent = (max(first, second) / min(first, second) - 1) * 100
    is_held = "_sampling_from_" not in solution and "speculative" not in solution
    too_far = percent > args.most_percent
    note = "" if not too_far else "  MISSED" if is_held else "  draws differ: not held"
    print(f"{first:10.3f} {second:10.3f} {percent:8.2f}  {solution}{note}", flush=True)
    for one in evaluations if too_far else ():
        record = (one.extra or {}).get("measurement", {})
        facts = {name: record.get(name) for name in ("launch", "operations", "flags", "min_ms", "q25_ms", "q75_ms")}
        print(f"{'':31}{facts}", flush=True)
    return too_far and is_held


def compare_compiling(requests: list[Request], args: argparse.Namespace) -> int:
    """Run the list cold in both ways, or in one; tell whether compiling ahead took more than its share."""
    lines = [" ".join(map(shlex.quote, request.words)) for request in requests]
    together, limit_s = 0.0, args.limit_s
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if args.jit != "inline":
            together, _ = run_cold(Path(folder) / "ahead", lines, [], limit_s=None)
            limit_s = limit_s or SHARE * together + 5
            print(f"{len(lines)} cases: {together:.1f} s compiled ahead", flush=True)
        if args.jit == "ahead":
            return 0
        flags = ["--jit_jobs", "0", "--devices", "0"]
        alone, is_whole = run_cold(Path(folder) / "inline", lines, flags, limit_s=limit_s)
    print(f"{len(lines)} cases: {'' if is_whole else 'more than '}{alone:.1f} s one after the other")
    if not together:
        return 0
    print(f"the first takes {'' if is_whole else 'less than '}{together / alone:.2f} of the second; goal: 0.33")
    return 1 if together * SHARE > alone else 0


def run_cold(home: Path, lines: list[str], flags: list[str], *, limit_s: float | None) -> tuple[float, bool]:
    """Run a testlist in an empty folder of compiled kernels; return its seconds, and whether it came to its end."""
    home.mkdir()
    testlist = home / "list.txt"
    testlist.write_text("\n".join(lines), encoding="utf-8")
    started = time.monotonic()
    command = [sys.executable, str(SCRIPT), "--testlist", str(testlist), "--timeout", "900", *flags]
    environment = {**os.environ, "FLASHINFER_WORKSPACE_BASE": str(home), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    reader = threading.Thread(target=print_with_times, args=(process.stdout, started))
    reader.start()
    try:
        process.wait(limit_s)
        is_whole = True
    except subprocess.TimeoutExpired:
        is_whole = False
    seconds = time.monotonic() - started
    if not is_whole:
        process.send_signal(signal.SIGINT)
        process.wait()
    reader.join()
    print(f"{seconds:7.1f} ended with {process.returncode}{'' if is_whole else ', stopped'}", flush=True)
    return seconds, is_whole


def print_with_times(lines: Iterable[str], started: float) -> None:
    """Print lines as they come, each with the seconds since the start."""
    for line in lines:
        print(f"{time.monotonic() - started:7.1f} {line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
