"""`run --axis`: workloads made of sizes, judged and recorded without a line in the set's files."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.cli.fake_engine import play_run
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set


@pytest.fixture
def root(tmp_path):
    """A set whose workload has a stored input."""
    save_file({"x": np.zeros(4, np.float32)}, tmp_path / "x.safetensors")
    stored = {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}}
    line = make_trace(solution=None, workload=make_workload(axes={"n": 4}, inputs=stored))
    return write_trace_set(tmp_path, definitions=[make_definition()], solutions=[make_solution()], workloads=[line])


def sweep(root, *words):
    """Run, and return the exit code with the jobs."""
    jobs = []
    return play_run([str(root), *words], lambda job: jobs.append(job) or {})[0], jobs


@pytest.mark.parametrize(
    ("values", "sizes"), [("1:9:x2", [1, 2, 4, 8]), ("2:6:2", [2, 4, 6]), ("7,1", [7, 1]), ("3", [3])]
)
def test_each_size_of_an_axis_is_a_workload_with_random_inputs(root, values, sizes):
    code, jobs = sweep(root, "--axis", f"n={values}")
    assert (code, [job.workload.axes["n"] for job in jobs]) == (0, sizes)
    assert not any(job.workload.stored_inputs for job in jobs)
    again = sweep(root, "--axis", f"n={values}")[1]
    assert [job.workload.uuid for job in again] == [job.workload.uuid for job in jobs]
    assert len(TraceSet.from_path(root).workloads["double"]) == 1


def test_a_recorded_job_of_a_sweep_is_judged_again_and_is_no_foreign_trace(root, capsys):
    job = sweep(root, "--axis", "n=3")[1][0]
    file = root / "traces/alice/test/double.jsonl"
    file.write_text(make_trace(workload=job.workload).to_json() + "\n")
    assert [one.workload for one in sweep(root, "--replay", str(file))[1]] == [job.workload]
    capsys.readouterr()
    main(["validate", str(root), "--checks", "trace", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["issues"] == []
    assert sweep(root, "--last-failed")[1] == []
    with file.open("a") as lines:
        lines.write(make_trace(workload=job.workload, status="RUNTIME_ERROR").to_json() + "\n")
    assert [one.workload for one in sweep(root, "--last-failed")[1]] == [job.workload]
    assert (main(["validate", str(root), "--prune"]), len(file.read_text().splitlines())) == (0, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--axis m=3", "double has no axis 'm'"),
        ("--axis n", "write each axis once"),
        ("--axis n=3 --axis n=4", "write each axis once"),
        ("--axis n=8:1", "upward"),
        ("--axis n=1:20000", "at most 10,000"),
        ("--axis n=3 --workloads w0", "give one of them"),
    ],
)
def test_a_wrong_size_is_misuse_that_names_what_fits(root, capsys, words, said):
    assert sweep(root, *words.split()) == (2, [])
    assert said in capsys.readouterr().err
