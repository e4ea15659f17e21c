"""Which variables reach a session, its workers, a solution, and a program that compiles ahead."""

import os
import re
import sysconfig
from pathlib import Path

import pytest
from torch._inductor.runtime import cache_dir_utils

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import (
    PASSED_ON,
    ahead_environment,
    recorded_variables,
    session_environment,
    tell_withheld,
    worker_environment,
)
from flashinfer_bench.bench.runner.environments import WITHHELD as WITHHELD_PATTERNS

pytestmark = pytest.mark.cpu
CPU = Device("cpu", 0, "a CPU", "cpu")
GPU = Device("cuda", 1, "NVIDIA H200", "GPU-1234", "9.0")
SECRETS = {"HF_TOKEN": "x", "my_secret": "x", "DB_PASSWORD": "x", "AWS_CREDENTIALS": "x", "OPENAI_API_KEY": "x"}
COMPILERS = ("CXX", "CPATH", "CUDA_HOME", "NVCC_APPEND_FLAGS", "TORCH_CUDA_ARCH_LIST", "FLASHINFER_EXTRA_CUDAFLAGS")
SETTINGS = ("TRITON_PTXAS_PATH", "MAX_JOBS", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_ALLOC_CONF", "TVM_FFI_CUDA_ARCH_LIST")
WITHHELD = ("TRITON_CACHE_DIR", "TVM_FFI_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "LD_PRELOAD")
NOT_FOR_WORKERS = ("HTTPS_PROXY", "SSL_CERT_FILE", "EDITOR")
CACHE = Path("/cache")


def test_a_session_sees_its_device_and_this_package_and_no_secret():
    own = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TRITON_INTERPRET": "1",
        "OMP_WAIT_POLICY": "active",
        "PYTHONPATH": "/mine",
        "PATH": "/own",
    }
    on_gpu = session_environment(own | SECRETS | {"AUTHOR": "x", "EDITOR": "vi"}, GPU, interpret_triton=True)
    assert (on_gpu["CUDA_VISIBLE_DEVICES"], on_gpu["CUDA_DEVICE_ORDER"]) == ("GPU-1234", "PCI_BUS_ID")
    assert not {"TRITON_INTERPRET", "AUTHOR", *SECRETS} & on_gpu.keys()
    first, second = on_gpu["PYTHONPATH"].split(":")
    assert (Path(first) / "flashinfer_bench" / "__init__.py").is_file()
    assert (second, on_gpu["PYTHONSAFEPATH"], on_gpu["EDITOR"]) == ("/mine", "1", "vi")
    assert on_gpu["PATH"] == f"/own:{sysconfig.get_path('scripts')}"
    on_cpu = session_environment(own, CPU, interpret_triton=True)
    assert (on_cpu["CUDA_VISIBLE_DEVICES"], on_cpu["TRITON_INTERPRET"]) == ("", "1")
    assert on_cpu["OMP_WAIT_POLICY"] == "active"
    assert session_environment({}, CPU, interpret_triton=False)["OMP_WAIT_POLICY"] == "passive"


def test_a_worker_sees_only_variables_of_compilers_and_libraries():
    seen = dict.fromkeys([*COMPILERS, *SETTINGS, "PATH", "LD_LIBRARY_PATH"], "/opt/x")
    hidden = dict.fromkeys([*SECRETS, *NOT_FOR_WORKERS, *WITHHELD, "HOME", "TMPDIR", "PYTHONPATH"], "/opt/x")
    found = worker_environment(seen | hidden, CACHE)
    assert seen.items() <= found.items()
    assert not hidden.keys() & found.keys()


def test_variables_that_reach_no_solution_are_reported_by_name():
    own = dict.fromkeys((*WITHHELD, *SETTINGS, *SECRETS), "/opt/x") | {"CC": "ccache gcc", "PATH": "/bin"}
    reported = [line.split()[1] for line in tell_withheld(own)]
    assert sorted(reported) == sorted([*WITHHELD, "CC"])
    assert not tell_withheld({"HOME": "/root", "CUSTOM_CACHE_DIR": "/opt/x"})


def test_a_folder_that_torch_compile_set_itself_is_not_told_as_the_users(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # what torch sets goes when the test ends
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    set_by_torch = cache_dir_utils.cache_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == set_by_torch
    assert not tell_withheld({"TORCHINDUCTOR_CACHE_DIR": set_by_torch})
    assert tell_withheld({"TORCHINDUCTOR_CACHE_DIR": "/data/inductor"})


def test_a_trace_has_the_settings_that_may_change_what_is_computed_and_no_secret_among_them():
    secrets = {"NVIDIA_NGC_KEY": "x", "TRITON_CACHE_URL": "redis://me:word@host/0", "CUDA_PASSWD": "x", "HF_TOKEN": "x"}
    own = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TRITON_PTXAS_PATH": "/opt/ptxas", "PATH": "/bin"}
    assert (
        not secrets.keys() & worker_environment(session_environment(secrets, GPU, interpret_triton=False), CACHE).keys()
    )
    assert recorded_variables(own | secrets) == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def test_the_page_lists_the_variables_of_the_table():
    page = (Path(__file__).parents[3] / "docs" / "building.md").read_text(encoding="utf-8")
    section = page.partition("## Variables for compilers and libraries")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([A-Z][A-Z0-9_*]+|\*_[A-Z_]+)`", section))
    assert listed == {*PASSED_ON} | {*WITHHELD_PATTERNS}


@pytest.mark.parametrize(
    ("value", "is_kept"), [("sh", True), ("/bin/sh", True), ("ccache sh", False), ("/no/such/cc", False)]
)
def test_a_cc_that_is_no_program_is_withheld_from_triton_and_from_programs_that_compile_ahead(value, is_kept):
    own = {"PATH": "/bin:/usr/bin", "CC": value}
    assert ("CC" in worker_environment(own, CACHE)) == is_kept
    assert ("CC" in ahead_environment(own, GPU, CACHE)) == is_kept
