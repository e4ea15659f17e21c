"""The folder of artifacts: content is whole, no entry is removed during a run, strange files hold nothing up."""

import os
import signal
import sys
import time

import pytest

from flashinfer_bench.compile import BuildFault, BuildPool, build_solution
from flashinfer_bench.compile import building as building_module
from flashinfer_bench.compile.cache import ArtifactCache, Manifest, size_limit
from flashinfer_bench.env import cache_root
from tests.kit.make import make_solution
from tests.kit.native import make_native, pretend_compiler
from tests.kit.strange import STRANGE


def build(root, factor=2):
    """Build a solution in Python; return the folder of its artifact."""
    return build_solution(make_solution(source=f"def run(x):\n    return x * {factor}\n"), root).directory.parent


def entries(root):
    return {entry.digest for entry in ArtifactCache(root).entries()}


def test_sources_are_written_to_the_entry_points_path_and_not_run(tmp_path):
    sources = {"pkg/main.py": "from .f import g\ndef run(x): ...", "pkg/f.py": "import sys\nsys.modules['was_run'] = 1"}
    artifact = build_solution(make_solution(sources=sources, entry_point="pkg/main.py::run"), tmp_path)
    assert (artifact.entry, artifact.symbol) == ("pkg/main.py", "run")
    assert (artifact.directory / "pkg" / "f.py").read_text() == sources["pkg/f.py"]
    assert "was_run" not in sys.modules


def test_an_artifact_is_made_once_whatever_its_name(tmp_path):
    made_at = (build(tmp_path) / "files" / "main.py").stat().st_mtime_ns
    renamed = make_solution("renamed", author="bob", source="def run(x):\n    return x * 2\n")
    assert (build_solution(renamed, tmp_path).directory / "main.py").stat().st_mtime_ns == made_at
    assert build(tmp_path, factor=3) != build(tmp_path)


SPOIL = {
    "edit": ("files/main.py", lambda path: path.write_text("def run(x): return x")),
    "manifest": ("manifest.json", lambda path: path.write_text("{}")),
    **{f"{words} file": ("files/main.py", put) for words, put in STRANGE.items()},
    **{f"{words} manifest": ("manifest.json", put) for words, put in STRANGE.items()},
}


@pytest.mark.parametrize("case", SPOIL)
def test_an_artifact_that_was_tampered_with_is_made_again(tmp_path, case):
    name, spoil = SPOIL[case]
    path = build(tmp_path) / name
    path.unlink()
    spoil(path)
    assert len(ArtifactCache(tmp_path).verify()) == 1
    assert "x * 2" in (build(tmp_path) / "files" / "main.py").read_text()
    assert ArtifactCache(tmp_path).verify() == []


def test_a_full_disk_is_the_machines_fault_and_leaves_no_files(tmp_path, monkeypatch):
    def is_full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Manifest, "model_dump_json", is_full)
    with pytest.raises(BuildFault, match="No space left on device; free some"):
        build(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_the_least_recently_used_entry_is_evicted_first_and_none_during_a_run(tmp_path):
    cache, made = ArtifactCache(tmp_path), [build(tmp_path, factor) for factor in range(3)]
    for age, folder in enumerate(made):
        os.utime(folder / "manifest.json", (1000 + age, 1000 + age))
    build(tmp_path, 0)  # a use
    (tmp_path / "staging" / "dead").mkdir(parents=True)
    limit = 2 * cache.entries()[0].size_bytes
    with BuildPool(tmp_path), BuildPool(tmp_path):
        assert (cache.evict(limit), cache.clear(), cache.remove(cache.entries())) == (0, False, [])
        assert len(entries(tmp_path)) == 3
    assert not (tmp_path / "staging").exists()  # left by a build that was killed
    assert cache.evict(limit) > 0
    assert entries(tmp_path) == {made[0].name, made[2].name}
    with cache.unused(), cache.unused() as is_unused:
        assert not is_unused
    assert cache.clear()
    assert not entries(tmp_path)


def test_root_and_size_follow_the_environment(tmp_path):
    assert cache_root({"FIB_CACHE_PATH": str(tmp_path)}) == tmp_path
    assert cache_root({}).parts[-3:] == (".cache", "flashinfer_bench", "cache")
    assert size_limit({"FIB_CACHE_GB": "0.5"}) == 500_000_000
    assert size_limit({"FIB_CACHE_GB": "much"}) == size_limit({}) == 20_000_000_000


def test_a_lock_that_is_held_for_ever_ends_in_a_fault(tmp_path, monkeypatch):
    for name in ("USUAL_LIMIT_S", "LOCK_LIMIT_S"):
        monkeypatch.setattr(building_module, name, 0.02)
    cache = ArtifactCache(tmp_path / "cache")
    with BuildPool(tmp_path / "cache", toolchain=pretend_compiler(tmp_path)) as build_pool:
        for solution in (make_solution(), make_native("s")):
            digest = build_pool._make(solution).recipe.digest
            with cache.building(digest, 0.0, lambda: None):
                (found,) = build_pool.build_all([solution])
            assert isinstance(found.error, BuildFault)
            assert "held by another process" in str(found.error)
            assert digest in str(found.error)


def test_forks_that_outlive_a_run_keep_neither_the_cache_nor_a_build(tmp_path):
    cache = ArtifactCache(tmp_path)
    with cache.used(), cache.building("abc", 0.0, lambda: None):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with cache.unused() as is_unused, cache.building("abc", 0.0, lambda: None):
            assert is_unused
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_jit_folders_too_deep_to_be_counted_are_removed_first_and_not_during_a_run(tmp_path):
    deep = tmp_path / "jit" / "ab" / "abdeep"
    (deep / "/".join("d" * 40)).mkdir(parents=True)
    deep.with_name("abdeep.solution").write_text("")
    cache = ArtifactCache(tmp_path)
    with cache.used():
        cache.evict(1 << 30)
        assert deep.exists()  # a worker may write there
    cache.evict(1 << 30)
    assert list(deep.parent.iterdir()) == []
