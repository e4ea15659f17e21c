"""Where the kernels that judge are compiled: shared only where nobody else can write."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.evaluators.compare import kernel_cache
from flashinfer_bench.bench.evaluators.compare.kernel_cache import (
    JUDGE_FOLDER,
    VARIABLE,
    build_helpers,
    lend_helpers,
    own_kernels,
    shared_folder,
)


def test_the_shared_folder_is_ours_alone_and_names_the_versions(tmp_path):
    folder = shared_folder(tmp_path / "cache")
    assert folder is not None
    assert folder.parent == tmp_path / "cache" / JUDGE_FOLDER
    assert [part.stat().st_mode & 0o777 for part in (folder, folder.parent)] == [0o700, 0o700]
    assert all(name in folder.name for name in ("triton-", "torch-", "python-"))
    assert shared_folder(tmp_path / "cache") == folder


@pytest.mark.parametrize("opened", ["judge", "versions"])
def test_a_folder_that_others_write_to_is_not_shared(tmp_path, opened):
    folder = shared_folder(tmp_path)
    (folder if opened == "versions" else folder.parent).chmod(0o777)
    assert shared_folder(tmp_path) is None


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / JUDGE_FOLDER).symlink_to(tmp_path / "elsewhere")
    assert shared_folder(tmp_path) is None


def test_kernels_go_to_the_shared_folder_and_else_to_one_of_the_moment(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "the user's")
    monkeypatch.setattr(kernel_cache, "_shared", None)
    with own_kernels():
        moment = os.environ[VARIABLE]
    assert moment != "the user's"
    assert not Path(moment).exists()
    kernel_cache.share_kernels(tmp_path)
    with own_kernels():
        assert os.environ[VARIABLE] == str(shared_folder(tmp_path))
    assert os.environ[VARIABLE] == "the user's"


def test_helpers_of_triton_are_lent_and_kernels_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "_shared", None)
    (tmp_path / "new").mkdir()
    assert lend_helpers(tmp_path / "new" / "triton") == []
    kernel_cache.share_kernels(tmp_path)
    for key, name in (("K1", "cuda_utils.cpython-312-x86_64-linux-gnu.so"), ("K2", "compare.cubin")):
        (shared_folder(tmp_path) / key).mkdir()
        (shared_folder(tmp_path) / key / name).write_bytes(key.encode())
    cache = tmp_path / "new" / "triton"
    helper = cache / "K1" / "cuda_utils.cpython-312-x86_64-linux-gnu.so"
    assert lend_helpers(cache) == [cache, helper.parent, helper]
    assert helper.read_bytes() == b"K1"
    assert sorted(cache.rglob("*")) == [helper.parent, helper]


def test_helpers_are_built_where_kernels_that_judge_are(tmp_path, monkeypatch):
    seen = []

    class Driver:
        @property
        def active(self):
            seen.append(os.environ[VARIABLE])
            raise RuntimeError("0 active drivers")

    monkeypatch.setattr(kernel_cache, "_shared", tmp_path)
    monkeypatch.setattr(kernel_cache.importlib, "import_module", lambda name: SimpleNamespace(driver=Driver()))
    build_helpers()
    assert seen == [str(tmp_path)]
