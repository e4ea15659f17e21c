"""How fast the engine itself is: seconds from start to the first verdict, and seconds per job after it.

    python benchmarks/bench_engine.py flashinfer-trace [--isolated] [--devices 0 1] [--config-json '{"num_trials": 1}']

Nothing is saved. Prints one JSON document; run it on an idle machine.
"""

import argparse
import json
import statistics
import time
from collections import Counter

START = time.monotonic()

from flashinfer_bench.bench import Benchmark, BenchmarkConfig  # noqa: E402 - imports are timed
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice  # noqa: E402 - imports are timed
from flashinfer_bench.data import TraceSet  # noqa: E402 - imports are timed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--devices", nargs="*")
    parser.add_argument("--config-json", type=json.loads, default={})
    parser.add_argument("--jobs", action="store_true", help="list every job's seconds")
    arguments = parser.parse_args()
    config = BenchmarkConfig.default(
        use_isolated_runner=arguments.isolated, devices=arguments.devices, **arguments.config_json
    )
    benchmark = Benchmark(TraceSet.from_path(arguments.root), config)
    done, notes = [], []
    for event in benchmark.run(benchmark.plan(), save_results=False):
        if isinstance(event, JobFinished):
            done.append((time.monotonic() - START, event))
        elif isinstance(event, (JobFaulted, Notice)):
            notes.append(event.message)
    print(json.dumps(summarise(done, notes, list_jobs=arguments.jobs), indent=1))


def summarise(done, notes, *, list_jobs):
    first_s, last_s = done[0][0], done[-1][0]
    seconds = sorted(event.seconds for _, event in done)
    by_language = {}
    for _, event in done:
        by_language.setdefault(event.job.solution.spec.language.value, []).append(event.seconds)
    report = {
        "hardware": done[0][1].trace.evaluation.environment.hardware,
        "libs": done[0][1].trace.evaluation.environment.libs,
        "jobs": len(done),
        "status": Counter(event.trace.evaluation.status.value for _, event in done),
        "devices": Counter(event.device.label for _, event in done),
        "first_verdict_s": round(first_s, 2),
        "wall_s": round(last_s, 2),
        "per_job_after_first_s": round((last_s - first_s) / max(1, len(done) - 1), 3),
        "job_s": {"median": statistics.median(seconds), "max": seconds[-1]},
        "job_median_s_by_language": {name: statistics.median(values) for name, values in by_language.items()},
        "notes": notes,
    }
    if list_jobs:
        report["slowest"] = [
            (round(event.seconds, 3), event.job.solution.name, event.job.workload.uuid[:8])
            for _, event in sorted(done, key=lambda pair: -pair[1].seconds)[:25]
        ]
    return report


if __name__ == "__main__":
    main()
