"""The judge on a GPU: the same verdicts as on a CPU, within its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.sampling.evaluator import DrawJudge, SamplingLimits
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem
from flashinfer_bench.bench.evaluators.selection.dsa import find_roles, judge_indices, read_problem
from flashinfer_bench.data import TraceSet
from tests.bench.evaluators.sampling.samplers import WRONG, as_calls, draw, expected_shares, make_problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

BUNDLED = Path(__file__).resolve().parents[3] / "flashinfer-trace"
CUDA = torch.device("cuda")
INDEXER = "dsa_topk_indexer_fp8_h64_d128_topk64_ps64"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_a_comparison_finds_the_same_on_both_devices(dtype):
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(700, 77, generator=generator)
    got = torch.where(torch.rand(700, 77, generator=generator) < 0.1, expected * 1.5, expected)
    expected[7], got[7], got[9], expected[11] = float("nan"), float("nan"), 0.0, float("inf")
    if not dtype.is_floating_point:
        expected, got = expected.nan_to_num(0, 9, -9), got.nan_to_num(0, 9, -9)
    sides = [side.to(dtype) for side in (expected, got)]
    found = [compare(*(side.to(device) for side in sides), Tolerance(1e-2, 1e-2, 0.5)) for device in ("cpu", "cuda")]
    assert repr(found[0].to_record()) == repr(found[1].to_record())
    assert found[0].problem() == found[1].problem()


def test_comparing_a_gigabyte_takes_less_than_300_megabytes():
    expected = torch.randn(1 << 29, device=CUDA, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert compare(expected, expected.clone().mul_(1.004), Tolerance(1e-2, 1e-2, 0.95)).problem() is None
    assert torch.cuda.max_memory_allocated() - before - (1 << 30) < 300e6


def test_an_indexer_gets_the_same_verdict_on_both_devices():
    trace_set = TraceSet.from_path(BUNDLED)
    definition = trace_set.definitions[INDEXER]
    workload = max((trace.workload for trace in trace_set.workloads[INDEXER]), key=lambda one: one.axes["batch_size"])
    made = InputMaker(definition, workload, torch.device("cpu"), BUNDLED).make(seed=1)
    problem = read_problem(definition, find_roles(definition), [value.to(CUDA) for value in made])
    run, (q, cache, weights, *rest) = Reference.compile(definition).run, made
    for by, verdict in ((1, Accepted), (-1, Rejected)):
        chosen = run(q, cache, by * weights, *rest).to(CUDA)
        assert isinstance(judge_indices(problem, chosen, 2e-3, name="i"), verdict)


def test_samplers_get_the_same_verdicts():
    problem = make_problem(torch.Generator().manual_seed(0), vocabulary=32_000, filters="kp")
    shares = expected_shares(problem)
    there = SamplingProblem(problem.probabilities.cuda(), {name: one.cuda() for name, one in problem.filters.items()})
    generator = torch.Generator().manual_seed(1)

    def judge(tokens):
        definition, calls = as_calls(there, tokens.cuda())
        return DrawJudge(definition, SamplingLimits(), generator).judge_first(calls)

    assert isinstance(judge(draw(shares, generator)), Accepted)
    for name, sampler in WRONG.items():
        assert isinstance(judge(sampler(shares, generator)), Rejected), name
