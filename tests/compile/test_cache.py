import threading

import pytest

from flashinfer_bench.compile.cache import STAGING_AGE_S, cache_root, stored


def fill(folder):
    (folder / "a.txt").write_text("content")


def is_whole(folder):
    return (folder / "a.txt").is_file() and (folder / "a.txt").read_text() == "content"


def test_an_artifact_is_made_once(tmp_path):
    made = []
    for _ in range(2):
        stored(tmp_path, "abcd", fill=lambda folder: (made.append(folder), fill(folder)), is_whole=is_whole)
    assert len(made) == 1


def test_an_artifact_that_was_tampered_with_is_made_again(tmp_path):
    folder = stored(tmp_path, "abcd", fill=fill, is_whole=is_whole)
    (folder / "a.txt").write_text("edited")
    assert (stored(tmp_path, "abcd", fill=fill, is_whole=is_whole) / "a.txt").read_text() == "content"


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fails(folder):
        (folder / "a.txt").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        stored(tmp_path, "abcd", fill=fails, is_whole=is_whole)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_old_staging_folders_are_swept_and_young_ones_left(tmp_path):
    import os

    stored(tmp_path, "abcd", fill=fill, is_whole=is_whole)
    old, young = (tmp_path / "artifacts" / "ab" / f".staging-{age}" for age in ("old", "young"))
    old.mkdir()
    young.mkdir()
    past = old.stat().st_mtime - STAGING_AGE_S - 60
    os.utime(old, (past, past))
    stored(tmp_path, "abff", fill=fill, is_whole=is_whole)
    assert (old.exists(), young.exists()) == (False, True)


def test_two_builders_at_once_end_with_one_whole_artifact(tmp_path):
    barrier = threading.Barrier(4)

    def build():
        barrier.wait()
        stored(tmp_path, "abcd", fill=fill, is_whole=is_whole)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in (tmp_path / "artifacts" / "ab").iterdir()] == ["abcd"]


def test_the_root_follows_the_environment(tmp_path):
    assert cache_root({"FIB_CACHE_PATH": str(tmp_path)}) == tmp_path
    assert cache_root({}).parts[-3:] == (".cache", "flashinfer_bench", "cache")
