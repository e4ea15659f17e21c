"""What is found out of sources without a manifest, and the skeletons to begin with."""

import pytest

from flashinfer_bench.data import Solution, save_json_file
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.solution import SupportedLanguages
from flashinfer_bench.data.store.drafts import DraftHints, find_entry, is_draft_path, read_draft
from flashinfer_bench.data.store.skeletons import SUFFIXES, make_definition_parts, make_solution_text
from flashinfer_bench.errors import DataSetError
from tests.kit import DOUBLE, make_definition, make_solution

ADD = make_definition("add_n", inputs={"a": "float32[n]", "b": "float32[n]"}, reference="def run(a, b): return a + b\n")
SETS = {item.name: item for item in (make_definition(), make_definition("double_again"), ADD)}


def draft(tmp_path, name, text, **hints):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return read_draft(file, SETS, DraftHints(**hints)).solution


def test_parameters_tell_the_definition(tmp_path):
    solution = draft(tmp_path, "quick.py", "def helper(x): return x\n\ndef run(a, b):\n    return a + b\n")
    assert (solution.name, solution.definition, solution.spec.entry_point) == ("quick", "add_n", "quick.py::run")
    assert solution.spec.declared_style is None


def test_outputs_may_be_parameters_too(tmp_path):
    assert draft(tmp_path, "quick.py", "def run(a, b, y):\n    y.copy_(a + b)\n").definition == "add_n"


def test_the_name_tells_between_definitions_with_equal_parameters(tmp_path):
    assert draft(tmp_path, "my_double_again.py", DOUBLE).definition == "double_again"
    assert draft(tmp_path, "double/v2.py", DOUBLE).definition == "double"


@pytest.mark.parametrize(
    ("name", "text", "hints", "reason"),
    [
        ("v2.py", DOUBLE, {}, "2 definitions take what run"),
        ("v2.py", "def run(q): return q\n", {}, "no definition of the set takes"),
        ("v2.py", DOUBLE, {"definition": "dubble"}, "did you mean 'double'"),
        ("v2.py", "def run(x:\n", {}, "not Python"),
        ("v2.py", "def one(x): pass\ndef two(x): pass\n", {}, "several functions may be meant: one, two"),
        ("v2.txt", DOUBLE, {}, "no source file"),
        ("v2.py", DOUBLE, {"language": "rust"}, "none of python"),
        ("v2.py", DOUBLE, {"entry": "other.py::run"}, "no source 'other.py'"),
        ("double.py", DOUBLE, {"entry": "runn"}, "--entry: double.py: there is no function 'runn'; did you mean 'run'"),
    ],
)
def test_what_cannot_be_found_out_is_said(tmp_path, name, text, hints, reason):
    with pytest.raises(DataSetError, match=reason):
        draft(tmp_path, name, text, **hints)


def test_what_is_given_counts(tmp_path):
    text = "def one(x): pass\ndef two(x): pass\n"
    solution = draft(tmp_path, "v2.py", text, definition="double", entry="two", language="triton", author="eve")
    assert (solution.get_entry_symbol(), solution.spec.language.value, solution.author) == ("two", "triton", "eve")


def test_a_kernel_of_triton_is_no_entry_and_tells_the_language(tmp_path):
    text = "import triton\n@triton.jit\ndef kernel(p): pass\ndef add_n(a, b): return a + b\n"
    solution = draft(tmp_path, "add_n.py", text)
    assert (solution.spec.language, solution.get_entry_symbol()) == (SupportedLanguages.TRITON, "add_n")


@pytest.mark.parametrize(
    "export", ["TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, go);", 'PYBIND11_MODULE(X, m) { m.def("run", &go); }']
)
def test_an_exported_function_in_c_tells_its_parameters(export):
    text = f"// run(q)\nvoid go(ffi::TensorView a, const at::Tensor& b = x) {{ }}\n{export}\n"
    assert find_entry("main.cpp", text) == ("run", ("a", "b"))


def test_a_folder_without_a_manifest_and_one_with(tmp_path):
    folder = tmp_path / "add_n_v3"
    folder.mkdir()
    (folder / "main.py").write_text("from helper import f\n\ndef run(a, b):\n    return f(a, b)\n")
    (folder / "helper.py").write_text("def f(a, b):\n    return a + b\n")
    found = read_draft(folder, SETS)
    assert found.solution.spec.entry_point == "main.py::run"
    assert [source.path for source in found.solution.sources] == ["helper.py", "main.py"]
    (folder / "solution.yaml").write_text(
        "name: s\ndefinition: add_n\nauthor: me\nlanguage: python\ntarget_hardware: [cpu]\nentry_point: main.py::run\n"
    )
    packed = read_draft(folder, SETS)
    assert packed.is_packed
    assert packed.solution.name == "s"
    with pytest.raises(DataSetError, match="says itself what --entry would say"):
        read_draft(folder, SETS, DraftHints(entry="run"))


def test_a_packed_file_is_taken_as_it_is(tmp_path):
    solution = make_solution()
    save_json_file(solution, tmp_path / "s.json")
    assert read_draft(tmp_path / "s.json", SETS).solution == solution


def test_paths_and_names_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "there.txt").touch()
    assert [is_draft_path(text) for text in ("a.py", "x/y", "a.CU", "folder", "there.txt", "plain_v1.5", "plain")] == [
        *(True, True, True, True, True),
        *(False, False),
    ]


@pytest.mark.parametrize("language", list(SUFFIXES))
def test_the_skeleton_of_a_solution_can_be_called(language, tmp_path):
    inputs = {"a": "float32[n]", "scale": "float32", "extra": {"shape": ["n"], "dtype": "int32", "optional": True}}
    reference = "def run(scale, a, extra=None):\n    return a * scale\n"
    definition = make_definition("scaled", inputs=inputs, reference=reference, description='a """text"""\\')
    file = tmp_path / f"mine{SUFFIXES[language]}"
    file.write_text(make_solution_text(definition, language))
    found = read_draft(file, {"scaled": definition}).solution
    assert isinstance(found, Solution)
    assert found.spec.language is language
    assert check_entry(found, definition) == []


def test_the_skeleton_of_a_definition_is_one():
    plain, lines = make_definition_parts("mine", "custom")
    definition = Definition.model_validate(plain)
    assert definition.is_runnable
    assert definition.takes_inputs_in_order
    assert {tuple(line["workload"]["axes"]) for line in lines} == {("rows",)}
