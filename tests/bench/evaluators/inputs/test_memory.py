"""How often a GPU's free memory is looked at, and how many threads our work takes beside it."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import memory, threads
from flashinfer_bench.bench.evaluators.inputs.memory import forget_looks, recently_free_bytes
from flashinfer_bench.bench.evaluators.reference import Reference
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
GPU = torch.device("cuda")


@pytest.fixture
def looks(monkeypatch):
    """Return the clock, which a test moves, how many looks there were, all memory, and what torch holds of it."""
    state = {"now": 0.0, "looks": 0, "total": 1000, "held": 10}

    def look(_device):
        state["looks"] += 1
        return 100 - state["looks"], state["total"]

    def count(_device):
        return {name: {"all": {"current": state["held"]}} for name in ("reserved_bytes", "allocated_bytes")}

    monkeypatch.setattr(torch.cuda, "mem_get_info", look)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", count)
    monkeypatch.setattr(memory.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(memory, "_looks", {})
    return state


def test_a_look_counts_for_a_while_unless_much_may_have_changed(looks):
    assert [recently_free_bytes(GPU), recently_free_bytes(GPU)] == [99, 99]
    looks["now"] += memory.RECENT_S * 1.01
    assert recently_free_bytes(GPU) == 98
    forget_looks()
    assert recently_free_bytes(GPU) == 97


def test_a_look_that_found_much_memory_stands_for_longer_unless_more_is_held_here(looks):
    looks["total"] = 100
    recently_free_bytes(GPU)
    looks["now"] += memory.RECENT_S * 2
    forget_looks()
    assert recently_free_bytes(GPU) == 99
    looks["held"] += 1
    forget_looks()
    assert recently_free_bytes(GPU) == 98
    looks["now"] += memory.ROOMY_S * 1.01
    assert recently_free_bytes(GPU) == 97


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
