"""Where calls lie, and what is seen of an output that was not written, or that was given before."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.evaluators.inputs.targets import addresses_of
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.timed import call_places as places_module
from flashinfer_bench.bench.runner.workers.timed.call_places import (
    CPU_BYTES,
    MOST_PLACES,
    RUN,
    SCARCE_SHARE,
    CallPlaces,
    check_room,
    count_places,
    digest_rows,
    is_run,
    spread,
    usual_places,
)
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.arena import ALIGNMENT
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")
MIB = 1 << 20


def lay_out(arena, size=16, *, dtype=torch.float32, outputs=1):
    specs = [OutputSpec(f"y{index}", (size,), dtype) for index in range(outputs)]
    return CallPlaces(arena, [torch.zeros(size), 0.5], specs)


def is_unwritten(places, secret):
    return places.find_unwritten(places.read_spots([0], secret), secret) == [True]


def look(places, indices, secret):
    seen = places.read_spots(indices, secret)
    return [[output[at].tobytes() for output in seen] for at in range(len(indices))]


@pytest.mark.parametrize(
    ("size", "count"),
    [(0, MOST_PLACES), (1, MOST_PLACES), (4 * MIB, 8), (5 * MIB, 6), (CPU_BYTES, 1), (CPU_BYTES + 1, 1), (1 << 40, 1)],
)
def test_a_cpu_has_as_many_places_as_its_cache_holds_and_one_at_the_least(size, count):
    assert count_places(size, CPU, MOST_PLACES) == count
    assert count_places(size, CPU, 3) == min(count, 3)


def test_a_gpu_gives_them_a_share_of_its_free_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (50 * MIB, 100 * MIB))
    monkeypatch.setattr(memory, "_looks", {})
    assert count_places(5 * MIB, torch.device("cuda"), MOST_PLACES) == 1
    monkeypatch.setattr(memory, "_looks", {})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    assert count_places(2000 * MIB, torch.device("cuda"), MOST_PLACES) == 4


def test_five_calls_may_take_a_third_of_what_is_free(monkeypatch):
    """A relay needs them, and bursts of fewer could be computed at once."""
    for free, size, places in (
        (150, 10, 5),
        (149, 10, 4),
        (300, 10, 5),
        (500, 10, 6),
        (100, 60, 1),
        (30_000, 2_000, 4),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free * MIB, 80_000 * MIB))
        monkeypatch.setattr(memory, "_looks", {})
        assert count_places(size * MIB, torch.device("cuda"), MOST_PLACES, held=0) == places
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 80_000 * MIB))
    monkeypatch.setattr(memory, "_looks", {})
    assert count_places(10 * MIB, torch.device("cuda"), MOST_PLACES, held=150 * MIB) == 5


@pytest.mark.parametrize(
    ("before", "now", "held", "total", "is_refused"),
    [
        (100, 98, 0, 80_000, True),
        (100, 100, 0, 80_000, False),
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
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free * MIB, 80_000 * MIB))
        monkeypatch.setattr(memory, "_looks", {})
        memory.look_at_free_bytes(torch.device("cuda"))
    told = r"0\.10 GiB of the GPU's memory are left beside what the solution holds; 0\.10 are needed"
    with pytest.raises(SolutionFailure, match=told) if is_refused else nullcontext():
        check_room(100 * MIB // SCARCE_SHARE // 2, torch.device("cuda"), held * MIB)


@pytest.mark.parametrize(("size", "count"), [(0, 64), (16 * MIB, 64), (32 * MIB, 32), (64 * MIB, 16), (1 << 40, 16)])
def test_small_calls_on_a_gpu_take_more_places_in_turn(size, count):
    assert usual_places(size, torch.device("cuda")) == count


@pytest.mark.parametrize(("size", "count"), [(0, 64), (128 << 10, 64), (1 << 20, 8), (1 << 40, 8)])
def test_small_calls_on_a_cpu_take_more_places_in_turn(size, count):
    assert usual_places(size, CPU) == count


def test_no_two_places_share_memory(arena):
    places = lay_out(arena, outputs=2)
    for index in range(len(places)):
        for slot in [*places.inputs(index)[:1], *places.outputs(index)]:
            assert not slot.any()
            slot.fill_(1)


def test_a_worker_is_told_of_places_and_of_numbers(arena):
    where = lay_out(arena).describe(["x", "scale"], [torch.zeros(16), 0.5])
    assert where["arguments"] == {"x": {"offset": 0, "shape": [16], "dtype": "float32"}, "scale": {"scalar": 0.5}}
    assert where["slots"] == [{"offset": 256, "shape": [16], "dtype": "float32"}]
    assert (where["count"], where["stride"]) == (64, 512)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_poisoned_floats_read_as_nan(arena, dtype):
    places = lay_out(arena, dtype=dtype)
    places.poison([1])
    assert places.outputs(1)[0].float().isnan().all()
    assert not places.outputs(0)[0].float().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("size", [1, 16, 1 << 18])
def test_an_output_that_was_not_written_is_found(arena, dtype, size):
    places = lay_out(arena, size, dtype=dtype)
    places.poison([0])
    assert is_unwritten(places, 12345)
    places.outputs(0)[0].fill_(1)
    assert not is_unwritten(places, 12345)


@pytest.mark.parametrize("secret", [0, 1, 77, 2**32 - 1])
def test_a_stretch_that_was_left_out_is_found_in_a_large_output(arena, secret):
    places = lay_out(arena, 1 << 18)
    (output,) = places.outputs(0)
    places.poison([0])
    output[: -(1 << 13)] = 1.0
    assert is_unwritten(places, secret)


def test_single_nans_are_no_poison(arena):
    places = lay_out(arena, 64)
    (output,) = places.outputs(0)
    output.fill_(1.0)
    output[::2] = float("nan")
    assert not is_unwritten(places, 0)


def test_looks_are_at_other_bytes_for_another_secret_and_are_few(arena):
    places = lay_out(arena, 1 << 18)
    places.outputs(0)[0].copy_(torch.randn(1 << 18))
    first, again, other = (look(places, [0], secret)[0][0] for secret in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(first) <= 2 * places_module.SPOTS


@pytest.mark.parametrize(
    "indices", [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [2, 3, 4], [5, 2], [3]], ids=str
)
@pytest.mark.parametrize("size", [0, 3, 1000])
def test_several_places_are_poisoned_and_looked_at_each_for_itself(arena, indices, size):
    places = lay_out(arena, size, outputs=2)
    for index in range(len(places)):
        for at, output in enumerate(places.outputs(index)):
            output.fill_(10 * index + at)
    looks = look(places, indices, 0)
    for index, seen in zip(indices, looks, strict=True):
        held = [torch.full((size,), 10.0 * index + at).numpy().tobytes() for at in range(2) if size]
        assert seen == held
    places.poison(indices)
    for index in range(len(places)):
        assert all(bool(output.isnan().all()) is (index in indices or size == 0) for output in places.outputs(index))
        assert not places.inputs(index)[0].any()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_floats_of_8_bits_are_poisoned_now_with_nan_and_now_with_a_number(arena, dtype):
    places = lay_out(arena, dtype=dtype)
    found = set()
    for _ in range(40):
        places.poison([0, 3])
        assert all(places.find_unwritten(places.read_spots([0, 3], 0), 0))
        found |= {bool(places.outputs(index)[0].float().isnan().all()) for index in (0, 3)}
    assert found == {True, False}


@pytest.mark.parametrize("size", [4, 5, 15, 16, 17, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_all_places_are_searched_for_a_run_of_poison(arena, size, dtype):
    places, row = lay_out(arena, size, dtype=dtype), size * dtype.itemsize
    run = min(RUN, row)
    for start in range(row - run + 1):
        places.poison(range(4))
        for index in range(4):
            held = places.outputs(index)[0].view(torch.uint8)
            held[:start] = held[start + run :] = 1
            held[start + run // 2] += index == 2
        assert places.find_unwritten(places.read_spots(range(4), 0), 0) == [True, True, False, True]


def test_a_run_of_marks_is_found():
    assert is_run(bytes([0] + [1] * RUN))
    assert not is_run(bytes([1] * (RUN - 1) + [0]))
    assert is_run(b"\1\1")
    assert not is_run(b"")


def test_no_places_are_looked_at_where_none_are_asked_for(arena):
    seen = lay_out(arena, outputs=2).read_spots([], 0)
    assert [output.shape for output in seen] == [(0, 64), (0, 64)]
    assert lay_out(arena, outputs=2).find_unwritten(seen, 0) == []


def test_a_look_stays_as_it_was(arena):
    places = lay_out(arena)
    (before,) = places.read_spots([0], 0)
    places.outputs(0)[0].fill_(1.0)
    assert not before.any()


@pytest.mark.parametrize("indices", [[0], [0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 3, 4, 5, 7]], ids=str)
def test_all_outputs_come_to_the_host_in_one_transfer(arena, indices):
    places = lay_out(arena, 1000, outputs=3)
    with counting_operations() as counted:
        places.read_spots(indices, 0)
    assert counted.waits() == 1
    assert counted.launches() <= 6


@pytest.mark.parametrize("size", [256, 768, 1024, 2048, 3072, 4096, 4352, 16384, 16640, 1 << 20])
def test_places_on_a_cpu_lie_at_eight_offsets_of_a_page_at_the_least(size):
    stride = spread(size)
    assert size <= stride <= size + 512
    assert stride % ALIGNMENT == 0
    assert len({place * stride % 4096 for place in range(MOST_PLACES)}) == MOST_PLACES


@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 0], [1]])
def test_inputs_are_written_where_calls_find_them(arena, indices):
    inputs = [torch.zeros(5), 0.5, torch.zeros(0), torch.zeros(3, 4, dtype=torch.float64), torch.zeros(7).bfloat16()]
    places = CallPlaces(arena, inputs, [OutputSpec("y", (9,), torch.float32)])
    targets = places.input_targets(indices)
    assert [own is None for own in targets] == [False, True, False, False, False]
    for at, own in enumerate(targets):
        if own is None or not inputs[at].numel():
            continue
        found = [places.inputs(index)[at] for index in indices]
        assert addresses_of(own).tolist() == [one.data_ptr() for one in own] == [one.data_ptr() for one in found]
        assert {(one.shape, one.dtype) for one in own} == {(inputs[at].shape, inputs[at].dtype)}


@pytest.mark.parametrize("sizes", [(64,), (3,), (1,), (16, 5)])
def test_a_digest_tells_all_rows_apart_that_differ_in_a_byte(sizes):
    rows = [np.zeros((1 + 8 * sum(sizes), size), np.uint8) for size in sizes]
    bits = [(output, column, bit) for output in rows for column in range(output.shape[1]) for bit in range(8)]
    for at, (output, column, bit) in enumerate(bits):
        output[at, column] = 1 << bit
    told = digest_rows(rows, 7)
    assert len(set(told)) == len(told) == 1 + len(bits)
    assert digest_rows([output[::-1] for output in rows], 7) == told[::-1]
    assert digest_rows([output.copy() for output in rows], 7) == told
    assert not set(digest_rows(rows, 8)[:-1]) & set(told[:-1])


def test_places_without_outputs_have_no_digests():
    assert digest_rows([], 7) == []
