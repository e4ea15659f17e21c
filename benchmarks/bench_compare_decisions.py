"""How often `compare` is right: a solution against its copy, and against a twin that is slower by a known share.

    python -m benchmarks.bench_compare_decisions --comparisons 20 [--device cpu] [--output FILE]
    python -m benchmarks.bench_compare_decisions --simulate [FILE]

Measured: many comparisons in one session, each with workers of its own. Told are the decisions, the pairs and seconds
that they took, the coverage of the intervals, and how many pairs of single workers have intervals that do not meet.
Simulated: decisions on pairs drawn from recorded spreads (FILE, of `--output`), or from normal distributions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, stdev

from flashinfer_bench import BenchmarkConfig, Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.examine.compare.measuring import measure
from flashinfer_bench.examine.compare.result import LOOKS, Comparison, Row, ratio_of_pairs
from flashinfer_bench.examine.compare.sides import Pairing
from flashinfer_bench.timing.between_workers import default_spread, learned_spread, sum_squares

KERNELS = {"triton": (8000, 250, 0.02, (1 << 14, 1 << 18)), "chain": (33, 1, 0.02, (1 << 14, 1 << 18))}
CPU_KERNEL = (25, 2, 0.05, (1 << 14,))
"""Steps of the kernel, steps more of its twin, the threshold, and the elements that are timed: 3 % on a GPU, 8 % on a
CPU, where so few elements are the work of one thread. On a GPU a step is a multiplication in a Triton kernel, or one
kernel of a chain that torch launches: a worker for a chain needs a context that feeds the GPU fast, which every other
one does."""
SPREADS = ((0.0045, 0.02, 1.03), (0.01, 0.02, 1.03), (0.03, 0.02, 1.03), (0.03, 0.05, 1.08), (0.05, 0.05, 1.08))
"""Standard deviation of a pair's ratio, threshold, slower twin: what is simulated where nothing is recorded."""
NAME = "chain"


TRITON = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, one, count, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count)
    for _ in range(STEPS):
        value = value * one
    tl.store(y + at, value + 1, mask=at < count)

def run(x, y):
    kernel[(triton.cdiv(x.numel(), 512),)](x, y, 1.0, x.numel(), STEPS={steps}, BLOCK=512)
"""
CHAIN = """import torch

def run(x, y):
    torch.add(x, 1, out=y)
    for _ in range({steps} - 1):
        y.add_(1)
    for _ in range({idle}):
        y.add_(0)
"""


def make_set(added: int, sizes: Sequence[int]) -> TraceSet:
    """Return a set with one definition, which adds a number in steps of one."""
    tensor = {"shape": ["count"], "dtype": "float32"}
    body = f"    y = x + 1\n    for _ in range({added - 1}):\n        y = y + 1\n    return y\n"
    definition = Definition.model_validate(
        {
            "name": NAME,
            "op_type": "benchmark",
            "axes": {"count": {"type": "var"}},
            "inputs": {"x": tensor},
            "outputs": {"y": tensor},
            "reference": f"import torch\n\ndef run(x):\n{body}",
        }
    )
    lines = [
        Workload.model_validate({"uuid": f"count_{size}", "axes": {"count": size}, "inputs": {"x": {"type": "random"}}})
        for size in sizes
    ]
    workloads = {NAME: [Trace(definition=NAME, workload=line, solution=None) for line in lines]}
    return TraceSet(definitions={NAME: definition}, solutions={NAME: []}, workloads=workloads)


def make_solution(name: str, kernel: str, steps: int, idle: int) -> Solution:
    """Return a solution that takes `idle` steps more than it needs, which change nothing.

    Those of a Triton kernel with the same steps are the same to the byte, so that it is compiled once.
    """
    is_triton = kernel == "triton"
    source = TRITON.format(steps=steps + idle) if is_triton else f"# {name}\n{CHAIN.format(steps=steps, idle=idle)}"
    return Solution.model_validate(
        {
            "name": name,
            "definition": NAME,
            "author": "benchmark",
            "spec": {
                "language": "triton" if is_triton else "python",
                "target_hardware": ["any"],
                "entry_point": "main.py::run",
                "destination_passing_style": True,
            },
            "sources": [{"path": "main.py", "content": source}],
        }
    )


def make_pairings(count: int, kernel: str, steps: int, more: int) -> list[Pairing]:
    """Return comparisons of a solution with copies and with slower twins."""
    one = make_solution("one", kernel, steps, 0)
    found = []
    for number in range(count):
        found.append(Pairing(one, make_solution(f"copy {number}", kernel, steps, 0), f"copy {number}"))
        found.append(Pairing(one, make_solution(f"twin {number}", kernel, steps, more), f"twin {number}"))
    return found


def describe(rows: Sequence[Row], comparison: Comparison, truth: float | None) -> dict[str, object]:
    """Return how rows were decided, and how many of their intervals hold the true ratio."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    middle = fmean(ratio.log_mean for ratio in ratios) if truth is None else log(truth)
    held = [ratio.log_half is not None and abs(ratio.log_mean - middle) <= ratio.log_half for ratio in ratios]
    spreads = [stdev([log(b / a) for a, b in row.pairs_ms]) for row in rows if len(row.pairs_ms) > 1]
    return {
        "comparisons": len(rows),
        "decisions": dict(Counter(ratio.decide(comparison.threshold) for ratio in ratios)),
        "problems": [row.problem for row in rows if row.problem][:3],
        "ratio": exp(middle),
        "coverage": fmean(held) if held else None,
        "pairs": fmean(ratio.pairs for ratio in ratios) if ratios else None,
        "spread_of_a_pair": fmean(spreads) if spreads else None,
    }


def describe_workers(rows: Sequence[Row], kind: str) -> dict[str, object]:
    """Return how intervals of single workers of equal code hold for other workers."""
    by_workload: dict[str, list[float]] = {}
    for row in rows:
        by_workload.setdefault(row.workload, []).extend(value for pair in row.pairs_ms for value in pair)
    learned = learned_spread(kind, *sum_squares(list(by_workload.values())))
    told: dict[str, object] = {"workers": sum(map(len, by_workload.values())), "spread": learned.share}
    for name, spread in (("default", default_spread(kind)), ("learned", learned)):
        held = [abs(log(t) - fmean(map(log, ts))) <= spread.half for ts in by_workload.values() for t in ts]
        apart = [abs(log(a / b)) > 2 * spread.half for ts in by_workload.values() for a, b in combinations(ts, 2)]
        told |= {f"coverage_{name}": fmean(held), f"apart_{name}": fmean(apart)}
    return told


def run(args: argparse.Namespace) -> dict[str, object]:
    """Measure."""
    device = discover_devices([args.device] if args.device else None)[0]
    kernel = args.kernel if device.kind == "cuda" else "chain"
    steps, more, threshold, sizes = KERNELS[kernel] if device.kind == "cuda" else CPU_KERNEL
    pairings = make_pairings(args.comparisons, kernel, steps, more)
    config = BenchmarkConfig.default(devices=["cpu" if device.kind == "cpu" else device.uuid])
    comparison = measure(
        make_set(1 if kernel == "triton" else steps, sizes),
        pairings,
        config,
        threshold=threshold,
        budget_s=args.budget,
        tell=lambda line: print(line, file=sys.stderr),
    )
    copies = [row for row in comparison.rows if row.solutions.startswith("copy")]
    twins = [row for row in comparison.rows if row.solutions.startswith("twin")]
    document: dict[str, object] = {
        "hardware": device.name,
        "threshold": threshold,
        "seconds_each": comparison.seconds / len(comparison.rows),
        "copies": describe(copies, comparison, 1.0),
        "twins": {**describe(twins, comparison, None), "expected": 1 + more / steps},
        "single_workers": describe_workers(copies, device.kind),
    }
    if args.output:
        logs = [[log(b / a) for a, b in row.pairs_ms] for row in copies]
        Path(args.output).write_text(json.dumps({**document, "logs": logs}) + "\n")
    return document


def simulate(args: argparse.Namespace) -> list[dict[str, object]]:
    """Decide on pairs that are drawn at random."""
    random = Random(1)
    if not args.file:
        return [
            {"spread": spread, "threshold": threshold, "true": true, **_simulated(draw, threshold, true, args.count)}
            for spread, threshold, slower in SPREADS
            for true in (1.0, slower)
            for draw in [lambda spread=spread: random.gauss(0, spread)]
        ]
    recorded = json.loads(Path(args.file).read_text())
    pool = [value - fmean(logs) for logs in recorded["logs"] if len(logs) > 2 for value in logs]
    threshold, slower = recorded["threshold"], recorded["twins"]["ratio"]
    return [
        {"threshold": threshold, "true": true, **_simulated(lambda: random.choice(pool), threshold, true, args.count)}
        for true in (1.0, slower)
    ]


def _simulated(draw, threshold: float, true: float, count: int) -> dict[str, object]:
    decisions: Counter[str] = Counter()
    held = pairs = 0
    for _ in range(count):
        logs: list[float] = []
        for look in LOOKS:
            logs += [log(true) + draw() for _ in range(look - len(logs))]
            ratio = ratio_of_pairs(logs)
            if ratio.decide(threshold) != "cannot tell yet":
                break
        decisions[ratio.decide(threshold)] += 1
        held += abs(ratio.log_mean - log(true)) <= (ratio.log_half or 0)
        pairs += len(logs)
    shares = {name: number / count for name, number in decisions.items()}
    return {"decisions": shares, "coverage": held / count, "pairs": pairs / count}


def main() -> None:
    """Read the arguments, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=10, help="with copies, and as many with twins")
    parser.add_argument("--device")
    parser.add_argument("--kernel", choices=sorted(KERNELS), default="triton", help="on a GPU")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for all of them")
    parser.add_argument("--output", help="write the spreads there, too")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--count", type=int, default=4000, help="series that are simulated")
    parser.add_argument("file", nargs="?", help="recorded spreads, for --simulate")
    args = parser.parse_args()
    found = simulate(args) if args.simulate else run(args)
    for part in found if isinstance(found, list) else [found]:
        print(json.dumps(part))


if __name__ == "__main__":
    main()
