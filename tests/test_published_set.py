"""The public data set, run with each definition's own reference packed as a solution: right, and wrong in each way.

The complete sweep is `benchmarks/sweep_published.py`; here are the definitions that two cores judge in a moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.data import Definition, Trace, TraceSet
from tests.kit.packed import expected_status, pack_reference
from tests.kit.processes import marked, wait_until_gone
from tests.kit.small_workloads import make_up_workload, missing_blobs, smallest_workload

pytestmark = [pytest.mark.cpu, pytest.mark.published, pytest.mark.slow, pytest.mark.timeout(900)]

FAULTY = ("gdn_decode_qk4_v8_d128_k_last", "gemm_n128_k2048", "fused_add_rmsnorm_h2048", "rmsnorm_h128")
"""One definition of each kind. `benchmarks/sweep_published.py` has all."""
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
}
CONFIG = BenchmarkConfig.default(
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
FAULTS = {
    "value": (None, "wrong_element", "nan", "wrong_dtype", "wrong_shape", "missing_output"),
    "dps": (None, "wrong_element", "nan", "missing_output"),
}
STYLES = [(style, fault) for style, faults in FAULTS.items() for fault in faults]
"""Style and fault; None: the reference as it is."""


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


@dataclass
class Finished:
    """What a run came to; solutions are of one workload each."""

    definitions: dict[str, Definition]
    root: Path
    found: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Solution to status and log."""
    reported: list[str] = field(default_factory=list)
    """Faults and notices."""
    skips: dict[str, str] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    """Processes."""

    def check(self, name: str, style: str, fault: str | None, status: str) -> str:
        """Hold a solution's status; return its log."""
        found, log = self.found.get(pack_reference(self.definitions[name], style=style, fault=fault).name, ("none", ""))
        assert found == status, (log, self.reported)
        return log


@pytest.fixture(scope="module")
def finished(published: Path) -> Finished:
    """Judge solutions with as little timing as there can be, beside workloads whose blobs are missing."""
    public = TraceSet.from_path(published)
    definitions = public.definitions | {BY_RATIO: make_smaller(public.definitions[BY_RATIO])}
    chosen = {name: (smallest_workload(public, definitions[name]), STYLES) for name in FAULTY}
    chosen |= {name: (make_up_workload(definitions[name]), [("value", None)]) for name in MADE_UP}
    chosen[BY_RATIO] = (make_up_workload(definitions[BY_RATIO]), [("value", fault) for fault in RATIO_STATUS])
    workloads = {name: [one] for name, (one, _) in chosen.items()}
    for name in (*WITHOUT_BLOBS, *TOO_LARGE):
        own = [trace.workload for trace in public.workloads[name]]
        workloads.setdefault(name, []).extend(one for one in own if missing_blobs(public, definitions[name], one))
    asked = {name: chosen.get(name, (None, [("value", None)]))[1] for name in workloads}
    trace_set = TraceSet(
        definitions={name: definitions[name] for name in workloads},
        workloads={name: [Trace(definition=name, workload=one) for one in group] for name, group in workloads.items()},
        solutions={
            name: [pack_reference(definitions[name], style=style, fault=fault) for style, fault in solutions]
            for name, solutions in asked.items()
        },
        blob_roots={(name, one.uuid): public.root for name, group in workloads.items() for one in group},
    )
    benchmark, finished = Benchmark(trace_set, CONFIG), Finished(definitions, public.root)
    plan = benchmark.plan()
    finished.skips = {skip.definition: skip.reason for skip in plan.skips}
    with marked() as alive:
        for event in benchmark.run(plan, save_results=False):
            if isinstance(event, JobFinished):
                evaluation = event.trace.evaluation
                finished.found[event.job.solution.name] = (evaluation.status.value, evaluation.log)
            elif isinstance(event, (JobFaulted, Notice)):
                finished.reported.append(event.message)
        finished.left = wait_until_gone(alive)
    return finished


@pytest.mark.parametrize(("style", "fault"), STYLES)
@pytest.mark.parametrize("name", FAULTY)
def test_the_reference_passes_and_a_solution_with_one_fault_gets_the_status_of_that_fault(finished, name, style, fault):
    log = finished.check(name, style, fault, expected_status(style, fault))
    if fault == "wrong_element":
        assert log.startswith(f"output {list(finished.definitions[name].outputs)[-1]!r}: 1 of ")


@pytest.mark.parametrize("name", MADE_UP)
def test_the_reference_passes_on_a_made_up_workload(finished, name):
    finished.check(name, "value", None, "PASSED")


@pytest.mark.parametrize("fault", RATIO_STATUS)
def test_one_wrong_element_is_forgiven_by_ratio_but_not_a_region_nor_nonsense(finished, fault):
    finished.check(BY_RATIO, "value", fault, RATIO_STATUS[fault])


def test_workloads_whose_blobs_are_missing_are_told_once_for_a_definition_and_the_run_goes_on(finished):
    assert {*finished.skips} == {*WITHOUT_BLOBS, *TOO_LARGE}
    assert sum(int(reason.split()[0]) for reason in finished.skips.values()) == 36 + 2
    assert all(f"blob {finished.root}/" in reason for reason in finished.skips.values())
    assert len(finished.found) == len(FAULTY) * len(STYLES) + len(MADE_UP) + len(RATIO_STATUS)
    assert (finished.reported, finished.left) == ([], [])
