"""The size of an arena, and the end of the memory that it replaces."""

import os

import pytest
import torch

from flashinfer_bench.bench.runner.workers.arena import SharedArena

pytestmark = pytest.mark.cpu
SMALLEST_BYTES = 2 << 20


DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_renewed_arena_holds_nothing(device):
    with SharedArena(torch.device(device)) as arena:
        arena.reserve(SMALLEST_BYTES)
        arena.block.fill_(7)
        arena.renew()
        arena.reserve(SMALLEST_BYTES)
        assert not arena.block.any()


@pytest.mark.gpu
def test_device_memory_that_an_arena_takes_holds_nothing_of_what_the_session_had_there():
    full = torch.full((1 << 30,), 7, dtype=torch.uint8, device="cuda")
    del full
    torch.cuda.empty_cache()
    with SharedArena(torch.device("cuda")) as arena:
        arena.reserve(1 << 30)
        assert not arena.block.any()


@pytest.mark.parametrize("size", [0, 2 * SMALLEST_BYTES])
def test_nobody_can_change_the_size_of_an_arena(size):
    with SharedArena(torch.device("cpu")) as arena:
        arena.reserve(SMALLEST_BYTES)
        _, (fd,) = arena.describe()
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)


@pytest.mark.parametrize("device", DEVICES)
def test_an_arena_that_stepped_aside_comes_back_wiped_to_where_it_lay(device, monkeypatch):
    if device == "cpu":  # as if it were a GPU
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    with SharedArena(torch.device(device)) as arena:
        arena.come_back()
        arena.step_aside()
        arena.reserve(4 * SMALLEST_BYTES)
        home, generation = arena.block.data_ptr(), arena.generation
        arena.block.fill_(7)
        for _ in range(5):
            assert arena.may_step_aside(SMALLEST_BYTES)
            arena.step_aside()
            arena.reserve(SMALLEST_BYTES)
            assert (arena.size, arena.largest) == (SMALLEST_BYTES, 4 * SMALLEST_BYTES)
            assert arena.block.data_ptr() != home
            assert not arena.block.any()
            arena.block.fill_(9)
        assert not arena.may_step_aside(SMALLEST_BYTES)
        for _ in range(2):
            arena.come_back()
            assert arena.block.data_ptr() == home
            assert not arena.block.any()
        assert arena.generation > generation
        assert arena.may_step_aside(SMALLEST_BYTES)
        assert not arena.may_step_aside(1 << 29)
