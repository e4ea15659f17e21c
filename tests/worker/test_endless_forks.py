"""Processes that only start the next one and end: gone by the time that somebody has seen them."""

import fcntl
import os
import shutil
import subprocess
import sys

import pytest

from flashinfer_bench.bench.runner.workers import process
from flashinfer_bench.worker.filter.call_filter import filters_calls
from flashinfer_bench.worker.walls import landlock
from tests.kit.walls import ORDINARY, OWN, running_cell
from tests.kit.workers import ROOT

IS_ROOT = sys.platform == "linux" and os.geteuid() == 0
HAS_SCOPES = sys.platform == "linux" and landlock.version() >= landlock.SCOPE_VERSION and filters_calls()
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")]
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
CHAIN = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **words) {
    flock(open(words[1], O_RDWR | O_CREAT, 0666), LOCK_EX);  /* all that are forked hold it */
    time_t end = time(0) + 60;
    for (int i = 0; i < 8; i++)
        if (!fork()) {
            setsid();
            while (time(0) < end) {
                usleep(200);  /* else those that nobody has waited for yet could fill the table of a slow machine */
                if (fork() > 0) _exit(0);
                if (words[2][0] == 'n') setsid();
            }
            _exit(0);
        }
    return 0;
}
"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A program: it takes a file to lock, and "n" where each process is to be in a new group."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.c").write_text(CHAIN)
    subprocess.run(["gcc", "-O1", "-o", folder / "chain", folder / "chain.c"], check=True)
    return (folder / "chain").read_bytes()


def is_locked(path):
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


USERS = [
    pytest.param({}, id="the tests' user"),
    pytest.param({"user": ORDINARY}, id="an ordinary user", marks=as_root),
    pytest.param({"own": OWN}, id="a user of its own", marks=as_root),
]


@pytest.mark.skipif(not HAS_SCOPES, reason="this kernel keeps no signals apart")
@pytest.mark.parametrize("users", USERS)
def test_a_guard_ends_processes_that_fork_and_end_in_groups_of_their_own(chain, users, monkeypatch):
    monkeypatch.setattr(process, "end_tree", lambda *_: False)  # nobody else ends them
    with running_cell(**users) as cell:
        program = cell.artifact / "chain"
        program.write_bytes(chain)
        program.chmod(0o755)
        lock = cell.jit / "lock"
        with cell.loaded(f"import subprocess\nsubprocess.run([{str(program)!r}, {str(lock)!r}, 'n'])"):
            assert is_locked(lock)
        assert not is_locked(lock)


BY_GROUPS = """
import os, subprocess, sys
from flashinfer_bench.worker.linux import adopt_orphans, kill_below
adopt_orphans()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(kill_below(os.getpid(), 25.0))
try:
    while True:
        os.waitpid(-1, 0)
except ChildProcessError:
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no table of processes")
def test_where_signals_are_not_kept_apart_groups_are_killed(chain, tmp_path):
    (tmp_path / "chain").write_bytes(chain)
    (tmp_path / "chain").chmod(0o755)
    command = [sys.executable, "-c", BY_GROUPS, tmp_path / "chain", tmp_path / "lock", "one group"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True"]
    assert not is_locked(tmp_path / "lock")


WAITS = """
import os, signal, sys, time
from flashinfer_bench.worker.linux import await_children
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    time.sleep(float(sys.argv[1])); os._exit(0)
start = time.monotonic()
await_children(2.0)
print(time.monotonic() - start)
"""


@pytest.mark.parametrize(("lives", "least", "most"), [("0.3", 0.2, 1.5), ("5", 2.0, 4.0)])
def test_a_template_gives_guards_a_moment(lives, least, most):
    command = [sys.executable, "-c", WAITS, lives]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert least < float(said) < most
