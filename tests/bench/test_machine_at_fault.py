"""What the machine or the toolchain breaks is no solution's verdict; what a solution merely says of it is."""

import os
import subprocess

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

COMPILED = "import torch\n\n@torch.compile\ndef run(x):\n    return x * 2\n"
SAYS_AT_IMPORT = "raise OSError('x.so: failed to map segment from shared object: Permission denied')\n"
SAYS_IN_THE_CALL = "def run(x):\n    raise RuntimeError('libfoo.so: undefined symbol: GLIBCXX_3.4.99 not found')\n"
LOADS = """
import ctypes, os, shutil, torch
copy = os.path.join(os.environ["TRITON_CACHE_DIR"], "mine.so")
os.makedirs(os.path.dirname(copy), exist_ok=True)
shutil.copyfile(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_global_deps.so"), copy)
ctypes.CDLL(copy)
def run(x):
    return x * 2
"""


def run(root, cache, **sources):
    """Judge solutions (name → source); return what came of each: a status, or a fault's words."""
    write_trace_set(
        root,
        definitions=[make_definition()],
        solutions=[make_solution(name, source=source) for name, source in sources.items()],
        workloads=[make_trace(workload=make_workload("w", axes={"n": 8}), solution=None)],
    )
    config = BenchmarkConfig.default(devices=["cpu"], warmup_runs=0, iterations=1, num_trials=1)
    benchmark = Benchmark(TraceSet.from_path(root), config, cache=cache)
    found = {}
    for event in benchmark.run(benchmark.plan(), save_results=False):
        if isinstance(event, JobFinished):
            found[event.job.solution.name] = event.trace.evaluation.status.value
        elif isinstance(event, JobFaulted):
            found[event.job.solution.name] = event.message
    return found


def test_a_solution_that_merely_says_so_is_to_blame(tmp_path):
    found = run(tmp_path / "set", tmp_path / "cache", imported=SAYS_AT_IMPORT, called=SAYS_IN_THE_CALL)
    assert found == {"imported": "COMPILE_ERROR", "called": "RUNTIME_ERROR"}


def test_a_compiler_of_torch_that_does_not_work_is_a_fault_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    found = run(tmp_path / "set", tmp_path / "cache", compiled=COMPILED, plain="def run(x):\n    return x * 2\n")
    assert found["plain"] == "PASSED"
    assert found["compiled"].startswith("torch.compile does not work on this machine: a program of ours fails, too")
    assert "what CC, CXX and CUDA_HOME name" in found["compiled"]


@pytest.fixture
def noexec(tmp_path):
    """A folder from which nothing can be executed."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=64m", "tmpfs", str(folder)], check=False)
    if os.geteuid() != 0 or mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_cache_mounted_noexec_is_a_fault_that_names_the_folder(tmp_path, noexec):
    found = run(tmp_path / "set", noexec / "cache", loads=LOADS)
    assert f"{noexec / 'cache'} is on a file system mounted noexec" in found["loads"]
    assert "FIB_CACHE_PATH" in found["loads"]
