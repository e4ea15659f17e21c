"""Where the outputs of a timed call lie."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.places import (
    FEW_BYTES,
    FREE_SHARE,
    MOST_BYTES,
    PLACES,
    choose_places,
    count_places,
    held_bytes,
)
from tests.kit.fake_gpu import fake_cupti_clock

pytestmark = pytest.mark.cpu
FREE = 64 << 30


@pytest.mark.parametrize(
    ("size", "calls", "free_bytes", "places"),
    [
        (32 << 20, 10, FREE, PLACES),
        (0, 10, FREE, PLACES),
        (32 << 20, 3, FREE, 3),
        (32 << 20, 0, FREE, 1),
        (MOST_BYTES // 2, 10, FREE, 2),
        (MOST_BYTES, 10, FREE, 1),
        (MOST_BYTES + 1, 10, FREE, 1),
        (32 << 20, 10, (64 << 20) * FREE_SHARE, 2),
        (32 << 20, 10, 0, 1),
    ],
)
def test_there_are_as_many_places_as_warm_up_and_memory_allow(size, calls, free_bytes, places):
    assert count_places(size, calls=calls, free_bytes=free_bytes) == places


@given(st.integers(0, 1 << 40), st.integers(0, 100), st.integers(0, 1 << 38))
def test_places_never_hold_more_than_their_share_of_the_free_memory(size, calls, free_bytes):
    places = count_places(size, calls=calls, free_bytes=free_bytes)
    assert 1 <= places <= PLACES
    if places > 1:
        assert places * size <= min(MOST_BYTES, free_bytes / FREE_SHARE)


@pytest.mark.parametrize(
    ("device", "cold", "places"), [("cpu", True, 1), ("cuda", False, 1), ("cuda", True, PLACES)], ids=str
)
def test_there_is_one_place_on_a_cpu_and_where_calls_are_to_be_warm(gpu, monkeypatch, device, cold, places):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (FREE, FREE))
    gpu.l2_cache = "cold" if cold else "warm"
    clock, _ = fake_cupti_clock(gpu)
    assert choose_places(1 << 20, calls=10, clock=clock, device=torch.device(device)) == places


def test_a_few_bytes_are_taken_without_a_look_at_the_memory(gpu, monkeypatch):
    def look(_device):
        raise AssertionError("a look may wait for the driver")

    monkeypatch.setattr(torch.cuda, "mem_get_info", look)
    clock, _ = fake_cupti_clock(gpu)
    assert choose_places(FEW_BYTES // PLACES, calls=10, clock=clock, device=torch.device("cuda")) == PLACES
    with pytest.raises(AssertionError):
        choose_places(FEW_BYTES // PLACES + 1, calls=10, clock=clock, device=torch.device("cuda"))


@pytest.mark.parametrize(
    ("result", "held"),
    [
        (None, 0),
        (2.5, 0),
        (torch.zeros(4), 16),
        ((torch.zeros(4), torch.zeros(2), 1), 24),
        ([torch.zeros(8)[:1]], 32),
        (object, None),
    ],
    ids=str,
)
def test_what_a_result_holds(result, held):
    assert held_bytes(result) == held


def test_views_of_one_memory_hold_it_once():
    both = torch.zeros(8)
    assert held_bytes([both[:4], both[4:]]) == 32
