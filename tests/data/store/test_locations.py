"""Paths below a root: names are never trusted, and no two share a path. Blobs are in the set, or the message has a
remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import locate_blob
from flashinfer_bench.errors import WorkloadFault

HOSTILE = ["../../x", "a/b", "/etc/passwd", "..", ".", "", ".hidden", "a\0b", "x" * 5000, "ü" * 200, "a\nb",
           "trailing.", "trailing ", "a~b", "-rf", "C:\\x", "con\x7f"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_stays_one_part_below_its_folder(name, tmp_path):
    path = layout.traces_path(tmp_path, author=name, op_type=name, definition=name)
    assert len(path.relative_to(tmp_path).parts) == 4
    assert Path(os.path.normpath(path)) == path
    path.parent.mkdir(parents=True)
    path.write_text("")


@given(st.lists(st.text(max_size=8) | st.sampled_from(HOSTILE), min_size=2, max_size=2, unique=True))
def test_two_names_never_share_a_part(names):
    first, second = map(layout.path_part, names)
    assert first != second
    assert not {"/", "\0", "\\"} & set(first)
    assert first not in (".", "..", "")


def test_plain_names_are_their_own_part_and_long_names_stay_distinct():
    for name in ("gemm_n128_k2048", "gpt-5.1 (high)", "Qwen3@8b,x=1", "a", "_x"):
        assert layout.path_part(name) == name
    assert layout.path_part(layout.path_part("a/b")) != layout.path_part("a/b")
    assert layout.path_part("x" * 300 + "a") != layout.path_part("x" * 300 + "b")
    assert len(layout.path_part("x" * 300)) < 100
    path = layout.blob_path(Path("r"), op_type="gemm", definition="d", uuid="u")
    assert path == Path("r/blob/workloads/gemm/d/d_u.safetensors")


PATH = "blob/workloads/test/double/a.safetensors"


def put(path, text="tensors"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link(path, target):
    path.parent.mkdir(parents=True)
    path.symlink_to(target)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_blob_is_found_below_the_root_whose_blob_folder_may_be_on_another_disk(tmp_path, is_elsewhere):
    put(tmp_path / ("disk" if is_elsewhere else "set") / PATH)
    if is_elsewhere:
        link(tmp_path / "set" / "blob", tmp_path / "disk" / "blob")
    for path in (PATH, f"./{PATH}"):
        assert locate_blob(tmp_path / "set", path).read_text() == "tensors"


def test_a_hugging_face_cache_links_to_its_own_blobs(tmp_path):
    root = tmp_path / "datasets--x/snapshots/main"
    link(root / PATH, put(tmp_path / "datasets--x/blobs/0123"))
    assert locate_blob(root, PATH).read_text() == "tensors"


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "blob/../../secret", "a\\b", "", ".", "a\0b", PATH])
def test_a_path_or_a_link_that_leads_out_of_the_set_is_refused(tmp_path, path):
    link(tmp_path / "set" / PATH, put(tmp_path / "secret"))
    with pytest.raises(WorkloadFault, match="outside the set" if path == PATH else "leads out of the set"):
        locate_blob(tmp_path / "set", path)


@pytest.mark.parametrize("path", ["blob/none", "blob/" + "x" * 5000])
def test_a_missing_blob_is_reported_with_its_workload_and_the_remedy(tmp_path, path):
    put(tmp_path / PATH)
    with pytest.raises(WorkloadFault, match="of workload w7 is not there; run: flashinfer-bench fetch"):
        locate_blob(tmp_path, path, workload="w7")
