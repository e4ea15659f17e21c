"""What honest solutions do on a GPU that graphs, bursts and walls must not break: each of them passes.

Run by hand where there is a GPU: python -m pytest tests/gpu/test_honest_practices_on_gpu.py
"""

import importlib.util

import pytest

from tests.gpu.runs import judge, write_set
from tests.kit import make_definition

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(500)]
WIDTH = 256
REFERENCE = "import torch\ndef run(x, w):\n    return torch.relu(x @ w)\n"
NVCC = r'''
import ctypes, subprocess, tempfile
from pathlib import Path
import torch

SOURCE = r"""
#include <cuda_runtime.h>
__constant__ float scale = 1;
__device__ float dot(const float* x, const float* w, int n, int at) {
    float sum = 0;
    for (int k = 0; k < 256; ++k) sum += x[at / 256 * 256 + k] * w[k * 256 + at % 256];
    return sum;
}
__global__ void product(const float* x, const float* w, float* y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = dot(x, w, n, at);
}
__global__ void add_product(const float* x, const float* w, float* y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) atomicAdd(y + at, fmaxf(dot(x, w, n, at), 0.f));
}
__global__ void relu(const float* x, float* y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = scale * fmaxf(x[at], 0.f);
}
__global__ void all(const float* x, const float* w, float* y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = fmaxf(dot(x, w, n, at), 0.f);
}
#define GRID (n + 255) / 256, 256
extern "C" void default_stream(const float* x, const float* w, float* y, int n) { all<<<GRID>>>(x, w, y, n); }
extern "C" void own_stream(const float* x, const float* w, float* y, int n) {
    static cudaStream_t stream = [] { cudaStream_t made; cudaStreamCreate(&made); return made; }();
    all<<<GRID, 0, stream>>>(x, w, y, n);  // it waits for the default stream, and is waited for
}
extern "C" void two_streams(const float* x, const float* w, float* y, int n) {
    static cudaStream_t stream = [] { cudaStream_t made; cudaStreamCreate(&made); return made; }();
    product<<<GRID>>>(x, w, y, n);
    relu<<<GRID, 0, stream>>>(y, y, n);
}
extern "C" void symbol(const float* x, const float* w, float* y, int n) {
    float one = 1;
    cudaMemcpyToSymbol(scale, &one, sizeof one);
    product<<<GRID>>>(x, w, y, n);
    relu<<<GRID>>>(y, y, n);
}
extern "C" void allocates(const float* x, const float* w, float* y, int n) {
    float* between;
    cudaMalloc(&between, n * sizeof(float));
    product<<<GRID>>>(x, w, between, n);
    relu<<<GRID>>>(between, y, n);
    cudaFree(between);
}
extern "C" void clears(const float* x, const float* w, float* y, int n) {
    cudaMemset(y, 0, n * sizeof(float));
    add_product<<<GRID>>>(x, w, y, n);
}
"""
folder, (major, minor) = Path(tempfile.mkdtemp()), torch.cuda.get_device_capability()
(folder / "code.cu").write_text(SOURCE)
built = ["nvcc", "-O2", "-shared", "-Xcompiler", "-fPIC", f"-arch=sm_{major}{minor}", *FLAGS, "code.cu", "-o", "it.so"]
subprocess.run(built, cwd=folder, check=True)
called = getattr(ctypes.CDLL(str(folder / "it.so")), NAME)

def run(x, w):
    y = torch.empty_like(x)
    called(*[ctypes.c_void_p(one.data_ptr()) for one in (x, w, y)], x.numel())
    return y
'''
FUNCTIONS = ("default_stream", "own_stream", "two_streams", "symbol", "allocates", "clears")
PYTHON = {
    "compiled_with_graphs": """
import torch
run = torch.compile(lambda x, w: torch.relu(x @ w), mode="reduce-overhead")
""",
    "same_buffer": """
import torch
kept = {}
def run(x, w):
    y = kept.setdefault(x.shape, torch.empty_like(x))
    return torch.relu_(torch.matmul(x, w, out=y))
""",
    "one_graph_of_copies": """
import torch
kept = {}
def run(x, w):
    if x.shape not in kept:
        given = x.clone(), w.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.relu(given[0] @ given[1])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.relu(given[0] @ given[1])
        kept[x.shape] = given, graph, y
    given, graph, y = kept[x.shape]
    given[0].copy_(x), given[1].copy_(w)
    graph.replay()
    return y
""",
    "autotuned": """
import torch, triton, triton.language as tl
@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (256, 512, 1024)], key=["n"])
@triton.jit
def relu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n), 0.0), mask=at < n)
def run(x, w):
    product = x @ w
    y = torch.empty_like(x)
    relu[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](product, y, x.numel())
    return y
""",
    "joined_side_stream": """
import torch
side = torch.cuda.Stream()
def run(x, w):
    half, y = x.shape[0] // 2, torch.empty_like(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.matmul(x[:half], w, out=y[:half])
    torch.matmul(x[half:], w, out=y[half:])
    torch.cuda.current_stream().wait_stream(side)
    return torch.relu_(y)
""",
    "waits_at_the_end": """
import torch
def run(x, w):
    y = torch.relu(x @ w)
    torch.cuda.synchronize()
    return y
""",
    "works_in_a_thread": """
import torch
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
def run(x, w):
    return pool.submit(lambda: torch.relu(x @ w)).result()
""",
    "frees_its_cache": """
import torch
def run(x, w):
    y = torch.relu(x @ w)
    torch.cuda.empty_cache()
    return y
""",
    "weights_by_content": """
import torch
kept = {}
def run(x, w):
    key = w.data_ptr()
    if key not in kept or not torch.equal(kept[key][0], w):  # a wait for the GPU
        kept[key] = w.clone(), w.t().contiguous()
    return torch.relu(torch.nn.functional.linear(x, kept[key][1]))
""",
}
CUPY = """
import cupy, torch
kernel = cupy.ElementwiseKernel("float32 x", "float32 y", "y = max(x, 0.0f)", "relu")
def run(x, w):
    y = torch.empty_like(x)
    kernel(cupy.asarray(x @ w), cupy.asarray(y))
    return y
"""


def test_honest_practices_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    sources = {name: f"NAME, FLAGS = {name!r}, []\n{NVCC}" for name in FUNCTIONS}
    flags = ["--default-stream", "per-thread"]
    sources["own_default_stream"] = f"NAME, FLAGS = 'default_stream', {flags}\n{NVCC}"
    sources |= PYTHON | ({"cupy": CUPY} if importlib.util.find_spec("cupy") else {})
    definition = make_definition(
        reference=REFERENCE,
        axes={"n": None, "width": WIDTH},
        inputs={"x": "float32[n, width]", "w": "float32[width, width]"},
        outputs={"y": "float32[n, width]"},
    )
    judged = judge(
        write_set(tmp_path / "set", sources, definition=definition, axes=[{"n": 64}, {"n": 1024}]),
        num_trials=2,
        iterations=30,
    )
    assert len(judged) == 2 * len(sources)
    failed = {key: (one.status.value, one.log[-700:]) for key, one in judged.items() if one.status.value != "PASSED"}
    assert failed == {}
