"""Count how often a right solution is rejected: those of the bundled set, and of definitions that choose.

    python benchmarks/bench_false_rejections.py [--seeds 200] [--device cuda] [--workloads all] [--op-types NAME ...]
                                                [--definitions TEXT ...]
    python benchmarks/bench_false_rejections.py --twins [--seeds 20]

Each seed makes new inputs; the evaluator that the engine would choose, with the settings that it would use, judges
every solution on them. The solutions are our own, so they run in this process, which saves all but the judging. With
`--workloads turn` (the default) each seed takes the next workload of a definition, with `all` every one, with
`smallest` the first. Where an evaluator judges calls on inputs of other regimes, each regime is a verdict of its own.
Prints each wrong verdict with its seed, then a table; exits with 1 where there was any. The definitions that choose
(`honest_choices.py`) are of op type choice, or lowbit where some elements may fail.

`--twins` counts the other way round: the wrong twins of flashinfer-trace/wrong, each on the workloads that show its
fault, and how often one is accepted.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, JudgeContext, JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks, keep_finite
from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
from flashinfer_bench.worker.load import load_python

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))
from benchmarks.honest_choices import make_set as make_choices  # noqa: E402 - the path comes first

BUNDLED = CHECKOUT / "flashinfer-trace"


class Honest:
    """A solution in this process, as an evaluator calls it; outputs that it is to fill are poisoned first."""

    def __init__(self, solution: Solution, definition: Definition, folder: Path) -> None:
        self.name = solution.name
        self._function = load(solution, folder)
        self._outputs: list[torch.Tensor] = []
        inputs = len(definition.inputs)
        style = solution.spec.declared_style
        is_dps = len(inspect.signature(self._function).parameters) > inputs if style is None else style
        self.metadata = SimpleNamespace(destination_passing_style=is_dps)

    def expect(self, outputs: list[torch.Tensor]) -> None:
        """Tell the shapes and dtypes of the outputs."""
        self._outputs = outputs

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        if self.metadata.destination_passing_style:
            outputs = [torch.empty_like(output) for output in self._outputs]
            for output in outputs:
                output.view(torch.uint8).fill_(0xFF)
            self._function(*inputs, *outputs)
            return outputs
        returned = self._function(*inputs)
        return list(returned) if isinstance(returned, (tuple, list)) else [returned]

    def call_repeatedly(self, inputs: Sequence[Any], count: int) -> Iterator[list[torch.Tensor]]:
        """Make so many calls on the same inputs."""
        for _ in range(count):
            yield self(*inputs)


@dataclass
class Row:
    """The count of one definition."""

    definition: Definition
    evaluator: str
    solutions: int
    verdicts: int = 0
    wrong: int = 0
    """Right solutions rejected, or wrong ones accepted."""
    seconds: float = 0.0


def main() -> int:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    torch.set_num_threads(arguments.threads)
    trace_set = TraceSet.from_path(arguments.root)
    if arguments.root == BUNDLED and not arguments.twins:
        trace_set = TraceSet.merge([trace_set, make_choices(BUNDLED)])
    twins = {}
    if arguments.twins:
        trace_set = TraceSet.merge([trace_set, TraceSet.from_path(arguments.root / "wrong")])
        twins = json.loads((arguments.root / "wrong" / "expected.json").read_text())
    config = BenchmarkConfig.default(**({"num_trials": 1} if arguments.twins else {}))
    rows = []
    with tempfile.TemporaryDirectory(prefix="honest-") as folder:
        for definition in trace_set.definitions.values():
            if arguments.op_types and definition.op_type not in arguments.op_types:
                continue
            if arguments.definitions and not any(text in definition.name for text in arguments.definitions):
                continue
            solutions = [
                Honest(solution, definition, Path(folder))
                for solution in trace_set.solutions[definition.name]
                if solution.author in arguments.authors
            ]
            rows.append(count(definition, solutions, trace_set, config, arguments, device, twins))
            print_rows(rows[-1:], heading=len(rows) == 1)
    wrong, verdicts = sum(row.wrong for row in rows), sum(row.verdicts for row in rows)
    what = "wrong twins accepted" if arguments.twins else "right solutions rejected"
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{where}, {arguments.seeds} seeds: {wrong} of {verdicts} verdicts wrong: {what}")
    return 1 if wrong or not verdicts else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=BUNDLED, help="the trace set")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workloads", choices=("turn", "all", "smallest"), default="turn")
    parser.add_argument("--op-types", nargs="*")
    parser.add_argument("--definitions", nargs="*", metavar="TEXT", help="those whose names have one of these in them")
    parser.add_argument("--authors", nargs="*", help="default: plain and torch; on a GPU triton too")
    parser.add_argument("--twins", action="store_true", help="judge the wrong twins instead, in one trial each")
    parser.add_argument("--threads", type=int, default=1, help="of torch on a CPU")
    arguments = parser.parse_args()
    if arguments.twins:
        arguments.authors, arguments.workloads = ["twin"], "all"
    if arguments.authors is None:
        arguments.authors = ["plain", "torch", *(["triton"] if arguments.device != "cpu" else [])]
    return arguments


def load(solution: Solution, folder: Path) -> Callable[..., Any]:
    """Write the sources of one of our own solutions out and import its entry function; the next has its own modules."""
    place = folder / solution.name
    for source in solution.sources:
        path = place / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content)
    path = list(sys.path)
    try:
        return load_python(place, solution.get_entry_path(), solution.get_entry_symbol())[0]
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(f"{place}/"):
                del sys.modules[name]


def count(
    definition: Definition,
    solutions: list[Honest],
    trace_set: TraceSet,
    config: BenchmarkConfig,
    arguments: argparse.Namespace,
    device: torch.device,
    twins: dict[str, Any],
) -> Row:
    """Judge the solutions of one definition under every seed."""
    evaluator, settings = find_evaluator(definition), config.resolve_eval_config(definition)
    reference = Reference.compile(definition)
    row = Row(definition, evaluator.__name__, len(solutions))
    start = time.perf_counter()
    for seed, workload in choose(definition, trace_set, arguments):
        context = JudgeContext(
            seed=derive_seed(seed, definition.name, workload.uuid),
            blob_root=trace_set.blob_root(definition.name, workload.uuid),
            reference=reference,
            profile_baseline=False,
            measure_reference=refuse_to_measure,
            notes={},
        )
        torch.manual_seed(context.seed)
        baseline: Baseline = evaluator.build_baseline(definition, workload, settings, device, context=context)
        for solution in (item for item in solutions if shows(twins.get(item.name, {}), workload)):
            solution.expect(baseline.outputs[0])
            verdict = evaluator.check_correctness(
                definition, solution, baseline.inputs, baseline.outputs, settings, context=context
            )
            row.verdicts += 1
            if isinstance(verdict, Accepted) == (solution.name in twins):
                row.wrong += 1
                said = "accepted" if isinstance(verdict, Accepted) else verdict.message
                print(f"WRONG: {solution.name}, seed {seed}, workload {workload.uuid}: {said}")
            checks = evaluator.stress_checks(definition, settings)
            if solution.name in twins or checks is None or not checks.judges_floats:
                continue
            for told, verdict in judge_regimes(checks, workload, solution, baseline, context):
                row.verdicts += 1
                if not isinstance(verdict, Accepted):
                    row.wrong += 1
                    print(f"WRONG: {solution.name}, seed {seed}, {told}, workload {workload.uuid}: {verdict.message}")
    row.seconds = time.perf_counter() - start
    return row


def judge_regimes(
    checks: StressChecks, workload: Workload, solution: Honest, baseline: Baseline, context: JudgeContext
) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdict on a call in each regime, in the rows in which the reference is finite."""
    regimes = StressPlan(checks.definition, workload, context.seed)
    if not any(regimes.free):
        return
    for name in regimes.names:
        inputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in baseline.inputs[0]]
        regimes.change(name, 0, [value if isinstance(value, torch.Tensor) else None for value in inputs])
        expected = context.reference(inputs)
        call = JudgedCall(inputs, solution(*inputs), expected)
        part = keep_finite(call, context, baseline.outputs)
        call, judge = part or (call, context)
        if part is None or any(output.numel() for output in call.expected):
            yield name, checks.judge(name, call, judge)


def choose(
    definition: Definition, trace_set: TraceSet, arguments: argparse.Namespace
) -> Iterator[tuple[int, Workload]]:
    """Yield each seed with the workloads that it is used on."""
    workloads = [trace.workload for trace in trace_set.workloads[definition.name]]
    workloads.sort(key=lambda workload: sum(workload.axes.values()))
    for step in range(arguments.seeds):
        taken = {"turn": [workloads[step % len(workloads)]], "all": workloads, "smallest": workloads[:1]}
        for workload in taken[arguments.workloads]:
            yield arguments.first_seed + step, workload


def shows(expected: dict[str, Any], workload: Workload) -> bool:
    """Tell whether a workload shows the fault of a twin; for an honest solution any does."""
    return any(workload.uuid.startswith(prefix) for prefix in expected.get("seen_in", [""]))


def refuse_to_measure(input_sets: list[list[Any]]) -> Any:
    raise AssertionError(f"nothing is timed here; asked to time {len(input_sets)} sets of inputs")


def print_rows(rows: list[Row], *, heading: bool) -> None:
    line = "{:58} {:11} {:18} {:>9} {:>8} {:>8} {:>8}"
    if heading:
        print(line.format("Definition", "Op type", "Evaluator", "Solutions", "Verdicts", "Wrong", "Seconds"))
    for row in rows:
        facts = (row.solutions, row.verdicts, row.wrong, f"{row.seconds:.1f}")
        print(line.format(row.definition.name, row.definition.op_type, row.evaluator, *facts), flush=True)


if __name__ == "__main__":
    sys.exit(main())
