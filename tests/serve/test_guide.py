"""The programs of docs/serve.md, run as printed, with a server of one of the bundled definitions."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT
from tests.serve.test_real_server import Process

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(240)]
pytest.importorskip("fastapi")
GUIDE = (CHECKOUT / "docs" / "serve.md").read_text()
SET = "flashinfer-trace"
NAME = "rmsnorm/rmsnorm_h4096"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A folder with the smallest part of the bundled set, and a server of it."""
    folder = tmp_path_factory.mktemp("guide")
    for part in (f"definitions/{NAME}.json", f"solutions/torch/{NAME}/torch_rmsnorm_h4096.json"):
        (folder / SET / part).parent.mkdir(parents=True)
        shutil.copy(CHECKOUT / SET / part, folder / SET / part)
    lines = (CHECKOUT / SET / f"workloads/{NAME}.jsonl").read_text().splitlines(keepends=True)
    (folder / SET / "workloads/rmsnorm").mkdir(parents=True)
    (folder / SET / f"workloads/{NAME}.jsonl").write_text(lines[0])
    process = Process(folder / SET, folder / "cache")
    process.folder = folder
    yield process
    code, said = process.end(signal.SIGTERM)
    assert (code, "drained; 0 tasks are left" in said) == (0, True), said


def run_printed(server, argv):
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "SERVER": server.url}
    environment["PATH"] = f"{server.folder}:{environment['PATH']}"
    command = server.folder / "flashinfer-bench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flashinfer_bench "$@"\n')
    command.chmod(0o755)
    return subprocess.run(
        argv, cwd=server.folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def test_the_python_program_prints_verdicts(server):
    program = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1]
    done = run_printed(server, [sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\S+ PASSED [\d.]+\nverdict PASSED\nend completed\ncompleted 1\n", done.stdout)


def test_the_shell_lines_print_verdicts(server):
    if not (shutil.which("jq") and shutil.which("curl")):
        pytest.skip("the lines call curl and jq")
    lines = "set -e\n" + "".join(re.findall(r"```shell\n(.*?)```", GUIDE, re.DOTALL))
    done = run_printed(server, ["bash", "-c", lines])
    assert done.returncode == 0, done.stderr
    assert "1 PASSED" in done.stdout
    assert done.stdout.endswith("completed\nPASSED\n")
