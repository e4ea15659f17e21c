"""The sweep of a published data set: which workloads it takes, and that one that is missed makes its exit code 1."""

from __future__ import annotations

import sys

import pytest

from benchmarks import sweep_published
from tests.kit.make import make_definition, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu

GONE = {"x": {"type": "safetensors", "path": "./blob/gone.safetensors", "tensor_key": "x"}}
BROKEN = {"x": {"type": "safetensors", "path": "./blob/broken.safetensors", "tensor_key": "x"}}


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    monkeypatch.setattr(sweep_published.resource, "setrlimit", lambda *arguments: None)


@pytest.mark.parametrize(
    ("most", "taken"),
    [(0, [0, 1, 2, 3, 4]), (1, [0]), (2, [0, 4]), (3, [0, 2, 4]), (4, [0, 1, 2, 4]), (9, [0, 1, 2, 3, 4])],
)
def test_workloads_are_taken_from_the_smallest_to_the_largest(most, taken):
    assert sweep_published.spread(list(range(5)), most) == taken


def test_a_missing_blob_is_told_and_expected(tmp_path, monkeypatch, capsys):
    assert sweep(tmp_path, GONE, monkeypatch) == 0
    assert last_line(capsys) == ["test", "3", "0", "PASSED:", "2,", "MISSING", "BLOB:", "1"]


def test_a_blob_that_cannot_be_read_is_exit_code_1(tmp_path, monkeypatch, capsys):
    assert sweep(tmp_path, BROKEN, monkeypatch) == 1
    assert last_line(capsys) == ["test", "3", "1", "PASSED:", "2,", "FAULT:", "1"]


def sweep(root, inputs, monkeypatch):
    workloads = [make_workload(f"w{size}", axes={"n": size}) for size in (8, 64)]
    workloads.append(make_workload("w9", inputs=inputs))
    write_trace_set(
        root,
        {"blob/broken.safetensors": b"no safetensors"},
        definitions=[make_definition()],
        workloads=[make_trace(workload=workload, solution=None) for workload in workloads],
    )
    options = [
        "--op-types",
        "test",
        "--workloads",
        "0",
        "--published-only",
        "--twins",
        "value",
        "--devices",
        "cpu",
        "--no-save",
    ]
    monkeypatch.setattr(sys, "argv", ["sweep_published", str(root), *options])
    return sweep_published.main()


def last_line(capsys):
    return capsys.readouterr().out.splitlines()[-2].split()
