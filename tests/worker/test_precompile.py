"""Compiling a solution's kernels ahead: the stand-in for a GPU, its limits, and its results."""

import json
import os
import select
import sys
import time

import pytest
import torch

from flashinfer_bench.bench.runner.workers.worker_handle import WorkerProcess
from flashinfer_bench.worker.jit.precompile import call_once, stand_in
from flashinfer_bench.worker.jit.start import prepare_triton
from flashinfer_bench.worker.load import load_entry
from tests.kit.sandboxes import running_cell
from tests.kit.workers import running_template, worker_order

pytestmark = pytest.mark.cpu
GPU = {
    "torch": {"name": "a GPU", "major": 9, "minor": 0, "multi_processor_count": 132},
    "triton": {"max_shared_mem": 232448, "multiprocessor_count": 132},
}
CALL = {
    "inputs": [{"shape": [4, 8], "dtype": "bfloat16"}, {"scalar": 3}],
    "outputs": [{"shape": [4, 8], "dtype": "bfloat16"}],
}


def load(folder, source):
    (folder / "main.py").write_text(source)
    return load_entry(folder, "main.py", "run", kind="python")


def test_tensors_have_a_gpu_and_no_memory_and_a_loop_until_something_is_read_ends():
    with stand_in(GPU):
        huge, x = torch.empty(1 << 40, device="cuda"), torch.empty(4, device="cuda")
        assert (huge.is_cuda, huge.data_ptr() % 16, str((huge + 1).device)) == (True, 0, "cuda:0")
        assert (torch.cuda.is_available(), torch.cuda.get_device_capability()) == (True, (9, 0))
        assert torch.cuda.get_device_properties(0).multi_processor_count == 132
        with torch.cuda.device(huge.device):
            torch.cuda.synchronize()
        assert (x.int().sum().item(), x.max().item()) == (16, 16.0)
        while not (x > 0).all():
            pass
        with pytest.raises(RuntimeError, match="numbers were read"):
            while x.sum().item() < 17:
                pass
    assert torch.cuda.is_available() == (torch.version.cuda is not None and os.path.exists("/dev/nvidiactl"))  # noqa: PTH110


@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
def test_tensors_are_copied_and_sliced_where_no_gpu_is():
    with stand_in(GPU):
        x = torch.empty(4, 8, device="cuda")
        x.copy_(x + 1)
        x[0] = 1.0
        assert ((x[1:] - x[:-1]).shape, x.T.contiguous().stride()) == ((3, 8), (4, 1))
        assert x[0].tolist() == [16.0] * 8


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("def run(x, n, y):\n    seen.append([list(y.shape), n])\nseen = []\n", [[[4, 8], 3]]),
        (
            "def setup(x, n):\n    return {'twice': 2 * n}\n"
            "def run(x, n, *, twice):\n    seen.append(twice)\nseen = []\n",
            [6],
        ),
    ],
)
def test_a_solution_is_called_as_it_will_be(tmp_path, source, seen):
    with stand_in(GPU):
        loaded = load(tmp_path, source)
        call_once(loaded, CALL)
    assert loaded.function.__globals__["seen"] == seen


@pytest.mark.filterwarnings("ignore:TRITON_")  # of defaults that change
def test_a_kernel_is_compiled_and_lies_in_the_cache(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    source = """
import torch, triton, triton.language as tl
@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (128, 256)], key=["n"], cache_results=True)
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
def run(x, n):
    y = torch.empty_like(x)
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y
"""
    with stand_in(GPU):
        call_once(load(tmp_path, source), CALL)
    assert len(list((tmp_path / "cache").glob("*/double.cubin"))) == 2
    assert not list((tmp_path / "cache").glob("*/*autotune*"))  # nothing was timed


IMPORTS = f"""
import os, torch
from flashinfer_bench.worker.jit.precompile import stand_in
os.environ["CUDA_VISIBLE_DEVICES"] = ""
with stand_in({GPU}, asks_driver=False):
    torch.empty_like(torch.empty(1, device="cuda")) + 1
"""
"""What a worker would import at the lowest priority, which gets next to nothing of a busy machine."""


@pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")
def test_a_worker_that_precompiles_takes_the_cores_it_is_given_at_the_lowest_priority(tmp_path):
    """It cannot leave them, what it does lies in its own folder, and it ends by itself."""
    source = """
import json, os
def run(x, n):
    told = {"cores": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "device": str(x.device)}
    told["compilers"] = os.environ["MAX_JOBS"]
    told["linked"] = sorted(os.listdir(os.environ["FLASHINFER_WORKSPACE_BASE"] + "/.cache/flashinfer/1/90a/cached_ops"))
    try:
        os.sched_setaffinity(0, range(os.cpu_count()))
    except OSError as error:
        told["leave"] = error.errno
    print(json.dumps(told), flush=True)
"""
    core = max(os.sched_getaffinity(0))
    with running_template(tmp_path / "run", before=IMPORTS) as template, running_cell(template) as cell:
        (cell.artifact / "main.py").write_text(source)
        home = cell.root / "run" / "home"
        place = {"directory": str(cell.artifact), "entry": "main.py", "symbol": "run", "kind": "python"}
        words = {**place, "calls": [CALL], "gpu": GPU, "cores": [core], "compilers": 3}
        shared = cell.artifact / "shared"
        norm = shared / ".cache" / "flashinfer" / "1" / "90a" / "cached_ops" / "norm"
        norm.mkdir(parents=True)
        for name in ("norm.so", "build.ninja"):
            (norm / name).touch()
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home)}
        environment["FLASHINFER_WORKSPACE_BASE"] = str(cell.jit)
        policy, layer = cell.policy().without_gpu().to_json(), {"shared_modules": str(shared)}
        order = worker_order(sandbox=policy, environment=environment, precompile=words, **layer)
        deadline = time.monotonic() + 200
        with WorkerProcess(cell.template, order, home) as worker:
            while not worker.has_ended and time.monotonic() < deadline:
                select.select([worker], [], [], 1.0)
            worker.drain()
            said = worker.log.take()
            assert worker.exit.code == 0, said
    reported = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    means = {"cores": [core], "nice": 19, "device": "cuda:0", "compilers": "3"}
    assert reported == {**means, "linked": ["norm"], "leave": 1}


def test_what_a_first_launch_asks_other_programs_is_asked_before_workers_are_forked():
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    before = compiler.get_ptxas_version.cache_info().misses
    prepare_triton((9, 7))  # a GPU that no other test asks for
    assert compiler.get_ptxas_version.cache_info().misses == before + 1
    compiler.get_ptxas_version(97)
    assert compiler.get_ptxas_version.cache_info().misses == before + 1
