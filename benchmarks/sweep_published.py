"""Judge every definition of a published data set by its own reference, packed as solutions that are right or wrong.

    python -m benchmarks.sweep_published ../shared/data/published [--devices 0 1] [--twins all] [--definitions NAME ...]

Each definition is run on its smallest published workload whose blobs are there, else on a made-up one. Run it from the
root of the repository. Prints a table and exits with 1 where a verdict is not the one that the twin deserves. Nothing
is saved. On a CPU no process may hold more than `--memory-gb`: what needs more is reported as too large.
"""

import argparse
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.data import Trace, TraceSet
from tests.kit.small_workloads import input_bytes, make_up_workload, missing_blobs, smallest_workload
from tests.kit.twins import expected_status, list_faults, make_twin

GIB = 1 << 30
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "is full", "takes more than", "inputs take")
RATIO_FORGIVES = ("wrong_element",)
"""Faults that an evaluator which asks for a share of the elements lets pass."""


@dataclass
class Row:
    """One twin's line of the table."""

    definition: str
    twin: str
    workload: str
    megabytes: float
    expected: str
    verdict: str = "not run"
    seconds: float = 0.0
    note: str = ""

    @property
    def is_surprise(self):
        return self.verdict not in (self.expected, "TOO LARGE")


@dataclass
class Sweep:
    """What is run: the set with its twins, and a row for each of them by the solution's name."""

    trace_set: TraceSet
    rows: dict[str, Row] = field(default_factory=dict)


def main():
    arguments = parse_arguments()
    config = BenchmarkConfig.default(
        devices=arguments.devices,
        warmup_runs=0,
        iterations=1,
        num_trials=1,
        timeout_seconds=arguments.timeout,
        worker_memory_gb=arguments.memory_gb,
        time_budget_s=1.0,
        profile_baseline=False,
    )
    sweep = prepare(arguments, config)
    benchmark = Benchmark(sweep.trace_set, config)
    if benchmark.machine.kind == "cpu":
        limit = int(arguments.memory_gb * GIB)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # sessions and workers inherit it
    start = time.monotonic()
    for event in benchmark.run(benchmark.plan(), save_results=False):
        take(event, sweep)
    print_table(sweep.rows.values(), benchmark.machine.hardware, time.monotonic() - start)
    return 1 if any(row.is_surprise for row in sweep.rows.values()) else 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--devices", nargs="*")
    parser.add_argument("--definitions", nargs="*")
    parser.add_argument("--twins", choices=["honest", "all"], default="honest")
    parser.add_argument("--memory-gb", type=float, default=16.0)
    parser.add_argument("--timeout", type=float, default=300.0)
    return parser.parse_args()


def prepare(arguments, config):
    """Choose a workload for each definition and pack its reference."""
    published = TraceSet.from_path(arguments.root)
    names = arguments.definitions or published.definitions
    definitions = {name: published.definitions[name] for name in names}
    sweep = Sweep(TraceSet(definitions=definitions, workload_roots=dict.fromkeys(definitions, arguments.root)))
    for name, definition in definitions.items():
        resolved = config.resolve_eval_config(definition)
        by_ratio = resolved.required_matched_ratio is not None or LowBitEvaluator.can_evaluate(definition)
        for kind, workload in choose_workloads(published, definition):
            megabytes = input_bytes(definition, workload) / 1e6
            too_large = 2 * megabytes * 1e6 > arguments.memory_gb * GIB
            for twin, fault in twins_of(definition, honest_only=arguments.twins == "honest"):
                deserved = expected_status(style_of(twin), None if by_ratio and fault in RATIO_FORGIVES else fault)
                expected = "MISSING BLOB" if kind == "missing" else deserved
                row = Row(name, twin.name.split("__", 1)[1], kind, megabytes, expected)
                sweep.rows[f"{twin.name} {workload.uuid}"] = row
                if too_large:
                    row.verdict = "TOO LARGE"
                elif twin not in sweep.trace_set.solutions.setdefault(name, []):
                    sweep.trace_set.solutions[name].append(twin)
            if not too_large:
                sweep.trace_set.workloads.setdefault(name, []).append(Trace(definition=name, workload=workload))
    return sweep


def choose_workloads(published, definition):
    """Yield the definition's workload, and all of those whose blobs are missing: each of these must be a fault."""
    smallest = smallest_workload(published, definition)
    yield ("published", smallest) if smallest else ("made up", make_up_workload(definition))
    for trace in published.workloads.get(definition.name, []):
        if missing_blobs(published, definition, trace.workload):
            yield "missing", trace.workload


def twins_of(definition, *, honest_only):
    for style in ("value", "dps"):
        for fault in [None] if honest_only else [None, *list_faults(definition, style)]:
            yield make_twin(definition, style=style, fault=fault), fault


def style_of(twin):
    return "dps" if twin.spec.declared_style else "value"


def take(event, sweep):
    match event:
        case JobFinished(job, trace, _, seconds):
            row = sweep.rows[f"{job.solution.name} {job.workload.uuid}"]
            row.verdict, row.seconds, row.note = trace.evaluation.status.value, seconds, trace.evaluation.log
        case JobFaulted(job, message):
            row = sweep.rows[f"{job.solution.name} {job.workload.uuid}"]
            row.verdict, row.note = classify(message), message
        case Notice(message):
            print(f"notice: {message}", file=sys.stderr)
        case _:
            return
    if isinstance(event, (JobFinished, JobFaulted)):
        print(f"{row.verdict:20} {row.seconds:6.1f} s  {row.definition} {row.twin}", file=sys.stderr)


def classify(message):
    if any(words in message for words in OUT_OF_MEMORY):
        return "TOO LARGE"
    return "MISSING BLOB" if "blob" in message and "is not there" in message else "FAULT"


def print_table(rows, hardware, wall_s):
    shown = [row for row in rows if row.workload != "missing"]
    print(f"{hardware}, {wall_s:.0f} s\n")
    print(f"{'definition':66} {'twin':24} {'workload':10} {'MB':>9} {'verdict':20} {'s':>6}  note")
    for row in shown:
        note = row.note.strip().splitlines()[0][:160] if row.note.strip() and row.verdict != row.expected else ""
        mark = "  <-- expected " + row.expected if row.is_surprise else ""
        print(
            f"{row.definition:66} {row.twin:24} {row.workload:10} {row.megabytes:9.2f} {row.verdict:20} "
            f"{row.seconds:6.2f}  {note}{mark}"
        )
    print()
    for (workload, verdict), count in sorted(Counter((row.workload, row.verdict) for row in rows).items()):
        print(f"{workload:10} {verdict:20} {count}")


if __name__ == "__main__":
    sys.exit(main())
