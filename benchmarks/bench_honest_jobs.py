"""Count how often the whole engine rejects a right solution: the honest solutions of the bundled set, again and again.

    python benchmarks/bench_honest_jobs.py [--jobs 2000] [--definitions NAME ...] [--iterations 10] [--devices cpu ...]
    python benchmarks/bench_honest_jobs.py --threads [--jobs 500]

The second takes calls of torch's own in place of the bundled set, most of which several threads compute
(`honest_calls.py`), and prints what their latencies were raised by: told / claimed.

Each round runs the bundled set through sessions, workers, bursts and comparisons, as `run` does, with other secret
inputs. Run it beside other work: a busy machine must not change a verdict. Prints each job that is not PASSED with its
log, then how many there were, what bounds the latencies, and why some are unconfirmed; exits with 1 where a job
was rejected. `bench_false_rejections.py` counts far more verdicts, without workers and clocks.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import TraceSet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.honest_calls import make_set

BUNDLED = Path(__file__).parents[1] / "flashinfer-trace"


def main() -> int:
    """Run rounds until there are enough jobs; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000, help="jobs to run at the least (2000)")
    parser.add_argument("--definitions", nargs="+", help="definitions of the bundled set (all)")
    parser.add_argument("--iterations", type=int, default=10, help="readings of a trial (10)")
    parser.add_argument("--devices", nargs="+", help="as in `flashinfer-bench run` (all)")
    parser.add_argument("--threads", action="store_true", help="calls of several threads in place of the bundled set")
    asked = parser.parse_args()
    settings = {"warmup_runs": 2, "iterations": asked.iterations, "num_trials": 1}
    settings |= {name: value for name in ("definitions", "devices") if (value := getattr(asked, name))}
    judged, wrong, said, raised = 0, 0, Counter[str](), defaultdict[str, list[float]](list)
    config = BenchmarkConfig.default(**settings)
    start = time.monotonic()
    while judged < asked.jobs:
        before = judged
        benchmark = Benchmark(make_set(BUNDLED) if asked.threads else TraceSet.from_path(BUNDLED), config)
        for event in benchmark.run(benchmark.plan(), save_results=False):
            if isinstance(event, JobFaulted):
                judged, wrong = judged + 1, wrong + 1
                print("FAULT", event.job.solution.name, event.job.workload.uuid, event.message, flush=True)
            elif isinstance(event, JobFinished):
                judged += 1
                evaluation = event.trace.evaluation
                record = evaluation.extra.get("measurement", {})
                said[
                    record.get("why_unconfirmed", f"bound by {record['bound']}" if "bound" in record else "not timed")
                ] += 1
                if evaluation.performance is not None:
                    told_ms = evaluation.performance.latency_ms
                    raised[event.trace.definition].append(told_ms / record.get("claimed_ms", told_ms))
                if evaluation.status.value != "PASSED":
                    wrong += 1
                    names = f"{event.trace.definition} {event.trace.solution} {event.trace.workload.uuid}"
                    print(evaluation.status.value, names, evaluation.log, flush=True)
        print(f"{judged} jobs, {wrong} rejected, {time.monotonic() - start:.0f} s", flush=True)
        if judged == before:
            print("no job could run", file=sys.stderr)
            return 2
    for name, shares in sorted(raised.items()) if asked.threads else ():
        ordered = sorted(shares)
        print(f"{name:14} raised {median(ordered):.2f}, at most {ordered[-1]:.2f} ({len(ordered)} jobs)")
    reasons = Counter(re.sub(r"takes [\d.e+-]+ ms", "takes longer", why) for why in said.elements())
    for why, count in reasons.most_common():
        print(f"{count:6}  {why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
