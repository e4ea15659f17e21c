"""The sandbox of workers on a GPU. Run by hand on a GPU: `pytest tests/bench/test_sandbox_on_gpu.py`."""

import importlib.util

import pytest

from tests.bench.small_runs import HONEST, judge, write_set

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
def run(x):
    y = torch.empty_like(x)
    twice[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return y
"""
GRAPHS = """
import torch
graphs = {}
def run(x):
    if x.data_ptr() not in graphs:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = x * 2
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graphs[x.data_ptr()] = graph, y
    graph, y = graphs[x.data_ptr()]
    graph.replay()
    return y.clone()
"""
COMPILED = """
import torch
@torch.compile
def run(x):
    return torch.sin(x) - torch.sin(x) + x * 2
"""
INLINE = r'''
from torch.utils.cpp_extension import load_inline
module = load_inline(
    name="twice_cuda",
    cpp_sources="torch::Tensor twice(torch::Tensor x);",
    cuda_sources="""
#include <torch/extension.h>
__global__ void kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
torch::Tensor twice(torch::Tensor x) {
    auto y = torch::empty_like(x);
    kernel<<<(x.numel() + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}""",
    functions=["twice"],
)
run = module.twice
'''
FLASHINFER = """
import flashinfer, torch
def run(x):
    padded = torch.zeros(1, 4096, dtype=torch.float16, device=x.device)
    flashinfer.norm.rmsnorm(padded, torch.ones(4096, dtype=torch.float16, device=x.device))
    return x * 2
"""
NODES = """
import os
opened = [name for name in ("/dev/nvidiactl", "/dev/nvidia-uvm") if os.close(os.open(name, os.O_RDWR)) is None]
for act in (lambda: open("/dev/shm/left", "w"), lambda: open("/dev/nvidia-uvm-left", "w")):
    try:
        act()
        print("done")
    except PermissionError:
        print("refused")
def run(x):
    return x * 2
"""


def run(root, source, **settings):
    usual = {"devices": ["0"], "sandbox": "strict", "warmup_runs": 10, "iterations": 50}
    found = judge(write_set(root, {"a": source}, sizes=(1000,)), **{**usual, **settings})
    assert found.faults == []
    return found.done["a", "w0"]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(HONEST, id="torch"),
        pytest.param(TRITON, id="triton"),
        pytest.param(GRAPHS, id="graphs"),
        pytest.param(COMPILED, id="torch.compile"),
        pytest.param(INLINE, id="nvcc at run time"),
        pytest.param(NODES, id="device nodes"),
        pytest.param(
            FLASHINFER,
            id="flashinfer",
            marks=pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="flashinfer is missing"),
        ),
    ],
)
def test_honest_code_passes_under_strict_at_its_speed(tmp_path, monkeypatch, source):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    walled = run(tmp_path / "set", source)
    assert walled.status.value == "PASSED", walled.log
    again = run(tmp_path / "set", source)  # from its first compilation
    open_ = run(tmp_path / "set", source, sandbox="off")
    assert (again.status.value, open_.status.value) == ("PASSED", "PASSED")
    assert again.performance.latency_ms <= open_.performance.latency_ms * 1.1
    if source is NODES:
        assert walled.log.splitlines() == ["refused", "refused"]


def test_the_clock_is_the_same_with_and_without_a_sandbox(tmp_path):
    walled, open_ = (run(tmp_path / level, HONEST, sandbox=level).extra["measurement"] for level in ("strict", "off"))
    assert [walled.get(key) for key in ("method", "fallback")] == [open_.get(key) for key in ("method", "fallback")]
