"""`pack` and `unpack` as they are typed: files, exit codes, messages."""

import json

import pytest

from flashinfer_bench.cli.entry import run_command_line
from flashinfer_bench.data import save_json_file
from tests.kit.make import make_definition, make_solution

DEFINITION = make_definition()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with a set and a folder of sources."""
    monkeypatch.chdir(tmp_path)
    save_json_file(DEFINITION, tmp_path / "set" / "definitions" / DEFINITION.op_type / f"{DEFINITION.name}.json")
    save_json_file(make_solution(definition=DEFINITION.name, name="mine"), "mine.json")
    assert run_command_line(["unpack", "mine.json", "-d", "mine"]) == 0
    return tmp_path


def test_a_round_trip_leaves_the_file_as_it_was(here, capsys):
    before = (here / "mine.json").read_bytes()
    assert run_command_line(["pack", "mine", "--local", "set"]) == 0
    assert (here / "mine.json").read_bytes() == before
    assert "mine.json: mine for" in capsys.readouterr().out


def test_json_names_the_files(here, capsys):
    capsys.readouterr()
    assert run_command_line(["pack", "mine", "-o", "new/x.json", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["new/x.json"]


def test_a_wrong_entry_point_writes_nothing_and_is_misuse(here, capsys):
    (here / "mine" / "main.py").write_text("def run(): ...\n")
    assert run_command_line(["pack", "mine", "--local", "set", "-o", "x.json"]) == 2
    assert "cannot be called" in capsys.readouterr().err
    assert not (here / "x.json").exists()


def test_a_definition_that_the_set_lacks_is_named(here, capsys):
    manifest = here / "mine" / "solution.yaml"
    manifest.write_text(manifest.read_text().replace(f"definition: {DEFINITION.name}", "definition: gone"))
    assert run_command_line(["pack", "mine", "--local", "set"]) == 2
    assert "no definition 'gone'" in capsys.readouterr().err


def test_another_file_is_not_overwritten(here, capsys):
    (here / "notes.json").write_text("{}")
    assert run_command_line(["pack", "mine", "-o", "notes.json"]) == 2
    assert (here / "notes.json").read_text() == "{}"
    assert "name another file with -o" in capsys.readouterr().err


def test_a_file_to_unpack_that_is_not_there_is_one_line_with_what_to_give(here, capsys):
    capsys.readouterr()
    assert run_command_line(["unpack", "gone.json"]) == 2
    where = "SET/solutions/<author>/<op_type>/<definition>/<solution>.json"
    assert capsys.readouterr().err == (
        f"error: gone.json is no file; unpack takes a solution's file, such as {where}\n"
    )


@pytest.mark.parametrize("argv", [["unpack", "gone.json"], ["pack", "gone"], ["pack", "set"]])
def test_what_is_not_there_is_misuse(here, argv, capsys):
    assert run_command_line(argv) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_packing_a_folder_into_itself_twice_gives_the_same_file(here, monkeypatch):
    monkeypatch.chdir(here / "mine")
    assert run_command_line(["pack", "."]) == 0
    once = (here / "mine/mine.json").read_bytes()
    assert run_command_line(["pack", "."]) == 0
    assert run_command_line(["pack", ".", "-o", "other.json"]) == 0
    assert (here / "mine/mine.json").read_bytes() == (here / "mine/other.json").read_bytes() == once
