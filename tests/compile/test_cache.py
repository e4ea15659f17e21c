"""The folder of artifacts: what is in it is whole, what a run uses stays, what dead builds left goes."""

import os
import time

import pytest

from flashinfer_bench.compile import BuildFarm, BuildFault, build_solution
from flashinfer_bench.compile import cache as cache_module
from flashinfer_bench.compile.cache import ArtifactCache, Lease, leased_digests, size_limit
from flashinfer_bench.env import cache_root
from tests.kit.make import make_solution


def build(root, name="double_python", **spec):
    """Build a solution in Python; return its digest in the cache."""
    return build_solution(make_solution(name, **spec), root).directory.parent.name


def files_below(root):
    return sorted(path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file())


def test_an_artifact_is_made_once(tmp_path):
    first = build_solution(make_solution(), tmp_path).directory / "main.py"
    made_at = first.stat().st_mtime_ns
    assert build_solution(make_solution(), tmp_path).directory / "main.py" == first
    assert first.stat().st_mtime_ns == made_at


@pytest.mark.parametrize("spoil", ["edit", "remove", "manifest"])
def test_an_artifact_that_was_tampered_with_is_made_again(tmp_path, spoil):
    source = build_solution(make_solution(), tmp_path).directory / "main.py"
    if spoil == "manifest":
        (source.parents[1] / "manifest.json").write_text("{}")
    elif spoil == "edit":
        source.write_text("def run(x): return x")
    else:
        source.unlink()
    assert ArtifactCache(tmp_path).verify()
    build_solution(make_solution(), tmp_path)
    assert source.read_text() == make_solution().sources[0].content
    assert not ArtifactCache(tmp_path).verify()


def test_a_full_disk_is_the_machines_fault_and_leaves_nothing(tmp_path, monkeypatch):
    def is_full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "read_manifest", is_full)
    with pytest.raises(BuildFault, match="No space left on device; free some"):
        build_solution(make_solution(), tmp_path)
    assert not files_below(tmp_path)


def test_folders_of_dead_builds_are_swept_and_those_of_living_ones_left(tmp_path):
    cache = ArtifactCache(tmp_path)
    lock = cache.lock("living")
    assert lock.take()
    with cache.staging("living") as living:
        (tmp_path / "staging" / "dead").mkdir()
        cache.sweep()
        assert [path.name for path in (tmp_path / "staging").iterdir()] == [living.name]
    lock.release()


def test_what_was_not_used_for_longest_is_evicted_first(tmp_path):
    digests = [build(tmp_path, source=f"def run(x):\n    return x * {n}\n") for n in range(3)]
    cache = ArtifactCache(tmp_path)
    for age, digest in enumerate(digests):
        os.utime(cache.place(digest) / "manifest.json", (1000 + age, 1000 + age))
    build(tmp_path, source="def run(x):\n    return x * 0\n")  # a use
    size = cache.entries()[0].size_bytes
    assert cache.evict(2 * size) > 0
    assert {entry.digest for entry in cache.entries()} == {digests[0], digests[2]}


def test_what_a_run_uses_is_neither_evicted_nor_cleared_until_it_ends(tmp_path):
    cache = ArtifactCache(tmp_path)
    with BuildFarm(tmp_path) as farm:
        used = farm.built(make_solution()).artifact.directory.parent.name
        other = build(tmp_path, source="def run(x):\n    return x + x\n")
        assert cache.clear() == (1, 1)
        assert cache.evict(0) == 0
        assert [entry.digest for entry in cache.entries()] == [used] != [other]
    assert cache.evict(0) > 0
    assert not cache.entries()


def test_the_lease_of_a_dead_run_holds_nothing(tmp_path):
    with Lease(tmp_path) as lease:
        lease.add("abc")
        assert leased_digests(tmp_path) == {"abc"}
    (tmp_path / "leases" / "1-dead").write_text("def\n")  # nobody holds its lock
    assert leased_digests(tmp_path) == set()
    assert not list((tmp_path / "leases").iterdir())


def test_root_and_size_follow_the_environment(tmp_path):
    assert cache_root({"FIB_CACHE_PATH": str(tmp_path)}) == tmp_path
    assert cache_root({}).parts[-3:] == (".cache", "flashinfer_bench", "cache")
    assert size_limit({"FIB_CACHE_GB": "0.5"}) == 500_000_000
    assert size_limit({"FIB_CACHE_GB": "much"}) == size_limit({}) == 20_000_000_000


def make_jit_folder(root, name, size, age_s, below="triton"):
    """Make what a solution has compiled when it ran; return its folder."""
    folder = root / "jit" / name[:2] / name
    (folder / below).mkdir(parents=True)
    (folder / below / "code").write_bytes(b"x" * size)
    note = folder.with_name(f"{name}.solution")
    note.write_text(name)
    os.utime(note, (time.time() - age_s,) * 2)
    return folder


def test_what_solutions_compile_when_they_run_is_evicted_with_artifacts_by_age(tmp_path):
    old, new = make_jit_folder(tmp_path, "abold", 3000, 900), make_jit_folder(tmp_path, "cdnew", 3000, 5)
    cache = ArtifactCache(tmp_path)
    assert cache.is_over(5000)
    with Lease(tmp_path):
        assert cache.evict(4000) == 0  # a worker may write there
    assert cache.evict(4000) == 3000
    assert (old.exists(), new.exists(), cache.is_over(5000)) == (False, True, False)


def test_what_solutions_compile_too_deep_to_be_counted_is_removed_first(tmp_path):
    deep = make_jit_folder(tmp_path, "abdeep", 3000, 5, below="/".join("d" * 40))
    plain = make_jit_folder(tmp_path, "cdplain", 3000, 900)
    cache = ArtifactCache(tmp_path)
    assert cache.is_over(1 << 30)
    cache.evict(1 << 30)
    assert (deep.exists(), plain.exists(), cache.is_over(1 << 30)) == (False, True, False)
