"""A server in its own process, with a real engine on the CPU: from the first submission to the last signal.

The programs of docs/serve.md are run as printed, on a server of a bundled definition.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from flashinfer_bench.cli.main import cli
from flashinfer_bench.client import Client
from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.seccomp import can_filter
from tests.conftest import CHECKOUT
from tests.kit import make_solution
from tests.serve.conftest import write_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(300)]
pytest.importorskip("fastapi")
pytest.importorskip("httpx")
HAS_SANDBOX = sys.platform == "linux" and landlock.version() >= 3 and can_filter()
FLAGS = ["--devices", "cpu", "--quick", "--iterations", "5", "--no-profile-baseline", "--port", "0"]
WRONG = "def run(x):\n    return x * 3\n"
SLOW = "import time\ntime.sleep(max(0, UNTIL - time.time()))\ndef run(x):\n    return x * 2\n"
GUIDE = (CHECKOUT / "docs/serve.md").read_text()
SET = "flashinfer-trace"
NAME = "rmsnorm/rmsnorm_h4096"
SLOW_S = 6.0
"""Seconds of the first server's job, which occupies it until it is killed. The second server hardly waits."""
ENDLESS = "import time\ntime.sleep(50)\ndef run(x):\n    return x * 2\n"
PRYING = """
import os, socket
tried = []
def attempt(what, act):
    try:
        tried.append(f"{what} worked: {act()!r}")
    except OSError as error:
        tried.append(f"{what} refused")
attempt("connect", lambda: socket.create_connection(("127.0.0.1", PORT), 2))
attempt("ledger", lambda: open("LEDGER", "rb").read(10))
attempt("token", lambda: open("TOKEN", "rb").read(10))
for name in range(3, 200):
    try:
        tried.append(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass
raise RuntimeError("; ".join(tried))
"""


class Process:
    """A `serve` of a set, started until it prints its address."""

    def __init__(self, root, cache, *flags):
        argv = [sys.executable, "-m", "flashinfer_bench", "serve", "--local", str(root), *FLAGS, *flags]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "FIB_CACHE_PATH": str(cache)}
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"serving on (\S+)", line):
                self.url = found[1]
                return
        raise AssertionError("".join(self.said))

    def end(self, number):
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=60)
        return self.process.returncode, rest


def submit_before_the_kill(server, root, token):
    """Submit a job, try the solution's access, and leave two tasks open. Return these tasks."""
    with Client(server.url, token.read_text()) as client:
        source = PRYING.replace("PORT", server.url.rpartition(":")[2]).replace("TOKEN", str(token))
        source = source.replace("LEDGER", str(root / ".serve" / "tasks.sqlite"))
        log = client.evaluate(make_solution("prying", source=source), ["w0"])[0].evaluation.log
        if HAS_SANDBOX:
            assert "connect refused; ledger refused; token refused" in log
            assert "sqlite" not in log.partition("token refused")[2]
        slow = make_solution("slow", source=SLOW.replace("UNTIL", str(time.time() + SLOW_S)))
        return [client.submit(slow), client.submit(make_solution("wrong", source=WRONG))]


def finish_after_the_kill(client, left):
    """Wait for the tasks of the killed server, and for two equal tasks; return a task that does not end."""
    same = make_solution("same", source="def run(x):\n    return x + x\n")
    for task in [client.submit(same), client.submit(same)]:
        assert len(client.wait(task, 120).traces) == 2
    assert client.wait(left[0], 120).status == "completed"
    statuses = {trace.evaluation.status.value for trace in client.wait(left[1], 120).traces}
    assert statuses == {"INCORRECT_NUMERICAL"}
    endless = client.submit(make_solution("endless", source=ENDLESS))
    while client.task(endless).status == "pending":
        time.sleep(0.05)
    return endless


def test_a_server_judges_outlives_a_kill_and_ends_at_the_second_signal(tmp_path, capsys):
    root, token = write_set(tmp_path / "set"), tmp_path / "token"
    token.write_text("a-token-that-nobody-guesses")
    token.chmod(0o600)
    first = Process(root, tmp_path / "cache", "--token-file", str(token))
    left = submit_before_the_kill(first, root, token)
    first.end(signal.SIGKILL)

    second = Process(root, tmp_path / "cache", "--drain", "60")
    assert "open tasks of an earlier server: 2" in "".join(second.said)
    with Client(second.url) as client:
        endless = finish_after_the_kill(client, left)
    second.process.send_signal(signal.SIGTERM)
    assert "draining" in second.process.stderr.readline()
    assert second.end(signal.SIGTERM)[0] == 130

    lines = [json.loads(line) for file in (root / "traces").rglob("*.jsonl") for line in file.read_text().splitlines()]
    runs = [line["evaluation"]["extra"]["run"] for line in lines]
    assert {run["call_timeout_seconds"] for run in runs} == {20}
    verdicts = [(run["task"], line["workload"]["uuid"]) for run, line in zip(runs, lines, strict=True)]
    assert len(verdicts) == len(set(verdicts))
    assert {task for task, _ in verdicts} >= set(left)
    same = [line for line in lines if line["solution"].startswith("same_")]
    assert len(same) == 2, "two open tasks that ask for the same are judged once, and recorded once"
    capsys.readouterr()
    assert cli(["validate", str(root), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["issues"] == [], "traces of tasks are no orphans"
    database = sqlite3.connect(root / ".serve/tasks.sqlite")
    assert database.execute("SELECT id FROM tasks WHERE state = 'open'").fetchall() == [(endless,)]
    database.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A folder with the smallest part of the bundled set, and its server."""
    folder = tmp_path_factory.mktemp("guide")
    solution = f"solutions/torch/{NAME}/torch_rmsnorm_h4096.json"
    for part in (f"definitions/{NAME}.json", solution, f"workloads/{NAME}.jsonl"):
        (folder / SET / part).parent.mkdir(parents=True)
        first, *others = (CHECKOUT / SET / part).read_text().splitlines(keepends=True)
        (folder / SET / part).write_text("".join([first, *(others if part.endswith(".json") else [])]))
    process = Process(folder / SET, folder / "cache")
    process.folder = folder
    yield process
    code, said = process.end(signal.SIGTERM)
    assert (code, "drained; tasks left for the next server: 0" in said) == (0, True), said


def run_printed(server, *argv):
    command = server.folder / "flashinfer-bench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flashinfer_bench "$@"\n')
    command.chmod(0o755)
    path = f"{server.folder}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "SERVER": server.url, "PATH": path}
    done = subprocess.run(argv, cwd=server.folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_program_prints_verdicts(server):
    program = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1]
    out = run_printed(server, sys.executable, "-c", program)
    assert re.fullmatch(r"\S+ PASSED [\d.]+\nverdict PASSED\nend completed\ncompleted 1\n", out)


def test_the_shell_lines_print_verdicts(server):
    if not (shutil.which("jq") and shutil.which("curl")):
        pytest.skip("the lines call curl and jq")
    lines = "set -e\n" + "".join(re.findall(r"```shell\n(.*?)```", GUIDE, re.DOTALL))
    out = run_printed(server, "bash", "-c", lines)
    assert "1 PASSED" in out
    assert out.endswith("completed\nPASSED\n")
