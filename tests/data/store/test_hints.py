"""Hints of the nearest name while a set is read or validated: the first faults of a file get them, of however many."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import TraceSet, names
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set


@pytest.fixture
def asked(monkeypatch):
    """The names that the nearest one was looked for."""
    found = []
    monkeypatch.setattr(names, "nearest_name", lambda name, known: found.append(name) or "n")
    return found


def test_lines_with_unknown_axes_and_inputs(tmp_path, asked):
    line = make_trace(workload=make_workload(axes={"n": 4, "m": 4}, inputs={"z": {"type": "random"}}), solution=None)
    lines = [line.to_dict()] * 40
    files = {"workloads/test/double.jsonl": lines, "workloads/test/other.jsonl": lines}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files, definitions=[make_definition()]))
    assert len(asked) == 40
    assert any("no axis 'm'; did you mean 'n'?" in issue.reason for issue in loaded.issues)


def test_one_workload_with_unknown_axes(tmp_path, asked):
    line = make_trace(workload=make_workload(axes={"n": 4, **{f"m{i}": 4 for i in range(500)}}), solution=None)
    files = {"workloads/test/double.jsonl": [line.to_dict()]}
    TraceSet.from_path(write_trace_set(tmp_path, files, definitions=[make_definition()]))
    assert len(asked) == 20


def test_a_list_of_solutions_without_their_entry_points(tmp_path, asked):
    raw = make_solution().to_dict()
    raw["spec"]["entry_point"] = "mian.py::run"
    files = {"solutions/alice/test/double/s.json": [raw] * 40}
    loaded = TraceSet.from_path(write_trace_set(tmp_path, files, definitions=[make_definition()]))
    assert asked == ["mian.py"] * 20
    assert len(loaded.issues) == 40


def test_a_definition_that_is_not_there_is_looked_up_once_for_the_set(tmp_path, asked):
    solutions = [make_solution(f"s{number}", definition="duoble") for number in range(30)]
    loaded = TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()], solutions=solutions))
    told = [issue.reason for issue in loaded.issues if "is not there; did you mean 'n'?" in issue.reason]
    assert asked == ["duoble"]
    assert len(told) == 30
