"""Where calls lie, and what is seen of an output that was not written, or that was given before."""

import math
from contextlib import nullcontext

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.timed import call_places as places_module
from flashinfer_bench.bench.runner.workers.timed.call_places import (
    CallPlaces,
    check_room,
    count_places,
)
from flashinfer_bench.errors import SolutionFailure
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu
CPU, GPU = torch.device("cpu"), torch.device("cuda")
MIB, TIB = 1 << 20, 1 << 40
LARGE = 1 << 16


def lay_out(arena, size=16, *, dtype=torch.float32, outputs=1):
    specs = [OutputSpec(f"y{index}", (size,), dtype) for index in range(outputs)]
    return CallPlaces(arena, [torch.zeros(size), 0.5], specs)


def look(places, indices=(0,), secret=0):
    """Return of each place what is seen of its outputs, and whether one was not written."""
    seen = places.read_spots(indices, secret)
    return [[output[at].tobytes() for output in seen] for at in range(len(indices))], places.find_unwritten(
        seen, secret
    )


def set_free(monkeypatch, free):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80_000 * MIB))
    monkeypatch.setattr(memory, "_looks", {})


@pytest.mark.parametrize(
    ("device", "size", "free", "held", "count"),
    [
        (CPU, 5 * MIB, 0, None, 6),
        (CPU, TIB, 0, None, 1),
        (GPU, 10 * MIB, 150 * MIB, 0, 5),  # five calls may take a third of what is free
        (GPU, 10 * MIB, 0, 150 * MIB, 5),
    ],
)
def test_there_are_as_many_places_as_a_cache_or_a_share_of_free_memory_holds(
    monkeypatch, device, size, free, held, count
):
    set_free(monkeypatch, free)
    assert [count_places(size, device, most, held=held) for most in (99, 3)] == [count, min(count, 3)]


@pytest.mark.parametrize(
    ("before", "now", "held", "total", "is_refused"),
    [
        (100, 90, 8, 80_000, True),
        (100, 90, 10, 80_000, False),  # what calls may lie in counts as free
        (98, 20, 0, 80_000, False),  # there never was more
        (100, 98, 0, 900, False),  # a large call: the session may hold what is missing
    ],
)
def test_who_holds_so_much_of_a_gpu_that_its_calls_cannot_be_timed_is_refused(
    monkeypatch, before, now, held, total, is_refused
):
    monkeypatch.setattr(memory, "_most_free", {})
    monkeypatch.setattr(places_module, "total_bytes", lambda device: total * MIB)
    for free in (before, now):
        set_free(monkeypatch, free * MIB)
        memory.look_at_free_bytes(GPU)
    told = r"0\.10 GiB of the GPU's memory are left beside what the solution holds; 0\.10 are needed"
    with pytest.raises(SolutionFailure, match=told) if is_refused else nullcontext():
        check_room(100 * MIB // 6, GPU, held * MIB)


@pytest.mark.parametrize("size", [16, 1024])
def test_places_share_no_memory_and_lie_on_a_cpu_at_eight_offsets_of_a_page_at_the_least(arena, size):
    places = lay_out(arena, size, outputs=2)
    for index in range(len(places)):
        for slot in [*places.inputs(index)[:1], *places.outputs(index)]:
            assert not slot.any()
            slot.fill_(1)
    assert 12 * size <= places.stride <= max(12 * size, 768) + 512
    assert places.stride % 256 == 0
    assert len({place * places.stride % 4096 for place in range(8)}) == 8


FLOATS = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("size", [0, 1, 1_000])
@pytest.mark.parametrize("indices", [[*range(8)], [5, 2]], ids=str)
def test_outputs_that_were_not_written_are_found_each_for_itself_with_one_wait(arena, dtype, size, indices):
    """Poison of floats of 16 bits or more reads as NaN. What is NaN by right is none."""
    places = lay_out(arena, size, dtype=dtype, outputs=2)
    for index in range(8):
        places.outputs(index)[0].fill_(math.nan if dtype in FLOATS else index)
        places.outputs(index)[1].fill_(index)
    with counting_operations() as counted:
        seen, unwritten = look(places, indices)
    assert (counted.waits() == (size > 0), counted.launches() <= 6) == (True, True)
    assert unwritten == [False] * len(indices) * (size > 0)
    held = [[one.view(torch.uint8).numpy().tobytes() for one in places.outputs(at)] * (size > 0) for at in indices]
    assert seen == held
    places.poison(indices)
    assert look(places, range(8))[1] == [index in indices for index in range(8)] * (size > 0)
    assert dtype not in FLOATS or all(bool(places.outputs(index)[1].isnan().all()) for index in indices)


@pytest.mark.parametrize("secret", [0, 2**32 - 1])
def test_few_bytes_of_a_large_output_are_seen_and_others_for_another_secret(arena, secret):
    """A stretch that was left out is found all the same."""
    places = lay_out(arena, LARGE)
    (output,) = places.outputs(0)
    places.poison([0])
    output[: -(1 << 13)] = 1.0
    assert look(places, secret=secret)[1] == [True]
    output.copy_(torch.randn(LARGE))
    ((first,),), unwritten = look(places, secret=secret)
    ((other,),), _ = look(places, secret=secret + 1)
    assert (first != other, len(first) <= 8_192, unwritten) == (True, True, [False])


@pytest.mark.parametrize(("size", "dtype"), [(5, torch.uint8), (40, torch.float32)])
def test_16_bytes_of_poison_in_a_row_are_found_wherever_they_lie(arena, size, dtype):
    """Or all of them, where there are fewer."""
    places, row = lay_out(arena, size, dtype=dtype), size * dtype.itemsize
    run = min(16, row)
    for start in range(row - run + 1):
        places.poison(range(4))
        for index in range(4):
            held = places.outputs(index)[0].view(torch.uint8)
            held[:start] = held[start + run :] = 1
            held[: 1 if index == 2 else 0] += 1
            held[::4] += index == 2
        assert look(places, range(4))[1] == [True, True, False, True]
