"""Sources in folders and files: packed and unpacked without loss, and detection for a draft without a manifest."""

from pathlib import Path

import pytest
import yaml

from flashinfer_bench.data import Solution, load_json_file, save_json_file
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.store.drafts import DraftHints, read_draft
from flashinfer_bench.data.store.pack import pack_folder, unpack_solution
from flashinfer_bench.data.store.skeletons import SKELETONS, make_solution_text
from flashinfer_bench.errors import DataSetError
from tests.kit import DOUBLE, make_definition, make_solution

FILES = sorted((Path(__file__).parents[3] / "flashinfer-trace/solutions").rglob("*.json"))
MANIFEST = {
    "name": "mine",
    "definition": "double",
    "author": "me",
    "language": "python",
    "target_hardware": ["cpu"],
    "entry_point": "main.py::run",
}


def write(folder, files, manifest=None):
    """Write files, path → text or bytes, and a manifest."""
    for name, content in {"solution.yaml": yaml.safe_dump(manifest or MANIFEST), **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_every_bundled_solution_survives_the_round_trip(tmp_path):
    for number, file in enumerate(FILES):
        solution = load_json_file(Solution, file)
        unpack_solution(solution, tmp_path / str(number))
        packed = pack_folder(tmp_path / str(number)).solution
        assert (packed, packed.to_json()) == (solution, solution.to_json())


@pytest.mark.parametrize("text", ["1e3", "no", "a\x85b\u2028", "\ufeff\x00", " \r\n\t", "\U0001f600: #"])
def test_keys_of_its_own_and_odd_texts_survive_the_round_trip(tmp_path, text):
    raw = make_solution(source=text, sources={"z.py": text, "main.py": ""}, mine=text).to_dict()
    for number, own in enumerate(({"description": text}, {"language": "x", "other": text})):
        solution = Solution.model_validate({**raw, **own})
        unpack_solution(solution, tmp_path / str(number))
        assert pack_folder(tmp_path / str(number)).solution.to_json() == solution.to_json()


@pytest.mark.parametrize(
    ("manifest", "files", "complaint"),
    [
        ({"sources": ["gone.py"]}, {}, "'gone.py' cannot be read: .*No such file"),
        ({}, {"main.py": "", "lib.so": b"\xff\xfe"}, "'lib.so' cannot be read: 'utf-8'"),
        ({}, {}, "there is no source file"),
        ({"entry_point": None, "entry_points": "main.py::run"}, {"main.py": ""}, "is 'entry_points' a misspelling"),
        *(({}, {"solution.yaml": text}, r"solution\.yaml") for text in ("- a list", "a: [", "\ufffe: \x00")),
    ],
)
def test_what_is_wrong_in_a_folder_is_told(tmp_path, manifest, files, complaint):
    whole = {key: value for key, value in {**MANIFEST, **manifest}.items() if value is not None}
    with pytest.raises(DataSetError, match=complaint):
        pack_folder(write(tmp_path, files, whole))


def test_a_link_out_of_the_folder_is_no_source(tmp_path):
    (tmp_path / "secret.py").write_text("secret")
    folder = write(tmp_path / "folder", {"z.py": ""})
    (folder / "main.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(DataSetError, match="leads out of"):
        pack_folder(folder)


def test_nothing_is_unpacked_over_other_files_or_over_the_manifest(tmp_path):
    solution = pack_folder(write(tmp_path / "a", {"main.py": ""})).solution
    with pytest.raises(DataSetError, match="not empty"):
        unpack_solution(solution, tmp_path / "a")
    raw = solution.to_dict()
    raw["sources"].append({"path": "solution.json", "content": ""})
    with pytest.raises(DataSetError, match="name of its manifest"):
        unpack_solution(Solution.model_validate(raw), tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


ADD = make_definition("add_n", inputs={"a": "float32[n]", "b": "float32[n]"}, reference="def run(a, b): return a + b\n")
TASK = make_definition("task_scale", inputs={"x": "float32[n]", "s": "float32"}, tags=["source:gpumode"])
SETS = {item.name: item for item in (make_definition(), make_definition("double_again"), ADD, TASK)}
TWO = "def one(x): pass\ndef two(x): pass\n"
KERNEL = "import triton\n@triton.jit\ndef kernel(p): pass\ndef add(a, b): return a + b\n"
GO = "// run(q)\nvoid go(ffi::TensorView a, const at::Tensor& b = x) {}\n"
OF_ENGINE = "def custom_kernel(x): ...\n"
FOUND = {
    "parameters": ("quick.py", "def helper(x): ...\n\ndef run(a, b): ...\n", {}, "add_n run python"),
    "outputs too": ("quick.py", "def run(a, b, y): ...\n", {}, "add_n run python"),
    "name": ("my_double_again.py", DOUBLE, {}, "double_again run python"),
    "folder's name": ("double/v2.py", DOUBLE, {}, "double run python"),
    "Triton": ("add.py", KERNEL, {}, "add_n add triton"),
    "CuTe DSL": ("add.py", KERNEL.replace("triton", "cutlass.cute as cute", 1), {}, "add_n add cutedsl"),
    "cuTile": ("add.py", KERNEL.replace("import triton", "from cuda import tile"), {}, "add_n add cutile"),
    "CUDA": ("x.cu", f"#include <cutlass.h>\n{GO}TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, go);", {}, "add_n run cuda"),
    "tvm-ffi": ("x.cpp", f"{GO}TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, go);", {}, "add_n run cpp"),
    "torch": ("x.cpp", f'{GO}PYBIND11_MODULE(X, m) {{ m.def("run", &go); }}', {}, "add_n run cpp"),
    "name of another engine": ("v2.py", OF_ENGINE + "def run(a, b): ...\n", {}, "add_n run python"),
    "name of another engine, given": ("v2.py", OF_ENGINE + DOUBLE, {"definition": "double"}, "double run python"),
    "helper named run": ("task_scale.py", OF_ENGINE + "def run(a, b): ...\n", {}, "task_scale run python"),
    "helper in a folder": ("task_scale/v2.py", OF_ENGINE + "def run(a, b): ...\n", {}, "task_scale run python"),
    "run in such a folder": ("task_scale/add_n.py", OF_ENGINE + "def run(a, b): ...\n", {}, "add_n run python"),
    "name of the engine alone": ("task_scale/add_n.py", OF_ENGINE, {}, "task_scale run python"),
    "import of such a name": ("add.py", "from x import ModelNew\ndef add(a, b): ...\n", {}, "add_n add python"),
    "given": ("v2.py", TWO, {"definition": "double", "entry": "two", "language": "triton"}, "double two triton"),
}


def draft(tmp_path, name, text, hints):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return read_draft(file, SETS, DraftHints(**hints)).solution


@pytest.mark.parametrize(("name", "text", "hints", "found"), FOUND.values(), ids=FOUND)
def test_what_a_draft_does_not_say_is_found_out(tmp_path, name, text, hints, found):
    solution = draft(tmp_path, name, text, hints)
    assert f"{solution.definition} {solution.get_entry_symbol()} {solution.spec.language.value}" == found
    is_of_engine = SETS[solution.definition] is TASK
    assert (solution.name, solution.spec.declared_style) == (Path(name).stem, False if is_of_engine else None)


@pytest.mark.parametrize(
    ("name", "text", "hints", "reason"),
    [
        ("v2.py", DOUBLE, {}, "2 definitions have the parameters of run"),
        ("v2.py", "def run(q): return q\n", {}, "no definition of the set has the parameters"),
        ("v2.py", DOUBLE, {"definition": "dubble"}, "did you mean 'double'"),
        ("v2.py", "def run(x:\n", {}, "not Python"),
        ("v2.py", TWO, {}, "several functions are possible: one, two"),
        ("v2.py", DOUBLE, {"language": "rust"}, "not among python"),
        ("v2.py", DOUBLE, {"entry": "other.py::run"}, "no source 'other.py'"),
        ("double.py", DOUBLE, {"entry": "runn"}, "--entry: double.py: there is no function 'runn'; did you mean 'run'"),
    ],
)
def test_what_cannot_be_found_out_is_said(tmp_path, name, text, hints, reason):
    with pytest.raises(DataSetError, match=reason):
        draft(tmp_path, name, text, hints)


def test_a_folder_is_a_draft_with_and_without_a_manifest_and_a_packed_file_is_taken_as_it_is(tmp_path):
    folder = write(tmp_path / "double_v3", {"main.py": "from helper import f\n\ndef run(x): ...\n", "helper.py": ""})
    packed = read_draft(folder, SETS)
    assert (packed.is_packed, packed.solution.name) == (True, "mine")
    with pytest.raises(DataSetError, match="sets this itself, so --entry is refused"):
        read_draft(folder, SETS, DraftHints(entry="run"))
    save_json_file(packed.solution, tmp_path / "s.json")
    assert read_draft(tmp_path / "s.json", SETS).solution == packed.solution
    (folder / "solution.yaml").unlink()
    found = read_draft(folder, SETS).solution
    assert (found.definition, found.spec.entry_point, len(found.sources)) == ("double", "main.py::run", 2)


@pytest.mark.parametrize("language", SKELETONS)
def test_the_skeleton_of_a_solution_can_be_called(language, tmp_path):
    inputs = {"a": "float32[n]", "scale": "float32"}
    reference = "def run(scale, a):\n    return a * scale\n"
    definition = make_definition("scaled", inputs=inputs, reference=reference, description='a """text"""\\')
    file = tmp_path / f"mine{language.record.suffixes[0]}"
    file.write_text(make_solution_text(definition, language))
    found = read_draft(file, {"scaled": definition}).solution
    assert found.spec.language is language
    assert check_entry(found, definition) == []
