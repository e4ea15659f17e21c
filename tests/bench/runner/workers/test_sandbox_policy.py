"""Files that workers read and write: the interpreter, the toolchain and a solution's folders, no neighbouring files."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.bench.runner.workers import sandbox_policy
from flashinfer_bench.bench.runner.workers.sandbox_policy import PolicyMaker, carve, find_readable
from flashinfer_bench.compile import Artifact
from flashinfer_bench.sandbox.confine import drop_capabilities
from flashinfer_bench.sandbox.process_tree import in_child
from flashinfer_bench.sandbox.user import choose_user
from tests.conftest import CHECKOUT

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")]
as_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can be another user")
DIGEST = "ab" * 32


def is_readable(path, readable):
    return any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in readable)


def write(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("#define CUDA_VERSION 13000\n" if name.endswith("cuda.h") else "#!/bin/sh\n")
        (root / name).chmod(0o755)


def test_the_interpreter_and_this_package_are_readable_and_neighbouring_files_are_not():
    readable = find_readable({"PATH": "/usr/bin"}, import_path=[str(CHECKOUT), ""])
    read = (sys.executable, os.__file__, pytest.__file__, sandbox_policy.__file__)
    beside = [CHECKOUT / name for name in ("tests", "flashinfer-trace", "pyproject.toml")]
    system = ("/root", "/home", "/tmp", "/run", "/etc/shadow", "/dev/shm")
    assert [is_readable(path, readable) for path in read] == [True] * len(read)
    assert not any(is_readable(path, readable) for path in (*beside, *system))


@pytest.mark.parametrize(
    ("variables", "path", "is_read"),
    [
        ({}, "work/module.py", True),
        ({}, "work/data/secret.txt", False),
        ({}, "packages/namespace/part.py", True),
        ({"CUDA_HOME": "home/cuda"}, "home/cuda/bin/nvcc", True),
        ({"LD_LIBRARY_PATH": "home"}, "home/lib/lib.so", False),
        ({"TRITON_PTXAS_PATH": "home/tools/ptxas"}, "home/tools/other", False),
    ],
)
def test_modules_on_the_import_path_and_what_variables_name_are_read_but_no_home(
    tmp_path, monkeypatch, variables, path, is_read
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path, "packages/one-1.0.dist-info/METADATA", "home/cuda/bin/nvcc", "home/cuda/include/cuda.h", path)
    write(tmp_path, "home/tools/ptxas")
    named = {name: str(tmp_path / value) for name, value in variables.items()}
    readable = find_readable(named, import_path=[str(tmp_path / "work"), str(tmp_path / "packages")])
    assert is_readable(tmp_path / path, readable) is is_read


def test_hidden_folders_are_omitted_from_a_readable_folder_also_behind_a_link(tmp_path):
    site = tmp_path / "site-packages"
    write(site, "module.py", "secret/key.py")
    (tmp_path / "link").symlink_to(site)
    readable = find_readable({}, hidden=[str(tmp_path / "link/secret"), "/elsewhere"], import_path=[str(site)])
    assert [is_readable(site / path, readable) for path in ("module.py", "secret/key.py")] == [True, False]
    assert carve(str(site / "secret"), [str(site)]) == []


@pytest.fixture
def place():
    """Yield a folder that every user can enter, which pytest's own is not. The folders in it are such, too."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
    os.umask(before)


def test_a_folder_on_the_import_path_that_the_user_cannot_enter_is_passed_over(place):
    write(place, "work/module.py", "work/package/__init__.py")
    for closed in (place / "closed", place / "work" / "closed"):
        closed.mkdir(mode=0)
    path = [str(place / "closed"), str(place / "closed" / "deeper"), str(place / "work")]

    def reads_both():
        drop_capabilities(kept=None)  # as root, which could enter them, too
        readable = find_readable({}, import_path=path)
        return all(is_readable(place / "work" / name, readable) for name in ("module.py", "package"))

    assert in_child(reads_both)


def open_maker(place, user="the session's"):
    times = dict.fromkeys(("timeout_seconds", "time_budget_s", "baseline_budget_s"), 1.0)
    flags = dict.fromkeys(("isolated", "profile_baseline", "needs_triton"), False)
    where = {"device": "cpu", "hardware": "", "worker_memory_bytes": None, "cache_root": str(place / "cache")}
    session_config = SessionConfig(is_sandboxed=True, sandbox_user=user, **times, **flags, **where)
    return PolicyMaker(session_config, {"PATH": "/usr/bin:/root/bin"})


def test_a_worker_reads_its_artifact_and_writes_to_its_solutions_folder(place):
    made = open_maker(place)
    folder = made.folder(DIGEST)
    policy = made.make_policy(DIGEST, folder, place / "artifact")
    assert str(place / "artifact") in policy.readable
    assert policy.writable == (str(folder),) == (str(place / "cache" / "jit" / "ab" / DIGEST),)
    assert not {str(place), str(place / "cache")} & {*policy.readable, *policy.writable}
    assert (policy.user, policy.reads_all_owners) == (None, False)
    own = made.environment(folder)
    assert own["PATH"] == "/usr/bin"
    folders = [value for value in own.values() if value.startswith(str(place))]
    assert folders
    assert all(folder.startswith(policy.writable[0]) for folder in folders)


@as_root
def test_a_user_of_its_own_has_its_folder_and_a_copy_of_an_artifact_that_it_could_not_read(place):
    made = open_maker(place, "own")
    policy = made.make_policy(DIGEST, made.folder(DIGEST), None)
    assert policy.user == choose_user(DIGEST) == Path(policy.writable[0]).stat().st_uid
    assert made.folder(DIGEST) != open_maker(place).folder(DIGEST)
    write(place, "closed/files/main.py")
    (place / "closed").chmod(0o700)
    artifact = made.hand_over(Artifact(place / "closed/files", "main.py", "run", "python"), place / "home")
    assert artifact.directory.is_relative_to(place / "home")
    assert (artifact.directory / "main.py").stat().st_mode & 0o004


@as_root
def test_a_worker_keeps_its_user_if_its_own_user_could_not_reach_its_folder(place):
    (place / "cache" / "jit").mkdir(parents=True)
    (place / "cache").chmod(0o700)
    made = open_maker(place, "own")
    assert made.make_policy(DIGEST, made.folder(DIGEST), None).user is None


def test_compiled_solutions_are_recorded_where_no_worker_writes(place):
    made = open_maker(place)
    made.mark_compiled(DIGEST)  # there is no folder yet
    assert not made.is_compiled(DIGEST)
    folder = Path(made.make_policy(DIGEST, made.folder(DIGEST), None).writable[0])
    made.mark_compiled(DIGEST)
    assert made.is_compiled(DIGEST)
    assert not any(folder.iterdir())
