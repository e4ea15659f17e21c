"""Appending lines: whole ones, by many processes at once, after a write that was cut off, on a full disk."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from flashinfer_bench.data.store import jsonl
from flashinfer_bench.data.store.jsonl import append_line, append_lines, read_lines, write_whole
from flashinfer_bench.errors import Fault


def _append_many(path: Path, writer: int, size: int, barrier) -> None:
    barrier.wait()
    for index in range(100):
        append_line(path, json.dumps({"writer": writer, "index": index, "filling": "x" * size}))


def test_processes_that_append_at_once_leave_whole_lines_and_lose_none(tmp_path):
    path, context = tmp_path / "new" / "a.jsonl", multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    writers = [context.Process(target=_append_many, args=(path, n, 30_000, barrier)) for n in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [process.exitcode for process in writers] == [0, 0, 0]
    for writer in range(3):
        assert [row["index"] for row in rows if row["writer"] == writer] == list(range(100))
    assert len(rows) == 300


def _append_without_end(path: Path) -> None:
    for index in itertools.count():
        append_line(path, json.dumps({"index": index, "filling": "x" * 1_000_000}))


def test_a_writer_that_is_killed_at_any_moment_leaves_whole_lines_to_the_next(tmp_path):
    path, context = tmp_path / "a.jsonl", multiprocessing.get_context("spawn")
    path.touch()
    for round_number in range(5):
        size = path.stat().st_size
        writer = context.Process(target=_append_without_end, args=(path,))
        writer.start()
        while path.stat().st_size < size + 3_000_000 + round_number * 333_333:
            assert writer.is_alive()
        writer.kill()
        writer.join()
        append_line(path, "{}")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows.count({}) == 5
    assert len(rows) >= 5 * 3


@pytest.mark.parametrize("torn", ['{"a": 1', '{"a": "' + "x" * 200_000, "1", "\x00"])
def test_a_line_that_was_cut_off_is_moved_aside(torn, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"whole": 1}\n' + torn)
    append_line(path, '{"new": 2}')
    assert path.read_text() == '{"whole": 1}\n{"new": 2}\n'
    assert (tmp_path / "a.jsonl.torn").read_text() == torn + "\n"


def test_a_file_that_is_one_torn_line_is_mended(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a"')
    append_line(path, "{}")
    assert path.read_text() == "{}\n"


def test_a_whole_last_line_gets_its_newline(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"whole": 1}')
    append_line(path, '{"new": 2}')
    assert path.read_text() == '{"whole": 1}\n{"new": 2}\n'
    assert not list(tmp_path.glob("*.torn"))


def test_a_write_that_the_disk_takes_in_part_leaves_nothing(tmp_path, monkeypatch):
    path, write = tmp_path / "a.jsonl", os.write
    path.write_text("{}\n")
    monkeypatch.setattr(jsonl.os, "write", lambda file, data: write(file, data[:3]))
    with pytest.raises(Fault, match="only part"):
        append_line(path, '{"new": 2}')
    assert path.read_text() == "{}\n"


def test_a_folder_that_cannot_be_written_is_a_fault_with_the_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Fault, match=r"file/a\.jsonl"):
        append_line(tmp_path / "file" / "a.jsonl", "{}")


def test_a_file_that_was_moved_away_while_waiting_is_made_anew(tmp_path, monkeypatch):
    path, answers = tmp_path / "a.jsonl", iter([False, True])
    monkeypatch.setattr("flashinfer_bench.base.files.writing.OpenFolder.is_file", lambda *_: next(answers))
    append_lines(path, ["{}"])
    assert path.read_text() == "{}\n"


def test_no_lines_make_no_file(tmp_path):
    append_lines(tmp_path / "a.jsonl", [])
    assert not list(tmp_path.iterdir())


def test_lines_are_read_with_their_numbers_whatever_ends_them(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n\r\n \n[1]\n2")
    assert list(read_lines(path)) == [(1, b"{}", True), (4, b"[1]", True), (5, b"2", False)]


def test_a_file_is_replaced_whole_and_leaves_no_staging_file(tmp_path):
    write_whole(tmp_path / "deep" / "a.json", "one")
    write_whole(tmp_path / "deep" / "a.json", "two")
    assert [(file.name, file.read_text()) for file in (tmp_path / "deep").iterdir()] == [("a.json", "two")]
