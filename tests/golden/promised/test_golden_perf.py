"""`perf`: FlashInfer's routines with the flags, lines and columns of its own benchmark.

Spec: spec/source/benchmark-kernel-guide.md (steps 2 to 5, "Quick Examples"), spec/source/perf-framework.md ("Batch
Testing", "Command Line Arguments"), spec/routines.md (1: FLOPs and bytes; 2.2: output lines; 2.3: CSV; 2.4: testlist;
4: what is right here instead); docs/routines.md.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex

import pytest

from tests.golden.face import DEVICES, Face, assert_has, assert_subset, read_traces

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
COLUMNS = (
    "routine median_time std_time tflops tb_per_sec backend resolved_backend s_qo s_kv head_dim_qk head_dim_vo "
    "head_dim_ckv head_dim_kpe causal q_dtype kv_dtype avg_actual_seq_len random_actual_seq_len n group_size "
    "tile_size scale_major_mode mma_sm use_128x4_sf_layout use_nvfp4 num_tokens intermediate_size num_experts "
    "top_k n_group topk_group routed_scaling_factor local_expert_offset local_num_experts routing_method "
    "use_shuffled_weight weight_layout use_routing_bias use_routing_scales_on_input weight_dtype gated_act "
    "cutlass_variant quantized_input tp_size tp_rank ep_size ep_rank max_num_tokens num_heads scale eps "
    "use_global_scale alignment global_scale sf_layout do_shuffle sf_vec_size vocab_size top_p min_p "
    "temperature num_speculate_tokens filter_apply_order max_len num_rows seq_len head_dim rotary_dim "
    "no_rope_dim rope_theta rope_scale interleave kv_layout batch_size hidden_size input_dtype out_dtype "
    "quant_dtype m k num_qo_heads num_kv_heads page_size enable_pdl is_sf_swizzled_layout refcheck "
    "no_cuda_graph use_cupti allow_output_mismatch random_seed case_tag generate_repro_command repro_command"
)
"""In this order; others may come after them."""
BESIDE = "status reason method cache_state samples flops bytes roofline_share setup_ms gpu_name torch_version"
LINES = """
# a comment, and a blank line

--routine rmsnorm --backends torch --batch_size 4 --hidden_size 128 --case_tag "a, b"
--routine bmm_fp8 --backends torch --batch_size 2 --m 4 --n 16 --k 32 --input_dtype fp8_e4m3 --out_dtype bfloat16
--routine top_k_sampling_from_probs --backends torch --batch_size 2 --vocab_size 64 --top_k 4
"""
DECODE = (
    "--routine BatchDecodeWithPagedKVCacheWrapper --backends torch fa2 cudnn --page_size 4 --batch_size 2 "
    "--s_qo 1 --s_kv 8 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 64 --head_dim_vo 64 --q_dtype bfloat16 "
    "--kv_dtype bfloat16 --num_iters 3 --dry_run_iters 1 --refcheck -vv"
)
PERF_LINE = re.compile(
    r"\[PERF\] (\S+) *:: median time \d+\.\d{3} ms; std \d+\.\d{3} ms; achieved tflops \d+\.\d{3} TFLOPs/sec; "
    r"achieved tb_per_sec \d+\.\d{3} TB/sec"
)


@pytest.fixture(scope="module")
def here(tmp_path_factory, shared_cache):
    return Face(shared_cache, tmp_path_factory.mktemp("perf"))


def perf(here, *words):
    return here("perf", *words)


def rows_of(path):
    header, *rows = csv.reader(path.read_text().splitlines())
    return header, [dict(zip(header, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def listed(here):
    (here.folder / "list.txt").write_text(LINES)
    flags = (
        "--testlist list.txt --output_path out.csv --json_path out.jsonl --save_trace_set kept --generate_repro_command"
    )
    done = perf(here, *flags.split(), *"--refcheck --num_iters 3 --dry_run_iters 1 -vv".split())
    assert done.code == 0, done
    return done


@pytest.fixture(scope="module")
def rows(here, listed):
    return rows_of(here.folder / "out.csv")[1]


@pytest.fixture(scope="module")
def decode(here):
    return perf(here, *DECODE.split())


def test_the_csv_has_the_columns_in_their_order_and_a_row_a_case(here, listed):
    header, rows = rows_of(here.folder / "out.csv")
    assert header[: len(COLUMNS.split())] == COLUMNS.split()
    assert_has(rows[0], BESIDE)
    assert [row["routine"] for row in rows] == ["rmsnorm", "bmm_fp8", "top_k_sampling_from_probs"]


def test_a_row_has_flags_defaults_and_the_command_again(rows):
    norm, gemm, sampler = rows
    assert_subset(
        {"backend": "torch", "batch_size": "4", "hidden_size": "128", "input_dtype": "bfloat16", "case_tag": "a, b",
         "random_seed": "42", "refcheck": "True", "no_cuda_graph": "False", "status": "passed", "vocab_size": ""},
        norm,
    )  # fmt: skip
    assert_subset(
        {"m": "4", "n": "16", "k": "32", "batch_size": "2", "out_dtype": "bfloat16", "tile_size": "128"}, gemm
    )
    assert_subset({"top_k": "4", "vocab_size": "64", "input_dtype": "float32"}, sampler)
    words = shlex.split(norm["repro_command"])
    assert words[words.index("--case_tag") + 1] == "a, b"
    assert words[words.index("--batch_size") + 1] == "4"


def test_costs_are_these(rows):
    """Of routines.md: 5N, reads, weights and writes; twice b m n k, and all operands with the batch and the scales."""
    found = {row["routine"]: (float(row["flops"]), float(row["bytes"])) for row in rows}
    assert found["rmsnorm"] == (5 * 4 * 128, 2 * (4 * 128 + 128 + 4 * 128))
    assert found["bmm_fp8"] == (2 * 2 * 4 * 16 * 32, 2 * (4 * 32 + 16 * 32 + 4 * 16 * 2) + 8)
    assert found["top_k_sampling_from_probs"] == (0, 2 * 64 * 4 + 2 * 4)


def test_rates_follow_from_costs_and_the_median(rows):
    for row in rows:
        assert float(row["tflops"]) == pytest.approx(float(row["flops"]) / (1e9 * float(row["median_time"])))
        assert float(row["tb_per_sec"]) == pytest.approx(float(row["bytes"]) / (1e9 * float(row["median_time"])))


def test_json_lines_have_the_whole_case(here, listed):
    entries = [json.loads(line) for line in (here.folder / "out.jsonl").read_text().splitlines()]
    assert len(entries) == 3
    for entry in entries:
        assert_has(entry, "routine backend status median_ms std_ms case measurement definition device versions")


def test_lines_are_those_of_the_documents(listed):
    assert [found[1] for found in PERF_LINE.finditer(listed.out)] == ["torch"] * 3
    for line in (
        "[INFO] args = Namespace(routine='bmm_fp8'",
        "[INFO] Running testBmmFp8",
        "[INFO] FlashInfer version: ",
        "[INFO] To reproduce this test case, run the following command: ",
        "[VVERBOSE] gpu_name = '",
        "[VVERBOSE] x.shape = torch.Size([4, 128])",
        "[VVERBOSE] x.dtype = torch.bfloat16",
    ):
        assert line in listed.out


def test_kept_cases_are_a_set_and_resume_leaves_them_out(here, listed):
    before = read_traces(here.folder / "kept")
    assert [trace["evaluation"]["status"] for trace in before] == ["PASSED"] * 3
    words = "--testlist list.txt --save_trace_set kept --resume --refcheck --num_iters 3 --dry_run_iters 1"
    assert perf(here, *words.split()).code == 0
    assert read_traces(here.folder / "kept") == before
    done = here("validate", here.folder / "kept", "--format", "json")
    assert (done.code, done.json["issues"]) == (0, [])
    plan = here("run", here.folder / "kept", "--dry-run", "--format", "json").json["counts"]
    assert plan["jobs"] == 3


def test_backends_are_words_after_one_flag_and_those_that_cannot_run_are_skipped(decode):
    assert decode.code == 0, decode
    assert "torch" in [found[1] for found in PERF_LINE.finditer(decode.out)]
    if DEVICES not in os.environ:
        for backend in ("fa2", "cudnn"):
            pattern = rf"\[WARNING\] {backend} for routine BatchDecodeWithPagedKVCacheWrapper .* Skipping\."
            assert re.search(pattern, decode.out), decode


def test_very_verbose_shows_lengths(decode):
    assert "[VERBOSE] Average actual kv seq len: 8" in decode.out
    assert "[VVERBOSE] q.shape = torch.Size([2, 2, 64])" in decode.out


def test_a_sweep_is_a_case_for_each_value_and_a_file_is_never_overwritten(here):
    words = "--routine rmsnorm --hidden_size 64 --backends torch -n 2 -d 1 --output_path sweep.csv --no_empty_columns"
    assert perf(here, *words.split(), "--sweep", "batch_size=1:4:x2").code == 0
    header, rows = rows_of(here.folder / "sweep.csv")
    assert [row["batch_size"] for row in rows] == ["1", "2", "4"]
    assert "vocab_size" not in header
    assert perf(here, *words.split(), "--batch_size", "8").code == 0
    assert [row["batch_size"] for row in rows_of(here.folder / "sweep.csv")[1]] == ["8"]
    assert len(rows_of(here.folder / "sweep.1.csv")[1]) == 3


def test_a_line_that_cannot_be_used_becomes_a_row_and_the_others_run(here):
    text = "--routine rmsnorm --backends torch --batch_size 0 --hidden_size 64 --case_tag broken\n"
    (here.folder / "bad.txt").write_text(text + text.replace("size 0", "size 1").replace("broken", "whole"))
    done = perf(here, *"--testlist bad.txt --output_path bad.csv --num_iters 2 --dry_run_iters 1".split())
    assert done.code in (0, 1), done
    found = {row["case_tag"]: row["status"] for row in rows_of(here.folder / "bad.csv")[1]}
    assert set(found) == {"broken", "whole"}
    assert found["whole"] == "passed" != found["broken"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--routine rmsnormm --batch_size 1 --hidden_size 8", "rmsnorm"),
        ("--routine rmsnorm --hidden_size 8", "batch_size"),
        ("--routine rmsnorm --batch_size 1 --hidden_size 8 --vocab_size 4", "vocab_size"),
        ("--routine rmsnorm --batch_size 1 --hidden_size 8 --backends cudnn", "cudnn"),
        ("--routine rmsnorm --batch_size 1 --hidden_size 8 --eps nan", "eps"),
        ("--testlist nowhere.txt", "nowhere.txt"),
        ("", "routine"),
    ],
)
def test_misuse_is_told_before_anything_is_timed(here, words, part):
    done = perf(here, *words.split())
    assert (done.code, part in done.text, "[PERF]" in done.out) == (2, True, False), done


def test_a_case_without_a_backend_that_can_run_is_a_failure(here):
    words = "--routine rmsnorm_fp4quant --batch_size 128 --hidden_size 64 --backends cute-dsl --num_iters 2"
    done = here("perf", *words.split(), CUDA_VISIBLE_DEVICES="")
    assert done.code == 1, done
    assert "[ERROR] No backends to test. Exiting." in done.out


def test_every_documented_routine_has_its_flags(here):
    done = perf(here, "--help")
    documented = (
        "BatchDecodeWithPagedKVCacheWrapper BatchPrefillWithPagedKVCacheWrapper BatchPrefillWithRaggedKVCacheWrapper "
        "BatchMLAPagedAttentionWrapper gemm_fp8_nt_groupwise group_gemm_fp8_nt_groupwise bmm_fp8 mm_fp4 "
        "trtllm_fp4_block_scale_moe trtllm_fp8_block_scale_moe trtllm_fp8_per_tensor_scale_moe cutlass_fused_moe "
        "moe_a2a_dispatch_combine rmsnorm rmsnorm_quant fused_add_rmsnorm_quant rmsnorm_fp4quant add_rmsnorm_fp4quant "
        "mxfp8_quantize mxfp4_quantize nvfp4_quantize nvfp4_batched_quantize softmax sampling_from_probs "
        "sampling_from_logits top_k_sampling_from_probs top_p_sampling_from_probs top_k_top_p_sampling_from_probs "
        "top_k_top_p_sampling_from_logits min_p_sampling_from_probs top_k_renorm_probs top_p_renorm_probs "
        "top_k_mask_logits chain_speculative_sampling top_k top_k_page_table_transform top_k_ragged_transform "
        "apply_rope apply_rope_pos_ids apply_llama31_rope apply_llama31_rope_pos_ids apply_rope_with_cos_sin_cache "
        "mla_rope_quantize_fp8 rope_quantize_fp8 rope_quantize_fp8_append_paged_kv_cache"
    ).split()
    listed = set(done.out.split())
    assert [name for name in documented if name not in listed] == []
