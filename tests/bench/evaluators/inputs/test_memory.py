"""How often a GPU's free memory is looked at."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.evaluators.inputs.memory import forget_looks, recently_free_bytes

pytestmark = pytest.mark.cpu
GPU = torch.device("cuda")


@pytest.fixture
def looks(monkeypatch):
    """Return the clock, which a test moves, and how many looks there were."""
    state = {"now": 0.0, "looks": 0}

    def look(_device):
        state["looks"] += 1
        return 100 - state["looks"], 100

    monkeypatch.setattr(torch.cuda, "mem_get_info", look)
    monkeypatch.setattr(memory.time, "monotonic", lambda: state["now"])
    forget_looks()
    yield state
    forget_looks()


def test_a_look_counts_for_a_while(looks):
    assert [recently_free_bytes(GPU), recently_free_bytes(GPU)] == [99, 99]
    looks["now"] += memory.RECENT_S * 1.01
    assert recently_free_bytes(GPU) == 98


def test_it_looks_anew_where_much_may_have_changed(looks):
    recently_free_bytes(GPU)
    forget_looks()
    assert recently_free_bytes(GPU) == 98
    assert looks["looks"] == 2
