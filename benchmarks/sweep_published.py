"""Judge every definition of a published data set by its own reference, packed as solutions that are right or wrong.

    python -m benchmarks.sweep_published ROOT [--devices 0 1] [--solutions all] [--definitions NAME ...]
    python -m benchmarks.sweep_published ROOT --op-types gemm moe --workloads 0 --solutions value

Each definition is run on its smallest published workloads (`--workloads`) whose blobs are there, and on a made-up one
if it has none. The plan has to leave out every workload whose blobs are missing. Prints a table, and exits with 1 if a
verdict is not the one it deserves, or a job has none. On a CPU no process may hold more than `--memory-gb`:
what needs more is reported as too large. On a GPU that counts as a failure. Nothing is saved in the set.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.kit.script import Bench, Figure, Row, make_parser, run_rows
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from tests.kit.packed import expected_status, list_faults, pack_reference
from tests.kit.small_workloads import input_bytes, make_up_workload, missing_blobs

GIB: Final = 1 << 30
OUT_OF_MEMORY: Final = ("can't allocate memory", "out of memory", "is full", "takes more than", "inputs take")
RATIO_FORGIVES: Final = ("wrong_element",)
"""Faults that an evaluator which asks for a share of the elements lets pass."""


@dataclass
class Line:
    """One solution's line of the table."""

    definition: Definition
    solution: str
    kind: str
    """Of the workload: published, missing (its blobs are), made up."""
    uuid: str
    megabytes: float
    expected: str
    forgiven: str = ""
    """A second verdict that is no surprise."""
    verdict: str = "not run"
    seconds: float = 0.0
    note: str = ""

    @property
    def is_surprise(self) -> bool:
        """Whether the solution deserves another verdict."""
        return self.verdict not in (self.expected, self.forgiven)

    def render(self) -> str:
        """Return a line of the table."""
        place = f"{self.definition.name} {self.solution} {self.kind} {self.uuid[:8]}, {self.megabytes:.1f} MB"
        odd = f"  <-- expected {self.expected}: {self.note.strip()[:160]}" if self.is_surprise else ""
        return f"{self.verdict:20} {self.seconds:6.1f} s  {place}{odd}"


def take_published(bench: Bench) -> Iterator[Figure]:
    """Published references as solutions: how many get another verdict than they deserve."""
    asked = bench.asked
    config = BenchmarkConfig.default(
        devices=list(bench.names),
        warmup_runs=0,
        iterations=1,
        num_trials=1,
        timeout_seconds=asked.timeout,
        worker_memory_gb=asked.memory_gb,
        time_budget_s=1.0,
        profile_baseline=False,
    )
    published = TraceSet.from_path(asked.root)
    trace_set, lines = prepare(published, asked, config)
    if not lines:
        sys.exit("the set has nothing of what was asked for: widen --op-types and --definitions")
    with Benchmark(trace_set, config) as benchmark:
        if bench.kind == "cpu":
            limit = int(asked.memory_gb * GIB)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # sessions and workers inherit it
            for line in lines.values():
                line.forgiven = "TOO LARGE"
        run(benchmark, lines)
    print_summary(lines.values(), published)
    wrong = sum(line.is_surprise for line in lines.values())
    yield Figure("published-failed", wrong, "", f"of {len(lines)}: {', '.join(asked.op_types or ['all'])}")


def prepare(
    published: TraceSet, asked: argparse.Namespace, config: BenchmarkConfig
) -> tuple[TraceSet, dict[str, Line]]:
    """Choose definitions and workloads, and pack references; return the set, and the rows by solution and workload."""
    chosen = [published.definitions[name] for name in asked.definitions or published.definitions]
    if asked.op_types is not None:
        chosen = [one for op_type in asked.op_types for one in chosen if one.op_type == op_type]
    named = {definition.name: definition for definition in chosen[: 2 if asked.small else None]}
    trace_set, rows = TraceSet(root=asked.root, definitions=named), {}
    for name, definition in named.items():
        solutions = list(solutions_of(definition, asked.solutions))
        for kind, workload in choose_workloads(published, definition, asked):
            megabytes = input_bytes(definition, workload) / 1e6
            too_large = kind != "missing" and 2 * megabytes * 1e6 > asked.memory_gb * GIB
            for solution, fault in solutions:
                expected = (
                    "MISSING BLOB" if kind == "missing" else deserved_verdict(definition, config, solution, fault)
                )
                row = Line(definition, solution.name.split("__", 1)[1], kind, workload.uuid, megabytes, expected)
                row.verdict = "TOO LARGE" if too_large else row.verdict
                rows[f"{solution.name} {workload.uuid}"] = row
            if not too_large:
                trace_set.solutions[name] = [solution for solution, _ in solutions]
                trace_set.workloads.setdefault(name, []).append(Trace(definition=name, workload=workload))
    return trace_set, rows


def choose_workloads(
    published: TraceSet, definition: Definition, asked: argparse.Namespace
) -> Iterator[tuple[str, Workload]]:
    """Yield some of the definition's workloads, and all of those whose blobs are missing."""
    whole, missing = [], []
    for trace in published.workloads.get(definition.name, []):
        (missing if missing_blobs(published, definition, trace.workload) else whole).append(trace.workload)
    if not whole and not asked.published_only:
        yield "made up", make_up_workload(definition)
    whole.sort(key=lambda workload: input_bytes(definition, workload))
    yield from (("published", workload) for workload in spread(whole, asked.workloads))
    yield from (("missing", workload) for workload in missing)


def spread(items: Sequence[Any], most: int) -> Sequence[Any]:
    """Return N of the items, evenly from the first to the last; all of them for 0."""
    if not most or len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // max(most - 1, 1)] for index in range(most)]


def solutions_of(definition: Definition, which: str) -> Iterator[tuple[Solution, str | None]]:
    """Yield the packed references with their faults."""
    for style in ("value",) if which == "value" else ("value", "dps"):
        for fault in [None, *list_faults(definition, style)] if which == "all" else [None]:
            yield pack_reference(definition, style=style, fault=fault), fault


def deserved_verdict(definition: Definition, config: BenchmarkConfig, solution: Solution, fault: str | None) -> str:
    """Return the status that an evaluator must give; a required share of elements forgives some."""
    by_ratio = config.resolve_eval_config(definition).required_matched_ratio is not None
    by_ratio = by_ratio or LowBitEvaluator.can_evaluate(definition)
    style = "dps" if solution.spec.declared_style else "value"
    return expected_status(style, None if by_ratio and fault in RATIO_FORGIVES else fault)


def run(benchmark: Benchmark, rows: dict[str, Line]) -> None:
    """Judge the jobs, and note what the plan leaves out; an interrupted sweep keeps what it has."""
    plan = benchmark.plan()
    planned = {f"{job.solution.name} {job.workload.uuid}" for job in plan.jobs}
    reasons = {skip.definition: skip.reason for skip in plan.skips if "is not there" in skip.reason}
    for key, row in rows.items():
        if row.verdict == "not run" and row.definition.name in reasons and key not in planned:
            row.verdict, row.note = "MISSING BLOB", reasons[row.definition.name]
    try:
        for event in benchmark.run(plan, save_results=False):
            if not isinstance(event, (JobFinished, JobFaulted)):
                continue
            row = rows[f"{event.job.solution.name} {event.job.workload.uuid}"]
            if isinstance(event, JobFinished):
                evaluation = event.trace.evaluation
                row.verdict, row.seconds, row.note = evaluation.status.value, event.seconds, evaluation.log
            else:
                row.verdict, row.note = classify(event.message), event.message
            print(row.render(), flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)


def classify(message: str) -> str:
    """Return the verdict of a fault."""
    if any(words in message for words in OUT_OF_MEMORY):
        return "TOO LARGE"
    return "MISSING BLOB" if "blob" in message and "is not there" in message else "FAULT"


def print_summary(rows: Iterable[Line], published: TraceSet) -> None:
    """Print the number of verdicts of each op type."""
    print(f"\n{'op type':14} {'jobs':>6} {'unexpected':>11}  verdicts")
    groups: dict[str, list[Line]] = {}
    for row in rows:
        groups.setdefault(row.definition.op_type, []).append(row)
    for op_type, found in groups.items():
        counts = ", ".join(f"{name}: {number}" for name, number in Counter(one.verdict for one in found).items())
        print(f"{op_type:14} {len(found):6} {sum(one.is_surprise for one in found):11}  {counts}")
    for name in published.workloads.keys() - published.definitions.keys():
        print(f"not run: workloads of {name}, a definition that the set does not have")


ROWS: Final = {"published": Row(take_published)}


def main() -> int:
    """Take the row."""
    parser = make_parser(__doc__ or "", ROWS)
    parser.add_argument("root", type=Path)
    parser.add_argument("--definitions", nargs="*")
    parser.add_argument("--op-types", nargs="*", help="only these, in this order")
    parser.add_argument("--workloads", type=int, default=1, help="most of a definition, from small to large; 0: all")
    parser.add_argument("--published-only", action="store_true", help="make up no workloads")
    text = "the reference as it stands; that and a solution that fills its outputs; those and the faulty ones"
    parser.add_argument("--solutions", choices=["value", "honest", "all"], default="honest", help=text)
    parser.add_argument("--memory-gb", type=float, default=16.0)
    parser.add_argument("--timeout", type=float, default=300.0)
    return run_rows(ROWS, parser.parse_args(), "sweep_published")


if __name__ == "__main__":
    sys.exit(main())
