"""Blobs: never outside the set, pointers are fetched once, and every failure says what to do."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.errors import WorkloadFault

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
PATH = "blob/workloads/test/double/a.safetensors"


def _put(root, text="tensors", path=PATH):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return root / path


@pytest.mark.parametrize("path", [PATH, f"./{PATH}"])
def test_a_blob_is_found_below_the_root(tmp_path, path):
    _put(tmp_path)
    assert BlobStore(tmp_path).locate(path).read_text() == "tensors"


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "blob/../../secret", "a\\b", "", ".", "a\0b"])
def test_a_path_that_leads_out_of_the_set_is_refused(tmp_path, path):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(WorkloadFault, match="leads out of the set"):
        BlobStore(tmp_path / "set").locate(path)


@pytest.mark.parametrize("path", ["blob/none", "blob/" + "x" * 5000])
def test_a_blob_that_is_no_file_is_named_with_its_workload(tmp_path, path):
    _put(tmp_path)
    with pytest.raises(WorkloadFault, match="of workload w7 is not there; download"):
        BlobStore(tmp_path).locate(path, workload="w7")


def test_a_blob_that_cannot_be_looked_up_is_not_called_missing(tmp_path, monkeypatch):
    _put(tmp_path)

    def fail(path, **_):
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Path, "stat", fail)
    with pytest.raises(WorkloadFault, match="cannot be read: Too many open files"):
        BlobStore(tmp_path).locate(PATH)


def test_a_link_out_of_the_set_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = tmp_path / "set" / PATH
    link.parent.mkdir(parents=True)
    link.symlink_to(secret)
    with pytest.raises(WorkloadFault, match="outside the set"):
        BlobStore(tmp_path / "set").locate(PATH)


def test_the_blob_folder_may_be_on_another_disk(tmp_path):
    _put(tmp_path / "disk")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "blob").symlink_to(tmp_path / "disk" / "blob")
    assert BlobStore(tmp_path / "set").locate(PATH).read_text() == "tensors"


def test_a_hugging_face_cache_links_to_its_own_blobs(tmp_path):
    stored = _put(tmp_path, path="datasets--x/blobs/0123")
    link = tmp_path / "datasets--x" / "snapshots" / "main" / PATH
    link.parent.mkdir(parents=True)
    link.symlink_to(stored)
    assert BlobStore(tmp_path / "datasets--x/snapshots/main").locate(PATH).read_text() == "tensors"


def test_a_pointer_is_told_with_the_command(tmp_path):
    _put(tmp_path, POINTER)
    with pytest.raises(WorkloadFault, match=r"git-lfs pointer, not the file; run in .*: git lfs pull --include"):
        BlobStore(tmp_path).locate(PATH)
