"""Pure parts: words of compilers, dependencies, languages, and missing requirements of a machine."""

from dataclasses import replace

import pytest

from flashinfer_bench.compile import Toolchain, find_unavailable_languages, requirements
from flashinfer_bench.compile.artifact import StepReport
from flashinfer_bench.compile.diagnostics import (
    first_error,
    other_architecture,
    put_error_first,
)
from flashinfer_bench.compile.requirements import (
    cutlass_includes,
    find_lacked,
    find_missing,
    wants_cutlass,
)
from flashinfer_bench.compile.toolchain import Compiler, CudaToolkit
from tests.kit.scratch import copy_package, run_with

NOTHING = Toolchain(None, None, None, None, None)


def report(output, code=1):
    return StepReport("compile main.cu", code, output, 1.0)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("a.cpp: In function 'f':\nsub/a.cpp:12:5: error: 'x' was not\n", "sub/a.cpp:12: error: 'x' was not"),
        ("a.cpp:3:10: fatal error: b.h: No such file", "a.cpp:3: error: b.h: No such file"),
        ("k.cu(7): error #20-D: identifier is odd", "k.cu:7: error: identifier is odd"),
        ("a.cpp:9:1: warning: error: in words\nb.cpp:4:1: error: real\n", "b.cpp:4: error: real"),
        ("ld: in `f':\na.cpp:5: undefined reference to `g'", "a.cpp:5: error: undefined reference to `g'"),
        ('At end of source: error: expected a "}"', 'error: expected a "}"'),
        ("all is well", None),
    ],
)
def test_the_first_error_has_its_file_and_line(output, expected):
    assert first_error(output) == expected


def test_another_architecture_is_separated_from_words_of_a_source():
    line = "ptxas /tmp/x.ptx, line 18; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'"
    words = "Instruction 'wgmma.fence' not supported on .target 'sm_80'"
    assert other_architecture(report(f"one\n{line}\ntwo")) == words
    assert other_architecture(report(f"a.cpp:1:15: error: static assertion failed:\n{line}")) is None


NINJA = """RuntimeError in the import: Error building extension 'mine': [1/2] c++ -MMD -c main.cpp -o main.o
FAILED: [code=1] main.o
c++ -MMD -DERROR=error -c main.cpp -o main.o
/tmp/home/mine.h:3:5: error: 'x' was not declared in this scope
ninja: build stopped: subcommand failed.
"""


def test_an_error_that_a_build_system_only_quotes_comes_first():
    assert put_error_first(NINJA) == f"mine.h:3: error: 'x' was not declared in this scope\n{NINJA}"
    for other in ("ValueError: a.py:3: error: mine", "ninja: build stopped: an error\n"):
        assert put_error_first(other) == other


LACK = "of the CUDA toolkit's cusparse is not installed; try: pip install nvidia-cusparse-cu12"


@pytest.mark.parametrize(
    ("output", "lacks"),
    [
        ("a.cuh:3:10: fatal error: cusparse.h: No such file or directory", "cusparse.h"),
        ("/usr/bin/ld: cannot find -lcusparse: No such file or directory", "cusparse"),
        ("a.cu:1:10: fatal error: mine.h: No such file or directory", None),
        ('/usr/bin/ld: a.o: undefined reference to `"cannot find -lcusparse"', None),
    ],
)
def test_a_compilers_missing_file_is_read_from_its_output(output, lacks):
    found = find_lacked(output, (12, 8))
    assert found == (lacks and (lacks, f"{lacks} {LACK}"))


INSTALLED = {"triton": "3.2.1+git", "torch": "2.11.0+cu130", "flashinfer-python": "0.6.1", "odd": ""}


def missing(text, toolchain=NOTHING, *, is_compiled=False):
    """Return why a dependency is not met."""
    return (find_missing([text], toolchain, is_compiled=is_compiled) or [None])[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *[(text, None) for text in ("triton >= 2.3", "torch>=2.6,<3", "pytorch", "flashinfer ~= 0.6", "odd >= 9")],
        *[(text, None) for text in ("", "C++17", "any recent driver", "gcc", "cmake >= 3", "x; python_version < '3'")],
        ("triton >= 99", "it needs triton>=99, and 3.2.1+git is installed; try: pip install 'triton>=99'"),
        ("tilelang", "which is not installed; try: pip install 'tilelang'"),
        ("cutlass", "pip install 'nvidia-cutlass-dsl'"),
        ("ninja>=1.11", "it needs ninja>=1.11, which is not installed; try: pip install 'ninja>=1.11'"),
        ("cuda >= 12.8", "install the CUDA toolkit, or set CUDA_HOME"),
    ],
)
def test_dependencies_are_compared_with_installed_packages(monkeypatch, tmp_path, text, words):
    monkeypatch.setattr(requirements, "installed_version", INSTALLED.get)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = missing(text)
    assert (found is None) if words is None else (words in found)
    (tmp_path / "ninja").touch(0o755)
    assert (missing("ninja"), missing("ninja", is_compiled=True)) == (None, None)


def test_cutlass_is_headers_to_compiled_solutions_and_libraries_are_in_the_toolkit(tmp_path, monkeypatch):
    header = tmp_path / "include" / "cutlass" / "cutlass.h"
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    monkeypatch.setattr(requirements, "find_package", lambda name: None)  # FlashInfer brings a copy
    assert "set CUTLASS_PATH" in missing("cutlass", is_compiled=True)
    header.parent.mkdir(parents=True)
    header.touch()
    assert missing("CUTLASS", is_compiled=True) is None
    assert cutlass_includes() == [tmp_path / "include"]
    assert [wants_cutlass(["torch", text]) for text in ("cutlass >= 3", "cutlass is nice")] == [True, False]
    compiler = Compiler(tmp_path / "nvcc", "1")
    toolchain = Toolchain(compiler, CudaToolkit(tmp_path, compiler, (13, 0)), None, None, None)
    assert "CUDA toolkit" in missing("cublas", toolchain, is_compiled=True)
    (tmp_path / "include" / "cublas_v2.h").touch()
    assert missing("cublas", toolchain, is_compiled=True) is None


def test_a_missing_compiler_or_package_has_a_reason_and_a_remedy(monkeypatch):
    monkeypatch.setattr(requirements, "is_installed", lambda package: False)
    reasons = find_unavailable_languages(NOTHING)
    assert reasons["python"] is None
    for language, words in {"triton": "pip install triton", "cpp": "install g++", "cuda": "CUDA_HOME"}.items():
        assert words in reasons[language]
    monkeypatch.setattr(requirements, "is_installed", lambda package: True)
    assert find_unavailable_languages(NOTHING)["triton"] is None


def test_languages_of_flashinfer_name_their_package_headers_or_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(requirements, "find_package", lambda name: None)
    monkeypatch.setattr(requirements, "installed_version", lambda name: None)
    monkeypatch.delenv("CUTLASS_PATH", raising=False)
    reasons = find_unavailable_languages(NOTHING)
    expected = {"cutedsl": "'nvidia-cutlass-dsl'", "cutile": "'cuda-tile'", "cutlass": "set CUTLASS_PATH"}
    assert [words in reasons[language] for language, words in expected.items()] == [True] * 3
    monkeypatch.setattr(requirements, "installed_version", lambda name: "1.0")
    monkeypatch.setattr(requirements, "is_installed", lambda package: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    reasons = find_unavailable_languages(NOTHING)
    assert (reasons["cutedsl"], "there is no tileiras" in reasons["cutile"]) == (None, True)
    compiler = tmp_path / "bin" / "tileiras"
    compiler.parent.mkdir()
    compiler.touch(mode=0o755)
    toolchain = replace(NOTHING, nvidia_packages=(tmp_path,))
    assert find_unavailable_languages(toolchain)["cutile"] is None


USE = """
import json, sys
from pathlib import Path
from flashinfer_bench.compile import build_solution, unavailable_languages
from flashinfer_bench.data.store.drafts import find_language
from tests.kit import make_solution
solution = make_solution(language="mojo", sources={"main.mojo": "fn run"}, entry_point="main.mojo::run")
built = build_solution(solution, Path(CACHE))
print(json.dumps([unavailable_languages()["mojo"], find_language({"a.mojo": ""}).value, built.entry, built.kind]))
"""


def test_a_language_is_added_by_one_record_and_a_builder(tmp_path):
    copy = copy_package(tmp_path)
    with (copy / "data" / "languages.py").open("a") as file:
        file.write('    MOJO = "mojo", Language((".mojo",), builder="mojo", package="json")\n')
    builder = copy / "compile" / "builders" / "mojo.py"
    builder.write_text("from flashinfer_bench.compile.builders.python import make_recipe as make_recipe\n")
    found = run_with(copy, USE.replace("CACHE", repr(str(tmp_path / "cache"))))
    assert found == [None, "mojo", "main.mojo", "python"]
