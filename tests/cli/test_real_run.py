"""The command with the real engine, as a process: verdicts, files, exit codes, and what Ctrl-C leaves behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.sandbox.process_tree import descendants, is_alive
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import wait_until_gone

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(300)]

WRONG = "def run(x):\n    return x * 3\n"
ENDLESS = "def run(x):\n    while True:\n        pass\n"
FLAGS = ["--devices", "cpu", "--iterations", "2", "--warmup-runs", "0", "--num-trials", "1"]
PATIENCE_S = 100


@pytest.fixture
def command(tmp_path):
    """Start the command on `double`; keywords are solution name → source."""

    def start(*flags, **sources):
        solutions = [make_solution(name, source=source) for name, source in sources.items()]
        workload = make_trace(solution=None, workload=make_workload())
        root = write_trace_set(
            tmp_path / "set", definitions=[make_definition()], solutions=solutions, workloads=[workload]
        )
        argv = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(root), *FLAGS, *flags]
        environment = {**os.environ, "FIB_CACHE_PATH": str(tmp_path / "cache")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, text=True, env=environment, **pipes)

    return start


def processes_with(marker):
    """Return the processes that were started with a text in their environment, as far as this user may read it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if marker.encode() in text:
            found.append(int(path.parent.name))
    return found


def test_a_run_judges_and_records(command, tmp_path):
    process = command("--format", "json", right="def run(x):\n    return x * 2\n", wrong=WRONG)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["counts"] == {"PASSED": 1, "INCORRECT_NUMERICAL": 1}
    (file,) = document["trace_files"]
    assert len(Path(file).read_text().splitlines()) == 2
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_twice_a_run_leaves_no_process_and_says_how_to_resume(command, tmp_path, number):
    process = command(a_right="def run(x):\n    return x * 2\n", b_endless=ENDLESS)
    for line in process.stderr:
        if line.startswith("[1/2]"):
            break
    below = descendants(process.pid)
    assert below
    process.send_signal(number)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "1 PASSED, 1 not finished" in out
    assert "--resume" in err
    assert len((tmp_path / "set/traces/alice/test/double.jsonl").read_text().splitlines()) == 1
    assert wait_until_gone(lambda: [pid for pid in below if is_alive(pid)]) == []
    assert wait_until_gone(lambda: processes_with(str(tmp_path))) == []


def test_a_resumed_run_tells_the_verdict_that_has_a_baseline(command):
    right = "def run(x):\n    return x * 2\n"
    for flags in ([], ["--seed", "5", "--no-profile-baseline"]):
        assert command(*flags, right=right).communicate(timeout=PATIENCE_S)
    process = command("--resume", "--format", "json", right=right)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "1 recorded job" in err
    (result,) = json.loads(out)["resumed"]
    assert result["speedup"] is not None
