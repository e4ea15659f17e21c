"""Measure how large the errors of right and of wrong solutions are beside the outputs: the figures behind the limits.

    python benchmarks/bench_error_norms.py [--root flashinfer-trace ...] [--seeds 2] [--largest 20_000_000]

Each reference is called as it is, and with the operands of its products rounded as kernels of low precision round them:
tf32, bfloat16, fp8 with a scale for each row, 4-bit floats with a scale for each 16. It is called on usual inputs and
on those of each regime. Printed is the largest norm of the error, as a share of the output's, over whole outputs and
over rows, for each format; rows that the inputs do not settle are left out. "passes" counts the calls that are within
the user's tolerance, and "refused" those of them that a rule beside it rejects: there should be none.

Then the wrong twins of the bundled set, each beside the reference, with the smallest norms; and zeros.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.bench_false_rejections import BUNDLED, Honest, refuse_to_measure, shows
from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.compare.packed import E2M1_VALUES
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker, bind_axes
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.bench.evaluators.integrity.norms import measure_norms
from flashinfer_bench.bench.evaluators.integrity.stability import REGIME_ROUNDING, USUAL_ROUNDING, Stability
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.data import Definition, TraceSet, Workload
from flashinfer_bench.errors import FlashInferBenchError

PRODUCTS = frozenset(
    (*("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "linear", "baddbmm", "addmm"), "mv", "dot")
)
"""Functions of torch whose operands are rounded."""
USUAL = "usual"


def round_tf32(values: torch.Tensor) -> torch.Tensor:
    bits = values.float().contiguous().view(torch.int32)
    return (((bits + 0x1000) >> 13) << 13).view(torch.float32)


def round_bfloat16(values: torch.Tensor) -> torch.Tensor:
    return values.bfloat16().float()


def round_fp8(values: torch.Tensor) -> torch.Tensor:
    scale = values.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-30) / 448
    return (values / scale).to(torch.float8_e4m3fn).float() * scale


def round_fp4(values: torch.Tensor) -> torch.Tensor:
    columns = values.shape[-1]
    if columns % 16:
        return round_fp8(values)
    blocks = values.float().reshape(-1, 16)
    scale = (blocks.abs().amax(dim=-1, keepdim=True) / 6).to(torch.float8_e4m3fn).float().clamp(min=2.0**-9)
    edges = torch.tensor(sorted(E2M1_VALUES))
    nearest = (blocks / scale).clamp(-6, 6)
    found = edges[torch.bucketize(nearest, (edges[1:] + edges[:-1]) / 2)]
    return (found * scale).reshape(values.shape)


FORMATS = {"tf32": round_tf32, "bfloat16": round_bfloat16, "fp8": round_fp8, "fp4": round_fp4}


class RoundedProducts(TorchFunctionMode):
    """Rounds what goes into products."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._round = FORMATS[name]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in PRODUCTS:
            args = tuple(self._coarse(item) for item in args)
        return function(*args, **(kwargs or {}))

    def _coarse(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.is_floating_point() and item.ndim:
            return self._round(item).to(item.dtype)
        return [self._coarse(part) for part in item] if isinstance(item, list) else item

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)


@dataclass
class Row:
    """What was found of one kind of solution."""

    outputs: float = 0.0
    rows: float = 0.0
    calls: int = 0
    passing: int = 0
    refused: list[str] = field(default_factory=list)
    largest_passing: float = 0.0

    def add(self, share: float, row: float, verdict: tuple[bool, str | None]) -> None:
        self.outputs, self.rows = max(self.outputs, share), max(self.rows, row)
        self.calls += 1
        passes, refused = verdict
        self.passing += passes
        if passes:
            self.largest_passing = max(self.largest_passing, share, row)
        if passes and refused:
            self.refused.append(refused)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, nargs="+", default=[BUNDLED])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--largest", type=int, default=20_000_000, help="elements of a workload's inputs, at the most")
    parser.add_argument("--no-twins", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, str], Row] = {}
    config = BenchmarkConfig.default()
    for root in arguments.root:
        trace_set = TraceSet.from_path(root)
        for definition in trace_set.definitions.values():
            workloads = [trace.workload for trace in trace_set.workloads.get(definition.name, [])]
            measure_definition(definition, workloads, root, arguments, config.resolve_eval_config(definition), found)
    print_rows(found)
    if not arguments.no_twins:
        measure_twins()
    return 1 if any(row.refused for row in found.values()) else 0


def measure_definition(
    definition: Definition,
    workloads: list[Workload],
    root: Path,
    arguments: argparse.Namespace,
    cfg: ResolvedEvalConfig,
    found: dict[tuple[str, str], Row],
) -> None:
    evaluator: Any = find_evaluator(definition)
    if evaluator.is_random or not evaluator.compares_elements(definition):
        return
    for workload in sorted(workloads, key=lambda one: sum(one.axes.values())):
        try:
            shapes = bind_axes(definition, workload)[1].values()
            if sum(torch.Size(shape or ()).numel() for shape in shapes) > arguments.largest:
                continue
            for seed in range(arguments.seeds):
                measure_workload(definition, workload, root, seed, cfg, found)
        except FlashInferBenchError as error:
            print(f"left out: {definition.name}, {workload.uuid}: {str(error)[:100]}", file=sys.stderr)
            return


def measure_workload(
    definition: Definition,
    workload: Workload,
    root: Path,
    seed: int,
    cfg: ResolvedEvalConfig,
    found: dict[tuple[str, str], Row],
) -> None:
    """Measure each format on usual inputs and on each regime's."""
    evaluator: Any = find_evaluator(definition)
    reference = Reference.compile(definition)
    context = make_context(definition, workload, root, seed, reference)
    base = InputMaker(definition, workload, torch.device("cpu"), root).make(context.seed)
    passing: dict[str, bool] = {}
    checks = evaluator.stress_checks(definition, cfg)
    judges_floats = checks is not None and checks.judges_floats
    for regime, inputs in each_regime(definition, workload, base, context.seed, judges_floats):
        expected = reference(inputs)
        if regime != USUAL and not all(bool((output.float() < torch.inf).all()) for output in expected):
            continue
        rounding = USUAL_ROUNDING if regime == USUAL else REGIME_ROUNDING
        stability = Stability(reference, inputs, expected, context.seed, rounding)
        for name in FORMATS:
            with RoundedProducts(name):
                got = reference(inputs)
            call = JudgedCall(inputs, got, expected)
            if regime == USUAL:
                passes = not isinstance(evaluator.judge_trial(definition, call, cfg), Rejected)
                passing[name] = passes
                verdict = evaluator.judge_call(definition, call, cfg, context) if passes else None
            else:
                passes, verdict = passing[name], checks.judge(regime, call, context)
            refused = None
            if isinstance(verdict, Rejected):
                refused = f"{definition.name}, {workload.uuid}, {regime}, seed {seed}: {verdict.message}"
            limit = evaluator.norm_rule(definition, cfg).limit
            share, row = largest_norms(call, stability, limit)
            kind = USUAL if regime == USUAL else "regimes"
            found.setdefault((name, kind), Row()).add(share, row, (passes, refused))


def largest_norms(call: JudgedCall, stability: Stability, limit: float) -> tuple[float, float]:
    """Return the largest norms over outputs and over rows, without what is not settled."""
    share = row = 0.0
    for index, one in enumerate(map(measure_norms, call.expected, call.got)):
        if one is None or not one.says_something:
            continue
        over = one.shares() > limit
        left_out = stability.find_unsettled(index, limit, over) if bool(over.any()) else torch.zeros_like(over)
        share = max(share, one.share(left_out))
        row = max(row, float(one.shares()[~left_out].max()) if bool((~left_out).any()) else 0.0)
    return share, row


def each_regime(
    definition: Definition, workload: Workload, base: list[Any], seed: int, takes: bool
) -> Iterator[tuple[str, list[Any]]]:
    yield USUAL, base
    regimes = StressPlan(definition, workload, seed)
    if not takes or not any(regimes.free):
        return
    for name in regimes.names:
        inputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in base]
        regimes.change(name, 0, [value if isinstance(value, torch.Tensor) else None for value in inputs])
        yield name, inputs


def make_context(
    definition: Definition, workload: Workload, root: Path, seed: int, reference: Reference
) -> JudgeContext:
    seed = derive_seed(seed, definition.name, workload.uuid)
    return JudgeContext(seed, root, reference, False, refuse_to_measure, {})


def print_rows(found: dict[tuple[str, str], Row]) -> None:
    line = "{:10} {:8} {:>8} {:>12} {:>12} {:>8} {:>16} {:>8}"
    print(line.format("Format", "Inputs", "Calls", "Output norm", "Row norm", "Passes", "Norm, passing", "Refused"))
    for (name, kind), row in sorted(found.items()):
        figures = (f"{row.outputs:.4f}", f"{row.rows:.4f}", row.passing, f"{row.largest_passing:.4f}")
        print(line.format(name, kind, row.calls, *figures, len(row.refused)))
        for text in row.refused:
            print(f"    refused: {text}")


def measure_twins() -> None:
    """Print the norms of the wrong twins whose outputs are compared by elements, the smallest first."""
    trace_set = TraceSet.merge([TraceSet.from_path(BUNDLED), TraceSet.from_path(BUNDLED / "wrong")])
    expectations = json.loads((BUNDLED / "wrong" / "expected.json").read_text())
    norms: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory(prefix="twins-") as folder:
        for definition in trace_set.definitions.values():
            evaluator: Any = find_evaluator(definition)
            if evaluator.is_random or not evaluator.compares_elements(definition):
                continue
            reference = Reference.compile(definition)
            workloads = [trace.workload for trace in trace_set.workloads[definition.name]]
            for solution in trace_set.solutions[definition.name]:
                if solution.author != "twin":
                    continue
                runnable = Honest(solution, definition, Path(folder))
                for workload in workloads:
                    if shows(expectations[solution.name], workload):
                        root = trace_set.blob_root(definition.name, workload.uuid)
                        inputs = InputMaker(definition, workload, torch.device("cpu"), root).make(1)
                        expected = reference(inputs)
                        runnable.expect(expected)
                        measured = map(measure_norms, expected, runnable(*inputs))
                        shares = [max(one.share(), float(one.shares().max())) for one in measured if one is not None]
                        norms.append((max(shares, default=0.0), f"{solution.name}, {workload.uuid[:8]}"))
    norms.sort()
    limits = [0.1, 0.15]
    print(f"\n{len(norms)} calls of wrong twins; the smallest norms, of an output or of a row:")
    for norm, name in norms[:8]:
        print(f"    {norm:.4f}  {name}")
    for limit in limits:
        print(f"{sum(norm > limit for norm, _ in norms)} of them are above {limit}")


if __name__ == "__main__":
    sys.exit(main())
