"""The folder of artifacts: content is whole, what a run uses stays, dead builds go, strange files hold nothing up."""

import os
import sys
import time

import pytest

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.compile import BuildFailure, BuildFarm, BuildFault, build_solution
from flashinfer_bench.compile import building as building_module
from flashinfer_bench.compile import cache as cache_module
from flashinfer_bench.compile.cache import ArtifactCache, Lease, find_stranger, lease_times, size_limit
from flashinfer_bench.env import cache_root
from tests.kit.make import make_solution
from tests.kit.native import make_native, pretend_compiler
from tests.kit.strange import STRANGE


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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def run(x:\n", r"SyntaxError: .*, at main\.py:1"),
        ("x = 1\n  y = 2", r"IndentationError: .*, at main\.py:2"),
        ("a\0b", r"null bytes, at main\.py"),
        ("(" * 5000, r"main\.py"),
        ("#" * (5 << 20), "the limit for a source file"),
    ],
    ids=["syntax", "indentation", "null", "nested", "large"],
)
def test_a_file_that_does_not_parse_is_named(tmp_path, source, message):
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


def make_jit_folder(root, name, age_s, below="triton"):
    """Make 3,000 bytes that a solution has compiled when it ran; return the folder."""
    folder = root / "jit" / name[:2] / name
    (folder / below).mkdir(parents=True)
    (folder / below / "code").write_bytes(bytes(3000))
    note = folder.with_name(f"{name}.solution")
    note.write_text(name)
    os.utime(note, (time.time() - age_s,) * 2)
    return folder


def test_folders_of_jit_compilers_are_evicted_by_age_unless_a_run_lives_and_uncounted_ones_first(tmp_path):
    old, new = make_jit_folder(tmp_path, "abold", 900), make_jit_folder(tmp_path, "cdnew", 5)
    cache = ArtifactCache(tmp_path)
    assert cache.is_over(5000)
    with Lease(tmp_path):
        assert cache.evict(4000) == 0  # a worker may write there
    assert cache.evict(4000) == 3000
    assert (old.exists(), new.exists(), cache.is_over(5000)) == (False, True, False)
    deep = make_jit_folder(tmp_path, "abdeep", 0, below="/".join("d" * 40))
    assert cache.is_over(1 << 30)
    cache.evict(1 << 30)
    assert (deep.exists(), new.exists(), cache.is_over(1 << 30)) == (False, True, False)


@pytest.fixture
def deep(tmp_path):
    """An artifact with a folder deeper than Python recurses; it is gone afterwards, since pytest cannot remove it."""
    folder = build(tmp_path)
    (folder / "files" / "deep").mkdir()
    fd = os.open(folder / "files" / "deep", os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    yield folder
    remove_tree(folder)


def test_every_command_of_the_cache_ends_although_folders_are_deep_and_clear_removes_them(
    tmp_path, deep, monkeypatch, capsys
):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    (tmp_path / "artifacts" / "00" / "stray").mkdir(parents=True)
    assert find_stranger(deep / "files", ["main.py"]) is not None
    assert [main(["cache", command]) for command in ("show", "verify", "clear")] == [0, 1, 0]
    assert "removed 2 artifacts" in capsys.readouterr().out
    assert list((tmp_path / "artifacts").glob("*/*")) == []


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


def test_bounds_of_files_and_of_failures(tmp_path, monkeypatch):
    action = 'case "$*" in *main.cpp*) echo "main.cpp:1:1: error: no"; exit 1;; esac'
    monkeypatch.setattr(cache_module, "MOST_FAILURES", 2)
    for number in range(4):
        with BuildFarm(tmp_path, toolchain=pretend_compiler(tmp_path, action=action)) as farm:
            assert next(farm.build_all([make_native(main=f"// {number}\n")])).error
    assert len(entries(tmp_path)) == 2
    build(tmp_path)
    monkeypatch.setattr(cache_module, "MOST_FILE_BYTES", 3)
    ((_, reason),) = ArtifactCache(tmp_path).verify()
    assert "cannot be read: it has more than 3 bytes" in reason


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
