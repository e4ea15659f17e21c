"""C++ and CUDA solutions: what is built from what, wrong ones, and whose fault it is."""

import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from pydantic import ValidationError

from flashinfer_bench.compile import (
    BuildFailure,
    BuildFarm,
    BuildFault,
    BuildTarget,
    build_solution,
    compilers,
    find_toolchain,
    why_not_buildable,
)
from flashinfer_bench.compile.compilers import StepLimits
from flashinfer_bench.compile.table import make_recipe
from flashinfer_bench.compile.toolkit import LIBRARIES, is_in, toolkit_includes
from tests.kit.make import make_solution
from tests.kit.native import EXPORT, make_native, pretend_compiler, processes_in
from tests.kit.processes import wait_until_gone

GIB = 1 << 30
TOOLCHAIN = find_toolchain()
needs_cxx = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")
needs_nvcc = pytest.mark.skipif(TOOLCHAIN.cuda is None or TOOLCHAIN.tvm_ffi is None, reason="needs nvcc and tvm-ffi")
pytestmark = needs_cxx


def build(root, solution, **settings):
    """Return what became of a solution."""
    with BuildFarm(root, jobs=1, **settings) as farm:
        return next(farm.build_all([solution]))


def left_behind(root):
    """Return what a build that failed may not leave."""
    folders = [root / "staging", root / "locks", root / "leases", root / "artifacts"]
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def test_a_library_is_compiled_once_and_the_second_time_no_compiler_is_started(tmp_path, runs):
    first = build(tmp_path, make_native())
    again = build(tmp_path, make_native("other_name", description="other words"))
    assert (first.artifact.kind, first.artifact.entry, first.artifact.symbol) == ("tvm-ffi", "solution.so", "run")
    assert runs.steps == [["compile main.cpp", "link"]]
    assert (first.was_cached, again.was_cached) == (False, True)
    assert again.artifact == first.artifact


def digest(toolchain=TOOLCHAIN, target=None, **changes):
    return make_recipe(
        make_native(**{"headers": {"sub/a.h": "1"}, **changes}), toolchain, target or BuildTarget()
    ).digest


def test_whatever_decides_the_library_changes_its_digest_and_words_do_not():
    assert digest() == digest(name="renamed", author="bob", description="faster")
    others = [
        digest(headers={"sub/a.h": "2"}),
        digest(main=EXPORT + "\n"),
        digest(compile_options={"cflags": ["-O2"]}),
        digest(compile_options={"ld_flags": ["-lm"]}),
        digest(toolchain=replace(TOOLCHAIN, cxx=replace(TOOLCHAIN.cxx, identity="another"))),
        digest(toolchain=replace(TOOLCHAIN, tvm_ffi=replace(TOOLCHAIN.tvm_ffi, version="0.0"))),
    ]
    assert len({digest(), *others}) == 1 + len(others)


@needs_nvcc
def test_the_architecture_is_part_of_what_a_cuda_library_is_made_from():
    hopper, ampere = (digest(language="cuda", target=BuildTarget.of([one])) for one in ((9, 0), (8, 0)))
    assert hopper != ampere
    assert digest(target=BuildTarget.of([(9, 0)])) == digest(target=BuildTarget.of([(8, 0)]))


def test_headers_lie_in_folders_and_flags_and_libraries_reach_the_compilers(tmp_path):
    solution = make_native(
        main='#include "sub/a.h"\n#include <b.h>\n#include <cmath>\n#ifndef FAST\n#error no flag\n#endif\n' + EXPORT,
        headers={"sub/a.h": '#include "../c.h"\n', "c.h": "", "inc/b.h": ""},
        compile_options={"cflags": ["-DFAST=1", "-I inc", "-std=c++20"], "ld_flags": ["-lm"]},
    )
    assert build(tmp_path, solution).error is None


def grow(letter, into, times=10):
    return f"#define {into}{f' {letter}' * times}\n"


LARGE = grow(";", "A") + grow("A", "B") + grow("B", "C") + grow("C", "D") + grow("D", "E") + grow("E", "F", 200) + "F\n"
"""Twenty million tokens, all of which a compiler keeps in memory."""
TWINS = {
    "syntax": ("int a;\nint run( { }\n", r"^main\.cpp:2: error: .*\n.*exit code 1\n--- compiler output ---\nmain"),
    "link": ("void gone();\n" + EXPORT.replace("{", "{ gone();"), "undefined reference to `gone"),
    "duplicate": (EXPORT + EXPORT, "redefinition"),
    "entry name": (
        EXPORT.replace("ffi_run", "ffi_walk"),
        r"it has: walk; export it with TVM_FFI_DLL_EXPORT_TYPED_FUNC\(run, ",
    ),
    "template recursion": ("template<int N> struct A { A<N + 1> a; };\nA<0> a;\n", r"^main\.cpp:1: .*depth exceeds"),
    "missing header": ('#include "gone.h"\n', r"^main\.cpp:1: error: gone\.h: No such file"),
    "include itself": ('#include "main.cpp"\n', "#include nested depth"),
    "memory": (LARGE, r"^error: the compiler needed more than 0\.5 GiB of memory"),
    "error that is not English": ("#error \u00e4\u4e2d\n", "\u4e2d"),
    "many errors": ("x;\n" * 1000, r"compilation terminated due to -fmax-errors"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_what_does_not_compile_is_the_solutions_fault_with_the_first_error_first(tmp_path, twin):
    source, message = TWINS[twin]
    built = build(tmp_path, make_native(main=source), limits=StepLimits(60, GIB // 2))
    assert isinstance(built.error, BuildFailure)
    assert built.artifact is None
    assert re.search(message, str(built.error)), str(built.error)
    assert len(str(built.error)) < 14_000
    left = {path.name for path in left_behind(tmp_path)}
    assert left <= ({"manifest.json", "solution.so"} if twin == "entry name" else {"manifest.json"})


def test_a_binding_that_was_found_in_the_sources_stands_in_the_log(tmp_path):
    built = build(tmp_path, make_native(main="PYBIND11_MODULE(solution, m) {}\n"))
    first, ended, note, *_ = str(built.error).splitlines()
    assert first.startswith("main.cpp:1: error: ")
    assert ended.startswith("compile main.cpp")
    assert note == "binding torch: the spec names none, and main.cpp has PYBIND11_MODULE"


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ('#include "/etc/hostname"', r"main\.cpp:2: error: #include \"/etc/hostname\" is a path outside the sources"),
        ("  #  include </etc/hostname>", "outside the sources"),
        ('#include "../secret.h"', r"\.\./secret\.h"),
        ('#include "sub/../../secret.h"', "outside the sources"),
        ('asm(".incbin \\"/etc/hostname\\"");', r"main\.cpp:2: error: \.incbin"),
    ],
)
def test_a_path_outside_the_sources_is_refused_before_anything_is_started(tmp_path, runs, line, refusal):
    with pytest.raises(BuildFailure, match=refusal):
        build_solution(make_native(main=f"// a comment\n{line}\n"), tmp_path)
    assert runs.steps == []


@pytest.mark.parametrize("has_landlock", [True, False], ids=["landlock", "no landlock"])
def test_a_path_that_a_macro_hides_is_found_out_too(tmp_path, monkeypatch, has_landlock):
    if not has_landlock:
        runner = tmp_path / "runner.py"
        text = compilers.RUNNER.read_text()
        assert "LANDLOCK_RESTRICT_SELF = 444, 445, 446" in text
        runner.write_text(text.replace("444, 445, 446", "9999, 9999, 9999"))
        monkeypatch.setattr(compilers, "RUNNER", runner)
    outside = tmp_path / "outside.h"
    outside.write_text("// a secret\n")
    built = build(tmp_path / "cache", make_native(main=f"#define PLACE <{outside}>\n#include PLACE\n{EXPORT}"))
    assert isinstance(built.error, BuildFailure)
    assert "outside.h" in str(built.error)
    assert "a secret" not in str(built.error)
    assert ("neither a source nor part of the toolchain" in str(built.error)) or has_landlock


def test_what_stands_in_a_comment_is_not_refused(tmp_path):
    assert build(tmp_path, make_native(main=f'/*\n#include "/etc/hostname"\n*/\n{EXPORT}')).error is None


@pytest.mark.parametrize("path", ["../main.cpp", "/main.cpp", "a/../../main.cpp"])
def test_a_source_path_that_leaves_its_folder_is_no_solution(path):
    with pytest.raises(ValidationError, match=r"'\.\.'|absolute"):
        make_native(headers={path: ""})


def test_a_name_that_a_shell_would_run_is_refused(tmp_path):
    with pytest.raises(BuildFailure, match="names of files to compile"):
        build_solution(make_native(headers={"$(id).cpp": ""}), tmp_path)


def test_cuda_code_in_a_cpp_solution_and_a_solution_without_code_are_refused(tmp_path):
    with pytest.raises(BuildFailure, match="its language should be cuda"):
        build_solution(make_native(headers={"k.cu": ""}), tmp_path)
    only_header = make_solution(language="cpp", sources={"a.h": ""}, entry_point="a.h::run")
    with pytest.raises(BuildFailure, match=r"there is no \.cpp or \.cu file"):
        build_solution(only_header, tmp_path)


@needs_nvcc
def test_a_cuda_solution_has_cpp_files_with_the_toolkits_headers_and_features_of_its_gpu(tmp_path):
    launch = "void launch() { kernel<<<1, 1>>>(); }\n"
    kernel = '__global__ void kernel() { asm volatile("wgmma.fence.sync.aligned;"); }\n'
    solution = make_native(
        language="cuda",
        main='#include "sub/launch.h"\n' + EXPORT.replace("{", "{ launch();"),
        headers={
            "sub/launch.h": "#pragma once\nvoid launch();\n",
            "sub/kernel.cu": '#include "launch.h"\n' + kernel + launch,
            "bind.cpp": "#include <cuda_fp16.h>\n",
        },
        compile_options={"cuda_cflags": ["--use_fast_math", "-rdc=true"]},
    )
    assert build(tmp_path, solution).error is None


@needs_nvcc
def test_code_for_another_gpu_is_the_machines_lack_not_the_solutions_fault(tmp_path):
    kernel = '__global__ void kernel() { asm volatile("wgmma.fence.sync.aligned;"); }\n'
    solution = make_native(language="cuda", main=kernel + EXPORT)
    built = build(tmp_path, solution, target=BuildTarget.of([(8, 0)]))
    assert isinstance(built.error, BuildFault)
    assert "sm_80" in str(built.error)


@pytest.mark.skipif(TOOLCHAIN.cuda is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-gencode=arch=compute_100a,code=sm_100a"], "it is compiled for sm_100a alone; the GPU here is sm_90"),
        (["-gencode", "arch=compute_80,code=sm_80"], "sm_80 alone"),
        (["-arch=sm_80"], None),
        (["-gencode=arch=compute_80,code=compute_80", "-gencode=arch=compute_120,code=sm_120"], None),
        (["-arch=native"], None),
        ([], None),
    ],
)
def test_a_solution_that_is_compiled_for_other_gpus_alone_cannot_run_here(flags, reason):
    solution = make_native(language="cuda", compile_options={"cuda_cflags": flags})
    found = why_not_buildable(solution, TOOLCHAIN, BuildTarget.of([(9, 0)]), [(9, 0)])
    assert found == reason or (reason is not None and found is not None and reason in found)


def test_a_compiler_that_does_not_work_is_the_machines_fault(tmp_path):
    toolchain = pretend_compiler(tmp_path, action="echo 'g++: no such tool'; exit 1")
    built = build(tmp_path / "cache", make_native(), toolchain=toolchain)
    assert isinstance(built.error, BuildFault)
    assert "the compiler of this machine fails on a source of ours" in str(built.error)


@pytest.mark.parametrize(
    ("broken", "error"), [("*", BuildFault), ("nowhere", BuildFailure)], ids=["header", "template"]
)
def test_an_error_in_a_header_of_the_binding_is_the_machines_if_our_source_meets_it_too(tmp_path, broken, error):
    says = 'echo "/opt/tvm/ffi/any.h:1:1: error: no"; exit 1'
    ours = f"grep -q tvm_ffi.h probe.cpp && case x in {broken}) {says};; esac"
    toolchain = pretend_compiler(tmp_path, action=f'case "$*" in *main.cpp*) {says};; *probe.cpp*) {ours};; esac')
    with BuildFarm(tmp_path / "cache", toolchain=toolchain) as farm:
        assert type(next(farm.build_all([make_native()])).error) is error


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("echo 'fatal error: error writing to x.o: No space left on device'; exit 1", "the disk is full"),
        ("kill -9 $$", "a compiler was killed"),
    ],
    ids=["disk", "killed"],
)
def test_a_full_disk_and_a_killed_compiler_are_the_machines_fault(tmp_path, action, message):
    built = build(tmp_path / "cache", make_native(), toolchain=pretend_compiler(tmp_path, action=action))
    assert isinstance(built.error, BuildFault)
    assert message in str(built.error)
    assert left_behind(tmp_path / "cache") == []


@pytest.mark.parametrize(
    "words",
    [
        "#error Killed",
        'static_assert(false, "x\\ng++: fatal error: Killed signal terminated program cc1plus");',
        "#error fatal error: error writing to x.o: No space left on device",
        "#error Instruction 'wgmma.fence' not supported on .target 'sm_80'",
    ],
)
def test_a_source_that_has_the_words_of_a_broken_machine_printed_is_to_blame(tmp_path, words):
    built = build(tmp_path, make_native(main=f"{words}\n{EXPORT}"))
    assert isinstance(built.error, BuildFailure)


@pytest.mark.skipif(TOOLCHAIN.cuda is None, reason="needs nvcc")
def test_a_header_of_the_toolkit_that_only_words_miss_is_there(tmp_path):
    folders = toolkit_includes(TOOLCHAIN.cuda, TOOLCHAIN.nvidia_packages)
    there = [one.headers[0] for one in LIBRARIES if is_in(one.headers[0], folders)]
    header = there[-1] if there else None  # the last one is short
    if header is None:
        pytest.skip("this toolkit has no library")
    main = f"#error fatal error: {header}: No such file or directory\n{EXPORT}"
    assert isinstance(build(tmp_path, make_native(main=main, language="cuda")).error, BuildFailure)


def test_a_compiler_that_does_not_end_is_ended_with_all_that_it_started(tmp_path):
    toolchain = pretend_compiler(tmp_path, action="sleep 1000 & sleep 1000")
    built = build(tmp_path / "cache", make_native(), toolchain=toolchain, limits=StepLimits(0.5, GIB))
    assert isinstance(built.error, BuildFailure)
    assert "still going on after 0.5 s" in str(built.error)
    assert wait_until_gone(lambda: processes_in(tmp_path)) == []  # killed; those in a system call end a little later
    assert left_behind(tmp_path / "cache") == []


def test_a_compiler_that_never_stops_talking_leaves_a_bounded_log(tmp_path):
    toolchain = pretend_compiler(tmp_path, action="yes | head -c 3000000; exit 1")
    built = build(tmp_path / "cache", make_native(), toolchain=toolchain)
    assert "cut ...]" in str(built.error)
    assert len(str(built.error)) < 15_000


def test_a_compiler_sees_no_file_of_ours_and_no_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    secret = tmp_path / "secret"
    secret.write_text("hush")
    action = f'env; cat "{secret}"; echo x > "{tmp_path}/written"; exit 1'
    built = build(tmp_path / "cache", make_native(), toolchain=pretend_compiler(tmp_path, action=action))
    if "Permission denied" not in str(built.error):
        pytest.skip("this kernel has no Landlock")
    assert "hush" not in str(built.error)
    assert not (tmp_path / "written").exists()


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="needs the right to mount")
def test_a_disk_that_fills_up_while_compiling_leaves_a_sound_cache(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "none", str(small)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        source = "char data[200000] = {1};\n" + EXPORT
        built = build(small, make_native(main=source))
        assert isinstance(built.error, BuildFault)
        assert left_behind(small) == []
        assert build(small, make_native(main=EXPORT)).error is None
    finally:
        subprocess.run(["umount", str(small)], check=True)
