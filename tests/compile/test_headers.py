"""Precompiled headers: every build has the same result with and without, and one that fails harms no build."""

import pytest

from flashinfer_bench.compile import BuildPool, find_toolchain
from flashinfer_bench.compile.cache import ArtifactCache
from tests.compile.conftest import is_quiet
from tests.kit.native import make_native, pretend_compiler, pretend_torch

TOOLCHAIN = find_toolchain()
pytestmark = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")
HEADER = "torch/extension.h"
INCLUDE = f"#include <{HEADER}>\n"
RESULT = 'extern "C" const char PyInit_solution[] = ANSWER;\n'
TEXT = """#pragma once
#include <torch/part.h>
#ifdef KNOWN
#define ANSWER "answer: known"
#else
#define ANSWER "answer: HERE"
#endif
"""
PARTS = {"torch/part.h": "#pragma once\ninline int part() { return 1; }\n"}


def make_torch(name="one", main=INCLUDE + RESULT, **settings):
    """Make a C++ solution with torch's binding."""
    return make_native(name, main=main, binding="torch", **settings)


def build(cache, toolchain, solutions, jobs=1):
    """Build solutions, and return the outcomes."""
    with BuildPool(cache, jobs=jobs, toolchain=toolchain) as build_pool:
        return list(build_pool.build_all(solutions))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cache with a precompiled header, and a toolchain whose header has another text by now, which answers "text"."""
    folder = tmp_path_factory.mktemp("headers")
    toolchain = pretend_torch(folder, f"{TEXT.replace('HERE', 'precompiled')}struct Once {{}};\n", PARTS)
    crowd = [make_torch(f"s{number}", f"{INCLUDE}{RESULT}// {number}\n") for number in range(4)]
    twice = make_torch(main=f'{INCLUDE}#include "a.h"\n{RESULT}', headers={"a.h": INCLUDE})
    assert not any(one.error for one in build(folder / "cache", toolchain, [*crowd, twice]))
    (toolchain.torch.home / "include" / HEADER).write_text(TEXT.replace("HERE", "text"))
    return folder / "cache", toolchain


def flags(text):
    return {"compile_options": {"cflags": [text]}}


CASES = {
    "first": (make_torch(), "precompiled"),
    "behind comments": (make_torch(main=f'/* a\n */ // b\n\n  #  include "{HEADER}"\n{RESULT}'), "precompiled"),
    "a known macro": (make_torch(main=f"#define KNOWN\n{INCLUDE}{RESULT}"), "known"),
    "a known macro as a flag": (make_torch(**flags("-DKNOWN")), "known"),
    "other flags": (make_torch(**flags("-O1")), "text"),
    "a part in a folder": (make_torch(headers={"sub/torch/part.h": "#define KNOWN\n"}, **flags("-I sub")), "known"),
    "its own header": (make_torch(headers={HEADER: '#define ANSWER "answer: own"\n'}), "own"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_build_takes_the_header_precompiled_if_its_text_would_mean_the_same(made, case):
    solution, expected = CASES[case]
    (built,) = build(*made, [solution])
    assert built.error is None, built.error
    library = (built.artifact.directory / built.artifact.entry).read_bytes()
    assert library.partition(b"answer: ")[2].split(b"\0")[0].decode() == expected


ONES = [make_torch(f"s{number}", f"{INCLUDE}// {number}\n") for number in range(5)]
COMPILE, PRECOMPILE = "compile main.cpp", f"precompile {HEADER}"
ON_HEADER = 'case "$*" in *c++-header*) {};; esac'
CROWDS = {
    "whole": ("", 2, [True] * 5),
    "broken": (ON_HEADER.format('echo "a.h:1: error: no"; exit 1'), 1, [False] * 5),
    "breaks compilers": (
        '[ -e ../headers ] && echo "x.gch: internal compiler error: no" && exit 1',
        1,
        [True, False] * 5,
    ),
}


@pytest.mark.parametrize("case", CROWDS)
def test_a_header_of_many_builds_is_made_once_and_harms_no_build(tmp_path, runs, case):
    action, jobs, takes = CROWDS[case]
    cache, toolchain = tmp_path / "cache", pretend_compiler(tmp_path, action=action)
    script = toolchain.cxx.path
    script.write_text(script.read_text().replace("__tvm_ffi_run", "PyInit_solution"))
    assert all(one.error is None for one in build(cache, toolchain, ONES, jobs))
    assert is_quiet(cache)
    assert [name for name, _ in runs.steps].count(PRECOMPILE) == 1
    seen = [took for name, took in runs.steps if name == COMPILE]
    assert seen == takes if jobs == 1 else (seen[-1], len(seen)) == (takes[-1], 5)  # which one begins first is chance
    assert ArtifactCache(cache).verify() == []
