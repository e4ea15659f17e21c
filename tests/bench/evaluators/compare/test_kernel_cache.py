"""Triton's helpers are shared only if nobody else can write where they lie, and lent without any kernel."""

from __future__ import annotations

import pytest

from flashinfer_bench.bench.evaluators.compare import kernel_cache
from flashinfer_bench.bench.evaluators.compare.kernel_cache import lend_helpers, shared_folder


@pytest.fixture(autouse=True)
def not_shared(monkeypatch):
    monkeypatch.setattr(kernel_cache, "_shared", None)


def test_the_shared_folder_is_ours_alone_and_names_the_versions(tmp_path):
    folder = shared_folder(tmp_path / "cache")
    assert folder.parent == tmp_path / "cache" / "judge"
    assert [part.stat().st_mode & 0o777 for part in (folder, folder.parent)] == [0o700, 0o700]
    assert shared_folder(tmp_path / "cache") == folder
    for part in (folder, folder.parent):
        part.chmod(0o777)
        assert shared_folder(tmp_path / "cache") is None
        part.chmod(0o700)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "judge").symlink_to(folder.parent)
    assert shared_folder(tmp_path / "other") is None


def test_helpers_of_triton_are_lent_and_kernels_are_not(tmp_path):
    (tmp_path / "new").mkdir()
    cache = tmp_path / "new" / "triton"
    assert lend_helpers(cache) == []
    kernel_cache.share_kernels(tmp_path)
    for key, name in (("K1", "cuda_utils.cpython-312-x86_64-linux-gnu.so"), ("K2", "compare.cubin")):
        (shared_folder(tmp_path) / key).mkdir()
        (shared_folder(tmp_path) / key / name).write_bytes(key.encode())
    helper = cache / "K1" / "cuda_utils.cpython-312-x86_64-linux-gnu.so"
    assert lend_helpers(cache) == [cache, helper.parent, helper]
    assert helper.read_bytes() == b"K1"
    assert sorted(cache.rglob("*")) == [helper.parent, helper]
