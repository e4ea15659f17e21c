"""Scripts that fill a set: traces, workloads and stored tensors are on disk at once; and the lookup of a set."""

from __future__ import annotations

import pytest

from flashinfer_bench import TraceSet
from flashinfer_bench.env import get_fib_cache_path, get_fib_dataset_path
from flashinfer_bench.errors import DataSetError, WorkloadFault
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

WORKLOAD = make_trace(solution=None)


@pytest.fixture
def root(tmp_path):
    return write_trace_set(tmp_path / "set", definitions=[make_definition()], solutions=[make_solution()])


@pytest.mark.parametrize("names", [{"definition": "duoble"}, {"solution": "nobody"}], ids=str)
def test_traces_are_added_all_or_none(root, names):
    trace_set = TraceSet.from_path(root)
    with pytest.raises(ValueError, match=r"duoble|nobody"):
        trace_set.add_traces([make_trace(), make_trace(**names)])
    assert trace_set.traces == TraceSet.from_path(root).traces == {}
    trace_set.add_traces([make_trace()])
    assert trace_set.traces == TraceSet.from_path(root).traces == {"double": [make_trace()]}
    assert trace_set.get_best_trace(def_name="double") == trace_set.get_best_trace(definition="double") == make_trace()
    assert trace_set.filter_traces(def_name="double", atol=1, rtol=1) == [make_trace()]
    with pytest.raises(TypeError, match="missing"):
        trace_set.get_best_trace()


def test_a_set_in_memory_keeps_additions():
    trace_set = TraceSet(definitions={"double": make_definition()}, solutions={"double": [make_solution()]})
    trace_set.add_traces([make_trace()])
    trace_set.add_workload_traces([WORKLOAD])
    assert (len(trace_set.traces["double"]), len(trace_set.workloads["double"])) == (1, 1)
    with pytest.raises(DataSetError, match="in memory"):
        _ = trace_set.traces_path


@pytest.mark.cpu
def test_stored_tensors_are_written_once(root):
    import torch

    trace_set = TraceSet.from_path(root)
    path = trace_set.add_workload_blob_tensor(def_name="double", workload_uuid="w7", tensors={"x": torch.arange(3.0)})
    for given in (path, root / path):
        assert trace_set.get_workload_blob_tensor(given)["x"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="there already"):
        trace_set.add_workload_blob_tensor("double", "w7", {"x": torch.zeros(3)})
    with pytest.raises(WorkloadFault, match="not there"):
        trace_set.get_workload_blob_tensor("blob/workloads/none.safetensors")


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (make_trace(), "has a solution"),
        (make_trace(definition="other", solution=None), "no definition 'other'"),
        (WORKLOAD, "with this uuid"),
        (make_trace(workload=make_workload("w1", axes={"m": 1}), solution=None), "w1 of double"),
    ],
    ids=["no workload", "unknown", "known uuid", "does not fit"],
)
def test_workloads_that_cannot_be_added_are_refused(root, trace, words):
    trace_set = TraceSet.from_path(root)
    trace_set.add_workload_traces([WORKLOAD])
    with pytest.raises(ValueError, match=words):
        trace_set.add_workload_traces([make_trace(workload=make_workload("w9"), solution=None), trace])
    assert len(TraceSet.from_path(root).workloads["double"]) == len(trace_set.workloads["double"]) == 1


def test_a_set_is_found_in_the_users_cache(root, tmp_path, monkeypatch):
    monkeypatch.delenv("FIB_DATASET_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataSetError, match=r"flashinfer_bench/dataset.*FIB_DATASET_PATH"):
        TraceSet.from_path()
    home = tmp_path / ".cache/flashinfer_bench/dataset"
    home.parent.mkdir(parents=True)
    root.rename(home)
    assert TraceSet.from_path().root == get_fib_dataset_path() == home


@pytest.mark.parametrize(("given", "folder"), [("~/cache", "{home}/cache"), ("~nobody-of-this-name/cache", None)])
def test_a_tilde_in_a_variable_is_the_home_directory(monkeypatch, tmp_path, given, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, find in (("FIB_CACHE_PATH", get_fib_cache_path), ("FIB_DATASET_PATH", get_fib_dataset_path)):
        monkeypatch.setenv(variable, given)
        assert str(find()) == (folder or given).format(home=tmp_path)
    with pytest.raises(DataSetError, match="does not exist"):
        TraceSet.from_path(given)
