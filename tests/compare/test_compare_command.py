"""The command with real workers on a CPU, as a gate: a slower kernel fails, an equal one does not."""

import json
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data.store.pack import unpack_solution
from tests.conftest import CHECKOUT
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu

EQUAL = "# another comment\ndef run(x):\n    return x * 2\n"
SLOW = "def run(x):\n    for _ in range(200):\n        x * 3\n    return x * 2\n"
WRONG = "def run(x):\n    return x * 3\n"
QUICK = ["--iterations", "10", "--num-trials", "1", "--budget", "120", "--quiet", "--format", "json"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    solutions = [make_solution(), make_solution("another", source=WRONG)]
    lines = [make_trace(solution=None, workload=make_workload())]
    parts = {"definitions": [make_definition()], "solutions": solutions, "workloads": lines}
    return write_trace_set(tmp_path / "set", **parts)


def compare(root, other, *flags):
    return main(["compare", "double_python", other, "--local", str(root), "--devices", "cpu", *flags])


def test_a_wrong_kernel_is_not_compared_and_equal_sources_are_told(root, capsys):
    assert compare(root, "another", *QUICK) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["overall"] is None
    assert document["rows"][0]["problem"].startswith("B did not pass: INCORRECT_NUMERICAL")
    for other, is_reported in (("double_python", True), ("another", False)):
        assert compare(root, other, "--workloads", "nowhere") == 2
        assert ("both sides have the same sources" in capsys.readouterr().err) is is_reported


def test_the_workflow_of_the_guide_is_a_gate(tmp_path):
    """Only the numbers are those of a CPU that others keep busy: it cannot tell 3 %."""
    guide = (CHECKOUT / "docs" / "compare.md").read_text()
    (typed,) = re.findall(r'>-\n( +flashinfer-bench compare .*?STEP_SUMMARY")', guide, re.DOTALL)
    lines = [make_trace(solution=None, workload=make_workload(axes={"n": 4096}))]
    for place, source in (("old", EQUAL), ("new", SLOW)):
        write_trace_set(tmp_path / place / "set", definitions=[make_definition()], workloads=lines)
        unpack_solution(make_solution("my_rmsnorm", source=source), tmp_path / place / "kernels" / "my_rmsnorm")
    asked, numbers = "--fail-if-slower 3% ", "--fail-if-slower 300% --iterations 10 --quiet "
    assert asked in typed
    typed = " ".join(typed.replace(asked, numbers).split())
    command = f'flashinfer-bench() {{ "{sys.executable}" -m flashinfer_bench "$@"; }}\n{typed}'
    places = {"FIB_CACHE_PATH": "cache", "GITHUB_STEP_SUMMARY": "summary.md"}
    environment = os.environ | {name: str(tmp_path / place) for name, place in places.items()}
    environment["PYTHONPATH"] = str(CHECKOUT)
    done = subprocess.run(["bash", "-e", "-c", command], cwd=tmp_path, env=environment, check=False, timeout=200)
    junit = ElementTree.parse(tmp_path / "compare.xml").getroot()
    assert (done.returncode, junit.get("failures"), junit.get("errors")) == (1, "2", "0")
    assert "Slower than allowed: w0, over all." in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("flags", [["--threshold", "2"], ["--fail-if-slower", "-3%"], ["--budget", "0"]])
def test_wrong_flags_are_misuse(flags, capsys):
    assert main(["compare", "a", "b", *flags]) == 2
    assert flags[0] in capsys.readouterr().err
