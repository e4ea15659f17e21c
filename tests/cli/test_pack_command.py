"""`pack` and `unpack` as they are typed: files, exit codes, messages."""

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import save_json_file
from tests.kit.make import make_definition, make_solution, write_trace_set


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Work in a folder with a set, a solution file and its folder of sources."""
    monkeypatch.chdir(tmp_path)
    write_trace_set(tmp_path / "set", definitions=[make_definition()])
    save_json_file(make_solution("mine"), "mine.json")
    assert main(["unpack", "mine.json", "-d", "mine"]) == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pack mine --local set -o x.json", "no definition 'gone'"),
        ("pack mine -o notes.json", "name another file with -o"),
        ("unpack mine", "mine is no file; unpack takes a solution's file"),
        ("unpack mine.json -d mine", "mine"),
    ],
)
def test_what_cannot_be_is_misuse_and_writes_nothing(here, capsys, line, said):
    manifest = here / "mine/solution.yaml"
    manifest.write_text(manifest.read_text().replace("definition: double", "definition: gone"))
    (here / "notes.json").write_text("{}")
    assert main(line.split()) == 2
    assert said in capsys.readouterr().err
    assert (here / "notes.json").read_text() == "{}"
    assert not (here / "x.json").exists()
