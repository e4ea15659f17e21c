"""What `perf` accepts, and what it says about what it does not."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf import flags as perf_flags
from flashinfer_bench.cli.perf.cases import in_groups, read_requests
from flashinfer_bench.cli.perf.flags import CASE_FLAGS, parse_case, split_session
from flashinfer_bench.cli.perf.text import introduce
from flashinfer_bench.errors import Misuse
from flashinfer_bench.routines.case.support import Platform, find_platform, why_not
from flashinfer_bench.routines.table import FAMILIES, ROUTINES, find_routine
from tests.routines.judged import make_case
from tests.routines.small import SMALL

DOCUMENTED = Path(__file__).with_name("documented_commands.txt").read_text(encoding="utf-8").splitlines()
SAMPLE = Path(__file__).parents[3] / "benchmarks" / "samples" / "sample_testlist.txt"
CPU = Platform("a CPU", None, {}, frozenset())
H200 = Platform("NVIDIA H200", "9.0", {"flashinfer-python": "0.6.11"}, frozenset({"flashinfer"}))
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64"


@pytest.mark.parametrize("command", DOCUMENTED)
def test_the_commands_of_the_documents_make_a_case(command):
    routine, args = parse_case(split_session(shlex.split(command))[1])
    assert routine.make_case(args).reference is not None


def test_the_table_has_the_45_routines_of_the_documents():
    assert len(ROUTINES) == 45
    assert [len(family.ROUTINES) for family in FAMILIES] == [4, 4, 4, 1, 5, 4, 15, 8]


def test_every_line_of_the_sample_makes_a_case_and_every_routine_is_in_it():
    requests = read_requests([], str(SAMPLE), CPU)
    assert [request.problem for request in requests if request.problem] == []
    assert {request.routine.name for request in requests} == set(ROUTINES)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", ["perf needs a routine or a testlist: flashinfer-bench perf --routine NAME", "--testlist FILE", "--help"]),
        ("--batch_size 4", ["--routine is missing", "rmsnorm"]),
        ("--routine rmsnrm", ["unknown routine rmsnrm", "did you mean 'rmsnorm'"]),
        ("--routine rmsnorm --batch_sise 4", ["unknown flag --batch_sise; did you mean --batch_size", "needs"]),
        ("--routine rmsnorm --batch-size 4", ["unknown flag --batch-size; did you mean --batch_size?"]),
        ("--routine rmsnorm --hiden-size=4", ["unknown flag --hiden-size; did you mean --hidden_size?"]),
        ("--testlist list.txt --batch-size 4", ["unknown flag --batch-size; did you mean --batch_size?"]),
        ("--routine rmsnorm --batch_size x", ["--batch_size: needs a whole number, not 'x'"]),
        (f"{RMSNORM} --backends cudda", ["--backends cudda", "rmsnorm has cuda, torch"]),
        (f"{RMSNORM} --num_iters 0", ["--num_iters 0"]),
        (f"{RMSNORM} --resume", ["--save_trace_set"]),
        ("--testlist /nowhere/list.txt", ["/nowhere/list.txt", "cannot be read"]),
        ("--routine bmm_fp8 --m 4 --n 4 --k 4 --input_dtype int8", ["--input_dtype int8", "fp8_e4m3"]),
    ],
)
def test_misuse_ends_with_2_and_says_what_is_wrong(argv, words, capsys):
    assert main(["perf", *argv.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(word in err for word in words), err


@pytest.mark.parametrize("routine", ROUTINES)
def test_the_help_of_a_routine_shows_its_flags_and_backends(routine, capsys):
    assert main(["perf", "--routine", routine, "--help"]) == 0
    text = capsys.readouterr().out
    entry = ROUTINES[routine]
    for flag in (*CASE_FLAGS, *entry.flags):
        assert f"--{flag.name}" in text
    assert all(re.search(rf"^  {re.escape(backend)} ", text, re.MULTILINE) for backend in entry.backends)


def test_the_help_lists_every_routine(capsys):
    assert main(["perf", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in ROUTINES)


def test_recorded_timeouts_are_run_again_only_where_that_is_asked_for(capsys):
    assert [split_session(words)[0].retry_timeouts for words in ([], ["--retry_timeouts"])] == [False, True]
    assert main(["perf", "--help"]) == 0
    assert re.search(r"--retry_timeouts +with --resume: run recorded TIMEOUTs again", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("routine", "backend", "place", "words"),
    [
        ("rmsnorm", "torch", CPU, None),
        ("rmsnorm", "cuda", CPU, "needs an NVIDIA GPU"),
        ("rmsnorm", "cuda", H200, None),
        (
            "bmm_fp8",
            "cutlass",
            H200,
            "cutlass for routine bmm_fp8 is not supported on compute capability 9.0. Skipping.",
        ),
        ("bmm_fp8", "cudnn", H200, "nvidia-cudnn-frontend"),
        ("rmsnorm", "cuda", Platform("NVIDIA H200", "9.0", {}, frozenset()), "flashinfer-python"),
        ("rmsnorm", "cuda", Platform("new", "13.0", {}, frozenset()), "compute capability 13.0"),
    ],
)
def test_a_backend_that_cannot_run_here_has_a_reason(routine, backend, place, words):
    reason = why_not(find_routine(routine), backend, place)
    assert (reason is None) if words is None else (words in reason)


DECODE = "--batch_size 2 --s_kv 64 --num_qo_heads 8 --num_kv_heads 2 --head_dim_qk 128"
PREFILL = "--batch_size 2 --s_qo 8 --s_kv 64 --num_qo_heads 8 --num_kv_heads 2"
ROPE = "--batch_size 2 --seq_len 8 --num_qo_heads 4 --num_kv_heads 2"


@pytest.mark.parametrize(
    ("routine", "flags", "refused"),
    [
        ("BatchDecodeWithPagedKVCacheWrapper", f"{DECODE} --page_size 16", {}),
        ("BatchDecodeWithPagedKVCacheWrapper", f"{DECODE} --page_size 8", {"trtllm-native": "16, 32, 64 and 128"}),
        (
            "BatchDecodeWithPagedKVCacheWrapper",
            "--batch_size 2 --s_kv 64 --num_qo_heads 14 --num_kv_heads 2 --head_dim_qk 128 --page_size 16 "
            "--q_dtype float16 --kv_dtype float16",
            {"fa2": "1, 2, 3, 4 or 8", "cudnn": "bfloat16"},
        ),
        ("BatchPrefillWithPagedKVCacheWrapper", f"{PREFILL} --head_dim_qk 256 --page_size 16", {}),
        ("BatchPrefillWithPagedKVCacheWrapper", f"{PREFILL} --head_dim_qk 96 --page_size 16", {"fa3": "96 and 96"}),
        ("BatchPrefillWithRaggedKVCacheWrapper", f"{PREFILL} --head_dim_qk 192 --head_dim_vo 128", {}),
        ("bmm_fp8", "--m 4 --n 16 --k 16 --mat2_dtype fp8_e5m2", {"cutlass": "e5m2"}),
        ("apply_rope", f"{ROPE} --head_dim 128 --rotary_dim 48", {}),
        ("apply_rope", f"{ROPE} --head_dim 96", {"cuda": "64, 128, 256, 512"}),
        ("apply_rope_pos_ids", f"{ROPE} --head_dim 128 --rotary_dim 24", {"cuda": "multiple of 16"}),
        ("apply_rope_pos_ids", f"{ROPE} --head_dim 128 --rotary_dim 24 --interleave", {}),
        ("apply_rope_with_cos_sin_cache", f"{ROPE} --head_dim 96", {}),
        ("rope_quantize_fp8", f"{ROPE} --head_dim 64 --no_rope_dim 48", {}),
        ("rope_quantize_fp8", f"{ROPE} --head_dim 64 --no_rope_dim 24", {"cuda": "multiple of 16"}),
        (
            "rope_quantize_fp8_append_paged_kv_cache",
            f"{ROPE} --head_dim 64 --no_rope_dim 48",
            {"cuda": "multiple of the 64"},
        ),
        ("nvfp4_quantize", "--m 8 --k 64 --sf_vec_size 16", {}),
        ("nvfp4_quantize", "--m 8 --k 64 --sf_vec_size 32", {"cuda": "--sf_vec_size 32: its kernel takes 16"}),
        ("nvfp4_quantize", "--m 8 --k 64 --do_shuffle", {"cuda": "--do_shuffle"}),
        ("nvfp4_batched_quantize", "--batch_size 2 --m 8 --k 64", {}),
        ("nvfp4_batched_quantize", "--batch_size 2 --m 8 --k 64 --sf_vec_size 32", {"cuda": "its kernel takes 16"}),
    ],
)
def test_sizes_that_the_library_has_no_kernel_for_are_refused(routine, flags, refused):
    refusals = make_case(routine, flags).refusals
    assert refusals.keys() == refused.keys()
    assert all(words in refusals[backend] for backend, words in refused.items()), refusals


PLAIN_ROPE = (
    "apply_rope",
    "apply_rope_pos_ids",
    "apply_llama31_rope",
    "apply_llama31_rope_pos_ids",
    "apply_rope_with_cos_sin_cache",
)
QUANTISING_ROPE = ("mla_rope_quantize_fp8", "rope_quantize_fp8", "rope_quantize_fp8_append_paged_kv_cache")


@pytest.mark.parametrize("routine", PLAIN_ROPE)
@pytest.mark.parametrize("more", ["", "--no_rope_dim 1", "--no_rope_dim 64"])
def test_no_more_is_rotated_than_a_head_has(routine, more):
    with pytest.raises(Misuse, match="--rotary_dim 128 is more than --head_dim 64"):
        make_case(routine, f"{ROPE} --head_dim 64 --rotary_dim 128 {more}")


@pytest.mark.parametrize("routine", QUANTISING_ROPE)
@pytest.mark.parametrize("sizes", ["--head_dim 64", "--head_dim 64 --rotary_dim 64", "--head_dim 80 --rotary_dim 64"])
def test_a_quantised_head_is_what_is_rotated_or_all_of_it(routine, sizes):
    shapes = {
        name: tensor.shape for name, tensor in make_case(routine, f"{ROPE} {sizes} --no_rope_dim 16").inputs.items()
    }
    assert (shapes["q_rope"], shapes["q_nope"]) == ("tokens num_qo_heads 64", "tokens num_qo_heads 16")
    assert shapes.get("v") in (None, "tokens num_kv_heads 80")


@pytest.mark.parametrize("routine", QUANTISING_ROPE)
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ("--head_dim 64 --rotary_dim 96 --no_rope_dim 16", "--head_dim 64.*it has to be 96 or 112"),
        ("--head_dim 256 --rotary_dim 64 --no_rope_dim 64", "--head_dim 256.*it has to be 64 or 128"),
        ("--head_dim 128 --rotary_dim 64", "--head_dim 128.*it has to be 64$"),
    ],
)
def test_a_quantised_head_of_another_width_is_misuse(routine, sizes, words):
    with pytest.raises(Misuse, match=words):
        make_case(routine, f"{ROPE} {sizes}")


@pytest.mark.parametrize(
    ("routine", "flags", "told"),
    [
        ("rmsnorm_fp4quant", "--backends cuda", ["[INFO] cuda for routine rmsnorm_fp4quant means cute-dsl"]),
        (
            "add_rmsnorm_fp4quant",
            "--backends cuda cute-dsl cuda",
            ["[INFO] cuda for routine add_rmsnorm_fp4quant means cute-dsl"],
        ),
        ("rmsnorm_fp4quant", "--backends cute-dsl", []),
        ("rmsnorm", "--backends cuda", []),
    ],
)
def test_another_spelling_of_a_backend_is_told_once(routine, flags, told):
    b200 = Platform("NVIDIA B200", "10.0", {}, frozenset({"flashinfer", "cutlass"}))
    request = read_requests(shlex.split(f"--routine {routine} {SMALL[routine]} {flags}"), None, b200)[0]
    assert request.backends == ["cute-dsl" if "fp4" in routine else "cuda"]
    assert [line for line in introduce(request, b200) if "means" in line] == told


def test_the_tolerance_of_attention_follows_the_query_that_sees_the_fewest_keys():
    def atol(flags):
        sizes = "--batch_size 2 --num_qo_heads 8 --num_kv_heads 2 --head_dim_qk 128 --page_size 16"
        return make_case("BatchPrefillWithPagedKVCacheWrapper", f"{sizes} {flags}").check.atol

    assert atol("--s_qo 1024 --s_kv 1024 --causal") == 2**-7
    assert atol("--s_qo 1024 --s_kv 4096 --causal") == atol("--s_qo 1024 --s_kv 4096") < 2**-9


def test_a_place_knows_what_is_installed():
    place = find_platform("NVIDIA H200", (9, 0), has_module=lambda name: name == "cudnn")
    assert (place.capability, place.modules) == ("9.0", frozenset({"cudnn"}))


def test_older_names_of_backends_are_understood():
    _, args = parse_case(shlex.split(DOCUMENTED[10]))
    assert args.backends == ["fa2", "fa2_tc", "trtllm-gen", "cudnn"]


def test_outer_flags_are_defaults_of_every_line_and_a_bad_line_is_kept(tmp_path):
    path = tmp_path / "list.txt"
    lines = [
        "# a comment",
        "",
        f"{RMSNORM} --case_tag 'a # b'  # inline",
        "--routine no",
        f"{RMSNORM} --num_iters 7",
        "'",
    ]
    path.write_text("\n".join(lines))
    requests = read_requests(["--num_iters", "9", "--backends", "torch"], str(path), CPU)
    assert [request.line for request in requests] == [3, 4, 5, 6]
    assert [request.problem is None for request in requests] == [True, False, True, False]
    assert (requests[0].args.num_iters, requests[2].args.num_iters) == (9, 7)
    assert (requests[0].args.case_tag, requests[0].backends) == ("a # b", ["torch"])


def test_a_repro_command_is_quoted_and_makes_the_same_case(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["flashinfer_benchmark.py"])
    path = tmp_path / "list.txt"
    path.write_text(f"{RMSNORM} --case_tag 'a, \"b\"'")
    first = read_requests(["--generate_repro_command"], str(path), CPU)[0]
    again = read_requests(shlex.split(first.args.repro_command)[2:], None, CPU)[0]
    assert again.args.case_tag == 'a, "b"'
    assert again.material.definition.name == first.material.definition.name


def test_one_run_of_the_engine_holds_no_case_twice():
    words = [*shlex.split(RMSNORM), "--backends", "torch"]
    requests = [read_requests(words, None, CPU)[0] for _ in range(3)]
    other = read_requests([*words, "--random_seed", "7"], None, CPU)[0]
    groups = in_groups([*requests, other], lambda request: request.args.random_seed)
    assert sorted(map(len, groups)) == [1, 1, 1, 1]


def test_a_flag_of_the_case_that_does_not_fit_is_told(tmp_path):
    with pytest.raises(Misuse, match="Routing kernel with groups implies DeepSeekV3 routing method"):
        words = f"--routine cutlass_fused_moe {SMALL['cutlass_fused_moe']}".replace(
            "cutlass_fused_moe", "trtllm_fp8_block_scale_moe"
        )
        read_requests([*shlex.split(words), "--routing_method", "renormalize", "--n_group", "2"], None, CPU)


@pytest.mark.parametrize("name", list(SMALL))
def test_a_size_that_is_none_is_refused_and_named(name):
    sizes = [flag for flag in ROUTINES[name].flags if flag.kind == "int" and not flag.choices]
    for flag in sizes:
        with pytest.raises(Misuse, match=rf"--{flag.name} {flag.least - 1}: must be at least {flag.least}"):
            read_requests(
                ["--routine", name, *shlex.split(SMALL[name]), f"--{flag.name}", str(flag.least - 1)], None, CPU
            )


def test_flags_that_do_not_go_together_cost_their_line_alone(tmp_path, monkeypatch):
    def fails(_args):
        raise ZeroDivisionError("integer modulo by zero")

    broken = {"softmax": replace(ROUTINES["softmax"], make_case=fails)}
    monkeypatch.setattr(perf_flags, "find_routine", lambda name: broken.get(name) or find_routine(name))
    testlist = tmp_path / "list.txt"
    softmax, small = "--routine softmax --batch_size 2 --vocab_size 9", f"{RMSNORM} --hidden_size -4"
    testlist.write_text(f"{softmax}\n{small}\n--timeout 0 {RMSNORM}\n{RMSNORM} --backends torch\n")
    found = read_requests([], str(testlist), CPU)
    assert [request.problem for request in found] == [
        "its flags do not go together: integer modulo by zero",
        "--hidden_size -4: must be at least 1",
        "--timeout 0: must be above 0 s",
        None,
    ]
    assert found[3].backends == ["torch"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--routin", "rmsnorm"], "unknown flag --routin; did you mean --routine? --routine is missing; known: "),
        (["--batch_size", "4"], "--routine is missing; known: "),
        ([*RMSNORM.split(), "--jit_jobs", "-1"], "--jit_jobs -1: must be at least 0"),
        ([*RMSNORM.split(), "--timeout", "-5"], "--timeout -5: must be above 0 s"),
    ],
)
def test_slips_are_answered_before_anything_runs(words, said, capsys):
    assert main(["perf", *words]) == 2
    ended = capsys.readouterr()
    assert ended.err.startswith(f"error: {said}")
    assert not ended.out
