"""What `perf` says of a case before it runs: how to run it again, and with -vv what is in it."""

from __future__ import annotations

import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flashinfer_bench.cli.perf.cases import read_requests, started_program
from flashinfer_bench.cli.perf.files import to_cells, to_document
from flashinfer_bench.cli.perf.rows import make_row
from flashinfer_bench.cli.perf.text import introduce, report
from flashinfer_bench.routines.case.materials import render_integers
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.table import ROUTINES
from tests.kit.make import make_evaluation
from tests.routines.small import SMALL

pytestmark = pytest.mark.cpu
CPU = Platform("a CPU", None, {}, frozenset())
ROOT = Path(__file__).parents[3]
SCRIPT = "flashinfer_benchmark.py"
CASE = "--routine rmsnorm --batch_size 2 --hidden_size 8 --generate_repro_command --backends torch"
QUICK = ["--devices", "cpu", "--num_iters", "2", "--dry_run_iters", "1"]


def tell(words):
    return list(introduce(read_requests([*shlex.split(words), "--backends", "torch", "-vv"], None, CPU)[0], CPU))


@pytest.mark.parametrize(
    ("script", "program"),
    [
        (SCRIPT, ["python3", SCRIPT]),
        (f"benchmarks/{SCRIPT}", ["python3", f"benchmarks/{SCRIPT}"]),
        ("/site-packages/flashinfer_bench/__main__.py", ["python3", "-m", "flashinfer_bench", "perf"]),
        ("/somewhere/pytest", ["flashinfer-bench", "perf"]),
        (".venv/bin/flashinfer-bench", [".venv/bin/flashinfer-bench", "perf"]),
    ],
)
def test_a_repro_command_begins_as_the_command_was_started(script, program, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert started_program(script) == program


@pytest.mark.parametrize(
    ("started", "folder", "program"),
    [
        (SCRIPT, "benchmarks", f"python3 {SCRIPT}"),
        (f"benchmarks/{SCRIPT}", ".", f"python3 benchmarks/{SCRIPT}"),
    ],
)
def test_a_repro_command_can_be_typed_where_the_command_was(started, folder, program, monkeypatch, capsys):
    monkeypatch.chdir(ROOT / folder)
    monkeypatch.setattr(sys, "argv", [started, *CASE.split(), *QUICK])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(started, run_name="__main__")
    assert f"run the following command: {program} {CASE}" in capsys.readouterr().out


def test_a_repro_command_of_a_module_can_be_typed_where_the_command_was():
    command = [sys.executable, "-m", "flashinfer_bench", "perf", *CASE.split(), *QUICK]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"run the following command: python3 -m flashinfer_bench perf {CASE}" in out


def test_dtypes_are_named_as_torch_names_them():
    lines = tell(f"--routine mm_fp4 {SMALL['mm_fp4']}")
    assert "[VVERBOSE] a_scale.dtype = torch.float8_e4m3fn" in lines
    assert "[VVERBOSE] a.dtype = float4_e2m1" in lines  # torch's has two to an element


@pytest.mark.parametrize("routine", ROUTINES)
def test_every_dtype_with_torch_before_it_is_torchs(routine):
    dtypes = [line.partition(".dtype = ")[2] for line in tell(f"--routine {routine} {SMALL[routine]}")]
    for name in [name for name in dtypes if name and name != "float4_e2m1"]:
        assert isinstance(getattr(torch, name.removeprefix("torch.")), torch.dtype)
        assert name.startswith("torch.")


def test_stored_lengths_and_offsets_are_told():
    lines = tell(f"--routine group_gemm_fp8_nt_groupwise {SMALL['group_gemm_fp8_nt_groupwise']}")
    assert "[VVERBOSE] m_indptr.flatten() = tensor([ 0,  4,  8, 12], dtype=torch.int32)" in lines


@pytest.mark.parametrize(
    ("routine", "line"),
    [
        ("rmsnorm_quant", "scale = 0.5"),
        ("nvfp4_quantize", "global_scale = 4.0"),
        ("softmax", "temperature = 0.7"),
        ("rmsnorm", "eps = 1e-06"),
        ("BatchPrefillWithRaggedKVCacheWrapper", "scale = 0.14433756729740646"),
    ],
)
def test_scalars_are_told_with_their_value(routine, line):
    assert f"[VVERBOSE] {line}" in tell(f"--routine {routine} {SMALL[routine]}")


@pytest.mark.parametrize(
    "values",
    [
        [],
        [7],
        [103, 436, 861, 271, 107, 72, 701, 21, 615, 122, 467, 215, 331, 459, 88, 373],
        list(range(64)),
        list(range(-5, 20)),
        *([10**9] * count for count in range(1, 9)),
        *(list(range(100, 100 + count)) for count in range(10, 18)),
    ],
)
def test_whole_numbers_are_printed_as_torch_prints_them(values):
    assert render_integers(np.array(values, dtype=np.int32)) == str(torch.tensor(values, dtype=torch.int32))


@pytest.mark.parametrize("last", [65, 1000, 123456])
def test_many_whole_numbers_are_abbreviated_as_torch_does_it(last):
    with_threshold = torch.arange(last, dtype=torch.int32)
    before = torch._tensor_str.PRINT_OPTS.threshold
    torch.set_printoptions(threshold=64)
    try:
        assert render_integers(with_threshold.numpy().reshape(1, -1)) == str(with_threshold)
    finally:
        torch.set_printoptions(threshold=before)


def test_true_lengths_are_told_as_the_documents_do():
    flags = "--batch_size 3 --s_qo 8 --s_kv 8 --num_qo_heads 2 --num_kv_heads 2 --head_dim_qk 32 --head_dim_vo 32"
    told = tell(f"--routine BatchPrefillWithRaggedKVCacheWrapper {flags}")
    for side in "q", "kv":
        assert f"[VVERBOSE] actual_seq_lens_{side}.flatten() = tensor([8, 8, 8], dtype=torch.int32)" in told


def test_the_time_is_that_of_run_alone_and_setup_is_told_beside():
    request = read_requests(shlex.split(CASE), None, CPU)[0]
    measured = {"median_ms": 0.5, "kernel_ms": 0.5, "setup_ms": 2.0, "bound": "batch", "burst_ms": 2.4}
    row = make_row(request, "torch", make_evaluation(extra={"measurement": measured}), device="a CPU")
    lines = list(report(row))
    assert any("median time 0.500 ms" in line for line in lines)
    assert "[INFO] torch: setup takes 2.000 ms before a call; it is not in the time" in lines
    cells = to_cells(to_document(row, CPU))
    assert (cells["median_time"], cells["setup_ms"], cells["bound"], cells["burst_ms"]) == (0.5, 2.0, "batch", 2.4)
    assert cells["burst_resolution_ms"] == ""
