"""Time one verdict of the Sampling evaluator, without the sampler's own time.

python benchmarks/bench_sampling_verdict.py [--rows 64] [--vocabulary 128256] [--calls 100] [--device cpu]
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted
from flashinfer_bench.bench.evaluators.sampling import Limits, judge_draws
from flashinfer_bench.bench.evaluators.sampling_rules import SamplingProblem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    problem, tokens = make_problem(arguments.rows, arguments.vocabulary, arguments.calls, device)
    seconds = []
    for repeat in range(arguments.repeats + 1):
        generator = torch.Generator().manual_seed(repeat)
        start = perf_counter()
        verdict = judge_draws(problem, tokens, Limits(arguments.calls), generator)
        seconds.append(perf_counter() - start)
        if not isinstance(verdict, Accepted):
            raise SystemExit(f"a perfect sampler was rejected: {verdict.message}")
    size = f"{arguments.rows} rows x {arguments.vocabulary} tokens x {arguments.calls} calls"
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    took = f"median of {arguments.repeats}: {median(seconds[1:]):.3f} s, the first {seconds[0]:.3f} s"
    print(f"{size} on {where}: {took}")


def make_problem(rows: int, vocabulary: int, calls: int, device: torch.device) -> tuple[SamplingProblem, torch.Tensor]:
    """Make rows with top-k and top-p, and the draws of a perfect sampler."""
    generator = torch.Generator(device=device).manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator, device=device)
    sharpness = 1 + 4 * torch.rand(rows, 1, generator=generator, device=device)
    probabilities = (logits * sharpness).softmax(dim=-1)
    top_k = torch.full((rows,), vocabulary // 2, device=device)
    top_p = torch.full((rows,), 0.9, dtype=torch.float64, device=device)
    ordered, ids = probabilities.sort(dim=-1, descending=True)
    kept = torch.where(torch.arange(vocabulary, device=device) < top_k[:, None], ordered.double(), 0.0)
    kept = kept / kept.sum(dim=-1, keepdim=True)
    kept = torch.where(kept.cumsum(dim=-1) - kept < top_p[:, None], kept, 0.0)
    ranks = torch.multinomial(kept, calls, replacement=True, generator=generator)
    return SamplingProblem(probabilities, top_k, top_p, None, joint=False), ids.gather(1, ranks).T.contiguous()


if __name__ == "__main__":
    main()
