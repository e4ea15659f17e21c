"""What a worker cannot do to the processes that judge it, with nothing but its user's rights."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner import session_client, session_start
from flashinfer_bench.bench.runner.session_protocol import Hello
from flashinfer_bench.bench.runner.worker_process import WorkerProcess
from flashinfer_bench.worker.protocol import Loaded
from tests.kit.workers import ROOT, running_template, worker_order

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")]
HELLO = Hello(
    device="cpu",
    hardware="",
    isolated=False,
    timeout_s=1.0,
    profile_baseline=False,
    time_budget_s=1.0,
    baseline_budget_s=1.0,
    worker_memory_bytes=None,
    needs_triton=False,
    cache_root="",
)
HELD = """
def parent(pid): return int(open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[1])
guard = __import__("os").getppid(); template = parent(guard); session = parent(template)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


@pytest.fixture
def load(template, tmp_path):
    """Return a function that loads source in a worker and returns what it printed."""

    def loaded(source):
        (tmp_path / "main.py").write_text(HELD + source + "\ndef run(x): return x\n")
        with WorkerProcess(template, worker_order(), tmp_path / "home") as worker:
            worker.wait_ready()
            place = {"directory": str(tmp_path), "entry": "main.py", "symbol": "run", "kind": "python"}
            answer = worker.ask("load", Loaded, 20.0, environment={}, **place)
            worker.drain()
            assert isinstance(answer, Loaded), answer
            return worker.log.take()

    return loaded


READ = """
for name, pid in (("template", template), ("guard", guard)):
    try:
        open(f"/proc/{pid}/mem", "r+b")
        print(name, "opened", flush=True)
    except PermissionError:
        print(name, "refused", flush=True)
"""


def test_a_worker_cannot_open_the_memory_of_those_above_it(load):
    assert load(READ).split() == ["template", "refused", "guard", "refused"]


def test_a_worker_of_root_has_no_capability_that_opens_anything_but_files(load):
    held = load("print(open('/proc/self/status').read().split('CapEff:')[1].split()[0], flush=True)")
    assert int(held, 16) & ~2 == 0


READ_PARENT = "import os; open(f'/proc/{os.getppid()}/mem', 'rb')"
HIDE = f"""
import subprocess, sys
from flashinfer_bench.worker.linux import hide_memory, show_memory
from flashinfer_bench.worker.privileges import drop_capabilities
drop_capabilities()
for change in (show_memory, hide_memory):
    change()
    ended = subprocess.run([sys.executable, "-S", "-c", {READ_PARENT!r}], stderr=subprocess.PIPE, text=True)
    print(ended.returncode, "PermissionError" in ended.stderr)
"""


def test_hidden_memory_cannot_be_read_with_the_users_rights():
    said = subprocess.run([sys.executable, "-c", HIDE], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[1] == "1 True"


def test_host_and_session_hide_their_memory(monkeypatch):
    hidden = []
    monkeypatch.setattr(session_start, "hide_memory", lambda: hidden.append("session"))
    monkeypatch.setattr(
        session_start.importlib, "import_module", lambda _name: SimpleNamespace(serve_host=hidden.append)
    )
    monkeypatch.setattr(session_start, "die_with_parent", lambda _signal: None)
    monkeypatch.setattr(session_start.signal, "signal", lambda *_: None)
    session_start.start(7, os.getppid())
    assert hidden == ["session", 7]

    def hide():
        raise KeyError("hidden first")

    monkeypatch.setattr(session_client, "hide_memory", hide)
    with pytest.raises(KeyError, match="hidden first"):
        session_client.SessionClient(Device("cpu", 0, "cpu", "cpu"), HELLO)


DOMAIN = """
import os, subprocess, sys
from pathlib import Path
from flashinfer_bench.worker import linux, privileges
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
privileges.SCOPE_VERSION = int(sys.argv[1])
privileges.drop_capabilities()
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
open(f"/proc/{other.pid}/environ", "rb").close()
os.mkdir("a"); os.mkdir("b"); Path("a/x").touch()
version = privileges.enter_own_domain()
os.rename("a/x", "b/x")
try:
    open(f"/proc/{other.pid}/environ", "rb")
    print(version, "opened")
except PermissionError:
    print(version, "refused")
own = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
own.kill()
"""


@pytest.mark.parametrize("scopes_from", [6, 1000], ids=["scopes", "as on an older kernel"])
def test_a_domain_hides_all_processes_outside_it_and_lets_files_move(tmp_path, scopes_from):
    command = [sys.executable, "-c", DOMAIN, str(scopes_from)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    version, found = said.split()
    if version == "0":
        pytest.skip("the kernel has no Landlock of the second version")
    assert found == "refused"
