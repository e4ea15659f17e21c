"""One strange file in a set affects only itself: it is reported in one line, and the reader neither blocks nor follows
it."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.store import jsonl
from flashinfer_bench.data.store.pack import pack_folder
from flashinfer_bench.errors import DataSetError
from tests.kit import make_solution
from tests.kit.strange import STRANGE


def test_a_line_and_a_file_of_lines_have_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "MOST_JSON_BYTES", 10)
    monkeypatch.setattr(jsonl, "MOST_LINES", 3)
    for text, words in {"1\n" + "2" * 20: "line 2 has more than 10 bytes", "\n" * 20: "more than 3 lines"}.items():
        (tmp_path / "file").write_text(text)
        with pytest.raises(OSError, match=words):
            list(jsonl.read_lines(tmp_path / "file"))


@pytest.mark.parametrize("words", STRANGE)
@pytest.mark.parametrize("name", ["solution.yaml", "solution.json", "main.py"])
def test_packing_refuses_sources_that_are_not_regular_files(tmp_path, name, words):
    if name != "solution.json":
        (tmp_path / "solution.json").write_text(json.dumps({**make_solution().to_dict(), "sources": ["main.py"]}))
    STRANGE[words](tmp_path / name)
    with pytest.raises(DataSetError):
        pack_folder(tmp_path)


@pytest.mark.parametrize("text", ["/*" * 100_000, "#define x \\\n" * 20_000, "#define" * 30_000], ids=str.__len__)
def test_a_source_is_searched_in_linear_time(text):
    solution = make_solution(language="cpp", sources={"main.cpp": text}, entry_point="main.cpp::run")
    assert "there is no function 'run'" in check_entry(solution)[0]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["d/" * 40 + "main.py"], "folders deep"),
        (["d" * 150 + ("/" + "d" * 150) * 7], "folders deep"),
        ([f"{number}.py" for number in range(4097)], "at most 4096"),
    ],
    ids=["deep", "long", "many"],
)
def test_sources_have_a_depth_a_number_and_a_length(paths, words):
    with pytest.raises(ValueError, match=words):
        make_solution(sources=dict.fromkeys(paths, ""), entry_point=f"{paths[0]}::run")
    assert check_entry(make_solution(source="x = 1\n" * 100_000)) == []
