"""`pack` and `unpack` as they are typed: files, exit codes, messages."""

import json

import pytest

from flashinfer_bench.cli.entry import run_command_line
from flashinfer_bench.data import save_json_file
from tests.kit.make import make_definition, make_solution, write_trace_set


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Type a command in a folder with a set and a folder of sources; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    write_trace_set(tmp_path / "set", definitions=[make_definition()])
    save_json_file(make_solution("mine"), "mine.json")
    assert run_command_line(["unpack", "mine.json", "-d", "mine"]) == 0
    capsys.readouterr()
    return lambda line: (run_command_line(line.split()), *capsys.readouterr())


def test_a_round_trip_leaves_the_file_as_it_was(call, tmp_path, monkeypatch):
    before = (tmp_path / "mine.json").read_bytes()
    assert "mine.json: mine for" in call("pack mine --local set")[1]
    assert (tmp_path / "mine.json").read_bytes() == before
    monkeypatch.chdir(tmp_path / "mine")
    for line in ("pack .", "pack .", "pack . -o other.json --format json"):
        code, out, _ = call(line)
        assert code == 0
    assert json.loads(out)["files"] == ["other.json"]
    assert (tmp_path / "mine/mine.json").read_bytes() == (tmp_path / "mine/other.json").read_bytes()


def test_a_definition_that_the_set_lacks_writes_nothing_and_is_misuse(call, tmp_path):
    manifest = tmp_path / "mine/solution.yaml"
    manifest.write_text(manifest.read_text().replace("definition: double", "definition: gone"))
    code, _, err = call("pack mine --local set -o x.json")
    assert (code, "no definition 'gone'" in err, (tmp_path / "x.json").exists()) == (2, True, False), err


def test_another_file_is_not_overwritten(call, tmp_path):
    (tmp_path / "notes.json").write_text("{}")
    code, _, err = call("pack mine -o notes.json")
    assert (code, "name another file with -o" in err) == (2, True)
    assert (tmp_path / "notes.json").read_text() == "{}"
