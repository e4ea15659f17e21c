"""C++ and CUDA solutions: their builds, wrong solutions, who is to blame, and which failures are stored."""

import re
from dataclasses import replace

import pytest

from flashinfer_bench.compile import (
    BuildFailure,
    BuildFault,
    BuildPool,
    BuildTarget,
    build_solution,
    building,
    find_toolchain,
    why_not_buildable,
)
from flashinfer_bench.compile.artifact import StepLimits
from flashinfer_bench.compile.build_pool import make_recipe
from flashinfer_bench.compile.cache import ArtifactCache
from tests.compile.conftest import is_quiet
from tests.kit.building_guide import read_forms
from tests.kit.make import make_solution
from tests.kit.native import EXPORT, make_native, pretend_compiler

GIB = 1 << 30
TOOLCHAIN = find_toolchain()
needs_nvcc = pytest.mark.skipif(TOOLCHAIN.cuda is None or TOOLCHAIN.tvm_ffi is None, reason="needs nvcc and tvm-ffi")
pytestmark = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")


def build(root, solution=None, *, action=None, **settings):
    """Return the outcome of a solution; with an action, of a solution whose compiler does this first."""
    if action is not None:
        root, settings["toolchain"] = root / "cache", pretend_compiler(root, action=action)
    with BuildPool(root, jobs=1, **settings) as build_pool:
        return next(build_pool.build_all([solution or make_native()]))


def left_behind(root):
    """Return the files that a failed build must not leave."""
    folders = [root / name for name in ("staging", "artifacts")]
    return {path.name for folder in folders for path in folder.rglob("*") if path.is_file()}


def on_main(then):
    """Return a script that does something when it compiles a solution, and not with our probe."""
    return f'case "$*" in *main.cpp*) {then};; esac'


def says(*words):
    return f"{'; '.join(f'echo {word!r}' for word in words)}; exit 1"


def digest(toolchain=TOOLCHAIN, target=None, **changes):
    solution = make_native(**{"headers": {"sub/a.h": "1"}, **changes})
    return make_recipe(solution, toolchain, target or BuildTarget()).digest


def test_whatever_decides_the_library_changes_its_digest_and_words_do_not():
    assert digest() == digest(name="renamed", author="bob", description="faster")
    changes = (
        {},
        {"headers": {"sub/a.h": "2"}},
        {"compile_options": {"cflags": ["-O2"]}},
        {"toolchain": replace(TOOLCHAIN, cxx=replace(TOOLCHAIN.cxx, identity="another"))},
    )
    assert len({digest(**change) for change in changes}) == len(changes)
    hopper, ampere = (BuildTarget.of([one]) for one in ((9, 0), (8, 0)))
    assert digest(target=hopper) == digest(target=ampere)
    if TOOLCHAIN.cuda is not None:
        assert digest(language="cuda", target=hopper) != digest(language="cuda", target=ampere)


def test_headers_lie_in_folders_and_flags_and_libraries_reach_the_compilers(tmp_path):
    lines = '/*\n#include "/etc/hostname"\n*/\n#include "sub/a.h"\n#include <b.h>\nstatic int a = FAST;\n'
    solution = make_native(
        main=lines + EXPORT,
        headers={"sub/a.h": '#include "../c.h"\n', "c.h": "", "inc/b.h": ""},
        compile_options={"cflags": ["-DFAST=1", "-I inc", "-std=c++20"], "ld_flags": ["-lm"]},
    )
    assert build(tmp_path, solution).error is None


def grow(letter, into, times=10):
    return f"#define {into}{f' {letter}' * times}\n"


LARGE = grow(";", "A") + grow("A", "B") + grow("B", "C") + grow("C", "D") + grow("D", "E") + grow("E", "F", 200) + "F\n"
"""Twenty million tokens, which a compiler keeps in memory."""
BROKEN = {
    "syntax": ("int a;\nint run( { }\n", r"^main\.cpp:2: error: .*\n.*exit code 1\n--- compiler output ---\nmain"),
    "entry name": (
        EXPORT.replace("ffi_run", "ffi_walk"),
        r"^error: no function 'run' is exported; export it with TVM_FFI_DLL_EXPORT_TYPED_FUNC\(run, ",
    ),
    "memory": (LARGE, r"^error: the compiler needed more than 0\.5 GiB of memory"),
    "found binding": (
        "PYBIND11_MODULE(solution, m) {}\n",
        r"^main\.cpp:1: error: .*\n.*\nbinding torch: the spec names none, and main\.cpp has PYBIND11_MODULE",
    ),
    # Printed output of a source proves nothing.
    "disk": ("#error fatal error: error writing to x.o: No space left on device\n", "No space"),
    "gpu": ("#error Instruction 'wgmma.fence' not supported on .target 'sm_80'\n", "wgmma"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_source_that_does_not_compile_is_the_solutions_fault_with_its_first_error_in_front(tmp_path, name):
    source, message = BROKEN[name]
    built = build(tmp_path, make_native(main=source), limits=StepLimits(60, GIB // 2))
    assert isinstance(built.error, BuildFailure)
    assert re.search(message, str(built.error)), str(built.error)
    assert len(str(built.error)) < 14_000
    assert left_behind(tmp_path) <= {"manifest.json", *(["solution.so"] if name == "entry name" else [])}


REFUSED = {
    "shell": (make_native(headers={"$(id).cpp": ""}), "names of files to compile"),
    "cuda": (make_native(headers={"k.cu": ""}), "its language should be cuda"),
    "empty": (make_solution(language="cpp", sources={"a.h": ""}, entry_point="a.h::run"), r"there is no \.cpp or \.cu"),
    "gch": (make_native(headers={"a.gch/any.h": ""}), "precompiled headers are no sources"),
}


@pytest.mark.parametrize(("solution", "refusal"), REFUSED.values(), ids=REFUSED)
def test_forbidden_builds_are_refused_before_any_process_starts(tmp_path, runs, solution, refusal):
    with pytest.raises(BuildFailure, match=refusal):
        build_solution(solution, tmp_path)
    assert runs.steps == []


INCLUDES = {"a macro": "#define PLACE <{}>\n#include PLACE", "up": '#include "{}"'}


@pytest.mark.parametrize("has_landlock", [True, False])
@pytest.mark.parametrize("form", INCLUDES)
def test_no_file_outside_the_sources_is_included(tmp_path, monkeypatch, form, has_landlock):
    if not has_landlock:
        runner, text = tmp_path / "runner.py", building.RUNNER.read_text()
        runner.write_text(text.replace("    confine(order", "    (order"))
        monkeypatch.setattr(building, "RUNNER", runner)
    outside = tmp_path / "outside.h"
    outside.write_text("// a secret\n")
    place = "../../../../outside.h" if form == "up" else outside
    built = build(tmp_path / "cache", make_native(main=f"{INCLUDES[form].format(place)}\n{EXPORT}"))
    assert isinstance(built.error, BuildFailure)
    assert "outside.h" in str(built.error)
    assert "a secret" not in str(built.error)
    assert ("neither a source nor part of the toolchain" in str(built.error)) or has_landlock


KERNEL = '__global__ void kernel() { asm volatile("wgmma.fence.sync.aligned;"); }\n'


@needs_nvcc
def test_a_cuda_solution_has_cpp_files_with_the_toolkits_headers_and_features_of_its_gpu(tmp_path):
    solution = make_native(
        language="cuda",
        main='#include "sub/launch.h"\n' + EXPORT.replace("{", "{ launch();"),
        headers={
            "sub/launch.h": "#pragma once\nvoid launch();\n",
            "sub/kernel.cu": f'#include "launch.h"\n{KERNEL}void launch() {{ kernel<<<1, 1>>>(); }}\n',
            "bind.cpp": "#include <cuda_fp16.h>\n",
        },
        compile_options={"cuda_cflags": ["--use_fast_math", "-rdc=true"]},
    )
    assert build(tmp_path, solution).error is None
    built = build(tmp_path, make_native(language="cuda", main=KERNEL + EXPORT), target=BuildTarget.of([(8, 0)]))
    assert isinstance(built.error, BuildFault)  # code for another GPU
    assert "sm_80" in str(built.error)


@pytest.mark.skipif(TOOLCHAIN.cuda is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-gencode", "arch=compute_80,code=sm_80"], "it is compiled for sm_80 alone; the GPU here is sm_90"),
        (["-arch=sm_80"], None),
        (["-gencode=arch=compute_80,code=compute_80", "-gencode=arch=compute_120,code=sm_120"], None),
    ],
)
def test_a_solution_that_is_compiled_for_other_gpus_alone_cannot_run_here(flags, reason):
    solution = make_native(language="cuda", compile_options={"cuda_cflags": flags})
    assert why_not_buildable(solution, TOOLCHAIN, [(9, 0)]) == reason


ELSEWHERE = says("/opt/tvm/ffi/any.h:1:1: error: no")
BLAME = {
    "broken": (says("g++: no such tool"), BuildFault, "the compiler of this machine fails on a source of ours"),
    "full": (says("fatal error: error writing to x.o: No space left on device"), BuildFault, "the disk is full"),
    "killed": ("kill -9 $$", BuildFault, "a compiler was killed"),
    "header": (f"{on_main(ELSEWHERE)}; grep -q tvm_ffi.h probe.cpp && {ELSEWHERE}", BuildFault, "/opt/tvm/ffi/any.h"),
    "template": (on_main(ELSEWHERE), BuildFailure, "/opt/tvm/ffi/any.h"),
    "endless": ("sleep 1000 & sleep 1000", BuildFailure, "still going on after 0.5 s"),
    # The solution is at fault; another machine, or this one later, may compile it.
    "memory": (on_main(says("main.cpp:1: error: x", "virtual memory exhausted")), BuildFailure, "GiB of memory"),
    "missing": (on_main(says("main.cpp:1: fatal error: gone.h: No such file or directory")), BuildFailure, "gone.h"),
    "internal": (on_main(says("main.cpp:1:1: internal compiler error: no")), BuildFailure, "internal"),
    "silent": (on_main("exit 1"), BuildFailure, "exit code 1"),
    "link": (
        'case "$*" in *-shared*) [ -e ../src/main.cpp ] && echo "ld: error: no" && exit 1;; esac',
        *(BuildFailure, "error: no"),
    ),
}


@pytest.mark.parametrize("case", BLAME)
def test_blame_is_assigned_and_only_failures_of_sources_are_stored(tmp_path, case):
    action, error, message = BLAME[case]
    built = build(tmp_path, action=action, limits=StepLimits(0.5 if case == "endless" else 60.0, GIB))
    assert type(built.error) is error
    assert message in str(built.error)
    assert len(str(built.error)) < 15_000
    assert is_quiet(tmp_path)
    assert left_behind(tmp_path / "cache") == ({"manifest.json"} if case == "template" else set())


def test_a_compiler_sees_no_file_of_ours_and_no_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    secret = tmp_path / "secret"
    secret.write_text("hush")
    built = build(tmp_path, action=f'env; cat "{secret}"; echo x > "{tmp_path}/written"; exit 1')
    if "Permission denied" not in str(built.error):
        pytest.skip("this kernel has no Landlock")
    assert "hush" not in str(built.error)
    assert not (tmp_path / "written").exists()


PLAIN = on_main(says("main.cpp:1:1: error: no"))


def test_sources_that_do_not_compile_are_remembered_by_whatever_name_until_something_changes(tmp_path):
    site = {"toolchain": pretend_compiler(tmp_path, action=PLAIN), "root": tmp_path / "cache"}
    failed = build(**site)
    again = build(solution=make_native("other", author="bob", definition="another"), **site)
    assert (failed.was_cached, again.was_cached) == (False, True)
    assert str(again.error).startswith(str(failed.error))
    assert "cache clear --failed" in str(again.error)
    for other in (make_native(main="// other\n"), make_native(compile_options={"cflags": ["-O2"]})):
        assert not build(solution=other, **site).was_cached
    assert build(tmp_path, action="").error is None  # another compiler
    cache = ArtifactCache(tmp_path / "cache")
    assert len(cache.remove(entry for entry in cache.entries() if entry.has_failed)) == 3
    assert [entry.has_failed for entry in cache.entries()] == [False]


@needs_nvcc
@pytest.mark.gpu  # only since they take a minute
@pytest.mark.parametrize("binding", ["tvm-ffi", "torch"])
def test_the_cuda_files_of_the_guide_compile(tmp_path, binding):
    sources = read_forms()["cuda", binding]
    parts = {"language": "cuda", "binding": binding, "entry_point": f"{next(iter(sources))}::run"}
    solution = make_solution("cuda", sources=sources, **parts)
    assert build(tmp_path, solution, target=BuildTarget.of([(9, 0)])).error is None
