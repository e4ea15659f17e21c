"""Gated chains: the cost of a call whose inputs are masked until the previous call has committed to its outputs."""

import re
from contextlib import nullcontext

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed.chain import (
    ChainTools,
)
from flashinfer_bench.bench.runner.workers.timed.reported_time import ClaimContradicted
from flashinfer_bench.errors import SolutionFailure
from tests.kit.chain_on_cpu import CALL_NS, CALLS, COPY_NS, EMPTY_NS, PlayedGpu, open_timer

pytestmark = pytest.mark.cpu
GAP_NS = 1_100
HOST_COST_NS = CALL_NS - EMPTY_NS
COST_NS = HOST_COST_NS - 1_250
LAST = CALLS - 1
BY_HOST = {"operations": None}


@pytest.fixture
def gpu(monkeypatch):
    return PlayedGpu(monkeypatch)


def check_reads(worker, count):
    reads = worker.trial.reads("chain")
    assert len(reads) >= count
    assert all(torch.equal(one.outputs[0], one.inputs[0] * 2) and one.mode == "chain" for one in reads)
    return sorted(float(one.inputs[0].sum()) for one in reads)


@pytest.mark.parametrize(
    ("how", "cost_ns", "share"),
    [
        ({"gap_ns": GAP_NS, **BY_HOST}, HOST_COST_NS + GAP_NS, 0.85),
        ({"plain": False}, COST_NS + COPY_NS, 0.95),
        ({"answer": {"strided": True}}, COST_NS, 0.85),
        ({"takes_ns": [CALL_NS, 2 * CALL_NS, 10_000, CALL_NS, 90 * CALL_NS]}, COST_NS, 0.95),
    ],
)
def test_the_cost_of_a_call_is_its_time_beyond_an_empty_call(gpu, arena, how, cost_ns, share):
    """A latency is reported as at least a share of that. A report of that much is accepted after one chain."""
    timer, worker = open_timer(gpu, arena, **how)
    found = timer.confirm(1.001 * share * cost_ns)
    assert (found.bound, found.why_not, found.record["relay_calls"]) == ("chain", None, CALLS)
    assert found.record["relay_ms"] == pytest.approx(cost_ns / 1e6)
    assert found.least_ns == pytest.approx(share * cost_ns, rel=1e-6)
    assert found.most_ns == pytest.approx(cost_ns + EMPTY_NS)
    check_reads(worker, 2)


def test_the_best_chain_counts_and_its_calls_are_compared(gpu, arena):
    takes_ns = [CALL_NS + (at != 2) for at in range(4) for _ in range(CALLS)]
    timer, worker = open_timer(gpu, arena, takes_ns=takes_ns, wanted=CALLS)
    found = timer.confirm(0.949 * COST_NS)
    assert found.record == {"relay_ms": COST_NS / 1e6, "relay_calls": 4 * CALLS}
    assert check_reads(worker, CALLS) == sorted(worker.sums[2 * CALLS :][:CALLS])
    assert len({*worker.sums}) == 4 * CALLS
    assert len({*gpu.keys} - {0}) == 5 * CALLS  # no key and no input comes again; empty chains have keys of their own


@pytest.mark.parametrize("how", ["late", "lost", "changed", "just in time", "digests", "check_calls"])
def test_a_call_whose_outputs_are_not_those_that_it_committed_to_is_refused(gpu, arena, monkeypatch, how):
    """A call that never commits is no longer waited for when the worker has answered. What is judged is what was
    committed to: a worker may exchange outputs behind any check of them."""
    timer, worker = open_timer(gpu, arena, late=[LAST] if how == "late" else (), wanted=CALLS)
    given, (output,) = len(gpu.given_at), worker.trial.buffers.outputs(LAST)
    if how == "changed":
        worker.then = lambda: output[7:8].add_(1)
    if how in ("lost", "just in time"):
        gpu.lost, gpu.on_answer = [LAST], gpu.on_answer if how == "lost" else lambda: gpu.committed()
    where = {"check_calls": worker.trial, "digests": ChainTools}.get(how)
    if where is not None:
        usual = getattr(where, how)
        monkeypatch.setattr(where, how, lambda *given, **more: output.zero_() is output and usual(*given, **more))
    late = "RUNTIME_ERROR: an output was written after its call had ended"
    with nullcontext() if where or how == "just in time" else pytest.raises(SolutionFailure, match=late) as refused:
        timer.confirm(COST_NS)
        check_reads(worker, CALLS)
    assert refused is None or type(refused.value) is SolutionFailure
    assert len(gpu.given_at) - given == CALLS


TAKES = "a call in a chain takes 0.07475 ms"


@pytest.mark.parametrize(
    ("claimed_ns", "how", "ends"),
    [
        (0.74 * COST_NS, {}, TAKES),
        (0.24 * COST_NS, {}, ClaimContradicted),
        (0.05 * COST_NS, {}, SolutionFailure),
        (0.05 * COST_NS, BY_HOST, "0.076 ms, and the host may be what holds it up: .* each call in its turn"),
        (700, {"takes_ns": [CALL_NS - COST_NS + 10_699] * 99}, "0.010699 ms"),  # another program held it up
        (700, {"takes_ns": [CALL_NS - COST_NS + 10_701] * 99}, SolutionFailure),
    ],
)
def test_which_reported_latencies_are_confirmed(gpu, arena, claimed_ns, how, ends):
    timer, _ = open_timer(gpu, arena, **how)
    if isinstance(ends, type):
        reported = r"RUNTIME_ERROR.* claims 0\.\d+ ms a call; .*takes 0\.0.* \(4 chains\)"
        with pytest.raises(SolutionFailure, match=reported) as failed:
            timer.confirm(claimed_ns)
        assert failed.type is ends
    else:
        assert re.search(ends, str(timer.confirm(claimed_ns).why_not))
