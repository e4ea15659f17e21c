"""The fused comparison: it finds what the chunks find, number for number, and is not used where it does not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare import outputs as compare_module
from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.rule import Findings, Tolerance

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")]

ROOT = Path(__file__).resolve().parents[4]
CPU = torch.device("cpu")
USUAL = Tolerance(1e-2, 1e-2)


@pytest.mark.timeout(240)
def test_it_finds_what_the_chunks_find_number_for_number():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    program = [sys.executable, "-m", "tests.bench.evaluators.compare.interpreted_comparison"]
    ended = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "90 examples\n"), ended.stderr[-2000:]


@pytest.fixture
def fused():
    from flashinfer_bench.bench.evaluators.compare import fused as compare_fused

    compare_fused._has_proved_itself.cache_clear()
    yield compare_fused
    compare_fused._has_proved_itself.cache_clear()


def test_it_is_not_used_where_it_cannot_run(fused, caplog):
    with caplog.at_level(logging.WARNING):
        assert not fused.is_usable(torch.bfloat16, CPU, USUAL)  # there is no GPU behind this device
    assert "cannot run" in caplog.text


def test_it_is_not_used_where_it_finds_something_else(fused, monkeypatch, caplog):
    def measure(expected, got, tolerance):
        return Findings(**{**vars(fused.measure_chunks(expected, got, tolerance)), "mismatched": 0})

    monkeypatch.setattr(fused, "measure_fused", measure)
    with caplog.at_level(logging.WARNING):
        assert not fused.is_usable(torch.bfloat16, CPU, USUAL)
    assert "mismatched=0" in caplog.text


def test_it_proves_itself_once_for_each_type_and_kind_of_rule(fused, monkeypatch):
    calls = []
    monkeypatch.setattr(fused, "measure_fused", lambda *given: calls.append(given) or fused.measure_chunks(*given))
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
        for ratio in (1.0, 0.9, 0.95):
            assert fused.is_usable(dtype, CPU, Tolerance(1e-2, 1e-2, ratio))
    assert len(calls) == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.float4_e2m1fn_x2])
def test_types_that_it_does_not_know_are_compared_in_chunks(fused, monkeypatch, dtype):
    monkeypatch.setattr(fused, "measure_fused", fused.measure_chunks)
    assert fused.is_usable(torch.float16, CPU, USUAL)
    assert not fused.is_usable(dtype, CPU, USUAL)


def test_large_outputs_on_a_cpu_are_compared_in_chunks(monkeypatch):
    monkeypatch.setattr(compare_module, "FUSED_FROM", 10)
    expected = torch.arange(100.0)
    assert compare(expected, expected + (expected == 77), USUAL).worst.index == (77,)
    assert compare(expected, expected, USUAL).problem() is None
