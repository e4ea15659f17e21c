"""The files of `perf` where they cannot be written: nothing is run, or the rest goes on and the command fails."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf.cases import read_requests
from flashinfer_bench.cli.perf.files import ResultFiles, check_paths
from flashinfer_bench.cli.perf.rows import make_failed
from flashinfer_bench.routines.case.support import Platform
from tests.routines.tables import read_rows

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full"),
]
CPU = Platform("a CPU", None, {}, frozenset())
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
QUICK = ["--devices", "cpu", "--num_iters", "2", "--dry_run_iters", "1"]
LOSS = "error: /dev/full: a row cannot be written, and none after it will be: No space left on device; make room"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no more than this to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_table_that_cannot_be_begun_is_misuse(capsys):
    assert main(["perf", *RMSNORM.split(), *QUICK, "--output_path", "/dev/full"]) == 2
    ended = capsys.readouterr()
    assert ended.out == ""
    assert ended.err.startswith("error: /dev/full: cannot be written: ")


def test_a_file_that_loses_rows_is_told_once_and_costs_no_other_verdict(tmp_path, capsys):
    testlist, table = tmp_path / "list.txt", tmp_path / "out.csv"
    testlist.write_text(f"{RMSNORM}\n{RMSNORM} --eps 1e-5\n")
    paths = ["--testlist", str(testlist), "--output_path", str(table), "--json_path", "/dev/full"]
    assert main(["perf", *paths, *QUICK]) == 1
    ended = capsys.readouterr()
    assert ended.out.count("[PERF]") == 2
    assert [row["status"] for row in read_rows(table)] == ["passed", "passed"]
    assert [line[: len(LOSS)] for line in ended.err.splitlines() if "/dev/full" in line] == [LOSS]


def test_a_command_after_one_that_lost_rows_ends_well(tmp_path):
    assert main(["perf", *RMSNORM.split(), *QUICK, "--json_path", "/dev/full"]) == 1
    assert main(["perf", *RMSNORM.split(), *QUICK, "--json_path", str(tmp_path / "out.jsonl")]) == 0


def test_a_full_disk_leaves_whole_rows(tmp_path, capsys):
    table, lines = tmp_path / "out.csv", tmp_path / "out.jsonl"
    request = read_requests(RMSNORM.split(), None, CPU)[0]
    row = make_failed(request, "torch", "for once", CPU)
    files = ResultFiles(str(table), str(lines), CPU)
    with largest_file(4000):
        for _ in range(40):
            files.add(row)
    assert files.lost == {table, lines}
    assert capsys.readouterr().err.count("a row cannot be written") == 2
    assert {item["reason"] for item in read_rows(table)} == {"for once"}
    assert table.read_bytes().endswith(b"\r\n")
    assert {json.loads(line)["reason"] for line in lines.read_text().splitlines()} == {"for once"}
    assert table.stat().st_size <= 4000


def test_text_that_is_no_text_is_written_all_the_same(tmp_path):
    table, lines = tmp_path / "out.csv", tmp_path / "out.jsonl"
    tag = b"a\xffb".decode("utf-8", "surrogateescape")  # as the shell gives it
    paths = ["--output_path", str(table), "--json_path", str(lines)]
    assert main(["perf", *RMSNORM.split(), *QUICK, "--case_tag", tag, *paths]) == 0
    assert read_rows(table)[0]["case_tag"] == "a\\udcffb"
    assert json.loads(lines.read_text())["flags"]["case_tag"] == tag


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--output_path same.csv --json_path same.csv", "--output_path and --json_path"),
        ("--output_path same.jsonl --json_path ./same.jsonl", "--output_path and --json_path"),
        ("--output_path new.csv --json_path sub/../new.csv", "--output_path and --json_path"),
        ("--output_path same.csv --json_path link.csv", "--output_path and --json_path"),
        ("--output_path same.csv --json_path hard.csv", "--output_path and --json_path"),
        ("--testlist list.txt --output_path list.txt", "--testlist and --output_path"),
        ("--testlist list.txt --json_path list.txt", "--testlist and --json_path"),
    ],
)
def test_one_file_for_two_things_is_misuse_before_anything_is_opened(tmp_path, monkeypatch, capsys, flags, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("same.csv", "same.jsonl", "list.txt"):
        (tmp_path / name).write_text(f"{RMSNORM}\n")
    (tmp_path / "link.csv").symlink_to("same.csv")
    (tmp_path / "hard.csv").hardlink_to("same.csv")
    words = flags.split() if "--testlist" in flags else [*RMSNORM.split(), *flags.split()]
    assert main(["perf", *words, *QUICK]) == 2
    assert capsys.readouterr().err.startswith(f"error: {told} name the same file: ")
    assert {path.read_text() for path in tmp_path.iterdir() if path.is_file()} == {f"{RMSNORM}\n"}
    assert not (tmp_path / "new.csv").exists()


def test_two_results_may_go_to_one_device():
    check_paths({"--output_path": "/dev/null", "--json_path": "/dev/null"})
    check_paths({"--output_path": "a.csv", "--json_path": None, "--testlist": "b.csv"})


def test_tolerances_that_cannot_be_used_are_told_before_any_file_is_begun(tmp_path, capsys):
    table = tmp_path / "out.csv"
    table.write_text("old results\n")
    (tmp_path / "tolerances.yaml").write_text("- no mapping\n")
    command = ["perf", *RMSNORM.split(), *QUICK, "--output_path", str(table), "--save_trace_set", str(tmp_path)]
    assert main(command) == 2
    assert "a mapping" in capsys.readouterr().err
    assert table.read_text() == "old results\n"
