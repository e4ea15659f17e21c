"""The sandbox level that a machine supports, and the user of its workers."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.sandbox import SandboxSupport, find_sandbox
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.sandbox import user
from flashinfer_bench.sandbox.user import choose_user, find_barrier

CACHE = Path("/cache")
WHOLE = SandboxSupport(
    landlock_version=7, filters_calls=True, is_root=False, reads_without_rights=True, own_user_fails=None
)
ROOT = replace(WHOLE, is_root=True)
MACHINES = [
    # a machine, the part that it lacks, whom workers are
    (WHOLE, "", "the session's"),
    (replace(WHOLE, landlock_version=2), "files", "unchanged"),
    (replace(WHOLE, filters_calls=False), "calls", "unchanged"),
    (ROOT, "", "own"),
    (replace(ROOT, own_user_fails="why"), "", "root without rights"),
    (replace(ROOT, own_user_fails="why", reads_without_rights=False), "root", "root that reads all files"),
]


@pytest.mark.parametrize(("machine", "part", "worker"), MACHINES)
def test_strict_names_what_is_missing_and_auto_goes_without(machine, part, worker):
    sandbox = find_sandbox("auto", CACHE, probe=lambda _: machine)
    is_sandboxed = part in ("", "root")
    assert (sandbox.is_sandboxed, sandbox.fingerprint_key, sandbox.user) == (
        is_sandboxed,
        "walls" if is_sandboxed else "none",
        worker,
    )
    assert bool(sandbox.notes) is worker.startswith("root")
    reached = [one for one in ("files", "calls", "root") if is_sandboxed and one != part]
    record = {"level": "auto", "reached": reached, "missing": dict(sandbox.missing), "user": worker}
    assert (sandbox.record(), "".join(sandbox.missing)) == (record, part)
    if part:
        with pytest.raises(ConfigError, match=f"strict cannot be had on this machine: {part}: ") as refused:
            find_sandbox("strict", CACHE, probe=lambda _: machine)
        assert refused.value.exit_code == 2
    else:
        assert find_sandbox("strict", CACHE, probe=lambda _: machine).is_sandboxed


def test_off_reads_nothing():
    sandbox = find_sandbox("off", CACHE, probe=None)
    assert (sandbox.is_sandboxed, sandbox.fingerprint_key, sandbox.record()["reached"]) == (False, "none", [])


def test_a_barrier_is_the_first_folder_that_others_cannot_enter():
    with tempfile.TemporaryDirectory(dir="/tmp") as root:  # pytest's own folder nobody else can enter
        outer, file = Path(root, "a"), Path(root, "a", "b", "file")
        file.parent.mkdir(parents=True)
        file.write_text("")
        Path(root).chmod(0o755)
        for changed, mode, barrier in ((file, 0o644, None), (file, 0o600, file), (outer, 0o700, outer)):
            changed.chmod(mode)
            assert find_barrier(file) == barrier
        outer.chmod(0o711)
        assert (find_barrier(outer), find_barrier(outer, enters_only=True)) == (outer, None)


def test_a_solution_keeps_its_user(monkeypatch):
    monkeypatch.setattr(user, "_sees_all_users", lambda: True)
    digests = ["ab" * 32, "cd" * 32]
    first, second = map(choose_user, digests)
    assert first == choose_user(digests[0]) != second
    assert min(first, second) >= user.FIRST_USER
    monkeypatch.setattr(user, "_has_name", lambda number: number == first)
    assert choose_user(digests[0]) == first + 1
    monkeypatch.setattr(user, "_sees_all_users", lambda: False)
    assert choose_user(digests[0]) < 65_534
