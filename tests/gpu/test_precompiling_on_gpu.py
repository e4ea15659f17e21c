"""Kernels and modules of solutions that come are compiled ahead, by workers that reach no GPU and leave nothing behind.

Run by hand where there is a GPU: python -m pytest tests/gpu/test_precompiling_on_gpu.py
"""

import importlib.util
import json

import pytest

from flashinfer_bench.base.host import CORES_SHARE, usable_cores
from tests.gpu.runs import judge, run, statuses, write_set
from tests.kit import make_definition, make_solution

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(usable_cores() < CORES_SHARE, reason="there are too few cores to precompile on"),
]
SLOW_TO_LOAD = """
import time
time.sleep(12)  # the others have time
def run(x):
    return x * 2
"""
KERNEL = """
import json, os
from pathlib import Path
import torch, triton, triton.language as tl

cache = Path(os.environ["TRITON_CACHE_DIR"])
is_ahead = os.environ["CUDA_VISIBLE_DEVICES"] == ""

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)

def run(x):
    found = sorted(path.name for path in cache.glob("*/*.cubin"))
    print("TOLD", json.dumps({"found": found, "attempts": attempts()}), flush=True)
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""
HONEST = KERNEL + "\ndef attempts():\n    return None\n"
HOSTILE = (
    KERNEL
    + """
import subprocess, threading

def attempts():
    made = cache.parent / "attempts"
    if is_ahead:
        told = {}
        for path in ("/dev/nvidiactl", "/dev/nvidia0"):
            try:
                os.close(os.open(path, os.O_RDWR))
                told[path] = 0
            except OSError as error:
                told[path] = error.errno
        try:
            os.sched_setaffinity(0, range(os.cpu_count()))
            told["cores"] = 0
        except OSError as error:
            told["cores"] = error.errno
        for _ in range(4):
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        made.write_text(json.dumps(told))
        return told
    return json.loads(made.read_text()) if made.exists() else None
"""
)


def test_kernels_are_there_before_the_turn_of_their_solution(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    solutions = [
        make_solution("a_slow_to_load", source=SLOW_TO_LOAD),
        make_solution("b_honest", source=HONEST, language="triton"),
        make_solution("c_hostile", source=HOSTILE, language="triton"),
    ]
    judged = judge(write_set(tmp_path / "set", solutions), sandbox="strict")
    assert statuses(judged) == dict.fromkeys(("a_slow_to_load", "b_honest", "c_hostile"), "PASSED")
    evaluations = {name: one for (name, _), one in judged.items()}
    assert read(evaluations["b_honest"]) == {"found": ["double.cubin"], "attempts": None}
    refused = {"/dev/nvidiactl": 13, "/dev/nvidia0": 13, "cores": 1}
    assert read(evaluations["c_hostile"]) == {"found": ["double.cubin"], "attempts": refused}


LIBRARY = """
import json, os
from pathlib import Path
import torch
import flashinfer

places = Path(os.environ["FLASHINFER_WORKSPACE_BASE"]).glob(".cache/flashinfer/*/*/cached_ops/*/*.so")

def run(x):
    print("TOLD", json.dumps({"found": sorted(path.name for path in places)}), flush=True)
    return flashinfer.rmsnorm(x.view(-1, 128), torch.ones(128, dtype=x.dtype, device=x.device)).view_as(x)
"""
REFERENCE = (
    "import torch\ndef run(x):\n    y = x.view(-1, 128).float()\n"
    "    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype).view_as(x)\n"
)


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="FlashInfer is not installed")
def test_modules_of_flashinfer_are_there_before_the_turn_of_their_solution(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    definition = make_definition(reference=REFERENCE, inputs={"x": "bfloat16[n]"}, outputs={"y": "bfloat16[n]"})
    slow_to_load = "import time\ntime.sleep(12)  # the other has begun\n" + REFERENCE
    sources = {"a_library": LIBRARY, "b_plain": slow_to_load}
    finished = run(write_set(tmp_path / "set", sources, definition=definition), sandbox="strict", confirm=False)
    assert [(one.job.solution.name, one.trace.evaluation.status.value) for one in finished] == [
        ("b_plain", "PASSED"), ("a_library", "PASSED")]  # fmt: skip
    assert read(finished[-1].trace.evaluation) == {"found": ["norm.so"]}


def read(evaluation):
    """Return what the first call told."""
    line = next(line for line in evaluation.log.splitlines() if line.startswith("TOLD "))
    return json.loads(line.removeprefix("TOLD "))
