"""`repro`: a wrong call in files, and the script that shows it; what a solution prints in its calls."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.runner.session.outcome import describe_printing
from flashinfer_bench.cli.entry import parse_command_line
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.errors import Misuse
from flashinfer_bench.examine.repro.capture import KeepingKernel, KeptCall
from flashinfer_bench.examine.repro.map import draw_map
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

WRONG = "def run(x):\n    print('here')\n    y = x * 2\n    y[-1] += 1\n    return y\n"


@pytest.mark.cpu
def test_a_wrong_call_is_written_down_and_the_script_shows_it(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [make_trace(solution=None, workload=make_workload("w0", axes={"n": 8}))]
    root = write_trace_set(
        tmp_path / "set", definitions=[make_definition()], solutions=[make_solution(source=WRONG)], workloads=lines
    )
    flags = ["--devices", "cpu", "--iterations", "5"]
    assert main(["run", str(root), *flags]) == 0
    ran = capfd.readouterr().out
    assert "1 of 8 elements differ (only the last element)" in " ".join(ran.split())
    trace = next((root / "traces").rglob("*.jsonl"))
    assert main(["repro", f"{trace}:1", "--dump", "why", "--devices", "cpu"]) == 0
    out = capfd.readouterr().out
    assert "double / double_python / w0: INCORRECT_NUMERICAL" in out
    assert "y [8]: 1 of 8 elements fail" in out
    folder = tmp_path / "why"
    expected, got = load_file(folder / "expected.safetensors")["y"], load_file(folder / "got.safetensors")["y"]
    assert torch.equal((expected - got).abs() > 0.5, torch.arange(8) == 7)
    assert torch.equal(load_file(folder / "inputs.safetensors")["x"] * 2, expected)
    seed = json.loads(trace.read_text().splitlines()[0])["evaluation"]["extra"]["run"]["seed"]
    assert json.loads((folder / "call.json").read_text())["seed"] == seed
    for flag in ([], ["--recorded"]):
        done = subprocess.run(
            [sys.executable, str(folder / "repro.py"), *flag], env={}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "the failure shows" in done.stdout
    (folder / "solution" / "main.py").write_text("def run(x):\n    return x * 2\n")
    (folder / "got.safetensors").unlink()
    assert subprocess.run([sys.executable, str(folder / "repro.py")], capture_output=True, check=False).returncode == 0
    assert main(["repro", f"{trace}:1", "--dump", "why"]) == 2


@pytest.mark.parametrize("what", [["a"], ["a", "b", "c"]])
def test_what_is_named_is_a_recorded_job_or_a_solution_and_a_workload(what):
    args = parse_command_line(["repro", *what])
    with pytest.raises(Misuse, match="give a recorded job"):
        args.execute(args)


def test_the_call_that_was_rejected_stays():
    kept, one = KeptCall(), [torch.ones(2)]
    kernel = KeepingKernel(lambda x: [x + 1], kept, [one], [[torch.zeros(2)]])
    kernel(*one)
    assert kept.got[0].tolist() == [2, 2]
    assert kept.expected[0].tolist() == [0, 0]
    kept.is_final = True
    kept.take([], None, None)
    assert kept.got is not None


def test_a_map_shows_what_fails():
    right = torch.zeros(4, 128)
    wrong = right.clone()
    wrong[2, 64:] = 1
    drawn = draw_map("y", right, wrong, Tolerance(0.1, 0.1)).splitlines()
    assert drawn[0] == "y [4, 128]: 64 of 512 elements fail, in 1 of 4 rows and 64 of 128 columns"
    assert drawn[1] == "only row 2 and the last 64 columns"
    assert drawn[5] == f"       2 {'.' * 32}{'#' * 32}"


def test_printing_is_told_of():
    assert describe_printing({"printed_bytes": 5}) == ("note: it printed 5 bytes in its calls; printing costs it time")
    assert describe_printing({}) == ""
