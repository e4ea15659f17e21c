"""The command with real workers on a CPU, as a gate: a slower kernel fails, an equal one does not."""

import json
import re
import shlex
from xml.etree import ElementTree

import pytest
import yaml

from flashinfer_bench.cli.entry import parse_command_line
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data.store.pack import unpack_solution
from tests.conftest import CHECKOUT
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu

EQUAL = "# another comment\ndef run(x):\n    return x * 2\n"
SLOW = "def run(x):\n    for _ in range(200):\n        x * 3\n    return x * 2\n"
WRONG = "def run(x):\n    return x * 3\n"
QUICK = ["--devices", "cpu", "--iterations", "10", "--num-trials", "1", "--budget", "15", "--quiet", "--format", "json"]
GATE = ["--fail-if-slower", "300%"]


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Run the command on `double`; the new solution comes as a folder with a manifest."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    lines = [make_trace(solution=None, workload=make_workload(axes={"n": 4096}))]
    root = write_trace_set(
        tmp_path / "set", definitions=[make_definition()], solutions=[make_solution()], workloads=lines
    )

    def run(source, *flags):
        new = tmp_path / "new"
        unpack_solution(make_solution("new", source=source), new)
        code = main(["compare", "double_python", str(new), "--local", str(root), *QUICK, *flags])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_the_gate_lets_an_equal_kernel_through(compare):
    code, document = compare(EQUAL, *GATE)
    (row,) = document["rows"]
    assert (code, document["slower_than_allowed"], row["problem"]) == (0, [], None)
    assert row["pairs"] >= 4
    assert len(row["pairs_ms"]) == row["pairs"]


def test_the_gate_fails_for_a_slower_kernel(compare, tmp_path):
    code, document = compare(SLOW, *GATE, "--junit", str(tmp_path / "junit.xml"))
    assert (code, document["slower_than_allowed"]) == (1, ["w0", "over all"])
    assert document["rows"][0]["decision"] == "slower"
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("failures") == "2"


def test_a_wrong_kernel_is_not_compared(compare):
    code, document = compare(WRONG)
    assert (code, document["overall"]) == (1, None)
    assert document["rows"][0]["problem"].startswith("B did not pass: INCORRECT_NUMERICAL")


def test_the_workflow_of_the_guide_is_a_command_that_can_be_typed():
    (text,) = re.findall(r"```yaml\n(.*?)```", (CHECKOUT / "docs" / "compare.md").read_text(), re.DOTALL)
    steps = yaml.safe_load(text)["jobs"]["compare"]["steps"]
    (typed,) = (step["run"] for step in steps if "compare" in step.get("run", ""))
    argv = shlex.split(typed.partition(">>")[0])[1:]
    args = parse_command_line(argv)
    assert (args.first, args.fail_if_slower, args.junit) == ("old/kernels/my_rmsnorm", 0.03, "compare.xml")


@pytest.mark.parametrize("flags", [["--threshold", "x"], ["--fail-if-slower", "-3%"], ["--budget", "0"]])
def test_wrong_flags_are_misuse(flags, capsys):
    assert main(["compare", "a", "b", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


@pytest.mark.usefixtures("compare")
def test_repeats_time_each_solution_in_several_workers(tmp_path, capsys):
    how = ["--devices", "cpu", "--repeat", "2", "--iterations", "5", "--num-trials", "1", "--quiet"]
    code = main(["run", "--local", str(tmp_path / "set"), *how, "--no-save-results", "--format", "json"])
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (code, job["status"], job["interval"]) == (0, "PASSED", "workers")
    assert job["interval95_ms"][0] <= job["latency_ms"] <= job["interval95_ms"][1]
    assert list((tmp_path / "cache" / "spread").iterdir())
