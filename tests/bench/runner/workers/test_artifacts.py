"""A worker loads the built files, even if the artifact was changed since."""

import hashlib

import pytest

from flashinfer_bench.bench.runner.protocol import RequestedSolution
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
    return folder, RequestedSolution(**names, **place, files=digests, sources=SOURCES)


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
def test_sources_that_were_tampered_with_are_written_anew(built, tmp_path, change):
    folder, solution = built
    new = tmp_path / "new"
    new.mkdir()
    assert find_artifact(solution, lambda: new).directory == folder
    change(folder)
    assert find_artifact(solution, lambda: new).directory == new
    assert {str(path.relative_to(new)): path.read_text() for path in new.rglob("*.*")} == SOURCES


def test_a_library_that_was_changed_is_a_fault_and_what_lies_beside_it_is_not(built):
    folder, solution = built
    compiled = solution.model_copy(update={"sources": {}})
    (folder / "notes").write_text("mine")
    assert find_artifact(compiled, None).directory == folder
    (folder / "main.py").write_text("else")
    with pytest.raises(BuildFault, match=r"the artifact of s was changed while the run used it: main\.py"):
        find_artifact(compiled, None)
