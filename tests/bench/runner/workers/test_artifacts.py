"""What a worker loads is what was built, whatever became of the files since."""

import hashlib

import pytest

from flashinfer_bench.bench.runner.protocol import BlockSolution
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact
from flashinfer_bench.errors import BuildFault

SOURCES = {"main.py": "from .part import run\n", "sub/part.py": "def run(x): pass\n"}


@pytest.fixture
def built(tmp_path):
    """Return the folder of an artifact of two files, and its solution."""
    folder = tmp_path / "files"
    for path, content in SOURCES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    digests = {path: hashlib.sha256(content.encode()).hexdigest() for path, content in SOURCES.items()}
    names = {"name": "s", "language": "python", "declared_style": None, "digest": "d", "build_error": None}
    place = {"directory": str(folder), "entry": "main.py", "symbol": "run", "kind": "python"}
    return folder, BlockSolution(**names, **place, files=digests, sources=SOURCES)


@pytest.fixture
def make_folder(tmp_path):
    def make():
        (tmp_path / "new").mkdir()
        return tmp_path / "new"

    return make


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "main.py").write_text("def run(x): return x"),
        lambda folder: (folder / "sub" / "part.py").unlink(),
        lambda folder: (folder / "math.py").write_text("pi = 3"),
        lambda folder: (folder / "math").symlink_to("/"),
    ],
    ids=["changed", "removed", "added", "linked"],
)
def test_sources_that_were_tampered_with_are_written_anew(built, make_folder, tmp_path, change):
    folder, solution = built
    assert find_artifact(solution, make_folder).directory == folder
    change(folder)
    artifact = find_artifact(solution, make_folder)
    assert artifact.directory == tmp_path / "new"
    written = {path: path.read_text() for path in artifact.directory.rglob("*") if path.is_file()}
    assert {path.relative_to(artifact.directory).as_posix(): text for path, text in written.items()} == SOURCES


def test_a_library_that_was_changed_is_a_fault_and_what_lies_beside_it_is_not(built, make_folder):
    folder, solution = built
    compiled = solution.model_copy(update={"sources": {}})
    (folder / "notes").write_text("mine")
    assert find_artifact(compiled, make_folder).directory == folder
    (folder / "main.py").write_text("else")
    with pytest.raises(BuildFault, match=r"the artifact of s was changed while the run used it: main\.py"):
        find_artifact(compiled, make_folder)
