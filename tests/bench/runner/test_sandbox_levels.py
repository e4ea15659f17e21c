"""Which level of confinement a machine gives, and as whom its workers run."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.sandbox import SandboxSupport, find_sandbox
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.sandbox import user as own_user
from flashinfer_bench.sandbox.user import choose_user, find_barrier

CACHE = Path("/cache")
WHOLE = SandboxSupport(
    landlock_version=7, filters_calls=True, is_root=False, reads_without_rights=True, own_user_fails=None
)
ROOT = replace(WHOLE, is_root=True)


def found(level, machine):
    return find_sandbox(level, CACHE, look=lambda _cache: machine)


@pytest.mark.parametrize("level", ["strict", "auto"])
def test_a_machine_that_has_it_all_gives_walls(level):
    sandbox = found(level, WHOLE)
    assert (sandbox.has_walls, sandbox.mark, sandbox.user) == (True, "walls", "the session's")
    assert sandbox.record() == {
        "level": level,
        "reached": ["files", "calls", "root"],
        "missing": {},
        "user": "the session's",
    }


@pytest.mark.parametrize(
    ("part", "machine"),
    [
        ("files", replace(WHOLE, landlock_version=0)),
        ("files", replace(WHOLE, landlock_version=2)),
        ("calls", replace(WHOLE, filters_calls=False)),
        ("root", replace(ROOT, own_user_fails="a barrier", reads_without_rights=False)),
    ],
)
def test_strict_names_what_is_missing_and_auto_goes_without(part, machine):
    with pytest.raises(ConfigError, match=f"strict cannot be had on this machine: {part}: ") as refused:
        found("strict", machine)
    assert refused.value.exit_code == 2
    sandbox = found("auto", machine)
    assert set(sandbox.missing) == {part}
    assert sandbox.has_walls is (part == "root")
    assert sandbox.mark == ("walls" if part == "root" else "none")


def test_off_looks_at_nothing():
    sandbox = find_sandbox("off", CACHE, look=None)
    assert (sandbox.has_walls, sandbox.mark, sandbox.record()["reached"]) == (False, "none", [])


@pytest.mark.parametrize(
    ("machine", "user"),
    [
        (ROOT, "own"),
        (replace(ROOT, own_user_fails="why"), "root without rights"),
        (replace(ROOT, own_user_fails="why", reads_without_rights=False), "root that reads all files"),
    ],
)
def test_root_gives_its_workers_another_user_where_that_one_can_read_the_environment(machine, user):
    sandbox = found("auto", machine)
    assert sandbox.user == user
    assert bool(sandbox.notes) is (user != "own")


@pytest.fixture
def open_folder():
    """Yield a folder that every user can enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_barrier_is_the_first_folder_that_others_cannot_enter(open_folder):
    tmp_path, inner = open_folder, open_folder / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_text("")
    (inner / "file").chmod(0o644)
    assert find_barrier(inner / "file") is None
    (inner / "file").chmod(0o600)
    assert find_barrier(inner / "file") == inner / "file"
    (tmp_path / "a").chmod(0o700)
    assert find_barrier(inner / "file") == tmp_path / "a"
    (tmp_path / "a").chmod(0o711)
    assert find_barrier(tmp_path / "a") == tmp_path / "a"
    assert find_barrier(tmp_path / "a", enters_only=True) is None


def test_a_solution_keeps_its_user(monkeypatch):
    monkeypatch.setattr(own_user, "_sees_all_users", lambda: True)
    digests = ["ab" * 32, "cd" * 32]
    first, second = map(choose_user, digests)
    assert first == choose_user(digests[0]) != second
    assert min(first, second) >= own_user.FIRST_USER
    monkeypatch.setattr(own_user, "_has_name", lambda number: number == first)
    assert choose_user(digests[0]) == first + 1
    monkeypatch.setattr(own_user, "_sees_all_users", lambda: False)
    assert choose_user(digests[0]) < 65_534


def test_root_without_the_rights_to_start_another_users_process_says_so(monkeypatch):
    monkeypatch.setattr(own_user, "_held_rights", lambda: 1 << 0 | 1 << 5)
    assert "CAP_SETGID and CAP_SETUID" in own_user.find_own_user(CACHE)
