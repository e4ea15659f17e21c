"""Several roots as one set: what is the same counts once, what contradicts is refused, what was missing is found."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set


def _load(root, **models):
    return TraceSet.from_path(write_trace_set(root, **models))


def _workload(uuid, **parts):
    return make_trace(solution=None, workload=make_workload(uuid, **parts))


def test_the_same_set_twice_is_that_set(tmp_path):
    models = {"definitions": [make_definition()], "solutions": [make_solution()], "workloads": [_workload("a")]}
    one, two = _load(tmp_path / "1", **models), _load(tmp_path / "2", **models)
    merged = TraceSet.merge([one, two])
    assert (merged.definitions, merged.solutions, merged.workloads) == (one.definitions, one.solutions, one.workloads)
    assert merged.roots == [tmp_path / "1", tmp_path / "2"]
    assert merged.root == tmp_path / "1"


def test_definitions_that_differ_are_refused_with_both_files(tmp_path):
    one = _load(tmp_path / "1", definitions=[make_definition()])
    two = _load(tmp_path / "2", definitions=[make_definition(op_type="other")])
    with pytest.raises(DataSetError) as caught:
        TraceSet.merge([one, two])
    assert str(tmp_path / "1/definitions/test/double.json") in str(caught.value)
    assert str(tmp_path / "2/definitions/other/double.json") in str(caught.value)


def test_solutions_that_differ_are_refused_with_both_files(tmp_path):
    one, two = (_load(tmp_path / str(n), solutions=[make_solution(source=f"x = {n}")]) for n in (1, 2))
    with pytest.raises(DataSetError, match=r"solution 'double_python' differs between .*/1/.* and .*/2/"):
        TraceSet.merge([one, two])


def test_a_description_is_no_difference(tmp_path):
    one = _load(tmp_path / "1", definitions=[make_definition()])
    two = _load(tmp_path / "2", definitions=[make_definition(description="other words")])
    assert TraceSet.merge([one, two]).definitions == one.definitions


def test_a_definition_from_another_root_settles_what_was_missing(tmp_path):
    mine = _load(tmp_path / "1", solutions=[make_solution()], workloads=[_workload("a"), _workload("b", axes={})])
    theirs = _load(tmp_path / "2", definitions=[make_definition()])
    merged = TraceSet.merge([mine, theirs])
    assert {issue.missing_definition for issue in mine.issues} == {"", "double"}
    (issue,) = merged.issues
    assert issue.reason.startswith("workload b of double: workload.axes.n: ")
    assert [trace.workload.uuid for trace in merged.workloads["double"]] == ["a"]
    assert merged.solution_roots == {"double_python": tmp_path / "1"}


def test_blobs_are_looked_for_in_the_root_of_their_workload(tmp_path):
    one = _load(tmp_path / "1", definitions=[make_definition()], workloads=[_workload("a")])
    two = _load(tmp_path / "2", definitions=[make_definition()], workloads=[_workload("a"), _workload("b")])
    merged = TraceSet.merge([one, two])
    assert merged.workload_roots == {"double": tmp_path / "1"}
    assert merged.blob_root("double", "a") == tmp_path / "1"
    assert merged.blob_root("double", "b") == tmp_path / "2"


def test_a_uuid_of_two_workloads_keeps_the_first(tmp_path):
    one = _load(tmp_path / "1", definitions=[make_definition()], workloads=[_workload("a")])
    two = _load(tmp_path / "2", definitions=[make_definition()], workloads=[_workload("a", axes={"n": 3})])
    merged = TraceSet.merge([one, two])
    assert merged.workloads == one.workloads
    assert [issue.severity for issue in merged.issues] == ["error"]


def test_traces_of_all_roots_are_kept_and_the_inputs_stay_as_they_were(tmp_path):
    one, two = (_load(tmp_path / str(n), definitions=[make_definition()], traces=[make_trace()]) for n in (1, 2))
    merged = TraceSet.merge([one, two])
    assert len(merged.traces["double"]) == 2
    assert len(one.traces["double"]) == len(two.traces["double"]) == 1


def test_merging_nothing_is_refused():
    with pytest.raises(DataSetError, match="no trace set"):
        TraceSet.merge([])
