"""A foreign set has links, and no command that writes into the set writes behind one."""

from __future__ import annotations

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet, save_json_file
from flashinfer_bench.errors import Fault
from tests.cli.fake_engine import write_small_set
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload

COMMANDS = {
    "report export": "report export --local set set/out/x.csv",
    "report html": "report html set/out/pages --local set",
    "report html into the link": "report html set/out --local set",
    "report merge": "report merge --local set --output set/out/merged",
    "validate": "validate set --output-folder set/out",
    "new solution": "new solution set --definition double -o set/out/x.py",
    "new definition": "new definition other --op-type out --local set",
    "pack": "pack sources -o set/out/x.json",
    "unpack": "unpack packed.json -d set/out/sources",
    "export apply": "export apply set/out/applied --local set --unconfirmed",
    "convert": "convert other --output set/out/converted",
    "fetch": "fetch someone/set --output set/out/fetched",
    "perf": "perf --routine rmsnorm --backends torch --output_path set/out/x.csv --batch_size 1 --hidden_size 8",
    "compare": "compare double_python double_python set --junit set/out/x.xml",
    "repro": "repro double_python w0 --local set --dump set/out/repro",
    "run": "run --local set",
    "run of a draft": "run set --solution draft.py --definition double",
}
LINKS = {
    f"{name} at the file": line.replace("set/out/", "set/") for name, line in COMMANDS.items() if "set/out/x." in line
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with a set whose folders lead to a home folder, and whose `x.*` lead to a file there."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    for name in ("set", "other"):
        write_small_set(tmp_path / name, workloads=1)
    for link in ("out", "definitions/out", "solutions/me", "traces"):
        (tmp_path / "set" / link).symlink_to(home)
    for ending in ("csv", "py", "json", "xml"):
        (tmp_path / f"set/x.{ending}").symlink_to(home / "mine")
    (home / "mine").write_text("mine")
    save_json_file(make_solution(), tmp_path / "packed.json")
    assert main(["unpack", "packed.json", "-d", "sources"]) == 0
    (tmp_path / "draft.py").write_text("def run(x):\n    return x * 2\n")
    return tmp_path


def is_untouched(here):
    return {file.name: file.read_text() for file in (here / "home").iterdir()} == {"mine": "mine"}


@pytest.mark.parametrize("name", [*COMMANDS, *LINKS])
def test_no_command_writes_behind_a_link_in_a_set(here, capsys, name):
    assert main((COMMANDS | LINKS)[name].split()) == 2
    said = capsys.readouterr().err
    assert f"is a link to {here / 'home'}" in said or name == "pack at the file"
    assert name != "run" or said.endswith("; --no-save-results judges without saving\n")
    assert is_untouched(here)


def test_pages_of_a_stranger_lead_nothing_out(here):
    assert main(["report", "html", "pages", "--local", "other"]) == 0
    (here / "pages/data").rename(here / "pages/old")
    (here / "pages/data").symlink_to(here / "home")
    assert main(["report", "html", "pages", "--local", "other"]) != 0
    assert is_untouched(here)


def test_outside_of_sets_a_link_is_the_users_choice_and_a_set_without_links_is_written_to(here):
    (here / "link").symlink_to("home")
    (here / "latest.csv").symlink_to("home/real.csv")
    (here / "linked").symlink_to("other")
    for target in ("link/x.csv", "latest.csv", "/dev/null", "other/../link/y.csv", "linked/new/x.csv"):
        assert main(["report", "export", "--local", "other", "--format", "csv", target]) == 0
    assert {file.name for file in (here / "home").iterdir()} == {"mine", "x.csv", "real.csv", "y.csv"}
    assert (here / "other/new/x.csv").read_text().startswith("definition")


def test_a_script_writes_behind_no_link_in_a_set(here):
    trace_set = TraceSet.from_path(here / "set")
    verdict = make_trace(evaluation=make_evaluation(), workload=make_workload("w0"))
    with pytest.raises(Fault, match="is a link to"):
        trace_set.add_traces([verdict])
    with pytest.raises(OSError, match="is a link to"):
        save_json_file(make_definition(), "set/../set/definitions/out/x.json")
    assert is_untouched(here)
