"""Solutions to folders and back: nothing is lost, and what is wrong in a folder is told at once."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import Solution, load_json_file
from flashinfer_bench.data.store.pack import (
    MANIFEST_NAMES,
    join_solution,
    pack_folder,
    render_manifest,
    split_solution,
    unpack_solution,
)
from flashinfer_bench.errors import DataSetError

BUNDLED = Path(__file__).parents[3] / "flashinfer-trace"
FILES = sorted((BUNDLED / "solutions").rglob("*.json"))
MANIFEST = {
    "name": "mine",
    "definition": "d",
    "author": "me",
    "language": "python",
    "target_hardware": ["cpu"],
    "entry_point": "main.py::run",
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PATHS = st.from_regex(r"[a-z]{1,4}(/[a-z]{1,4}){0,2}\.(py|h)", fullmatch=True)


def write(folder, manifest, **sources):
    for name, content in {"solution.yaml": yaml.safe_dump(manifest), **sources}.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_every_bundled_solution_survives_the_round_trip(tmp_path):
    for number, file in enumerate(FILES):
        solution = load_json_file(Solution, file)
        unpack_solution(solution, tmp_path / str(number))
        packed = pack_folder(tmp_path / str(number)).solution
        assert packed == solution
        assert packed.to_json() == solution.to_json()
        assert list(packed.sources) == list(solution.sources), file


@settings(max_examples=60, deadline=None)
@given(
    paths=st.lists(PATHS, min_size=1, max_size=4, unique=True),
    content=TEXT,
    own=st.dictionaries(st.text("abcxyz", min_size=1, max_size=5), TEXT, max_size=2),
    language=st.booleans(),
    declared=st.sampled_from([None, True, False]),
)
def test_manifest_and_sources_make_the_same_solution(paths, content, own, language, declared):
    spec = {"language": "python", "target_hardware": ["any"], "entry_point": f"{paths[0]}::run", **own}
    spec.update({} if declared is None else {"destination_passing_style": declared})
    raw = {"name": "n", "definition": "d", "author": "a", "spec": spec, **({"language": "x"} if language else {})}
    sources = [{"path": path, "content": content + path} for path in paths]
    try:
        solution = Solution.model_validate({**raw, **own, "sources": sources})
    except ValueError:
        return  # a path is the folder of another one
    manifest, texts = split_solution(solution)
    name, text = render_manifest(manifest)
    read = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    assert Solution.model_validate(join_solution(read, texts)).to_json() == solution.to_json()


def test_all_files_are_sources_but_hidden_ones_and_the_manifest(tmp_path):
    write(tmp_path, MANIFEST, main_py="x = 1\r\n", sub__b_py="", **{".hidden": "", "__pycache__/a.pyc": b"\xff"})
    solution = pack_folder(tmp_path).solution
    assert {source.path: source.content for source in solution.sources} == {"main.py": "x = 1\r\n", "sub/b.py": ""}


def test_listed_sources_are_the_only_ones_and_keep_their_order(tmp_path):
    write(tmp_path, {**MANIFEST, "sources": ["z.py", "main.py"]}, main_py="", z_py="", **{"notes.bin": b"\xff"})
    assert [source.path for source in pack_folder(tmp_path).solution.sources] == ["z.py", "main.py"]


def test_a_misspelt_key_is_named_with_the_right_one(tmp_path):
    manifest = {key: value for key, value in MANIFEST.items() if key != "entry_point"}
    write(tmp_path, {**manifest, "entry_points": "main.py::run"}, main_py="")
    with pytest.raises(DataSetError, match=r"entry_point: is missing; is 'entry_points' a misspelling of it\?"):
        pack_folder(tmp_path)
    write(tmp_path, {**MANIFEST, "dependancies": []})
    assert "did you mean 'dependencies'" in str(pack_folder(tmp_path).warnings[0])


@pytest.mark.parametrize(
    ("manifest", "sources", "complaint"),
    [
        ({**MANIFEST, "sources": ["gone.py"]}, {}, "gone.py: No such file"),
        ({**MANIFEST, "sources": ["../x.py"]}, {}, "has '..'"),
        (MANIFEST, {"main_py": "", "lib.so": b"\xff\xfe"}, "lib.so: is not UTF-8"),
        (MANIFEST, {"other_py": ""}, "entry point 'main.py' is none of the sources"),
        (MANIFEST, {}, "there is no source file"),
    ],
    ids=["missing", "outside", "binary", "no entry", "empty"],
)
def test_what_is_wrong_in_a_folder_is_told(tmp_path, manifest, sources, complaint):
    write(tmp_path, manifest, **sources)
    with pytest.raises(DataSetError, match=complaint):
        pack_folder(tmp_path)


def test_a_link_out_of_the_folder_is_no_source(tmp_path):
    (tmp_path / "secret.py").write_text("secret")
    folder = tmp_path / "folder"
    write(folder, MANIFEST, z_py="")
    (folder / "main.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(DataSetError, match="leads out of the folder"):
        pack_folder(folder)


@pytest.mark.parametrize("text", ["- a list", "a: [", "\ufffe: \x00"], ids=["list", "broken", "control"])
def test_a_manifest_that_is_none_is_refused(tmp_path, text):
    (tmp_path / MANIFEST_NAMES[0]).write_text(text)
    with pytest.raises(DataSetError, match=r"solution\.yaml"):
        pack_folder(tmp_path)


def test_a_json_manifest_does_as_well(tmp_path):
    (tmp_path / "solution.json").write_text(json.dumps(MANIFEST))
    (tmp_path / "main.py").write_text("")
    assert pack_folder(tmp_path).solution.name == "mine"


def test_nothing_is_unpacked_over_other_files(tmp_path):
    solution = pack_folder(write(tmp_path / "a", MANIFEST, main_py="")).solution
    with pytest.raises(DataSetError, match="not empty"):
        unpack_solution(solution, tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_a_source_with_the_name_of_the_manifest_cannot_be_unpacked(tmp_path):
    raw = pack_folder(write(tmp_path / "a", MANIFEST, main_py="")).solution.to_dict()
    raw["sources"].append({"path": "solution.json", "content": ""})
    with pytest.raises(DataSetError, match="name of its manifest"):
        unpack_solution(Solution.model_validate(raw), tmp_path / "b")
    assert not (tmp_path / "b").exists()
