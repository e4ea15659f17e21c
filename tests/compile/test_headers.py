"""Precompiled headers: who takes one, that every build has the same result with and without, and when one is made."""

from dataclasses import replace

import pytest

from flashinfer_bench.compile import BuildFailure, BuildFarm, BuildTarget, find_toolchain
from flashinfer_bench.compile.building import Build
from flashinfer_bench.compile.cache import ArtifactCache, Lease
from flashinfer_bench.compile.compilers import StepLimits
from flashinfer_bench.compile.headers import Header, begins_with, read_names
from flashinfer_bench.compile.table import make_recipe
from flashinfer_bench.sandbox import landlock
from tests.kit.native import make_native, pretend_compiler, pretend_torch, processes_in
from tests.kit.processes import wait_until_gone

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
#define ANSWER {answer}
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


def precompile(cache, recipe):
    """Make the header that a build would take; return it."""
    with Lease(cache) as lease:
        made = Build(None, recipe.header, ArtifactCache(cache), lease, StepLimits(60, 4 << 30)).run()
    return Header.of(made, recipe.header)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A cache with a precompiled header, and a toolchain whose header has another text by now, which answers "text"."""
    folder = tmp_path_factory.mktemp("headers")
    toolchain = pretend_torch(folder, TEXT.format(answer='"answer: precompiled"'), PARTS)
    precompile(folder / "cache", make_recipe(make_torch(), toolchain, BuildTarget()))
    (toolchain.torch.home / "include" / HEADER).write_text(TEXT.format(answer='"answer: text"'))
    return folder / "cache", toolchain


FITS = {
    "first": make_torch(),
    "behind comments": make_torch(main=f'/* a\n */ // b\n\n  #  include "{HEADER}"\n{RESULT}'),
    "a macro that the header does not know": make_torch(compile_options={"cflags": ["-DOTHER=1"]}),
    "own headers": make_torch(main=f'{INCLUDE}#include "part.h"\n{RESULT}', headers={"part.h": "", "sub/x.h": ""}),
}
DOES_NOT = {
    "behind code": (make_torch(main=f"int a;\n{INCLUDE}{RESULT}"), "text"),
    "behind a header": (make_torch(main=f"#include <cstddef>\n{INCLUDE}{RESULT}"), "text"),
    "a macro that the header knows": (make_torch(main=f"#define KNOWN\n{INCLUDE}{RESULT}"), "known"),
    "such a macro as a flag": (make_torch(compile_options={"cflags": ["-DKNOWN"]}), "known"),
    "a macro that is taken away": (make_torch(compile_options={"cflags": ["-U__linux__"]}), "text"),
    "other flags": (make_torch(compile_options={"cflags": ["-O1"]}), "text"),
    "a part of its own": (make_torch(headers={"torch/part.h": "#define KNOWN\n"}), "known"),
    "a part in a folder": (
        make_torch(headers={"sub/torch/part.h": "#define KNOWN\n"}, compile_options={"cflags": ["-I sub"]}),
        "known",
    ),
    "a header of its own": (make_torch(headers={HEADER: '#define ANSWER "answer: own"\n'}), "own"),
}


def answer(shelf, solution):
    """Build a solution; return which header its library was made with."""
    (built,) = build(*shelf, [solution])
    assert built.error is None, built.error
    return (built.artifact.directory / built.artifact.entry).read_bytes().partition(b"answer: ")[2].split(b"\0")[0]


@pytest.mark.parametrize("case", FITS)
def test_a_build_that_begins_with_the_header_takes_it_precompiled(shelf, case):
    assert answer(shelf, FITS[case]) == b"precompiled"


@pytest.mark.parametrize("case", DOES_NOT)
def test_a_build_for_which_the_header_would_mean_something_else_reads_its_text(shelf, case):
    solution, expected = DOES_NOT[case]
    assert answer(shelf, solution) == expected.encode()


def test_a_file_may_include_the_header_a_second_time(tmp_path):
    text = TEXT.format(answer='"answer: precompiled"').replace("#pragma once", "#pragma once\nstruct Once {};")
    toolchain = pretend_torch(tmp_path, text, PARTS)
    solution = make_torch(main=f'{INCLUDE}#include "a.h"\n{RESULT}', headers={"a.h": INCLUDE})
    assert precompile(tmp_path / "cache", make_recipe(solution, toolchain, BuildTarget())) is not None
    assert answer((tmp_path / "cache", toolchain), solution) == b"precompiled"


def test_a_header_is_listed_with_the_builds_and_is_no_part_of_their_digests(shelf):
    cache, toolchain = shelf
    (header,) = [entry for entry in ArtifactCache(cache).entries() if entry.manifest.kind == "header"]
    assert header.manifest.solution == f"{HEADER}.gch"
    assert header.digest == make_recipe(make_torch(), toolchain, BuildTarget()).header.digest
    assert ArtifactCache(cache).verify() == []


def test_a_header_that_was_changed_is_not_taken(tmp_path):
    toolchain = pretend_torch(tmp_path, TEXT.format(answer='"answer: text"'), PARTS)
    recipe = make_recipe(make_torch(), toolchain, BuildTarget())
    header = precompile(tmp_path / "cache", recipe)
    assert header.fits(recipe)
    header.file.write_bytes(b"something else")
    assert not header.fits(recipe)


ONES = [make_torch(f"s{number}", f"{INCLUDE}// {number}\n") for number in range(5)]
COMPILE, PRECOMPILE = "compile main.cpp", f"precompile {HEADER}"


def pretend(folder, action=""):
    """Return a toolchain whose compiler makes a library that exports torch's symbol, by a script."""
    toolchain = pretend_compiler(folder, action=action)
    script = toolchain.cxx.path
    script.write_text(script.read_text().replace("__tvm_ffi_run", "PyInit_solution"))
    return toolchain


def seen(runs):
    """Return the first command of every process that ran compilers, and whether it found a precompiled header."""
    return [(names[0], takes) for names, takes in zip(runs.steps, runs.takes_header, strict=True)]


def test_a_header_that_many_builds_want_is_made_beside_them_and_taken_by_those_that_begin_later(tmp_path, runs):
    toolchain = pretend(tmp_path)
    assert all(one.error is None for one in build(tmp_path / "cache", toolchain, ONES, jobs=2))
    assert set(seen(runs)[:2]) == {(PRECOMPILE, False), (COMPILE, False)}
    assert sum(name == PRECOMPILE for name, _ in seen(runs)) == 1
    assert seen(runs)[-1] == (COMPILE, True)
    build(tmp_path / "cache", toolchain, [make_torch()])
    assert seen(runs)[-1] == (COMPILE, True)


@pytest.mark.parametrize(
    "solutions", [ONES[:3], [make_torch(f"s{n}", f"int a{n};\n{INCLUDE}") for n in range(4)]], ids=["few", "not first"]
)
def test_no_header_is_made_where_it_would_save_nothing(tmp_path, runs, solutions):
    build(tmp_path / "cache", pretend(tmp_path), solutions)
    assert {name for name, _ in seen(runs)} == {COMPILE}


def test_where_the_header_cannot_be_precompiled_every_build_reads_its_text(tmp_path, runs):
    toolchain = pretend(tmp_path, 'case "$*" in *c++-header*) echo "a.h:1: error: no"; exit 1;; esac')
    assert all(one.error is None for one in build(tmp_path / "cache", toolchain, ONES[:4]))
    assert seen(runs) == [(PRECOMPILE, False)] + [(COMPILE, False)] * 4


def test_a_header_that_takes_too_long_holds_nobody_up_and_is_given_up_after_the_last_build(tmp_path, runs):
    cache, toolchain = tmp_path / "cache", pretend(tmp_path, 'case "$*" in *c++-header*) sleep 1000;; esac')
    with BuildFarm(cache, jobs=2, toolchain=toolchain) as farm:
        assert all(one.error is None for one in farm.build_all(ONES))
        assert wait_until_gone(lambda: processes_in(cache)) == []
        assert not list((cache / "staging").iterdir())
    assert sorted(seen(runs)) == [(COMPILE, False)] * 5 + [(PRECOMPILE, False)]


def test_a_compiler_that_breaks_down_over_a_header_reads_its_text_instead(tmp_path, runs):
    action = '[ -e ../headers ] && echo "x.gch: internal compiler error: no" && exit 1'
    assert all(one.error is None for one in build(tmp_path / "cache", pretend(tmp_path, action), ONES[:4]))
    assert seen(runs)[-2:] == [(COMPILE, True), (COMPILE, False)]


@pytest.mark.skipif(landlock.version() < 1, reason="needs Landlock")
def test_compilers_cannot_write_to_a_header(tmp_path, runs):
    toolchain = pretend(tmp_path, 'for f in ../headers/torch/*.gch; do [ -e "$f" ] && echo bad >> "$f"; done; true')
    build(tmp_path / "cache", toolchain, ONES[:4])
    assert seen(runs)[-1] == (COMPILE, True)
    assert ArtifactCache(tmp_path / "cache").verify() == []


@pytest.mark.parametrize("path", [f"{HEADER}.gch", f"{HEADER}.gch/any.h"])
def test_a_solution_brings_no_precompiled_header_of_its_own(path):
    with pytest.raises(BuildFailure, match="precompiled headers are no sources"):
        make_recipe(make_torch(headers={path: ""}), TOOLCHAIN, BuildTarget())


FOLLOW_NOT, FOLLOW = "-fno-devirtualize", "-fdevirtualize"


def commands_of(toolchain, **settings):
    """Return the commands that compile a CUDA solution and its bindings: nvcc's, and g++'s."""
    options = {"cflags": [FOLLOW], "cuda_cflags": ["-Xcompiler", FOLLOW]}
    made = make_native(language="cuda", headers={"bind.cpp": INCLUDE}, compile_options=options, **settings)
    return [step.argv for step in make_recipe(made, toolchain, BuildTarget()).stages[0]]


@pytest.mark.skipif(TOOLCHAIN.cuda is None, reason="needs nvcc")
def test_over_torchs_headers_gpp_follows_no_virtual_calls_unless_a_solution_wants_it(tmp_path):
    toolchain = pretend_torch(tmp_path, "")
    nvcc, cxx = commands_of(toolchain, binding="torch")
    assert nvcc[nvcc.index(FOLLOW_NOT) - 1] == "-Xcompiler"
    assert all(command.index(FOLLOW_NOT) < command.index(FOLLOW) for command in (nvcc, cxx))
    assert [sum("ggc-min-expand" in word for word in command) for command in (nvcc, cxx)] == [0, 1]
    assert all(FOLLOW_NOT not in command for command in commands_of(toolchain))  # tvm-ffi's headers are short


@pytest.mark.skipif(TOOLCHAIN.cuda is None, reason="needs nvcc")
def test_clang_gets_no_flags_that_gpp_alone_knows(tmp_path):
    toolchain = pretend_torch(tmp_path, "")
    clang = toolchain.cxx.path.with_name("clang++")
    toolchain = replace(toolchain, cxx=replace(toolchain.cxx, path=clang))
    words = [word for command in commands_of(toolchain, binding="torch") for word in command]
    assert str(clang) in words
    assert not any(word == FOLLOW_NOT or "ggc" in word for word in words)


@pytest.mark.parametrize(
    ("source", "does"),
    [
        (INCLUDE, True),
        ('/**/ # include\t"torch/extension.h" // x', True),
        ("// a", False),
        ("/* never ends " + INCLUDE, False),
        ("#pragma once\n" + INCLUDE, False),
        ("#include <torch/extension.hpp>", False),
        ("", False),
    ],
)
def test_comments_may_stand_before_the_first_include(source, does):
    assert begins_with(source.encode(), HEADER) is does


def test_a_file_bears_the_name_by_which_it_was_included(tmp_path):
    listing = tmp_path / "read.d"
    listing.write_text("x.gch: /t/include/torch/a.h \\\n /t/include/torch/api/../b.h /usr/include/c++/12/cmath\n")
    expected = {"torch/a.h", "torch/b.h", "cmath", "12/cmath", "c++/12/cmath", "include/c++/12/cmath"}
    assert read_names(listing, ["/t/include"]) == expected | {"usr/include/c++/12/cmath"}
