"""How often a right solution is rejected, and a wrong one accepted.

    python -m benchmarks.false_rejections --rows right --seeds 200 [--workloads all] [--op-types NAME ...]
    python -m benchmarks.false_rejections --rows mutants --seeds 20
    python -m benchmarks.false_rejections --rows jobs --jobs 2000           (run it beside other work)
    python -m benchmarks.false_rejections --small --no-save --device cpu    (does every row work here?)

`right` and `mutants` judge in this process, with the evaluators and settings of a run, which saves all but the judging.
Each seed makes new inputs. `right` has the solutions of the bundled set, and those of definitions that choose
(`kit/choices.py`); each distribution of stress inputs is a verdict of its own. `mutants` has the wrong solutions of
flashinfer-trace/wrong, each on the workloads that show its fault. `jobs` goes through sessions, workers and clocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from benchmarks.kit.choices import make_set as make_choices
from benchmarks.kit.commands import CHECKOUT
from benchmarks.kit.script import Bench, Figure, Row, judge, make_parser, run_rows
from benchmarks.kit.sets import BUNDLED
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, JudgeContext, JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks, keep_finite
from flashinfer_bench.bench.runnable import Builder
from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
from tests.kit.runnable import FakeRunnable

WRONG: Final = BUNDLED / "wrong"
AUTHORS: Final = ("plain", "torch", "bench")
"""Authors of right solutions that run on a CPU, and on a GPU too."""


def load(definition: Definition, solution: Solution, builder: Builder) -> FakeRunnable:
    """Return one of our own solutions as an evaluator calls it, in this process."""
    runnable = builder.build(definition, solution)

    def call(*inputs: Any) -> list[torch.Tensor]:
        returned = runnable.call_value_returning(*inputs)
        return list(returned) if isinstance(returned, tuple) else [returned]

    return FakeRunnable(call)


def take_right(bench: Bench) -> Iterator[Figure]:
    """Right solutions judged in this process: how many verdicts reject."""
    trace_set = TraceSet.merge([TraceSet.from_path(BUNDLED), make_choices()])
    authors = (*AUTHORS, *(["triton"] if bench.kind == "cuda" else []))
    verdicts, wrong = count(bench, trace_set, authors, {}, BenchmarkConfig.default())
    yield Figure("right-rejected", len(wrong), "", f"of {verdicts} verdicts", wrong)


def take_mutants(bench: Bench) -> Iterator[Figure]:
    """Mutants judged in this process, in one trial each: how many verdicts accept."""
    trace_set = TraceSet.merge([TraceSet.from_path(BUNDLED), TraceSet.from_path(WRONG)])
    bench.asked.workloads = "all"
    mutants = json.loads((WRONG / "expected.json").read_text())
    verdicts, wrong = count(bench, trace_set, ("mutant",), mutants, BenchmarkConfig.default(num_trials=1))
    yield Figure("mutants-accepted", len(wrong), "", f"of {verdicts} verdicts", wrong)


def count(
    bench: Bench, trace_set: TraceSet, authors: Sequence[str], mutants: dict[str, Any], config: BenchmarkConfig
) -> tuple[int, list[str]]:
    """Judge the solutions of some authors under every seed; return the number of verdicts, and the wrong ones."""
    asked, device, verdicts = bench.asked, torch.device(bench.kind), 0
    wrong: list[str] = []
    builder = Builder(bench.empty("cache"))
    torch.set_num_threads(1)
    for definition in trace_set.definitions.values():
        if asked.op_types and definition.op_type not in asked.op_types:
            continue
        if asked.definitions and not any(text in definition.name for text in asked.definitions):
            continue
        chosen = [one for one in trace_set.solutions[definition.name] if one.author in authors]
        solutions = {one.name: load(definition, one, builder) for one in chosen}
        evaluator, settings = find_evaluator(definition), config.resolve_eval_config(definition)
        reference, before = Reference.compile(definition), verdicts
        for seed, workload in choose(definition, trace_set, bench):
            context = JudgeContext(
                seed=derive_seed(seed, definition.name, workload.uuid),
                blob_root=trace_set.blob_root(definition.name, workload.uuid),
                reference=reference,
                profile_baseline=False,
                measure_reference=lambda _: None,
                notes={},
            )
            torch.manual_seed(context.seed)
            baseline: Baseline = evaluator.build_baseline(definition, workload, settings, device, context=context)
            for name, one in solutions.items():
                if not workload.uuid.startswith(tuple(mutants.get(name, {}).get("seen_in", [""]))):
                    continue  # this workload does not show the mutant's fault
                given = (definition, one, baseline.inputs, baseline.outputs, settings)
                found = [("usual inputs", evaluator.check_correctness(*given, context=context))]
                checks = evaluator.stress_checks(definition, settings)
                if not mutants and checks is not None and checks.judges_floats:
                    found += judge_stress(checks, workload, one, baseline, context)
                verdicts += len(found)
                wrong += [
                    f"{name}, seed {seed}, workload {workload.uuid}, {reported}: {getattr(verdict, 'message', verdict)}"
                    for reported, verdict in found
                    if isinstance(verdict, Accepted) == bool(mutants)
                ]
        if verdicts > before:
            print(f"    {definition.name}, {evaluator.__name__}: {verdicts - before} verdicts", flush=True)
    return verdicts, wrong


def judge_stress(
    checks: StressChecks, workload: Workload, solution: FakeRunnable, baseline: Baseline, context: JudgeContext
) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdict on a call on each stress input, in the rows in which the reference is finite."""
    plan = StressPlan(checks.definition, workload, context.seed)
    for name in plan.names if any(plan.free) else ():
        inputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in baseline.inputs[0]]
        plan.change(name, 0, [value if isinstance(value, torch.Tensor) else None for value in inputs])
        expected = context.reference(inputs)
        call = JudgedCall(inputs, solution(*inputs), expected)
        part = keep_finite(call, context, baseline.outputs)
        call, judging = part or (call, context)
        if part is None or any(output.numel() for output in call.expected):
            yield name, checks.judge(name, call, judging)


def choose(definition: Definition, trace_set: TraceSet, bench: Bench) -> Iterator[tuple[int, Workload]]:
    """Yield each seed with the workloads that it is used on, from small to large."""
    asked, seeds = bench.asked, min(bench.asked.seeds, 2) if bench.is_small else bench.asked.seeds
    workloads = [trace.workload for trace in trace_set.workloads[definition.name]]
    workloads.sort(key=lambda workload: sum(workload.axes.values()))
    for step in range(seeds):
        taken = {"turn": [workloads[step % len(workloads)]], "all": workloads, "smallest": workloads[:1]}
        for workload in taken[asked.workloads]:
            yield asked.first_seed + step, workload


def take_jobs(bench: Bench) -> Iterator[Figure]:
    """The bundled set through the whole engine, again and again: jobs that are not PASSED."""
    trace_set, judged, wrong = TraceSet.from_path(BUNDLED), 0, []
    settings: dict[str, Any] = {"warmup_runs": 2, "iterations": 10, "num_trials": 1}
    settings |= {"definitions": ["rmsnorm_h4096"]} if bench.is_small else {}
    while judged < (1 if bench.is_small else bench.asked.jobs):
        traces, odd = judge(bench, trace_set, **settings)
        judged += len(traces) + len(odd)
        wrong += odd
    yield Figure("jobs-rejected", len(wrong), "", f"of {judged} jobs", wrong)


def take_repro(bench: Bench) -> Iterator[Figure]:
    """For each mutant that fails numerically, the script that `repro` writes shows the failure (exit code 1)."""
    expected = json.loads((WRONG / "expected.json").read_text())
    workloads = TraceSet.from_path(BUNDLED).workloads
    odd, tried = [], 0
    for file in sorted((WRONG / "solutions" / "mutant").rglob("*.json"))[: 2 if bench.is_small else None]:
        facts, definition = expected[file.stem], json.loads(file.read_text())["definition"]
        if facts["status"] != "INCORRECT_NUMERICAL":
            continue
        shown = [one.workload for one in workloads[definition]]
        shown = [one for one in shown if one.uuid.startswith(tuple(facts.get("seen_in", [""])))]
        uuid, folder = min(shown, key=lambda one: sum(one.axes.values())).uuid, bench.empty("repro")
        command = [sys.executable, "-m", "flashinfer_bench", "repro", file.stem, uuid, "--dump", str(folder)]
        command += ["--local", str(BUNDLED), "--local", str(WRONG), "--devices", "cpu"]
        subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=False)
        script = [bench.asked.python, str(folder / "repro.py")]
        done = subprocess.run(script, cwd=folder, capture_output=True, text=True, check=False)
        is_shown = done.returncode == 1 and "the failure shows" in done.stdout
        odd += [] if is_shown else [f"{file.stem}: {done.returncode}: {(done.stdout + done.stderr)[-300:]}"]
        tried += 1
    yield Figure("repro-wrong", len(odd), "", f"of {tried} mutants", odd)


ROWS: Final = {
    "right": Row(take_right),
    "mutants": Row(take_mutants),
    "jobs": Row(take_jobs),
    "repro": Row(take_repro),
}


def main() -> int:
    """Take the rows."""
    parser = make_parser(__doc__ or "", ROWS)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--workloads", choices=("turn", "all", "smallest"), default="turn", help="of each seed")
    parser.add_argument("--op-types", nargs="*")
    parser.add_argument("--definitions", nargs="*", metavar="TEXT", help="those with one of these in their names")
    parser.add_argument("--jobs", type=int, default=2000, help="jobs: how many at least")
    parser.add_argument("--python", default=sys.executable, help="repro: the interpreter of its scripts")
    return run_rows(ROWS, parser.parse_args(), "false_rejections")


if __name__ == "__main__":
    sys.exit(main())
