"""Stored inputs that are missing or not fetched are told before a run."""

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.cli.main import cli as main
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

PATHS = {
    "gone": "blob/a.safetensors",
    "pointer": "blob/b.safetensors",
    "there": "blob/c.safetensors",
    "pointer-2": "blob/b.safetensors",
}


@pytest.fixture
def folder(tmp_path):
    def workload(uuid, path):
        source = {"type": "safetensors", "path": path, "tensor_key": "x"}
        return make_trace(solution=None, workload=make_workload(uuid, inputs={"x": source}))

    files = {
        PATHS["pointer"]: "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
    }
    workloads = [workload(uuid, path) for uuid, path in PATHS.items()]
    root = write_trace_set(
        tmp_path, files, definitions=[make_definition()], solutions=[make_solution()], workloads=workloads
    )
    save_file({"x": torch.ones(*workloads[0].workload.axes.values())}, str(root / PATHS["there"]))
    return root


def told(text):
    return [line for line in text.splitlines() if "blob " in line]


def test_validate_tells_of_each_blob_once(folder, capsys):
    assert main(["validate", "--local", str(folder)]) == 1
    gone, pointer = told(capsys.readouterr().out)
    assert (gone.startswith("error: "), pointer.startswith("warning: ")) == (True, True)
    assert "workload gone of double: " in gone
    assert "is not there" in gone
    assert "workload pointer of double: " in pointer
    assert "is a git-lfs pointer, not the file; run in " in pointer


def test_a_dry_run_warns_of_the_blobs_of_its_jobs(folder, capsys):
    command = ["run", "--local", str(folder), "--dry-run", "--devices", "cpu"]
    assert main(command) == 1
    heard = capsys.readouterr()
    (skip,) = told(heard.out)
    assert skip.startswith("skipped double: 3 of 4 workloads lack their stored inputs: blob ")
    assert main([*command, "--workloads", "there"]) == 0
    assert told(capsys.readouterr().err) == []
