"""The README's program works as printed, beside the bundled set."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(180)]
README = (CHECKOUT / "README.md").read_text()


def test_the_first_program_prints_a_performance(tmp_path):
    without_compilers = shutil.ignore_patterns("cpp", "cuda", "triton", "wrong", "traces")
    shutil.copytree(CHECKOUT / "flashinfer-trace", tmp_path / "flashinfer-trace", ignore=without_compilers)
    workloads = tmp_path / "flashinfer-trace" / "workloads" / "rmsnorm" / "rmsnorm_h4096.jsonl"
    workloads.write_text(workloads.read_text().splitlines(keepends=True)[0])  # one is enough to print a performance
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "FIB_CACHE_PATH": str(tmp_path / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(r"latency_ms=\S+ reference_latency_ms=\S+ speedup_factor=", done.stdout)
    written = {path.stem for path in (tmp_path / "flashinfer-trace" / "traces").rglob("*.jsonl")}
    assert written == {"rmsnorm_h4096"}
