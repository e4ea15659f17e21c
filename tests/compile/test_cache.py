"""The folder of artifacts: content is whole, what a run uses stays, dead builds go, strange files hold nothing up."""

import os
import sys

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.compile import BuildFailure, BuildFarm, BuildFault, build_solution
from flashinfer_bench.compile import building as building_module
from flashinfer_bench.compile import cache as cache_module
from flashinfer_bench.compile.cache import ArtifactCache, Lease, lease_times, size_limit
from flashinfer_bench.env import cache_root
from tests.kit.make import make_solution
from tests.kit.native import make_native, pretend_compiler
from tests.kit.strange import STRANGE, deep_folder


def build(root, factor=2):
    """Build a solution in Python; return the folder of its artifact."""
    return build_solution(make_solution(source=f"def run(x):\n    return x * {factor}\n"), root).directory.parent


def entries(root):
    return {entry.digest for entry in ArtifactCache(root).entries()}


def test_sources_are_written_where_the_entry_point_says_and_none_is_run(tmp_path):
    sources = {"pkg/main.py": "from .f import g\ndef run(x): ...", "pkg/f.py": "import sys\nsys.modules['was_run'] = 1"}
    artifact = build_solution(make_solution(sources=sources, entry_point="pkg/main.py::run"), tmp_path)
    assert (artifact.entry, artifact.symbol) == ("pkg/main.py", "run")
    assert (artifact.directory / "pkg" / "f.py").read_text() == sources["pkg/f.py"]
    assert "was_run" not in sys.modules


UNPARSED = {
    "syntax": ("x = 1\n  y = 2", r"IndentationError: .*, at main\.py:2"),
    "null": ("a\0b", r"null bytes, at main\.py"),
    "nested": ("(" * 5000, r"main\.py"),
    "large": ("#" * (5 << 20), "the limit for a source file"),
}


@pytest.mark.parametrize("case", UNPARSED)
def test_a_file_that_does_not_parse_is_named(tmp_path, case):
    source, message = UNPARSED[case]
    with pytest.raises(BuildFailure, match=message):
        build_solution(make_solution(source=source), tmp_path)


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


def test_a_full_disk_is_the_machines_fault_and_leaves_nothing(tmp_path, monkeypatch):
    def is_full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "read_manifest", is_full)
    with pytest.raises(BuildFault, match="No space left on device; free some"):
        build(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_folders_of_dead_builds_are_swept_and_those_of_living_ones_left(tmp_path):
    cache = ArtifactCache(tmp_path)
    lock = cache.lock("living")
    assert lock.take()
    with cache.staging("living") as living:
        (tmp_path / "staging" / "dead").mkdir()
        cache.sweep()
        assert [path.name for path in (tmp_path / "staging").iterdir()] == [living.name]
    lock.release()


def test_the_oldest_use_is_evicted_first_and_what_a_run_uses_never(tmp_path):
    cache, made = ArtifactCache(tmp_path), [build(tmp_path, factor) for factor in range(3)]
    for age, folder in enumerate(made):
        os.utime(folder / "manifest.json", (1000 + age, 1000 + age))
    build(tmp_path, 0)  # a use
    assert cache.evict(2 * cache.entries()[0].size_bytes) > 0
    assert entries(tmp_path) == {made[0].name, made[2].name}
    os.utime(made[0] / "manifest.json", (1000, 1000))
    with BuildFarm(tmp_path) as farm:
        assert len(lease_times(tmp_path)) == 1
        used = farm.built(make_solution(source="def run(x):\n    return x * 2\n")).artifact.directory.parent
        assert cache.clear() == (1, 1)
        assert cache.evict(0) == 0
        assert entries(tmp_path) == {used.name}
    assert cache.evict(0) > 0
    (tmp_path / "leases" / "1-dead").write_text("")  # nobody holds its lock
    assert lease_times(tmp_path) == []
    assert not list((tmp_path / "leases").iterdir())


def test_root_and_size_follow_the_environment(tmp_path):
    assert cache_root({"FIB_CACHE_PATH": str(tmp_path)}) == tmp_path
    assert cache_root({}).parts[-3:] == (".cache", "flashinfer_bench", "cache")
    assert size_limit({"FIB_CACHE_GB": "0.5"}) == 500_000_000
    assert size_limit({"FIB_CACHE_GB": "much"}) == size_limit({}) == 20_000_000_000


def test_every_command_of_the_cache_ends_although_folders_are_deep_and_clear_removes_them(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    with deep_folder(build(tmp_path) / "files" / "deep"):
        (tmp_path / "artifacts" / "00" / "stray").mkdir(parents=True)
        assert [main(["cache", command]) for command in ("show", "verify", "clear")] == [0, 1, 0]
    assert "removed 2 artifacts" in capsys.readouterr().out
    assert list((tmp_path / "artifacts").glob("*/*")) == []


def test_what_a_jit_compiler_made_too_deep_to_be_counted_goes_first_and_not_while_a_run_lives(tmp_path):
    deep = tmp_path / "jit" / "ab" / "abdeep"
    (deep / "/".join("d" * 40)).mkdir(parents=True)
    deep.with_name("abdeep.solution").write_text("")
    cache = ArtifactCache(tmp_path)
    with Lease(tmp_path):
        assert cache.is_over(1 << 30)
        cache.evict(1 << 30)
        assert deep.exists()  # a worker may write there
    cache.evict(1 << 30)
    assert (deep.exists(), cache.is_over(1 << 30)) == (False, False)


def test_strange_files_among_artifacts_locks_and_leases_do_not_hold_clear_up(tmp_path):
    build(tmp_path)
    for number, put in enumerate(STRANGE.values()):
        for folder in ("locks", "leases", "staging", f"artifacts/0{number}"):
            (tmp_path / folder).mkdir(exist_ok=True)
            put(tmp_path / folder / f"strange{number}")
    cache = ArtifactCache(tmp_path)
    assert len(cache.entries()) == 1 + len(STRANGE)
    assert cache.clear() == (1 + len(STRANGE), 0)
    assert list((tmp_path / "artifacts").glob("*/*")) == []


def test_only_the_latest_failures_are_remembered(tmp_path, monkeypatch):
    action = 'case "$*" in *main.cpp*) echo "main.cpp:1:1: error: no"; exit 1;; esac'
    monkeypatch.setattr(cache_module, "MOST_FAILURES", 2)
    for number in range(4):
        with BuildFarm(tmp_path, toolchain=pretend_compiler(tmp_path, action=action)) as farm:
            assert next(farm.build_all([make_native(main=f"// {number}\n")])).error
    assert len(entries(tmp_path)) == 2


def test_a_lock_that_is_held_for_ever_ends_in_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(building_module, "USUAL_LIMIT_S", 0.02)
    monkeypatch.setattr(building_module, "PROBE_LIMIT_S", -1e9)
    with BuildFarm(tmp_path / "cache", toolchain=pretend_compiler(tmp_path)) as farm:
        for solution in (make_solution(), make_native("s")):
            held = ArtifactCache(tmp_path / "cache").lock(farm._make(solution).recipe.digest)
            held.wait(0.0)
            (found,) = farm.build_all([solution])
            held.release()
            assert isinstance(found.error, BuildFault)
            assert "held" in str(found.error)
            assert str(held.path) in str(found.error)
