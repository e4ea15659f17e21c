"""The entry point, read off the sources: is it there, and does it take what the definition gives."""

import pytest

from flashinfer_bench.data import BuildSpec, Solution, SourceFile
from flashinfer_bench.data.entry import check_entry, find_binding
from tests.kit.make import make_definition

DEFINITION = make_definition()
INPUTS, OUTPUTS = len(DEFINITION.inputs), len(DEFINITION.outputs)
DPS = ", ".join(f"a{i}" for i in range(INPUTS + OUTPUTS))
VALUE = ", ".join(f"a{i}" for i in range(INPUTS))


def solution_of(content: str, *, language: str = "python", path: str = "main.py", **spec: object) -> Solution:
    build = {"language": language, "target_hardware": ["cpu"], "entry_point": f"{path}::run", **spec}
    return Solution(
        name="s",
        definition=DEFINITION.name,
        author="a",
        sources=[SourceFile(path=path, content=content)],
        spec=BuildSpec.model_validate(build),
    )


FITTING = {
    "destination passing": f"def run({DPS}): ...",
    "decorated": f"import torch\n\n@torch.no_grad()\ndef run({DPS}): ...",
    "any number": "def run(*args): ...",
    "bound by hand": f"def kernel({VALUE}): ...\nrun = wrap(kernel)",
    "imported": "from .other import run",
    "in a branch": f"try:\n    import x\nexcept ImportError:\n    def run({DPS}): ...",
    "wrapped in what is not known": "@something\ndef run(): ...",
}


@pytest.mark.parametrize("content", FITTING.values(), ids=FITTING)
def test_what_fits_or_cannot_be_told_passes(content):
    assert check_entry(solution_of(content, destination_passing_style=True), DEFINITION) == []


@pytest.mark.parametrize("arguments", [DPS, VALUE], ids=["dps", "value"])
def test_without_a_declared_style_either_number_of_arguments_fits(arguments):
    assert check_entry(solution_of(f"def run({arguments}): ..."), DEFINITION) == []


def test_a_wrong_number_of_arguments_is_told_with_the_other_style_where_that_fits():
    [problem] = check_entry(solution_of(f"def run({VALUE}): ...", destination_passing_style=True), DEFINITION)
    assert f"run({VALUE}) cannot be called" in problem
    assert "is destination_passing_style false meant?" in problem


@pytest.mark.parametrize(
    "content",
    [
        "if x == 0: a = 0\n" + "".join(f"elif x == {i}: a = {i}\n" for i in range(900)) + f"def run({DPS}): ...",
        f"def run({DPS}, c={'+'.join(['1'] * 800)}): ...",
    ],
    ids=["branches", "default"],
)
def test_what_is_nested_deeply_passes(content):
    assert check_entry(solution_of(content, destination_passing_style=True), DEFINITION) == []


def test_any_number_of_arguments_needs_no_declared_style():
    assert check_entry(solution_of("def run(*args): ..."), DEFINITION) == []


def test_a_required_keyword_is_refused():
    [problem] = check_entry(solution_of(f"def run({VALUE}, *, a, b=1): ..."))
    assert "needs a by keyword" in problem
    assert check_entry(solution_of(f"def run({VALUE}, *, b=1): ..."), DEFINITION) == []


@pytest.mark.parametrize("more", ["a", "*, a", "a, b, *, c"])
def test_setup_may_give_what_the_definition_does_not(more):
    assert check_entry(solution_of(f"def setup({VALUE}): ...\ndef run({VALUE}, {more}): ..."), DEFINITION) == []
    [problem] = check_entry(solution_of("def setup(): ...\ndef run(): ..."), DEFINITION)
    assert "cannot be called" in problem


def test_without_a_definition_arguments_are_not_counted():
    assert check_entry(solution_of("def run(): ...")) == []


def test_a_missing_function_is_told_with_the_nearest_name():
    assert check_entry(solution_of("def runs(): ...")) == ["main.py: there is no function 'run'; did you mean 'runs'?"]


def test_python_that_does_not_parse_is_told_with_its_line():
    assert "line 2" in check_entry(solution_of("x = 1\ndef run(:"))[0]


def test_an_async_function_is_refused():
    assert "async" in check_entry(solution_of("async def run(): ..."))[0]


EXPORTS = {
    "tvm-ffi": "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, launch);",
    "tvm-ffi by hand": 'extern "C" int __tvm_ffi_run(void* self) { return 0; }',
    "torch": 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &launch); }',
    "by a macro of its own": "#define EXPORT(name) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, name)\nEXPORT(run)",
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_found(name):
    binding = "torch" if name == "torch" else "tvm-ffi"
    assert check_entry(solution_of(EXPORTS[name], language="cpp", path="a.cpp", binding=binding)) == []


@pytest.mark.parametrize(
    ("content", "binding", "advice"),
    [
        ("void run() {}", "tvm-ffi", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, your_function)"),
        ("// TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, f)", "tvm-ffi", "there is no function 'run'"),
        ("TVM_FFI_DLL_EXPORT_TYPED_FUNC(go, f)", "tvm-ffi", "there is go"),
        ("void run() {}", "torch", "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)"),
        ('PYBIND11_MODULE(x, m) { m.def("go", &go); }', "torch", 'm.def("run", &your_function)'),
    ],
    ids=["none", "in a comment", "other name", "no module", "other name in a module"],
)
def test_a_missing_export_is_told_with_the_line_to_write(content, binding, advice):
    [problem] = check_entry(solution_of(content, language="cuda", path="a.cu", binding=binding))
    assert advice in problem


UNNAMED = {
    "a module": ('PYBIND11_MODULE(x, m) { m.def("run", &run); }', "torch", "PYBIND11_MODULE"),
    "operators": ('TORCH_LIBRARY(mine, m) { m.def("run(Tensor x) -> Tensor", &run); }', "torch", "TORCH_LIBRARY"),
    "torch's headers": ("#include <torch/extension.h>\n", "torch", "#include <torch/extension.h>"),
    "ATen's headers": ('  #  include "ATen/ATen.h"\n', "torch", "#include <ATen/ATen.h>"),
    "nothing": ("void run() {}", "tvm-ffi", None),
    "in a comment": ("/* PYBIND11_MODULE(x, m) */ // #include <torch/all.h>", "tvm-ffi", None),
    "an export, and torch's headers": (f"#include <ATen/ATen.h>\n{EXPORTS['tvm-ffi']}", "tvm-ffi", None),
}


@pytest.mark.parametrize(("content", "binding", "told_by"), UNNAMED.values(), ids=UNNAMED)
def test_a_binding_that_no_spec_names_is_found_in_the_sources(content, binding, told_by):
    found = find_binding(solution_of(content, language="cuda", path="a.cu"))
    assert found.binding.value == binding
    assert found.note == (told_by and f"binding torch: the spec names none, and a.cu has {told_by}")
    assert find_binding(solution_of(content, language="cuda", path="a.cu", binding="tvm-ffi")).note is None


def test_operators_may_have_any_name_and_a_module_without_a_binding_is_searched():
    assert check_entry(solution_of(UNNAMED["operators"][0], language="cpp", path="a.cpp")) == []
    assert check_entry(solution_of(UNNAMED["a module"][0], language="cpp", path="a.cpp")) == []
