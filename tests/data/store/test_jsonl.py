"""Appending lines: atomically, concurrently, after a truncated write, and on a full disk; also traces."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from flashinfer_bench.data.store import jsonl
from flashinfer_bench.data.store.jsonl import append_lines, read_lines, remove_lines, write_whole
from flashinfer_bench.errors import Fault

FORK = multiprocessing.get_context("forkserver")


def _append_many(path: Path, writer: int, size: int, barrier) -> None:
    barrier.wait()
    for index in range(30):
        append_lines(path, [json.dumps({"writer": writer, "index": index, "filling": "x" * size})])


def test_processes_that_append_at_once_leave_whole_lines_and_lose_none(tmp_path):
    path, barrier = tmp_path / "new" / "a.jsonl", FORK.Barrier(3)
    writers = [FORK.Process(target=_append_many, args=(path, n, 30_000, barrier)) for n in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [process.exitcode for process in writers] == [0, 0, 0]
    for writer in range(3):
        assert [row["index"] for row in rows if row["writer"] == writer] == list(range(30))


def test_removing_lines_loses_none_that_other_processes_append_meanwhile(tmp_path):
    path, barrier = tmp_path / "a.jsonl", FORK.Barrier(3)
    path.touch()
    writers = [FORK.Process(target=_append_many, args=(path, n, 3_000, barrier)) for n in range(2)]
    for process in writers:
        process.start()
    barrier.wait()
    removed = 0
    while any(process.is_alive() for process in writers) or removed < 40:
        removed += remove_lines(path, lambda line: json.loads(line)["index"] < 20)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert (removed, sorted(row["index"] for row in rows)) == (40, sorted([*range(20, 30)] * 2))


def _append_without_end(path: Path) -> None:
    for index in itertools.count():
        append_lines(path, [json.dumps({"index": index, "filling": "x" * 1_000_000})])


def test_a_writer_that_is_killed_at_any_moment_leaves_whole_lines_to_the_next(tmp_path):
    path = tmp_path / "a.jsonl"
    path.touch()
    for round_number in range(3):
        size = path.stat().st_size
        writer = FORK.Process(target=_append_without_end, args=(path,))
        writer.start()
        while path.stat().st_size < size + 3_000_000 + round_number * 333_333:
            assert writer.is_alive()
        writer.kill()
        writer.join()
        append_lines(path, ["{}"])
    lines = path.read_text().splitlines()
    assert lines.count("{}") == 3
    assert sum(line.endswith("}") for line in lines) >= 3 * 3


@pytest.mark.parametrize("last", ['{"a": 1', '{"whole": 1}'])
def test_a_last_line_without_its_newline_gets_it_and_stays(last, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(last)
    append_lines(path, ['{"new": 2}'])
    assert path.read_text() == f'{last}\n{{"new": 2}}\n'


def test_a_write_that_the_disk_takes_in_part_leaves_nothing(tmp_path, monkeypatch):
    path, write = tmp_path / "a.jsonl", os.write
    path.write_text("{}\n")
    monkeypatch.setattr(jsonl.os, "write", lambda file, data: write(file, data[:3]))
    with pytest.raises(Fault, match="only part"):
        append_lines(path, ['{"new": 2}'])
    assert path.read_text() == "{}\n"
    with pytest.raises(Fault, match=r"a\.jsonl/b\.jsonl"):
        append_lines(path / "b.jsonl", ["{}"])


def test_no_lines_make_no_file_and_a_file_is_replaced_whole(tmp_path):
    append_lines(tmp_path / "a.jsonl", [])
    for text in ("one", "two"):
        write_whole(tmp_path / "deep" / "a.json", text)
    assert [(file.name, file.read_text()) for file in (tmp_path / "deep").iterdir()] == [("a.json", "two")]
    assert [file.name for file in tmp_path.iterdir()] == ["deep"]


def test_lines_are_read_with_their_numbers_whatever_ends_them(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n\r\n \n[1]\n2")
    assert list(read_lines(path)) == [(1, b"{}", True), (4, b"[1]", True), (5, b"2", False)]
