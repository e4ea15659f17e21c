"""Where the outputs of a timed call lie."""

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.places import (
    FEW_BYTES,
    FREE_SHARE,
    MOST_BYTES,
    PLACES,
    Kept,
    choose_places,
    count_places,
    held_bytes,
    note_places,
    written_elsewhere,
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


@pytest.mark.parametrize("places", [1, 2, PLACES])
def test_what_calls_return_is_kept_until_every_place_is_used(places):
    made = []

    def make():
        made.append(weakref.ref(output := torch.zeros(4)))
        return [output]

    launch = Kept(make, places, 16)
    assert launch.places == 1
    for _ in range(20):
        launch()
        assert launch.places == places
        assert sum(reference() is not None for reference in made) == min(len(made), places - 1)


@pytest.mark.parametrize(("launch_mode", "frees"), [("graph", 1), ("stream", 0)])
def test_what_was_kept_is_dropped_before_the_memory_of_graphs_is_freed(monkeypatch, launch_mode, frees):
    made, alive = [], []

    def make():
        made.append(weakref.ref(output := torch.zeros(4)))
        return output

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(sum(one() is not None for one in made)))
    launch = Kept(make, PLACES, 16)
    for _ in range(20):
        launch()
    launch.give_back(Trial((), "count", {"launch": launch_mode}))
    assert alive == [0] * frees
    assert launch.places == PLACES


@pytest.mark.parametrize("places", [1, 2, PLACES])
def test_calls_write_to_every_set_of_outputs_in_turn_the_given_one_first(places):
    given_outputs, seen = [torch.zeros(2, 3), torch.zeros(4, dtype=torch.int32)], []

    def write(first, second):
        seen.append((first.data_ptr(), second.data_ptr()))
        assert [(t.shape, t.dtype) for t in (first, second)] == [(t.shape, t.dtype) for t in given_outputs]

    launch = written_elsewhere(write, given_outputs, places)
    for _ in range(3 * places):
        launch()
    assert seen[0] == tuple(t.data_ptr() for t in given_outputs)
    assert len(set(seen)) == places
    assert seen == seen[:places] * 3


def test_a_result_that_holds_more_than_its_outputs_is_not_kept():
    weights = torch.ones(4, requires_grad=True)
    made = {
        "a slice": lambda: torch.zeros(400)[:4],
        "a gradient's": lambda: weights * 2,
        "something else": lambda: {"y": torch.zeros(4)},
    }
    for name, make in made.items():
        launch = Kept(make, PLACES, 16)
        launch()
        assert launch.places == 1, name
        assert not launch._results, name


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


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"calls": 60, "launch": "stream"}, 8),
        ({"calls": 5, "launch": "stream"}, 5),
        ({"calls": 1, "launch": "stream"}, None),
        ({"calls": 60, "launch": "graph"}, None),
        ({"calls": 60, "launch": "graph", "graphs": 4}, 4),
        ({"calls": 60, "launch": "graph", "graphs": 16}, 8),
    ],
    ids=str,
)
def test_a_trial_says_in_how_many_places_its_outputs_lay_where_there_were_several(facts, told):
    trial = Trial((Sample(span_ns=1, enqueue_ns=1),), "count", facts)
    assert note_places(trial, 1) is trial
    assert note_places(trial, 8).facts.get("output_places") == told
