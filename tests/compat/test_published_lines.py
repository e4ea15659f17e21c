"""Lines as they are published: axes that break a constraint, blobs that are missing, and what commands say of them."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench import Benchmark, BenchmarkConfig, TraceSet
from flashinfer_bench.cli.main import cli as main
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

TOPK = 64
INDEXER = f"""
import torch

@torch.no_grad()
def run(q, k_cache, weights, seq_lens, block_table):
    pages, page_size, dim = k_cache.shape
    indices = torch.full((q.shape[0], {TOPK}), -1, dtype=torch.int32, device=q.device)
    for row in range(q.shape[0]):
        length = int(seq_lens[row])
        own = block_table[row, : -(-length // page_size)].long()
        keys = k_cache[own].reshape(-1, dim)[:length].float()
        scores = (torch.relu(q[row].float() @ keys.T) * weights[row][:, None]).sum(0)
        best = torch.topk(scores, min({TOPK}, length)).indices
        indices[row, : len(best)] = (own[best // page_size] * page_size + best % page_size).int()
    return (indices,)
"""
BROKEN = f"'topk <= max_num_pages * page_size' does not hold ({TOPK} and 8)"


@pytest.fixture
def root(tmp_path):
    """A set with an indexer: a workload with fewer keys than it chooses, and one whose blobs are missing."""
    definition = make_definition(
        "dsa_topk_indexer_h2_d8_topk64_ps4",
        op_type="dsa_paged",
        axes={"batch_size": None, "max_num_pages": None, "num_pages": None, "page_size": 4, "topk": TOPK},
        inputs={
            "q": "float32[batch_size, 2, 8]",
            "k_cache": "float32[num_pages, page_size, 8]",
            "weights": "float32[batch_size, 2]",
            "seq_lens": "int32[batch_size]",
            "block_table": "int32[batch_size, max_num_pages]",
        },
        outputs={"topk_indices": "int32[batch_size, topk]"},
        constraints=["topk <= max_num_pages * page_size"],
        reference=INDEXER,
    )
    axes = {"batch_size": 3, "max_num_pages": 2, "num_pages": 11}
    blob = {"type": "safetensors", "path": "blob/gone.safetensors", "tensor_key": "seq_lens"}
    zeros = INDEXER.replace("return (indices,)", "return (indices.clamp(min=0),)")
    solutions = [("right", INDEXER), ("zeros", zeros)]
    return write_trace_set(
        tmp_path,
        definitions=[definition],
        solutions=[
            make_solution(name, definition=definition.name, source=source, destination_passing_style=False)
            for name, source in solutions
        ],
        workloads=[
            make_trace(definition=definition.name, solution=None, workload=workload)
            for workload in (
                make_workload("short", axes=axes, inputs={}),
                make_workload("gone", axes=axes, inputs={"seq_lens": blob}),
            )
        ],
    )


@pytest.mark.cpu
@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_an_indexer_with_fewer_keys_than_it_chooses_is_judged(root, isolated):
    config = BenchmarkConfig.default(
        devices=["cpu"], num_trials=1, iterations=2, warmup_runs=0, use_isolated_runner=isolated
    )
    benchmark = Benchmark(TraceSet.from_path(root), config)
    result = benchmark.run_all(save_results=False)
    assert benchmark.faults == []
    (traces,) = result.traces.values()
    assert {trace.solution: trace.evaluation.status.value for trace in traces} == {
        "right": "PASSED",
        "zeros": "INCORRECT_NUMERICAL",
    }
    assert all(trace.evaluation.extra["broken_constraints"] == [BROKEN] for trace in traces)


def test_validate_tells_of_the_line(root, capsys):
    assert main(["validate", "--dataset", str(root), "--checks", "workload"]) == 1  # a blob is missing
    lines = capsys.readouterr().out.splitlines()
    assert "workload gone of dsa_topk_indexer_h2_d8_topk64_ps4: blob " in lines[0]
    for uuid, line in zip(("short", "gone"), lines[1:3], strict=True):
        assert f"workload {uuid} of dsa_topk_indexer_h2_d8_topk64_ps4: constraint {BROKEN}: it is judged" in line


def test_a_dry_run_skips_what_has_no_blobs_in_one_line(root, capsys):
    assert main(["run", "--local", str(root), "--dry-run", "--devices", "cpu", "--format", "json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert plan["counts"]["jobs"] == 2
    (skip,) = plan["skipped"]
    assert skip["reason"].startswith("1 of 2 workloads lack their stored inputs: blob ")
    assert skip["fault"]


def test_a_run_judges_the_others_and_has_failed(root, capsys):
    few = ["--devices", "cpu", "--iterations", "1", "--num-trials", "1", "--no-save-results", "--no-profile-baseline"]
    assert main(["run", "--local", str(root), *few]) == 1
    told = capsys.readouterr().out
    assert "2 jobs in" in told
    assert told.count("1 of 2 workloads lack their stored inputs") == 1
