"""What the words of `compare` name: sources that somebody edits take what they do not say from the other side."""

import re
from pathlib import Path

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.sides import find_sides, pair_up
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

SOURCE = "def run(x):\n    return x + x\n"


@pytest.fixture
def root(tmp_path):
    """A set in which two definitions take the same inputs."""
    return write_trace_set(
        tmp_path / "set",
        definitions=[make_definition(), make_definition("twice")],
        solutions=[make_solution(), make_solution("twice_python", definition="twice", author="bob")],
        workloads=[make_trace(solution=None, workload=make_workload())],
    )


def sides_of(root, *words):
    return find_sides(tuple(map(str, words)), TraceSet.from_path(root))


@pytest.fixture
def mine(tmp_path):
    """A source that fits both."""
    (file := tmp_path / "mine.py").write_text(SOURCE)
    return file


@pytest.mark.parametrize("other", ["double_python", "twice_python"])
def test_a_source_is_of_the_definition_of_the_other_side(root, mine, other):
    for words in ((mine, other), (other, mine)):
        sides = sides_of(root, *words)
        (pairing,) = pair_up(*sides)
        assert {pairing.first.definition, pairing.second.definition} == {other.removesuffix("_python")}
        draft = next(one.draft for one in sides if one.draft is not None)
        assert (draft.solution.sources[0].content, draft.found.endswith("(as given)")) == (SOURCE, True)


TWO = "def run(left, right):\n    return left + right\n"


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("double_py.py", "twice_py.py"), "of twice (by the name 'twice_py'); double_py.py is of double: give two"),
        (("double_python", "twice_py.py"), "of twice (by the name 'twice_py'); double_python is of double: give two"),
        (("double_python", "two.py"), "of other (by its parameters); double_python is of double"),
        (("mine.py", "mine.py"), "2 definitions have the parameters of run: double, twice; name the definition"),
        (("double_python", "mne.py"), "mne.py: there is no such file; did you mean 'mine.py'?"),
        (("double_python", "empty"), "empty: there is no source file in it"),
        (("double_python", "notes.txt"), "no source file (.cc, .cpp, .cu, .cxx, .py) shows the language"),
    ],
)
def test_what_is_wrong_with_a_source_is_one_line(root, mine, monkeypatch, words, reported):
    monkeypatch.chdir(mine.parent)
    inputs = dict.fromkeys(("left", "right"), "float32[n]")
    write_trace_set(root, definitions=[make_definition("other", inputs=inputs, reference=TWO)])
    for name, text in {"double_py.py": SOURCE, "twice_py.py": SOURCE, "two.py": TWO, "notes.txt": "nothing"}.items():
        Path(name).write_text(text)
    Path("empty").mkdir()
    with pytest.raises(DataSetError, match=rf"^.*{re.escape(reported)}[^\n]*$"):
        sides_of(root, *words)


def test_versions_of_a_file_and_folders_of_sources_are_sides(root, mine, tmp_path):
    for path in ("double/mine.py", "kernels/main.py"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text("def run(x):\n    return 2 * x\n")
    (pairing,) = pair_up(*sides_of(root, tmp_path / "double" / "mine.py", mine))
    assert (pairing.first.name, pairing.second.name, pairing.second.definition) == ("mine", "mine", "double")
    assert pairing.first.digest() != pairing.second.digest()
    (pairing,) = pair_up(*sides_of(root, "double_python", tmp_path / "kernels"))
    assert pairing.second.spec.entry_point == "main.py::run"


def test_what_is_recorded_of_a_source_is_what_it_is_now(root, mine):
    plain = sides_of(root, "double_python", mine)[1].solutions[0]
    runs = {"w1": plain.digest(), "w2": "of another source"}
    lines = [
        make_trace(solution="mine", workload=make_workload(uuid), extra={"run": {"fingerprint": {"solution": digest}}})
        for uuid, digest in runs.items()
    ]
    write_trace_set(root, traces=lines)
    assert [one.workload for one in sides_of(root, "double_python", mine)[1].results] == ["w1"]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["double_python", "mine.py"], "no trace set was named"),
        (["double_python", "twice_python", "--local", "set", "--entry", "run"], "--entry: neither side is a source"),
        (
            ["mine.py", "mine.py", "--local", "set", "--definition", "twice", "--devices", "cpu", "--workloads", "no"],
            "mine.py: python, mine.py::run, of twice (as given)",
        ),
    ],
)
def test_the_command_tells_what_it_found_out_and_what_is_misuse(root, mine, monkeypatch, capsys, words, reported):
    monkeypatch.chdir(root.parent)
    monkeypatch.delenv("FIB_DATASET_PATH", raising=False)
    assert main(["compare", *words]) == 2
    assert reported in capsys.readouterr().err
