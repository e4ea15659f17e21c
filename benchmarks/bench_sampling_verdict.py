"""Time one verdict of the Sampling evaluator, without the sampler's own time.

python benchmarks/bench_sampling_verdict.py [--rows 64] [--vocabulary 128256] [--calls 100] [--device cpu]

With --false-alarms N, count instead how many of N perfect samplers are rejected.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.sampling.evaluator import DrawJudge, SamplingLimits
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem
from flashinfer_bench.data import AxisVar, Definition, TensorSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--false-alarms", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    size = f"{arguments.rows} rows x {arguments.vocabulary} tokens x {arguments.calls} calls"
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    if arguments.false_alarms:
        rejected = count_false_alarms(arguments, device)
        print(f"{size} on {where}: {rejected} of {arguments.false_alarms} perfect samplers rejected")
    else:
        seconds = time_verdicts(arguments, device)
        took = f"median of {arguments.repeats}: {median(seconds[1:]):.3f} s, the first {seconds[0]:.3f} s"
        print(f"{size} on {where}: {took}")


def time_verdicts(arguments: argparse.Namespace, device: torch.device) -> list[float]:
    """Judge the same draws several times; give the seconds that each verdict took."""
    problem, tokens = make_problem(arguments, device, seed=0)
    seconds = []
    for repeat in range(arguments.repeats + 1):
        start = perf_counter()
        verdict = judge(problem, tokens, arguments.calls, 1 + repeat)
        seconds.append(perf_counter() - start)
        if not isinstance(verdict, Accepted):
            raise SystemExit(f"a perfect sampler was rejected: {verdict.message}")
    return seconds


def count_false_alarms(arguments: argparse.Namespace, device: torch.device) -> int:
    """Judge perfect samplers, each on rows of its own; count the rejected ones."""
    rejected = 0
    for seed in range(arguments.false_alarms):
        problem, tokens = make_problem(arguments, device, seed=seed)
        verdict = judge(problem, tokens, arguments.calls, 2**40 + seed)
        rejected += not isinstance(verdict, Accepted)
    return rejected


def judge(problem: SamplingProblem, tokens: torch.Tensor, trials: int, seed: int) -> Verdict:
    """Judge draws [calls, rows] as those of a definition with the problem's filters."""
    row, tokens_of_row = TensorSpec(shape=["n"], dtype="float64"), TensorSpec(shape=["n"], dtype="int64")
    definition = Definition(
        name="rows",
        op_type="sampling",
        axes={"n": AxisVar(), "v": AxisVar()},
        inputs={"probs": TensorSpec(shape=["n", "v"], dtype="float32"), **dict.fromkeys(problem.filters, row)},
        outputs={"samples": tokens_of_row},
        reference="def run(probs, **filters):\n    return probs.argmax(dim=1)\n",
    )
    inputs = [problem.probabilities, *problem.filters.values()]
    calls = [JudgedCall(inputs, [drawn], [drawn]) for drawn in tokens]
    return DrawJudge(definition, SamplingLimits(trials), torch.Generator().manual_seed(seed)).judge_first(calls)


def make_problem(
    arguments: argparse.Namespace, device: torch.device, *, seed: int
) -> tuple[SamplingProblem, torch.Tensor]:
    """Make rows with top-k and top-p, and the draws of a perfect sampler."""
    generator = torch.Generator(device=device).manual_seed(seed)
    rows, vocabulary = arguments.rows, arguments.vocabulary
    logits = torch.randn(rows, vocabulary, generator=generator, device=device)
    sharpness = 1 + 4 * torch.rand(rows, 1, generator=generator, device=device)
    probabilities = (logits * sharpness).softmax(dim=-1)
    top_k = torch.full((rows,), vocabulary // 2, device=device)
    top_p = torch.full((rows,), 0.9, dtype=torch.float64, device=device)
    ordered, ids = probabilities.sort(dim=-1, descending=True)
    kept = torch.where(torch.arange(vocabulary, device=device) < top_k[:, None], ordered.double(), 0.0)
    kept = kept / kept.sum(dim=-1, keepdim=True)
    kept = torch.where(kept.cumsum(dim=-1) - kept < top_p[:, None], kept, 0.0)
    ranks = torch.multinomial(kept, arguments.calls, replacement=True, generator=generator)
    filters = {"top_k": top_k, "top_p": top_p}
    return SamplingProblem(probabilities, filters), ids.gather(1, ranks).T.contiguous()


if __name__ == "__main__":
    main()
