"""Solutions: paths that stay inside, declared styles, the digest, and the entry point from the sources."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flashinfer_bench.data.entry import check_entry, find_binding
from tests.kit import make_definition, make_solution


@pytest.mark.parametrize(
    "path",
    ["", "/main.py", "../main.py", "a/../main.py", "..\\main.py", "\\main.py", "C:/main.py", "~/main.py", "a/",
     "main\0.py", "m\n.py", ".", "x" * 300 + ".py"],
)  # fmt: skip
def test_a_source_path_that_may_leave_its_folder_is_refused(path):
    with pytest.raises(ValidationError, match=r"sources\.0\.path"):
        make_solution(sources={path: ""}, entry_point="main.py::run")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"sources": {"main.py": "", "./main.py": ""}}, r"'main\.py' is listed twice"),
        ({"sources": {"main.py": "", "main.py/a.py": ""}}, r"the folder of 'main\.py/a\.py'"),
        ({"sources": {}}, "no source file"),
        ({"entry_point": "mian.py::run"}, r"did you mean 'main\.py'"),
        *(
            ({"entry_point": entry}, r"spec\.entry_point")
            for entry in ("main.py", "::run", "main.py::", "../main.py::run")
        ),
    ],
)
def test_sources_and_entry_that_contradict_each_other_are_refused(parts, words):
    with pytest.raises(ValidationError, match=words):
        make_solution(**parts)


DEFINITION = make_definition()


def problems_of(content, definition=DEFINITION, *, path="main.py", **spec):
    solution = make_solution(sources={path: content}, entry_point=f"{path}::run", **spec)
    return check_entry(solution, definition)


FITTING = {
    "destination passing": "def run(x, y): ...",
    "decorated": "import torch\n\n@torch.no_grad()\ndef run(x, y): ...",
    "any number": "def run(*args): ...",
    "bound by hand": "def kernel(x): ...\nrun = wrap(kernel)",
    "imported": "from .other import run",
    "in a branch": "try:\n    import x\nexcept ImportError:\n    def run(x, y): ...",
    "wrapped in what is not known": "@something\ndef run(): ...",
    "many branches": "if x: a = 0\n" + "elif y: a = 1\n" * 900 + "def run(x, y): ...",
    "deep default": f"def run(x, y, c={'+'.join(['1'] * 800)}): ...",
    "with setup": "def setup(x): ...\ndef run(x, y, a, *, b): ...",
}


@pytest.mark.parametrize("content", FITTING.values(), ids=FITTING)
def test_a_matching_or_undecidable_entry_passes(content):
    assert problems_of(content, destination_passing_style=True) == []


def test_without_a_declared_style_either_number_and_without_a_definition_any_fits():
    assert problems_of("def run(x, y): ...") == problems_of("def run(x): ...") == []
    assert problems_of("def run(): ...", None) == problems_of("def run(x, *, b=1): ...", None) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def run(x): ...", "run(x) cannot be called as double calls it"),
        ("def run(x): ...", "is destination_passing_style false meant?"),
        ("def run(x, y, *, a, b=1): ...", "needs a by keyword"),
        ("def setup(): ...\ndef run(): ...", "cannot be called"),
        ("def runs(): ...", "main.py: there is no function 'run'; did you mean 'runs'?"),
        ("x = 1\ndef run(:", "line 2"),
        ("async def run(x, y): ...", "async"),
    ],
)
def test_what_cannot_be_called_is_told(content, words):
    [problem] = problems_of(content, destination_passing_style=True)
    assert words in problem


EXPORT = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, launch);"
MODULE = 'PYBIND11_MODULE(x, m) { m.def("run", &run); }'
OPERATORS = 'TORCH_LIBRARY(mine, m) { m.def("run(Tensor x) -> Tensor", &run); }'


@pytest.mark.parametrize(
    ("content", "binding", "advice"),
    [
        (EXPORT, "tvm-ffi", None),
        ('extern "C" int __tvm_ffi_run(void* self) { return 0; }', "tvm-ffi", None),
        (f"#define EXPORT(name) {EXPORT}\nEXPORT(run)", "tvm-ffi", None),
        (MODULE, None, None),
        (OPERATORS, None, None),
        ("void run() {}", "tvm-ffi", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, your_function)"),
        (f"// {EXPORT}", "tvm-ffi", "there is no function 'run'"),
        (EXPORT.replace("run", "go"), "tvm-ffi", "there is go"),
        ("void run() {}", "torch", "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)"),
        (MODULE.replace("run", "go"), "torch", 'm.def("run", &your_function)'),
    ],
)
def test_a_missing_export_is_reported_with_the_line_to_write(content, binding, advice):
    found = problems_of(content, path="a.cu", language="cuda", binding=binding)
    assert [advice in problem for problem in found] == [True] * (advice is not None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (MODULE, "PYBIND11_MODULE"),
        (OPERATORS, "TORCH_LIBRARY"),
        ('  #  include "ATen/ATen.h"\n', "#include <ATen/ATen.h>"),
        ("/* PYBIND11_MODULE(x, m) */ // #include <torch/all.h>", None),
        (f"#include <ATen/ATen.h>\n{EXPORT}", None),
    ],
)
def test_a_binding_that_no_spec_names_is_found_in_the_sources(content, reason):
    parts = {"language": "cuda", "sources": {"a.cu": content}, "entry_point": "a.cu::run"}
    found = find_binding(make_solution(**parts))
    assert found.binding.value == ("torch" if reason else "tvm-ffi")
    assert found.note == (reason and f"binding torch: the spec names none, and a.cu has {reason}")
    assert find_binding(make_solution(**parts, binding="tvm-ffi")).note is None
