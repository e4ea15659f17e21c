"""How often a GPU's free memory is looked at, and how many threads our work takes beside it."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import memory, threads
from flashinfer_bench.bench.evaluators.reference import Reference
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
GPU = torch.device("cuda")


def test_a_reading_counts_for_a_moment_and_longer_if_there_is_plenty(monkeypatch):
    now, readings = [0.0], iter((60, 49, 48, 47))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (next(readings), 100))
    monkeypatch.setattr(memory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(memory, "_looks", {})
    found = [memory.recently_free_bytes(GPU)]
    for later_s in (1, 1, 0, 1):
        now[0] += later_s
        found.append(memory.recently_free_bytes(GPU))
    assert found == [60, 60, 49, 49, 48]
    assert memory.look_at_free_bytes(GPU) == 47


def test_what_torch_holds_for_no_tensor_is_free(monkeypatch):
    figures = {"reserved_bytes": {"all": {"current": 70}}, "allocated_bytes": {"all": {"current": 30}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _device: figures)
    assert memory.cached_bytes(GPU) == 40
    figures.clear()  # as before CUDA has started
    assert memory.cached_bytes(GPU) == 0


def test_a_reference_has_the_usual_threads_and_they_are_taken_back_where_it_raises(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_usual", [3])
    tells = "import torch\ndef run(x):\n    return x * 0 + torch.get_num_threads()\n"
    definition = make_definition(inputs={"x": "float32[n]"}, outputs={"y": "float32[n]"}, reference=tells)
    try:
        torch.set_num_threads(1)
        assert Reference.compile(definition)([torch.ones(4)])[0].tolist() == [3.0] * 4
        with pytest.raises(ZeroDivisionError), threads.usual_threads():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
