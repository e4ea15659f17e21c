"""What a solution says it depends on, held against what is installed."""

import pytest

from flashinfer_bench.compile import Toolchain
from flashinfer_bench.compile.dependencies import cutlass_includes, find_missing, installed_version, wants_cutlass
from flashinfer_bench.compile.toolchain import Compiler, CudaToolkit

INSTALLED = {"triton": "3.2.1+git", "torch": "2.11.0+cu130", "flashinfer-python": "0.6.1", "odd": ""}
NOTHING = Toolchain(None, None, None, None, None)


def missing(text, language="python", toolchain=NOTHING, environment=None):
    """Return why a dependency is not met."""
    found = find_missing([text], language, toolchain, versions=INSTALLED.get, environment=environment or {})
    return found[0] if found else None


@pytest.mark.parametrize(
    "text",
    ["triton >= 2.3", "triton", "torch>=2.6,<3", "pytorch", "flashinfer ~= 0.6", "Torch==2.11.0", "odd >= 9"],
)
def test_what_is_installed_is_met(text):
    assert missing(text) is None


@pytest.mark.parametrize("text", ["", "C++17", "any recent driver", "gcc", "cmake >= 3", "x; python_version < '3'"])
def test_what_is_no_package_is_left_alone(text):
    assert missing(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("triton >= 99", "it needs triton>=99, and 3.2.1+git is installed; try: pip install 'triton>=99'"),
        ("tilelang", "which is not installed; try: pip install 'tilelang'"),
        ("cutlass", "pip install 'nvidia-cutlass-dsl'"),
        ("python >= 99", "run it with that Python"),
        ("cuda >= 12.8", "install the CUDA toolkit, or set CUDA_HOME"),
    ],
)
def test_what_is_missing_or_too_old_says_what_to_install(text, words):
    assert words in missing(text)


def test_cutlass_is_headers_to_compiled_solutions(tmp_path):
    header = tmp_path / "include" / "cutlass" / "cutlass.h"
    assert "set CUTLASS_PATH" in missing("cutlass", "cuda", environment={"CUTLASS_PATH": str(tmp_path)})
    header.parent.mkdir(parents=True)
    header.touch()
    assert missing("CUTLASS", "cuda", environment={"CUTLASS_PATH": str(tmp_path)}) is None
    assert cutlass_includes({"CUTLASS_PATH": str(tmp_path)}) == [tmp_path / "include"]
    assert wants_cutlass(["torch", "cutlass >= 3"])
    assert not wants_cutlass(["torch", "cutlass is nice"])


def test_the_toolkits_libraries_are_looked_for_where_the_toolkit_is(tmp_path):
    compiler = Compiler(tmp_path / "nvcc", "1")
    toolchain = Toolchain(compiler, CudaToolkit(tmp_path, compiler, (13, 0)), None, None, None)
    assert missing("cuda >= 12.8", "cuda", toolchain) is None
    assert "13.0 is installed" in missing("cuda == 12.*", "cuda", toolchain)
    assert "CUDA toolkit" in missing("cublas", "cuda", toolchain)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cublas_v2.h").touch()
    assert missing("cublas", "cuda", toolchain) is None


def test_versions_are_those_of_the_installed_packages():
    assert installed_version("pytest")
    assert installed_version("json") == ""
    assert installed_version("no-such-package-at-all") is None
