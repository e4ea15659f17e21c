"""The public data set, run with each definition's own reference packed as a solution: right, and wrong in each way.

The complete sweep is `benchmarks/sweep_published.py`; here are the definitions that two cores judge in a moment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.events import JobFaulted, JobFinished, JobStarted, Notice
from flashinfer_bench.data import Definition, Trace, TraceSet
from tests.kit.processes import marked, wait_until_gone
from tests.kit.small_workloads import make_up_workload, missing_blobs, smallest_workload
from tests.kit.twins import expected_status, list_faults, make_twin

pytestmark = [pytest.mark.cpu, pytest.mark.published, pytest.mark.slow, pytest.mark.timeout(240)]

JUDGED = (
    "gdn_decode_qk4_v8_d128_k_last",
    "gemm_n128_k2048",
    "gemm_n2048_k4096",
    "gemm_n256_k7168",
    "gemm_n28672_k4096",
    "gemm_n4096_k14336",
    "gemm_n4096_k4096",
    "gemm_n5120_k2048",
    "gemm_n6144_k4096",
    "fused_add_rmsnorm_h2048",
    "fused_add_rmsnorm_h4096",
    "fused_add_rmsnorm_h7168",
    "rmsnorm_h128",
    "rmsnorm_h1536",
    "rmsnorm_h2048",
    "rmsnorm_h4096",
    "rmsnorm_h512",
    "rmsnorm_h7168",
)
FAULTY = ("gdn_decode_qk4_v8_d128_k_last", "gemm_n128_k2048", "fused_add_rmsnorm_h2048", "rmsnorm_h128")
"""One definition of each kind: the others are judged by the same code, and only that their references pass is shown."""
TOO_LARGE = ("moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048",)
"""Its reference makes float32 copies of fp8 weights, 17 GB of them, whatever the workload."""
WITHOUT_BLOBS = ("gqa_ragged_prefill_causal_h32_kv4_d128", "gqa_ragged_prefill_causal_h32_kv8_d128")
"""No workload of theirs has its blobs."""
MADE_UP = (
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64",
    "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64",
    "gdn_mtp_qk4_v8_d128_k_last",
    "gdn_prefill_qk4_v8_d128_k_last",
    "gqa_paged_decode_h16_kv2_d128_ps64",
    "gqa_paged_prefill_causal_h16_kv1_d128_ps64",
    "gqa_ragged_prefill_causal_h32_kv4_d128",
    "mamba_ssu_decode_h64_d64_s128_ng4",
    "mla_paged_decode_h16_ckv512_kpe64_ps64",
    "mla_paged_prefill_causal_h16_ckv512_kpe64_ps64",
    "mla_ragged_prefill_causal_h8_qk192_vo128",
    "rope_with_cos_sin_cache_neox_style_d128_rd64",
    "top_k_top_p_sampling_from_probs_v128256",
)
"""One definition of each kind for which the set has no workload that can be run."""
BY_RATIO = "moe_fp8_block_scale_renorm_topk10_e128_h2048_i512"
"""The smallest definition of which a share of the elements may be wrong."""
SMALLER = {
    "num_local_experts": 12,
    "intermediate_size": 128,
    "gemm1_out_size": 256,
    "num_intermediate_blocks": 1,
    "num_gemm1_out_blocks": 2,
}
"""Axis of that definition to a smaller size; as it is published each verdict takes 6 GB and many seconds."""
RATIO_STATUS = {
    None: "PASSED",
    "wrong_element": "PASSED",
    "wrong_region": "INCORRECT_NUMERICAL",
    "absurd_element": "INCORRECT_NUMERICAL",
    "nan": "INCORRECT_NUMERICAL",
}
FAULTS = {
    "value": ("wrong_element", "nan", "wrong_dtype", "wrong_shape", "missing_output"),
    "dps": ("wrong_element", "nan", "missing_output"),
}


@dataclass
class Finished:
    """What a run came to."""

    statuses: dict[str, str]
    """Solution to status; solutions of one workload each."""
    logs: dict[str, str]
    started: Counter[tuple[str, str]]
    """(solution, workload) to how often it was begun."""
    faults: list[JobFaulted]
    notices: list[str]
    skips: list[str]
    left: list[int]


def run(trace_set: TraceSet) -> Finished:
    """Judge everything in a set with as little timing as there can be."""
    config = BenchmarkConfig.default(
        devices=["cpu"],
        warmup_runs=0,
        iterations=1,
        num_trials=1,
        profile_baseline=False,
        power_rule=False,
        timeout_seconds=120.0,
        seed=1,
        worker_memory_gb=16.0,
    )
    benchmark = Benchmark(trace_set, config)
    finished = Finished({}, {}, Counter(), [], [], [], [])
    plan = benchmark.plan()
    finished.skips += [f"{skip.definition}: {skip.reason}" for skip in plan.skips]
    with marked() as alive:
        for event in benchmark.run(plan, save_results=False):
            match event:
                case JobStarted(job):
                    finished.started[job.solution.name, job.workload.uuid] += 1
                case JobFinished(job, trace):
                    finished.statuses[job.solution.name] = trace.evaluation.status.value
                    finished.logs[job.solution.name] = trace.evaluation.log
                case JobFaulted():
                    finished.faults.append(event)
                case Notice(message):
                    finished.notices.append(message)
        finished.left = wait_until_gone(alive)
    return finished


def gather(published: TraceSet, chosen, twins) -> TraceSet:
    """Return a set in memory: definition → its workloads and its twins."""
    return TraceSet(
        definitions={name: published.definitions[name] for name in chosen},
        workloads={name: [Trace(definition=name, workload=one) for one in work] for name, work in chosen.items()},
        solutions={name: list(twins(published.definitions[name])) for name in chosen},
        blob_roots={(name, one.uuid): published.root for name, work in chosen.items() for one in work},
    )


def value_twin(definition):
    return [make_twin(definition)]


def honest_twins(definition):
    return [make_twin(definition, style=style) for style in FAULTS]


def all_twins(definition):
    if definition.name not in FAULTY:
        return value_twin(definition)
    wrong = [
        make_twin(definition, style=style, fault=fault)
        for style, faults in FAULTS.items()
        for fault in faults
        if fault in list_faults(definition, style)
    ]
    return honest_twins(definition) + wrong


def make_smaller(definition):
    """Return a definition with fewer and smaller experts, and no other change."""
    parts = definition.model_dump(mode="json")
    for axis, size in SMALLER.items():
        parts["axes"][axis]["value"] = size
    for name, axis in (("E", "num_local_experts"), ("I", "intermediate_size")):
        line = f"    {name} = {definition.axes[axis].value}\n"
        assert line in parts["reference"]
        parts["reference"] = parts["reference"].replace(line, f"    {name} = {SMALLER[axis]}\n")
    return Definition.model_validate(parts)


@pytest.fixture(scope="module")
def public_set(published: Path) -> TraceSet:
    return TraceSet.from_path(published)


@pytest.fixture(scope="module")
def judged(public_set: TraceSet) -> Finished:
    """Return the verdicts on twins of the definitions that have a workload, on the smallest one."""
    chosen = {name: [smallest_workload(public_set, public_set.definitions[name])] for name in JUDGED}
    return run(gather(public_set, chosen, all_twins))


@pytest.fixture(scope="module")
def made_up(public_set: TraceSet) -> Finished:
    """Return the verdicts on the references of definitions that have none, on workloads made up for them."""
    chosen = {name: [make_up_workload(public_set.definitions[name])] for name in MADE_UP}
    return run(gather(public_set, chosen, value_twin))


@pytest.fixture(scope="module")
def by_ratio(public_set: TraceSet) -> Finished:
    """Return the verdicts on twins of a definition of quantised weights."""
    definition = make_smaller(public_set.definitions[BY_RATIO])
    workload = Trace(definition=BY_RATIO, workload=make_up_workload(definition))
    twins = [make_twin(definition, fault=fault) for fault in RATIO_STATUS]
    return run(
        TraceSet(definitions={BY_RATIO: definition}, workloads={BY_RATIO: [workload]}, solutions={BY_RATIO: twins})
    )


@pytest.fixture(scope="module")
def gaps(public_set: TraceSet) -> Finished:
    """Return what became of every workload whose blobs are missing, with one that is whole before and after them."""
    chosen = {}
    for name in ("gemm_n128_k2048", *WITHOUT_BLOBS, *TOO_LARGE, "rmsnorm_h512"):
        definition = public_set.definitions[name]
        traces = [trace.workload for trace in public_set.workloads[name]]
        missing = [workload for workload in traces if missing_blobs(public_set, definition, workload)]
        chosen[name] = missing or [smallest_workload(public_set, definition)]
    return run(gather(public_set, chosen, honest_twins))


def test_the_set_has_no_other_definitions_with_workloads(public_set):
    with_workloads = set(public_set.workloads) & set(public_set.definitions)
    assert with_workloads == {*JUDGED, *TOO_LARGE, *WITHOUT_BLOBS}


@pytest.mark.parametrize(
    ("name", "style"), [*((name, "value") for name in JUDGED), *((name, "dps") for name in FAULTY)]
)
def test_the_reference_passes_as_a_solution(judged, public_set, name, style):
    twin = make_twin(public_set.definitions[name], style=style).name
    assert judged.statuses[twin] == "PASSED", judged.logs[twin]


@pytest.mark.parametrize(("style", "fault"), [(style, fault) for style in FAULTS for fault in FAULTS[style]])
@pytest.mark.parametrize("name", FAULTY)
def test_a_twin_with_one_fault_gets_the_status_of_that_fault(judged, public_set, name, style, fault):
    twin = make_twin(public_set.definitions[name], style=style, fault=fault).name
    assert judged.statuses[twin] == expected_status(style, fault), judged.logs[twin]


@pytest.mark.parametrize("name", FAULTY)
def test_one_wrong_element_is_counted_as_one(judged, public_set, name):
    output = list(public_set.definitions[name].outputs)[-1]
    for style in FAULTS:
        twin = make_twin(public_set.definitions[name], style=style, fault="wrong_element").name
        assert judged.logs[twin].startswith(f"output {output!r}: 1 of ")


@pytest.mark.parametrize("name", MADE_UP)
def test_the_reference_passes_on_a_made_up_workload(made_up, public_set, name):
    twin = make_twin(public_set.definitions[name]).name
    assert made_up.statuses.get(twin) == "PASSED", [made_up.logs.get(twin), made_up.faults]


@pytest.mark.parametrize("fault", RATIO_STATUS)
def test_one_wrong_element_is_forgiven_by_ratio_but_not_a_region_nor_nonsense(by_ratio, public_set, fault):
    definition = public_set.definitions[BY_RATIO]
    twin = make_twin(definition, fault=fault).name
    assert find_evaluator(definition) is LowBitEvaluator
    assert by_ratio.statuses.get(twin) == RATIO_STATUS[fault], [by_ratio.logs.get(twin), by_ratio.faults]


def test_workloads_whose_blobs_are_missing_are_told_once_for_a_definition(gaps, public_set):
    assert len(gaps.skips) == len({*WITHOUT_BLOBS, *TOO_LARGE})
    assert sum(int(skip.split(": ")[1].split()[0]) for skip in gaps.skips) == 36 + 2
    for skip in gaps.skips:
        name = skip.partition(":")[0]
        assert f"blob {public_set.root}/" in skip
        assert name in (*WITHOUT_BLOBS, *TOO_LARGE)


def test_missing_blobs_are_not_tried_and_blamed_on_no_solution(gaps):
    assert set(gaps.statuses.values()) == {"PASSED"}
    assert not gaps.faults
    assert not gaps.notices


def test_the_run_goes_on_around_missing_blobs(gaps, public_set):
    whole = [public_set.definitions[name] for name in ("gemm_n128_k2048", "rmsnorm_h512")]
    assert set(gaps.statuses) == {twin.name for definition in whole for twin in honest_twins(definition)}


def test_no_run_leaves_a_process(judged, made_up, by_ratio, gaps):
    assert not [*judged.left, *made_up.left, *by_ratio.left, *gaps.left]
    assert not [*judged.faults, *made_up.faults]
