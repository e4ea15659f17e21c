"""The lines and rows of `perf`, of verdicts that are made up."""

from __future__ import annotations

import argparse

import pytest

from flashinfer_bench.cli.perf.results import Results, introduce, is_failure, make_judged, make_row, report
from flashinfer_bench.cli.perf.session import make_config
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.table import ROUTINES
from tests.kit.make import make_evaluation
from tests.routines.small import ask, read_rows

pytestmark = pytest.mark.cpu
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
RECORD = {"method": "cuda_events", "cache_state": "cold", "median_ms": 0.002, "std_ms": 0.0005, "samples": 30}
SESSION = argparse.Namespace(timeout=9, sandbox="auto", devices=None, json_path=None, output_path=None)


def request(flags=""):
    return ask(f"{RMSNORM} {flags}")[0]


def row(flags="", status="PASSED", record=RECORD, log=""):
    environment = {"hardware": "NVIDIA H200", "libs": {}}
    extra = {"measurement": record} if record is not None else {}
    evaluation = make_evaluation(status, log=log, latency_ms=0.002, extra=extra, environment=environment)
    return make_judged(request(flags), "torch", evaluation, "NVIDIA H200")


@pytest.mark.parametrize(
    ("flags", "label", "shows_time", "fails"),
    [
        ("", "[WARNING]", True, False),
        ("--refcheck", "[ERROR]", False, True),
        ("--refcheck --allow_output_mismatch", "[ERROR]", True, False),
    ],
)
def test_a_mismatch_is_told_and_timed_as_the_flags_say(flags, label, shows_time, fails):
    found = row(flags, "INCORRECT_NUMERICAL", log="output 'out': 3 of 256 elements differ")
    lines = list(report(found))
    assert lines[0].startswith(f"{label} Output tensor mismatch between backends torch and torch: output 'out': 3 of")
    assert any(line.startswith("[PERF]") for line in lines) == shows_time
    assert is_failure(found) == fails
    extra = make_config([request(flags)], SESSION).definition_config[found["definition"]].extra
    assert extra.get("measure_rejected", False) is shows_time
    found = row(flags, "RUNTIME_ERROR", record=None, log="ValueError: no such kernel")
    assert (found["status"], found["median_ms"], is_failure(found)) == ("failed", None, True)
    assert list(report(found))[1] == "[ERROR] Error: RUNTIME_ERROR: ValueError: no such kernel"


@pytest.mark.parametrize(
    ("more", "caveat"),
    [
        ({"flags": ["host_bound"], "late": 7}, ""),
        (
            {"flags": ["host_bound"], "late": 8},
            "host_bound: the host takes longer to launch the call than the GPU to run it",
        ),
        (
            {"flags": ["host_bound", "waits_inside", "x"]},
            "waits_inside: the call waits for the GPU before it returns; x: unknown flag",
        ),
        ({"meaningful": False, "reason": "interpreted", "flags": ["noisy"]}, "interpreted"),
    ],
)
def test_a_slow_host_is_told_only_where_the_preamble_did_not_cover_it(more, caveat):
    assert row(record={**RECORD, **more})["caveat"] == caveat


def test_a_time_that_cannot_be_is_flagged_and_one_of_setup_is_told_beside(tmp_path):
    lines = list(report(row("--batch_size 100000 --hidden_size 4096", record={**RECORD, "median_ms": 0.001})))
    assert any("faster than the device allows" in line for line in lines)
    found = row(record={"median_ms": 0.5, "kernel_ms": 0.5, "setup_ms": 2.0, "burst_ms": 2.4, "flags": ["noisy", "x"]})
    lines = list(report(found))
    assert "median time 0.500 ms" in lines[0]
    assert "[INFO] torch: setup takes 2.000 ms before a call; it is not in the time" in lines
    session = argparse.Namespace(output_path=str(tmp_path / "out.csv"), json_path=None)
    Results([request()], session).add({**found, "case_tag": "not UTF-8: \udcff"})
    (idle,) = ask(RMSNORM.replace("torch", "cuda"))
    Results([idle], session).print_case(idle)  # renames no file, and writes none
    (read,) = read_rows(tmp_path / "out.csv")
    assert [read[name] for name in ("median_time", "std_time", "setup_ms", "burst_ms")] == ["0.5", "", "2.0", "2.4"]
    assert (read["flags"], read["case_tag"]) == ("noisy x", "not UTF-8: \\udcff")
    flags = {flag.name for routine in ROUTINES.values() for flag in routine.flags}
    elsewhere = {"dtype", "local_bs_list", "node_id", "dist_init_method", "spec_dec_mask", "mla_is_var_seq"}
    elsewhere |= {"mla_cute_dsl_impl"}
    assert flags - {*read} == {"no_qk_l2norm", "no_sf_swizzled_layout", "nvtx", *elsewhere}


@pytest.mark.parametrize("ending", ["", ". Falling back to CUDA events."])  # the second is of an earlier version
def test_a_fall_back_is_a_warning_in_the_words_of_the_documents(ending):
    lines = report(row(record={**RECORD, "fallback": f"no CUPTI{ending}"}))
    assert "[WARNING] no CUPTI. Falling back to CUDA events." in lines


def test_the_engine_is_told_counts_tolerance_and_limits():
    asked = request("--num_iters 11 --dry_run_iters 3 --random_seed 5 --use_cuda_events")
    config = make_config([asked], SESSION)
    resolved = config.resolve_eval_config(asked.entry.definition)
    assert (resolved.iterations, resolved.warmup_runs, resolved.num_trials, config.seed) == (11, 3, 1, 5)
    assert (config.timeout_seconds, resolved.rtol) == (9, asked.case.check.rtol)
    assert (config.clock, config.confirm) == ("cuda_events", False)


AUTO = "--batch_size 2 --s_qo 1 --s_kv 64 --num_qo_heads 8 --num_kv_heads 2 --head_dim_qk 128 --page_size 16"
PREFILL = "BatchPrefillWithPagedKVCacheWrapper"


@pytest.mark.parametrize(
    ("routine", "flags", "capability", "status", "resolved"),
    [
        (PREFILL, "", "9.0", "failed", "fa3"),
        (PREFILL, "--kv_dtype fp8_e4m3", "9.0", "failed", "fa2"),
        (PREFILL, "--head_dim_qk 96", "9.0", "failed", "fa2"),
        (PREFILL, "", "8.0", "failed", "fa2"),
        ("BatchDecodeWithPagedKVCacheWrapper", "", "9.0", "failed", "fa2_tc"),
        (PREFILL, "", "9.0", "skipped", "auto"),
    ],
)
def test_auto_is_told_by_what_it_stands_for(routine, flags, capability, status, resolved):
    platform = Platform("a GPU", capability, {}, frozenset({"flashinfer"}))
    (asked,) = ask(f"--routine {routine} {AUTO} {flags}", platform)
    assert make_row(asked, "auto", status)["resolved_backend"] == resolved


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--routine mm_bf16 --enable_pdl --m 4 --n 16 --k 64", []),
        ("--routine bmm_bf16 --enable_pdl --m 4 --n 16 --k 64", ["routine bmm_bf16 does not support PDL"]),
        ("--routine bmm_bf16 --m 4 --n 16 --k 64 --autotune_cache tactics.json", ["--autotune_cache has no effect"]),
    ],
)
def test_a_flag_without_effect_is_a_warning(words, said):
    (asked,) = ask(words, Platform("a GPU", "9.0", {}, frozenset({"flashinfer", "cudnn"})))
    lines = [line for line in introduce(asked) if "WARNING" in line]
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))
