"""A machine with nvcc and without some of the toolkit's libraries: the solution is skipped, and not blamed."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from flashinfer_bench.compile import BuildFarm, BuildFault, BuildTarget, find_toolchain, why_not_buildable
from flashinfer_bench.compile.toolchain import CudaToolkit, TorchFiles, find_cxx
from flashinfer_bench.compile.toolkit import (
    LIBRARIES,
    describe_missing,
    find_lacked,
    find_missing_headers,
    is_in,
    read_includes,
    toolkit_includes,
)
from tests.kit.native import EXPORT, make_native

TOOLCHAIN = find_toolchain()
LACK = (
    "cusparse.h of the CUDA toolkit's cusparse is not installed; "
    "try: pip install nvidia-cusparse-cu12, or apt-get install libcusparse-dev-12-8"
)
CONTEXT = "// words\n#pragma once\n#include <ATen/cuda/CUDAContextLight.h>\n"
LIGHT = (
    "#if !defined(TORCH_STABLE_ONLY)\n#pragma once\n#include <cusparse.h>\n"
    "#ifdef USE_SOLVER\n#include <cusolverDn.h>\n#endif\n#else\n#error\n#endif\n"
)


@pytest.fixture
def here(tmp_path):
    """A toolchain whose toolkit has headers of cuBLAS alone, and whose torch needs cuSPARSE."""
    files = {
        "toolkit/include/cublas_v2.h": "",
        "torch/outside.h": "#include <cusparse.h>\n",
        "torch/include/ATen/cuda/CUDAContext.h": CONTEXT,
        "torch/include/ATen/cuda/CUDAContextLight.h": LIGHT,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    compiler = find_cxx({"CXX": "/bin/sh"})
    assert compiler is not None
    torch = TorchFiles(tmp_path / "torch", "2.9", 17, has_new_abi=True, has_cuda=True)
    return replace(TOOLCHAIN, cuda=CudaToolkit(tmp_path / "toolkit", compiler, (12, 8)), torch=torch)


INCLUDED = {
    "itself": ("#include <cusparse.h>\n", [LACK]),
    "through torch": ("#include <ATen/cuda/CUDAContext.h>\n", [LACK]),
    "what is there": ("#include <cublas_v2.h>\n#include <cstdio>\n", []),
    "under a condition": ("#if __has_include(<cusparse.h>)\n#include <cusparse.h>\n#endif\n", []),
    "in a comment": ("// #include <cusparse.h>\n/*\n#include <curand.h>\n*/\n", []),
    "outside": ("#include <ATen/cuda/../../../outside.h>\n#include <cub/../cusparse.h>\n#include </cusparse.h>\n", []),
    "what nobody knows": ("#include <my_cusparse.h>\n", []),
}


@pytest.mark.parametrize(("text", "lines"), INCLUDED.values(), ids=INCLUDED)
def test_a_header_that_every_machine_needs_is_missing(here, text, lines):
    assert find_missing_headers({"main.cu": text}, here) == lines


def test_a_header_among_the_sources_and_one_of_a_pip_package_are_there(here, tmp_path):
    wants = {"main.cu": "#include <cusparse.h>\n"}
    assert find_missing_headers({**wants, "include/cusparse.h": ""}, here) == []
    packages = (tmp_path / "nvidia" / "cusparse",)
    (packages[0] / "include").mkdir(parents=True)
    (packages[0] / "include" / "cusparse.h").touch()
    assert find_missing_headers(wants, replace(here, nvidia_packages=packages)) == []
    assert toolkit_includes(here.cuda, packages) == [here.cuda.include, packages[0] / "include"]


def test_a_guard_is_no_condition():
    text = "#ifndef A_H\n#define A_H\n#include <a.h>\n#ifndef B\n#include <b.h>\n#endif\n#include <c.h>\n#endif\n"
    assert list(read_includes(text)) == ["a.h", "c.h"]


def test_each_library_is_named_with_its_packages():
    for library in LIBRARIES:
        assert f"pip install {library.pip.format('')}," in describe_missing(library.headers[0], (13, 0))
        assert library.apt.format("-13-0") in describe_missing(library.name, (13, 0))


@pytest.mark.parametrize(
    ("output", "lacks"),
    [
        ("a.cuh:3:10: fatal error: cusparse.h: No such file or directory", LACK),
        ('a.cu(1): catastrophic error: cannot open source file "cusparse.h"', LACK),
        (
            "/usr/bin/ld: cannot find -lcusparse: No such file or directory",
            LACK.replace("cusparse.h of", "cusparse of"),
        ),
        ("a.cu:1:10: fatal error: mine.h: No such file or directory", None),
        ("/usr/bin/ld: cannot find -lmine", None),
        ('/usr/bin/ld: a.o: undefined reference to `"cannot find -lcusparse"', None),
    ],
)
def test_what_a_compiler_lacked_is_read_off_its_output(output, lacks):
    found = find_lacked(output)
    assert (describe_missing(found, (12, 8)) if found else None) == lacks


@pytest.mark.skipif(TOOLCHAIN.cuda is None or TOOLCHAIN.tvm_ffi is None, reason="needs nvcc and tvm-ffi")
def test_a_missing_header_of_the_toolkit_is_the_machines_fault(tmp_path):
    assert TOOLCHAIN.cuda is not None
    if is_in("cusparse.h", toolkit_includes(TOOLCHAIN.cuda, TOOLCHAIN.nvidia_packages)):
        pytest.skip("cuSPARSE is installed")
    direct = make_native(main=f"#include <cusparse.h>\n{EXPORT}", language="cuda")
    assert "nvidia-cusparse" in (why_not_buildable(direct, TOOLCHAIN, BuildTarget()) or "")
    hidden = make_native(main=f"#if 1\n#include <cusparse.h>\n#endif\n{EXPORT}", language="cuda")
    assert why_not_buildable(hidden, TOOLCHAIN, BuildTarget()) is None
    with BuildFarm(tmp_path, jobs=1) as farm:
        built = next(farm.build_all([hidden]))
    assert isinstance(built.error, BuildFault)
    assert "cusparse.h of the CUDA toolkit's cusparse is not installed" in str(built.error)


@pytest.mark.parametrize("abi", [0, 1])
def test_the_abi_of_an_old_torch_is_read_where_that_writes_it(tmp_path, abi):
    home = tmp_path / "torch"
    for path, text in {
        "__init__.py": "",
        "include/torch/extension.h": "",
        "share/cmake/Torch/TorchConfig.cmake": f'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI={abi}")',
    }.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    code = "from flashinfer_bench.compile import find_toolchain; print(int(find_toolchain().torch.has_new_abi))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == str(abi)
