"""Judge every definition of a published data set by its own reference, packed as solutions that are right or wrong.

    python -m benchmarks.sweep_published ROOT [--devices 0 1] [--twins all] [--definitions NAME ...]
    python -m benchmarks.sweep_published ROOT --op-types gemm moe --workloads 0 --twins value

ROOT is the set's folder. Each definition is run on its smallest published workload whose blobs are there, or on so many
of them (`--workloads`), and where it has none on a made-up one. The plan has to leave out every workload whose blobs
are missing. Run it from the root of the repository. Prints a table and exits with 1 where a verdict is not the one
that the twin deserves, or a job has none; an interrupted sweep prints what it has. Nothing is saved. On a CPU no
process may hold more than `--memory-gb`: what needs more is reported as too large. On a GPU that counts as a failure.
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
from tests.kit.small_workloads import input_bytes, make_up_workload, missing_blobs
from tests.kit.twins import expected_status, list_faults, make_twin

GIB = 1 << 30
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "is full", "takes more than", "inputs take")
RATIO_FORGIVES = ("wrong_element",)
"""Faults that an evaluator which asks for a share of the elements lets pass."""


@dataclass
class Row:
    """One twin's line of the table."""

    op_type: str
    definition: str
    twin: str
    workload: str
    uuid: str
    megabytes: float
    expected: str
    verdict: str = "not run"
    seconds: float = 0.0
    note: str = ""
    forgiven: str = ""
    """A second verdict that is no surprise."""

    @property
    def is_surprise(self):
        return self.verdict not in (self.expected, self.forgiven)


@dataclass
class Sweep:
    """What is run: the set with its twins, and a row for each of them by the solution's name."""

    trace_set: TraceSet
    rows: dict[str, Row] = field(default_factory=dict)
    published: Counter[str] = field(default_factory=Counter)
    """Op type → how many workloads the set has for the chosen definitions."""
    without_definition: dict[str, int] = field(default_factory=dict)
    """Name of a definition that the set does not have → how many workloads it has for it."""


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
    if not sweep.rows:
        sys.exit("the set has nothing of what was asked for: widen --op-types and --definitions")
    benchmark = Benchmark(sweep.trace_set, config)
    if benchmark.machine.kind == "cpu":
        limit = int(arguments.memory_gb * GIB)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # sessions and workers inherit it
        for row in sweep.rows.values():
            row.forgiven = "TOO LARGE"
    start = time.monotonic()
    plan = benchmark.plan()
    note_left_out(sweep, plan)
    try:
        for event in benchmark.run(plan, save_results=False):
            take(event, sweep)
    except KeyboardInterrupt:
        print("notice: interrupted", file=sys.stderr)
    print_table(sweep.rows.values(), benchmark.machine.hardware, time.monotonic() - start)
    print_summary(sweep)
    return 1 if any(row.is_surprise for row in sweep.rows.values()) else 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--devices", nargs="*")
    parser.add_argument("--definitions", nargs="*")
    parser.add_argument("--op-types", nargs="*", help="only these, in this order")
    parser.add_argument("--workloads", type=int, default=1, help="most of a definition, from small to large; 0: all")
    parser.add_argument("--published-only", action="store_true", help="make up no workloads")
    parser.add_argument(
        "--twins",
        choices=["value", "honest", "all"],
        default="honest",
        help="the reference as it stands; that and a twin that fills its outputs; those and the faulty ones",
    )
    parser.add_argument("--memory-gb", type=float, default=16.0)
    parser.add_argument("--timeout", type=float, default=300.0)
    return parser.parse_args()


def prepare(arguments, config):
    """Choose the workloads of each definition and pack its reference."""
    published = TraceSet.from_path(arguments.root)
    definitions = choose_definitions(published, arguments)
    sweep = Sweep(TraceSet(arguments.root, definitions=definitions))
    known = published.definitions
    sweep.without_definition = {name: len(found) for name, found in published.workloads.items() if name not in known}
    for name, definition in definitions.items():
        sweep.published[definition.op_type] += len(published.workloads.get(name, []))
        twins = list(twins_of(definition, arguments.twins))
        for kind, workload in choose_workloads(published, definition, arguments):
            megabytes = input_bytes(definition, workload) / 1e6
            too_large = kind != "missing" and 2 * megabytes * 1e6 > arguments.memory_gb * GIB
            for twin, fault in twins:
                expected = "MISSING BLOB" if kind == "missing" else deserved_verdict(definition, config, twin, fault)
                short_name = twin.name.split("__", 1)[1]
                row = Row(definition.op_type, name, short_name, kind, workload.uuid, megabytes, expected)
                sweep.rows[f"{twin.name} {workload.uuid}"] = row
                if too_large:
                    row.verdict = "TOO LARGE"
            if not too_large:
                sweep.trace_set.solutions[name] = [twin for twin, _ in twins]
                sweep.trace_set.workloads.setdefault(name, []).append(Trace(definition=name, workload=workload))
    return sweep


def choose_definitions(published, arguments):
    """Return the definitions that were asked for, those of the first op type first."""
    chosen = {name: published.definitions[name] for name in arguments.definitions or published.definitions}
    if arguments.op_types is None:
        return chosen
    return {
        name: definition
        for op_type in arguments.op_types
        for name, definition in chosen.items()
        if definition.op_type == op_type
    }


def choose_workloads(published, definition, arguments):
    """Yield some of the definition's workloads, and all of those whose blobs are missing."""
    whole, missing = [], []
    for trace in published.workloads.get(definition.name, []):
        kind = missing if missing_blobs(published, definition, trace.workload) else whole
        kind.append(trace.workload)
    if not whole and not arguments.published_only:
        yield "made up", make_up_workload(definition)
    whole.sort(key=lambda workload: input_bytes(definition, workload))
    yield from (("published", workload) for workload in spread(whole, arguments.workloads))
    yield from (("missing", workload) for workload in missing)


def spread(items, most):
    """Return so many of the items, evenly from the first to the last; all of them for 0."""
    if not most or len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // max(most - 1, 1)] for index in range(most)]


def twins_of(definition, which):
    for style in ("value",) if which == "value" else ("value", "dps"):
        for fault in [None, *list_faults(definition, style)] if which == "all" else [None]:
            yield make_twin(definition, style=style, fault=fault), fault


def deserved_verdict(definition, config, twin, fault):
    """Return the status that an evaluator must give a twin; one that asks for a share of the elements forgives some."""
    resolved = config.resolve_eval_config(definition)
    by_ratio = resolved.required_matched_ratio is not None or LowBitEvaluator.can_evaluate(definition)
    return expected_status(style_of(twin), None if by_ratio and fault in RATIO_FORGIVES else fault)


def style_of(twin):
    return "dps" if twin.spec.declared_style else "value"


def note_left_out(sweep, plan):
    """Tell the workloads that the plan leaves out because their blobs are missing."""
    planned = {f"{job.solution.name} {job.workload.uuid}" for job in plan.jobs}
    reasons = {skip.definition: skip.reason for skip in plan.skips if "is not there" in skip.reason}
    for key, row in sweep.rows.items():
        if row.verdict == "not run" and row.definition in reasons and key not in planned:
            row.verdict, row.note = "MISSING BLOB", reasons[row.definition]


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
        print(f"{row.verdict:20} {row.seconds:6.1f} s  {row.definition} {row.twin} {row.uuid[:8]}", file=sys.stderr)


def classify(message):
    if any(words in message for words in OUT_OF_MEMORY):
        return "TOO LARGE"
    return "MISSING BLOB" if "blob" in message and "is not there" in message else "FAULT"


def print_table(rows, hardware, wall_s):
    shown = [row for row in rows if row.workload != "missing"]
    print(f"{hardware}, {wall_s:.0f} s\n")
    print(f"{'definition':66} {'twin':24} {'workload':19} {'MB':>9} {'verdict':20} {'s':>6}  note")
    for row in shown:
        note = row.note.strip().splitlines()[0][:160] if row.note.strip() and row.verdict != row.expected else ""
        mark = "  <-- expected " + row.expected if row.is_surprise else ""
        print(
            f"{row.definition:66} {row.twin:24} {row.workload:10} {row.uuid[:8]:8} {row.megabytes:9.2f} "
            f"{row.verdict:20} {row.seconds:6.2f}  {note}{mark}"
        )


def print_summary(sweep):
    """Print what became of the jobs of each op type, and which workloads of the set were none."""
    heads = f"{'passed':>7} {'blob missing':>13} {'other':>6} {'unexpected':>11}"
    print(f"\n{'op type':14} {'workloads':>13} {'jobs':>6} {heads}")
    for op_type, there in sweep.published.items():
        rows = [row for row in sweep.rows.values() if row.op_type == op_type]
        run = len({(row.definition, row.uuid) for row in rows if row.workload != "made up"})
        counts = Counter(row.verdict for row in rows)
        passed, missing = counts.pop("PASSED", 0), counts.pop("MISSING BLOB", 0)
        surprises = sum(row.is_surprise for row in rows)
        print(
            f"{op_type:14} {f'{run} of {there}':>13} {len(rows):6} {passed:7} {missing:13} {counts.total():6} "
            f"{surprises:11}  {', '.join(f'{verdict}: {count}' for verdict, count in sorted(counts.items()))}".rstrip()
        )
    for name, count in sweep.without_definition.items():
        print(f"not run: {count} workloads of {name}, a definition that the set does not have")


if __name__ == "__main__":
    sys.exit(main())
