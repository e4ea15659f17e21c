"""A server as a process of its own, with a real engine on the CPU: from the first submission to the end by a signal."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from flashinfer_bench.client import Client
from flashinfer_bench.worker.call_filter import filters_calls
from flashinfer_bench.worker.walls import landlock
from tests.conftest import CHECKOUT
from tests.kit import make_solution
from tests.serve.small_engine import write_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(180)]
pytest.importorskip("fastapi")
pytest.importorskip("httpx")
HAS_WALLS = sys.platform == "linux" and landlock.version() >= 3 and filters_calls()
FLAGS = ["--devices", "cpu", "--quick", "--iterations", "5", "--no-profile-baseline", "--port", "0", "--drain", "1"]


class Process:
    """A `serve` of a set, started until it says where it serves."""

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


def verdicts(root):
    lines = [line for file in (root / "traces").rglob("*.jsonl") for line in file.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return sorted((one["evaluation"]["extra"]["run"]["task"], one["workload"]["uuid"]) for one in found)


def test_a_server_judges_outlives_a_kill_and_drains(tmp_path):
    root = write_set(tmp_path / "set")
    slow = make_solution("slow", source="import time\ntime.sleep(1)\ndef run(x):\n    return x * 2\n")
    wrong = make_solution("wrong", source="def run(x):\n    return x * 3\n")

    first = Process(root, tmp_path / "cache")
    with Client(first.url) as client:
        found = client.evaluate(make_solution("right"))
        assert [trace.evaluation.status.value for trace in found] == ["PASSED", "PASSED"]
        assert client.health()["workers"][0]["device"] == "cpu"
        left = [client.submit(wrong), client.submit(slow)]
    first.end(signal.SIGKILL)

    second = Process(root, tmp_path / "cache")
    assert "going on with 2 tasks" in "".join(second.said)
    with Client(second.url) as client:
        report = client.wait(left[0], 60)
        assert {trace.evaluation.status.value for trace in report.traces} == {"INCORRECT_NUMERICAL"}
        assert client.wait(left[1], 60).status == "completed"
        waiting = client.submit(make_solution("later", source=slow.sources[0].content + "# again\n"))
        while client.task(waiting).status == "pending":
            time.sleep(0.05)
    code, said = second.end(signal.SIGTERM)
    assert code == 0, said
    assert "draining" in said

    assert len(verdicts(root)) == len(set(verdicts(root)))
    assert {task for task, _ in verdicts(root)} >= set(left)


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


@pytest.mark.skipif(not HAS_WALLS, reason="this kernel has no walls")
def test_a_solution_reaches_neither_the_server_nor_what_it_keeps(tmp_path):
    root = write_set(tmp_path / "set")
    token = tmp_path / "token"
    token.write_text("a-token-that-nobody-guesses")
    token.chmod(0o600)
    server = Process(root, tmp_path / "cache", "--token-file", str(token))
    port = server.url.rpartition(":")[2]
    source = PRYING.replace("PORT", port).replace("LEDGER", str(root / ".serve" / "tasks.sqlite"))
    prying = make_solution("prying", source=source.replace("TOKEN", str(token)))
    try:
        with Client(server.url, token.read_text()) as client:
            log = client.evaluate(prying, ["w0"])[0].evaluation.log
    finally:
        server.end(signal.SIGTERM)
    assert "connect refused; ledger refused; token refused" in log
    assert "sqlite" not in log.partition("token refused")[2]
