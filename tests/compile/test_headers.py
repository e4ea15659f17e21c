"""Precompiled headers: who takes one, that every build has the same result with and without, and when one is made."""

import pytest

from flashinfer_bench.compile import BuildFarm, find_toolchain
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
    with BuildFarm(cache, jobs=jobs, toolchain=toolchain) as farm:
        return list(farm.build_all(solutions))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A cache with a precompiled header, and a toolchain whose header has another text by now, which answers "text"."""
    folder = tmp_path_factory.mktemp("headers")
    toolchain = pretend_torch(folder, f"{TEXT.replace('HERE', 'precompiled')}struct Once {{}};\n", PARTS)
    crowd = [make_torch(f"s{number}", f"{INCLUDE}{RESULT}// {number}\n") for number in range(4)]
    assert not any(one.error for one in build(folder / "cache", toolchain, crowd))
    twice = make_torch(main=f'{INCLUDE}#include "a.h"\n{RESULT}', headers={"a.h": INCLUDE})
    assert build(folder / "cache", toolchain, [twice])[0].error is None
    (toolchain.torch.home / "include" / HEADER).write_text(TEXT.replace("HERE", "text"))
    return folder / "cache", toolchain


MAINS = {
    "first": (INCLUDE, "precompiled"),
    "behind comments": (f'/* a\n */ // b\n\n  #  include "{HEADER}"\n', "precompiled"),
    "behind a header": (f"#include <cstddef>\n{INCLUDE}", "text"),
    "a macro that the header knows": (f"#define KNOWN\n{INCLUDE}", "known"),
}
SETTINGS = {
    "own headers and a macro that the header does not know": (
        {"headers": {"my_part.h": "", "sub/x.h": INCLUDE}, "compile_options": {"cflags": ["-DOTHER=1"]}},
        "precompiled",
    ),
    "a macro that it knows as a flag": ({"compile_options": {"cflags": ["-DKNOWN"]}}, "known"),
    "a macro that is taken away": ({"compile_options": {"cflags": ["-U__linux__"]}}, "text"),
    "other flags": ({"compile_options": {"cflags": ["-O1"]}}, "text"),
    "a part in a folder": (
        {"headers": {"sub/torch/part.h": "#define KNOWN\n"}, "compile_options": {"cflags": ["-I sub"]}},
        "known",
    ),
    "a header of its own": ({"headers": {HEADER: '#define ANSWER "answer: own"\n'}}, "own"),
}
CASES = {
    **{name: (make_torch(main=main + RESULT), answer) for name, (main, answer) in MAINS.items()},
    **{name: (make_torch(**settings), answer) for name, (settings, answer) in SETTINGS.items()},
}


@pytest.mark.parametrize("case", CASES)
def test_a_build_takes_the_header_precompiled_if_its_text_would_mean_the_same(shelf, case):
    solution, expected = CASES[case]
    (built,) = build(*shelf, [solution])
    assert built.error is None, built.error
    library = (built.artifact.directory / built.artifact.entry).read_bytes()
    assert library.partition(b"answer: ")[2].split(b"\0")[0].decode() == expected


def test_a_header_is_listed_with_the_builds(shelf):
    cache = ArtifactCache(shelf[0])
    (entry,) = [entry for entry in cache.entries() if entry.manifest.kind == "header"]
    assert entry.solution == f"{HEADER}.gch"
    assert cache.verify() == []


ONES = [make_torch(f"s{number}", f"{INCLUDE}// {number}\n") for number in range(5)]
COMPILE, PRECOMPILE = "compile main.cpp", f"precompile {HEADER}"
ON_HEADER = 'case "$*" in *c++-header*) {};; esac'
CROWDS = {
    "made first": ("", ONES, 2, [(PRECOMPILE, False), *[(COMPILE, True)] * 5]),
    "not in front": ("", [make_torch(f"s{n}", f"int a{n};\n{INCLUDE}") for n in range(4)], 1, [(COMPILE, False)] * 4),
    "broken": (
        ON_HEADER.format('echo "a.h:1: error: no"; exit 1'),
        ONES[:4],
        1,
        [(PRECOMPILE, False), *[(COMPILE, False)] * 4],
    ),
    "endless": (ON_HEADER.format("sleep 1000"), ONES, 2, [(PRECOMPILE, False), *[(COMPILE, False)] * 5]),
    "breaks compilers": (
        '[ -e ../headers ] && echo "x.gch: internal compiler error: no" && exit 1',
        ONES[:4],
        1,
        [(PRECOMPILE, False), *[(COMPILE, True), (COMPILE, False)] * 4],
    ),
}


@pytest.mark.parametrize("case", CROWDS)
def test_a_header_that_many_builds_want_is_made_once_and_harms_none(tmp_path, runs, case):
    action, solutions, jobs, expected = CROWDS[case]
    cache, toolchain = tmp_path / "cache", pretend_compiler(tmp_path, action=action)
    script = toolchain.cxx.path
    script.write_text(script.read_text().replace("__tvm_ffi_run", "PyInit_solution"))
    assert all(one.error is None for one in build(cache, toolchain, solutions, jobs))
    assert is_quiet(cache)
    assert not (cache / "staging").exists()
    seen = [step for step in runs.steps if step[0] in (COMPILE, PRECOMPILE)]
    if jobs > 1:  # which one begins first is chance
        assert sorted(name for name, _ in seen) == sorted(name for name, _ in expected)
        assert (seen[-1] == (COMPILE, True)) == (case == "made first")
    else:
        assert seen == expected
    assert ArtifactCache(cache).verify() == []
