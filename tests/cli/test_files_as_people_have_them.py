"""Sets and files as people have them: byte-order marks, Windows' line ends and paths, git-lfs pointers, full disks."""

from __future__ import annotations

import codecs
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet, save_json_file
from tests.cli.fake_engine import write_small_set
from tests.kit.make import make_solution, make_trace

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"
FLAGS = "--devices cpu --iterations 2 --warmup-runs 0 --num-trials 1"
FILES = {
    "a definition": "definitions/test/double.json",
    "a solution": "solutions/alice/test/double/double_python.json",
    "workloads": "workloads/test/double.jsonl",
    "traces": "traces/alice/test/double.jsonl",
    "tolerances": "tolerances.yaml",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with a set."""
    monkeypatch.chdir(tmp_path)
    files = {"tolerances.yaml": "double:\n  atol: 0.01\n"}
    write_small_set(tmp_path / "set", workloads=1, traces=[make_trace()], files=files)
    return tmp_path


def as_on_windows(file):
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes().replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("name", FILES)
def test_a_mark_and_line_ends_of_windows_change_nothing(here, capsys, name):
    before = TraceSet.from_path(here / "set")
    as_on_windows(here / "set" / FILES[name])
    assert main(["validate", "set"]) == 0
    assert "1 trace: 0 errors, 0 warnings" in capsys.readouterr().out
    after = TraceSet.from_path(here / "set")
    assert (after.definitions, after.solutions, after.traces) == (before.definitions, before.solutions, before.traces)


def test_files_of_lines_with_marks_may_be_put_together(here):
    file = here / "set" / FILES["traces"]
    as_on_windows(file)
    file.write_bytes(file.read_bytes() * 2)
    loaded = TraceSet.from_path(here / "set")
    assert (len(loaded.traces["double"]), loaded.issues) == (2, [])


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((f"set/{file}", "validate set") for file in FILES.values()),
        ("pointer", "run set --config pointer"),
        ("pointer.py", "run set --solution pointer.py --definition double"),
        ("pointer", "perf --testlist pointer"),
        ("folder/solution.yaml", "pack folder"),
        (f"set/{FILES['traces']}", f"run set {FLAGS}"),
    ],
)
def test_a_pointer_in_place_of_a_file_is_called_so_and_stays(here, capsys, name, command):
    (here / "folder").mkdir()
    (here / name).write_text(POINTER)
    assert main(command.split()) in ([1, 2] if command == "validate set" else [2])
    said = "".join(capsys.readouterr())
    assert "this is a git-lfs pointer, not the file; run `git lfs pull`" in said
    assert "nothing can be appended to" in said or FLAGS not in command
    assert (here / name).read_text() == POINTER


def test_sources_with_a_mark_are_judged_and_validated(here, capsys):
    source = "\ufeffdef run(x):\r\n    return x * 2\r\n"
    save_json_file(make_solution("marked", source=source), here / "set/solutions/alice/test/double/marked.json")
    definition = here / "set" / FILES["a definition"]
    plain = json.loads(definition.read_text())
    definition.write_text(json.dumps({**plain, "reference": "\ufeff" + plain["reference"]}))
    (here / "mine.py").write_text(source, newline="")
    assert main(["validate", "set"]) == 0
    command = f"run set --solutions marked mine.py --definition double --require-passed {FLAGS}"
    assert main(command.split()) == 0
    assert "2 PASSED" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["a b'\"$HOME", "\u2603", "new\nline", "*[x]%s{x}", "b\udcff"])
def test_a_set_may_lie_in_a_folder_of_any_name(here, folder):
    (here / folder).mkdir()
    root = str((here / "set").rename(here / folder / "set"))
    for command in ("list", "validate", "validate --format json", "report best"):
        assert main([*command.split(), root]) == 0


@pytest.mark.parametrize("command", ["list set", "run set"])
def test_a_working_directory_that_is_gone_is_misuse_in_one_line(tmp_path, command):
    code = f"import os; os.rmdir(os.getcwd()); import flashinfer_bench.cli.main as m; exit(m.cli({command.split()!r}))"
    (tmp_path / "gone").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words, place = [sys.executable, "-c", code], tmp_path / "gone"
    said = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (2, "error: the working directory was removed; cd to another one first\n")


def test_a_full_disk_says_which_verdict_is_lost_and_tears_nothing(here, capsys, monkeypatch):
    file, write = here / "set" / FILES["traces"], os.write
    before = file.read_bytes()

    def refuse(fd, data):
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", refuse)
    assert main(["run", "set", *FLAGS.split()]) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "the verdict PASSED of double_python on workload w0 is lost\n" in said
    assert "resume with: " in said
    assert file.read_bytes() == before
