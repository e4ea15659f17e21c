"""The command with real workers on a CPU, as a gate: a slower kernel fails, an equal one does not."""

import json
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import yaml

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data.store.pack import unpack_solution
from flashinfer_bench.errors import Misuse
from flashinfer_bench.examine.compare.measuring import for_blocks
from tests.conftest import CHECKOUT
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu

EQUAL = "# another comment\ndef run(x):\n    return x * 2\n"
SLOW = "def run(x):\n    for _ in range(200):\n        x * 3\n    return x * 2\n"
WRONG = "def run(x):\n    return x * 3\n"
QUICK = ["--devices", "cpu", "--iterations", "10", "--num-trials", "1", "--budget", "15", "--quiet", "--format", "json"]


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


def test_a_wrong_kernel_is_not_compared(compare):
    code, document = compare(WRONG)
    assert (code, document["overall"]) == (1, None)
    assert document["rows"][0]["problem"].startswith("B did not pass: INCORRECT_NUMERICAL")


@pytest.mark.parametrize(
    ("other", "is_told"), [("double_python", True), ("another", False)], ids=["the same sources", "other sources"]
)
def test_two_sides_with_the_same_sources_are_told(tmp_path, monkeypatch, capsys, other, is_told):
    def measure(*_arguments, **_keywords):
        raise Misuse("nothing is measured here")

    monkeypatch.setattr("flashinfer_bench.examine.compare.measuring.measure", measure)
    solutions = [make_solution(), make_solution("another", source=SLOW)]
    root = write_trace_set(tmp_path / "set", definitions=[make_definition()], solutions=solutions)
    assert main(["compare", "double_python", other, "--local", str(root), "--devices", "cpu"]) == 2
    assert ("both sides have the same sources" in capsys.readouterr().err) is is_told


CPU, GPU = Device("cpu", 0, "a CPU", "cpu"), Device("cuda", 1, "a GPU", "GPU-1")


@pytest.mark.parametrize(
    ("given", "trials"),
    [
        ({}, 1),
        ({"iterations": 7}, 1),
        ({"num_trials": 2}, 2),
        ({"op_type_config": {"test": EvalConfig(num_trials=4)}}, 4),
        ({"definition_config": {"double": EvalConfig(num_trials=5)}}, 5),
    ],
    ids=["nothing", "readings", "a flag", "an op type", "a definition"],
)
def test_a_block_has_one_trial_unless_the_user_says_otherwise(given, trials):
    definition = make_definition(op_type="test")
    found = for_blocks(BenchmarkConfig.default(**given), CPU).resolve_eval_config(definition)
    usual = BenchmarkConfig.default(**given).resolve_eval_config(definition)
    assert (found.num_trials, found.profile_baseline) == (trials, False)
    assert found.beyond(usual).keys() <= {"num_trials"}
    devices = [for_blocks(BenchmarkConfig.default(devices=["0", "1"]), device).devices for device in (CPU, GPU)]
    assert devices == [["cpu"], ["GPU-1"]]


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    """Check a repository out twice as the guide's workflow says, and run its own steps in bash as a runner does.

    Only the numbers are those of a CPU that others keep busy: it cannot tell 3 %.
    """
    (text,) = re.findall(r"```yaml\n(.*?)```", (CHECKOUT / "docs" / "compare.md").read_text(), re.DOTALL)
    steps = yaml.safe_load(text)["jobs"]["compare"]["steps"]
    checkouts = [step["with"]["path"] for step in steps if step.get("uses", "").startswith("actions/checkout")]
    (upload,) = (step for step in steps if step.get("uses", "").startswith("actions/upload-artifact"))
    commands = [step["run"] for step in steps if "run" in step and not step["run"].startswith("pip install")]
    (tools := tmp_path / "bin").mkdir()
    (tools / "flashinfer-bench").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flashinfer_bench "$@"\n')
    (tools / "flashinfer-bench").chmod(0o755)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))

    def run(source):
        lines = [make_trace(solution=None, workload=make_workload(axes={"n": 4096}))]
        for place in checkouts:
            write_trace_set(tmp_path / place / "set", definitions=[make_definition()], workloads=lines)
            kept = make_solution("my_rmsnorm", source=source if place == "new" else EQUAL)
            unpack_solution(kept, tmp_path / place / "kernels" / "my_rmsnorm")
        (typed,) = commands
        assert "--fail-if-slower 3% --budget 120 " in typed
        numbers = "--fail-if-slower 300% --budget 15 --iterations 10 --num-trials 1 --quiet "
        typed = typed.replace("--fail-if-slower 3% --budget 120 ", numbers)
        code = subprocess.run(["bash", "-e", "-c", typed], cwd=tmp_path, check=False, timeout=200).returncode
        junit = ElementTree.parse(tmp_path / upload["with"]["path"]).getroot()
        return code, (tmp_path / "summary.md").read_text(), junit

    return run


@pytest.mark.parametrize(
    ("source", "code", "failures", "told"),
    [(SLOW, 1, "2", "Slower than allowed: w0, over all."), (f"# the same again\n{EQUAL}", 0, "0", "| w0, n=4096 |")],
    ids=["slower", "equal"],
)
def test_the_workflow_of_the_guide_is_a_gate(workflow, source, code, failures, told):
    found, summary, junit = workflow(source)
    assert (found, junit.get("failures"), junit.get("errors")) == (code, failures, "0")
    assert told in summary


@pytest.mark.parametrize(
    "flags", [["--threshold", "x"], ["--threshold", "2"], ["--fail-if-slower", "-3%"], ["--budget", "0"]]
)
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
