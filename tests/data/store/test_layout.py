"""Paths: names are never trusted, and no two share one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data.store import layout

HOSTILE = ["../../x", "a/b", "/etc/passwd", "..", ".", "", ".hidden", "a\0b", "x" * 5000, "ü" * 200, "a\nb",
           "trailing.", "trailing ", "a~b", "-rf", "C:\\x", "con\x7f"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_stays_one_part_below_its_folder(name, tmp_path):
    path = layout.traces_path(tmp_path, author=name, op_type=name, definition=name)
    assert len(path.relative_to(tmp_path).parts) == 4
    assert Path(os.path.normpath(path)) == path
    path.parent.mkdir(parents=True)
    path.write_text("")


@pytest.mark.parametrize("name", ["gemm_n128_k2048", "gpt-5.1 (high)", "Qwen3@8b,x=1", "a", "_x"])
def test_a_plain_name_is_its_own_part(name):
    assert layout.path_part(name) == name


@given(st.lists(st.text(max_size=8) | st.sampled_from(HOSTILE), min_size=2, max_size=2, unique=True))
def test_two_names_never_share_a_part(names):
    first, second = map(layout.path_part, names)
    assert first != second
    assert not {"/", "\0", "\\"} & set(first)
    assert first not in (".", "..", "")


def test_what_a_name_was_turned_into_is_no_name_of_its_own():
    made = layout.path_part("a/b")
    assert layout.path_part(made) != made


def test_names_that_differ_only_past_the_limit_are_told_apart():
    assert layout.path_part("x" * 300 + "a") != layout.path_part("x" * 300 + "b")
    assert len(layout.path_part("x" * 300)) < 100


def test_every_kind_has_its_place():
    root, names = Path("r"), {"op_type": "gemm", "definition": "d"}
    assert layout.definition_path(root, **names) == Path("r/definitions/gemm/d.json")
    assert layout.workloads_path(root, **names) == Path("r/workloads/gemm/d.jsonl")
    assert layout.solution_path(root, author="a", solution="s", **names) == Path("r/solutions/a/gemm/d/s.json")
    assert layout.traces_path(root, author="a", **names) == Path("r/traces/a/gemm/d.jsonl")
    assert layout.blob_path(root, uuid="u", **names) == Path("r/blob/workloads/gemm/d/d_u.safetensors")


def refuse(path, reason):
    raise AssertionError(f"{path} {reason}")


def test_a_walk_is_sorted_and_ends_although_a_link_leads_back_up(tmp_path):
    for name in ("b/2.json", "a/1.json", "a/.hidden.json", ".git/3.json", "a/note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert list(layout.find_files(tmp_path, (".json",), refuse)) == [tmp_path / "a/1.json", tmp_path / "b/2.json"]


@pytest.mark.parametrize(
    ("path", "is_right"),
    [("alice/gemm/d/s.json", True), ("gemm/d/s.json", True), ("s.json", True), ("bob/gemm/d/s.json", False),
     ("alice/rope/d/s.json", False), ("alice/gemm/d/t.json", False)],
)  # fmt: skip
def test_as_many_folders_as_there_are_are_compared(path, is_right, tmp_path):
    reason = layout.check_place(tmp_path / path, tmp_path, ("s", "d", "gemm", "alice"))
    assert (reason is None) == is_right
