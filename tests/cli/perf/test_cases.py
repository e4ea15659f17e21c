"""What `perf` accepts, what it says about what it does not, and which backends it finds for a case."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf.flags import parse_case, split_session
from flashinfer_bench.errors import UsageError
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.table import ROUTINES
from tests.routines.judged import make_case
from tests.routines.small import SMALL, ask

DOCUMENTED = Path(__file__).with_name("documented_commands.txt").read_text(encoding="utf-8").splitlines()
SAMPLE = Path(__file__).parents[3] / "benchmarks" / "samples" / "sample_testlist.txt"
H200 = Platform("NVIDIA H200", "9.0", {"flashinfer-python": "0.6.11"}, frozenset({"flashinfer"}))
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64"
EXPERTS = "--routine cutlass_fused_moe --num_tokens 4 --hidden_size 8 --intermediate_size 8 --num_experts 4 --top_k 2"
SOFTMAX = "--routine softmax --batch_size 2 --vocab_size 16 --backends torch"
LLAMA = f"--routine apply_llama31_rope {SMALL['apply_llama31_rope']}"


@pytest.mark.parametrize("command", DOCUMENTED)
def test_the_commands_of_the_documents_make_a_case(command):
    routine, args = parse_case(split_session(shlex.split(command))[1])
    assert routine.make_case(args).reference


def test_all_routines_are_in_the_sample():
    requests = ask("", testlist=SAMPLE)
    assert [request.problem for request in requests if request.problem] == []
    assert {request.named for request in requests} == {*ROUTINES}


MISUSE = [
    ("", "perf needs a routine or a testlist: flashinfer-bench perf --routine NAME.*--testlist FILE.*--help"),
    ("--routin rmsnorm", "unknown flag --routin; did you mean --routine.* --routine is missing"),
    ("--routine nothing", "unknown routine nothing; flashinfer-bench perf --help lists all routines"),
    ("--routine rmsnorm --batch_sise 4", "unknown flag --batch_sise; did you mean --batch_size.*(?s:.)*needs"),
    ("--testlist list.txt --hiden_size 4 --timeot=3", "unknown flag --timeot; did you mean --timeout"),
    ("--testlist list.txt --top_p nan", "--top_p: needs a finite number, not 'nan'"),
    ("--testlist list.txt --num_iters", "--num_iters: expected one argument"),
    (f"{EXPERTS} --gated_act geglu --activation-type Relu2", "--gated_act geglu contradicts --activation_type Relu2"),
    (f"{EXPERTS} --activation-type Relu2", "--activation_type Relu2: cutlass_fused_moe takes Swiglu, Geglu"),
    (f"{RMSNORM} --num_iters 0", "--num_iters: 0 must be from 1 to 10000000"),
    (f"{RMSNORM} --random_seed -1", "--random_seed: -1 must be from 0 to"),
    (f"{RMSNORM} --resume", "--save_trace_set"),
    (f"{RMSNORM} --retry_timeouts", "give --resume too"),
    (f"{RMSNORM} --timeout 1e300", "must be from 1e-09 to 1000000.0"),
    ("--routine apply_rope --rope_scale 0", "--rope_scale: 0.0 must be from 1e-30 to 1e.30"),
    ("--routine top_p_renorm_probs --top_p 1.5", "--top_p: 1.5 must be from 1e-30 to 1"),
    ("--routine min_p_sampling_from_probs --min_p 1", "--min_p: 1.0 must be from 0.0 to 0.99"),
    (f"{LLAMA} --low_freq_factor 4", "--high_freq_factor 4.0: must be above --low_freq_factor 4"),
    (f"{RMSNORM} --sweep batch_siz=1,2", "--sweep batch_siz=1,2; did you mean 'batch_size'?"),
]


@pytest.mark.parametrize(("words", "said"), MISUSE)
def test_misuse_ends_with_2_and_says_what_is_wrong(words, said, capsys):
    assert main(["perf", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(said, err), err


@pytest.mark.parametrize("routine", ROUTINES)
def test_the_numbers_of_a_routine_have_their_range_and_its_help_has_its_flags(routine, capsys):
    entry = ROUTINES[routine]
    for flag in (flag for flag in entry.flags if flag.kind in ("int", "float") and not flag.choices):
        value = flag.least - 1 if flag.kind == "int" else "-inf"
        with pytest.raises(UsageError, match=rf"--{flag.name}: .*(must be|needs a finite)"):
            ask(f"--routine {routine} {SMALL[routine]} --backends torch --{flag.name}={value}")
    assert main(["perf", "--routine", routine, "--help"]) == 0
    text = capsys.readouterr().out
    assert {"--num_iters", *(f"--{flag.name}" for flag in entry.flags)} <= set(re.findall(r"--\w+", text))
    assert all(re.search(rf"^  {re.escape(backend)} ", text, re.MULTILINE) for backend in entry.backends)


DECODE = "--batch_size 2 --s_kv 64 --num_qo_heads 8 --num_kv_heads 2 --head_dim_qk 128"
PREFILL = "--batch_size 2 --s_qo 8 --s_kv 64 --num_qo_heads 8 --num_kv_heads 2"
ROPE = "--batch_size 2 --seq_len 8 --num_qo_heads 4 --num_kv_heads 2"
APPEND = "rope_quantize_fp8_append_paged_kv_cache"
PAGED = "BatchPrefillWithPagedKVCacheWrapper"
PAGED_ONLY = ("trtllm-native", "prims-ts")
MLA = "--batch_size 1 --s_qo 2 --s_kv 64 --num_qo_heads 8 --num_kv_heads 1 --head_dim_ckv 512 --head_dim_kpe 64 "
MLA += "--page_size 32 --causal"
WIDE = "--batch_size 2 --s_kv 64 --num_qo_heads 14 --num_kv_heads 2 --head_dim_qk 128 --page_size 16"
NO_BIAS = dict.fromkeys(("cublaslt", "cutlass", "cutile"), "neither --bias nor --enable_pdl")
HALF = "--q_dtype float16 --kv_dtype float16"


@pytest.mark.parametrize(
    ("routine", "flags", "refused"),
    [
        (
            "BatchDecodeWithPagedKVCacheWrapper",
            f"{DECODE} --page_size 8",
            dict.fromkeys(PAGED_ONLY, "16, 32, 64 and 128"),
        ),
        ("BatchDecodeWithPagedKVCacheWrapper", f"{WIDE} {HALF}", {"fa2": "1, 2, 3, 4 or 8", "cudnn": "bfloat16"}),
        (PAGED, f"{PREFILL} --head_dim_qk 96 --page_size 16", {"fa3": "96 and 96", "prims-ts": "96 and 96"}),
        (
            "BatchPrefillWithRaggedKVCacheWrapper",
            f"{PREFILL} --head_dim_qk 192 --head_dim_vo 128",
            dict.fromkeys(("trtllm-fmha-v2", "prims-ts"), "192 and 128"),
        ),
        (
            PAGED,
            f"{PREFILL} --head_dim_qk 128 --page_size 16 --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3 --out_dtype bfloat16",
            dict.fromkeys(("fa2", "fa3", "auto", "cudnn", "cudnn-native", "prims-ts"), "neither fp8 queries"),
        ),
        (
            "BatchMLAPagedAttentionWrapper",
            MLA,
            dict.fromkeys(("trtllm-native", "auto", "cute-dsl"), "mask") | {"cutlass": "one query"},
        ),
        ("gated_delta_rule_decode", "--batch_size 2 --head_size 256", {"flashinfer": "takes 128", "triton": "not in"}),
        (
            "trtllm_fp4_block_scale_moe",
            "--num_tokens 4 --hidden_size 192 --intermediate_size 64 --num_experts 4 --top_k 1",
            {"trtllm": "multiple of 128"},
        ),
        ("MSASparseDecode", "--s_kv 4096 --num_kv_heads 2 --s_qo 1", {"cudsl": "at most 16"}),
        ("MSASparseAttention", "--num_qo_heads 12", {"cudsl": "3 query heads"}),
        ("MSAProxyScore", "--num_qo_heads 12 --num_kv_heads 4", {}),
        ("bmm_fp8", "--m 4 --n 16 --k 16 --mat2_dtype fp8_e5m2", {"cutlass": "e5m2", "cute-dsl": "one dtype"}),
        (
            "bmm_fp8",
            "--m 16 --n 16 --k 16 --input_dtype fp8_e5m2 --mat2_dtype fp8_e5m2",
            dict.fromkeys(("cudnn", "cublas", "cutlass", "auto"), "e5m2 times e5m2"),
        ),
        ("mm_fp4", "--m 4 --n 128 --k 128 --use_nvfp4 --out_dtype float16", {"trtllm": "bfloat16 only"}),
        (
            "mm_fp4",
            "--m 4 --n 68 --k 128",
            {"trtllm": "mxfp4", "cutlass": "mxfp4", "cute-dsl": "--n is not a multiple"},
        ),
        ("mm_bf16", "--m 32 --n 24 --k 128 --bias", {**NO_BIAS, "tinygemm": "--n is not a multiple of 16"}),
        ("mm_bf16", "--m 33 --n 16 --k 128 --enable_pdl", {**NO_BIAS, "cute-dsl": "--m 33 is more than 32"}),
        (
            "mm_bf16",
            "--m 2 --n 16 --k 64 --out_dtype float32",
            dict.fromkeys(("tgv", "tinygemm", "cute-dsl"), "bfloat16 only"),
        ),
        ("mm_fp8", "--m 2 --n 64 --k 64", {"trtllm_low_latency": "--k is not a multiple of 128"}),
        ("mm_fp8", "--m 2 --n 64 --k 128 --out_dtype float16", {"trtllm_low_latency": "bfloat16"}),
        ("bmm_mxfp8", "--m 64 --n 128 --k 256", {}),
        ("bmm_mxfp8", "--batch_size 2 --m 64 --n 128 --k 256", {"cudnn": "--m is not a multiple of 128"}),
        ("mm_mxfp8", "--m 2 --n 128 --k 128", {"trtllm": "--k is not a multiple of 256"}),
        ("mm_bf16_fp4", "--m 2 --n 64 --k 64 --out_dtype float16", {"cute-dsl": "bfloat16 only"}),
        ("apply_rope", f"{ROPE} --head_dim 96", {"cuda": "64, 128, 256, 512"}),
        ("apply_rope_pos_ids", f"{ROPE} --head_dim 128 --rotary_dim 24", {"cuda": "multiple of 16"}),
        ("apply_rope_with_cos_sin_cache", f"{ROPE} --head_dim 96", {}),
        ("rope_quantize_fp8", f"{ROPE} --head_dim 64 --no_rope_dim 48", {}),
        (APPEND, f"{ROPE} --head_dim 64 --no_rope_dim 48", {"cuda": "multiple of the 64"}),
        ("gemma_rmsnorm", "--batch_size 2 --num_heads 2 --hidden_size 64", {"cuda": "takes two dimensions"}),
        ("fused_qk_rmsnorm_rope", "--batch_size 1 --num_heads 1 --hidden_size 96", {"cuda": "64, 128, 256"}),
        ("fused_qk_rmsnorm_rope", "--batch_size 1 --num_heads 40 --hidden_size 2560", {"cuda": "32 heads"}),
        ("rmsnorm_fp4quant", "--batch_size 2 --hidden_size 64 --output_both_sf_layouts", {"cute-dsl": "one layout"}),
        ("add_rmsnorm_fp4quant", "--batch_size 2 --hidden_size 64 --output_both_sf_layouts", {}),
        ("top_k_varlen", "--batch_size 2 --max_seq_len 1024", {}),
        ("top_k_varlen", "--batch_size 2 --max_seq_len 1022 --input_dtype float16", {"gvr": "rows of 16 bytes"}),
        ("nvfp4_quantize", "--m 8 --k 64 --sf_vec_size 32", dict.fromkeys(("cuda", "cute-dsl"), "kernel takes 16")),
        ("nvfp4_quantize", "--m 8 --k 64 --do_shuffle", dict.fromkeys(("cuda", "cute-dsl"), "--do_shuffle")),
    ],
)
def test_sizes_that_the_library_has_no_kernel_for_are_refused(routine, flags, refused):
    refusals = make_case(routine, flags).refusals
    assert refusals.keys() == refused.keys()
    assert all(said in refusals[backend] for backend, said in refused.items()), refusals


PLAIN_ROPE = [name for name in ROUTINES if name.startswith("apply")]
QUANTISING_ROPE = [name for name in ROUTINES if "rope_quantize" in name]
MOE = SMALL["cutlass_fused_moe"].replace("--cutlass_variant nvfp4", "")


@pytest.mark.parametrize(
    ("routines", "flags", "said"),
    [
        (PLAIN_ROPE, f"{ROPE} --head_dim 64 --rotary_dim 128 --no_rope_dim 64", "--rotary_dim 128 is more than"),
        (QUANTISING_ROPE, f"{ROPE} --head_dim 64 --rotary_dim 96 --no_rope_dim 16", "it has to be 96 or 112"),
        (QUANTISING_ROPE, f"{ROPE} --head_dim 128 --rotary_dim 64", "it has to be 64$"),
        (["trtllm_fp8_block_scale_moe"], f"{MOE} --routing_method renormalize --n_group 2", "implies DeepSeekV3"),
        (["MSASparseAttention"], "--head_dim 64", "MSA requires head_dim 128, got 64"),
        (["MSASparseAttention", "MSAPipeline"], "--q_dtype nvfp4", "takes bfloat16, float16"),
        (["MSASparseDecode", "MSAProxyScore"], "--q_dtype fp8_e4m3", "--kv_dtype bfloat16: as --q_dtype"),
        (
            ["mixed_comm"],
            "--local_bs_list 1 --hidden_size 8 --dtype float16 --local_tp_size 1 --local_dp_size 1",
            "two",
        ),
        (["MSAPipeline"], "--topk 8", "the library selects 16"),
        (["BatchMLAPagedAttentionWrapper"], f"{MLA} --s_qo 1 --mla_is_var_seq false --random_actual_seq_len", "random"),
        ([PAGED], f"{PREFILL} --head_dim_qk 64 --q_dtype fp8_e4m3", "as --q_dtype"),
        ([PAGED], f"{PREFILL} --head_dim_qk 64 --q_dtype fp8_e4m3 --kv_dtype fp8_e5m2", "as --q_dtype"),
        (["mm_fp8"], "--batch_size 2 --m 2 --n 32 --k 128", "--batch_size 2: mm_fp8 has one product"),
        (["nvfp4_quantize"], "--m 8 --k 64 --sf_vec_size 32 --per_token_activation", "must be 16"),
        (
            ["layernorm_quant", "fused_dit_layernorm"],
            "--batch_size 2 --hidden_size 64 --input_dtype float16",
            "float16",
        ),
        (["fused_add_rmsnorm", "rmsnorm_quant"], "--batch_size 2 --hidden_size 64 --num_heads 2", "two dimensions"),
        (["fused_qk_rmsnorm_rope"], "--batch_size 2 --hidden_size 64", "--num_heads is missing"),
        (["rmsnorm_fp4quant"], "--batch_size 2 --hidden_size 64 --out_dtype mxfp4 --is_sf_swizzled_layout", "padding"),
    ],
)
def test_flags_that_contradict_each_other_are_misuse(routines, flags, said):
    for routine in routines:
        with pytest.raises(UsageError, match=said):
            make_case(routine, flags)


def test_outer_flags_hold_for_every_line_and_a_bad_line_costs_itself_alone(tmp_path):
    path = tmp_path / "list.txt"
    lines = [
        "# a comment",
        f"{RMSNORM} --case_tag 'a # b'  # inline",
        "--routine no",
        f"{RMSNORM} --num_iters 7",
        "'",
        f"--timeout 0 {RMSNORM}",
        SOFTMAX,
    ]
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    found = {request.line: request for request in ask("--num_iters 9 --num_heads 2 --backends torch", testlist=path)}
    assert {at: (request.problem or "").splitlines() for at, request in found.items()} == {
        2: [],
        3: [found[3].problem],
        4: [],
        5: ["No closing quotation"],
        6: ["--timeout: 0.0 must be from 1e-09 to 1000000.0; see flashinfer-bench perf --help"],
        7: ["unknown flag --num_heads; did you mean --num_iters?"],
    }
    assert (found[2].args.num_iters, found[4].args.num_iters) == (9, 7)
    assert (found[2].args.case_tag, found[2].backends) == ("a # b", ["torch"])


@pytest.mark.parametrize(("routine", "backend"), [("rmsnorm", "cute-dsl"), ("chunk_gated_delta_rule", "flashinfer")])
def test_a_backend_that_lacks_its_package_is_skipped_with_the_package(routine, backend):
    [request] = ask(f"--routine {routine} {SMALL[routine]} --backends {backend}", H200)
    assert request.skipped[backend].endswith("needs nvidia-cutlass-dsl, which is not installed. Skipping.")
