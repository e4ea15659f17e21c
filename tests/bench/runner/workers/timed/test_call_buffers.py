"""The buffers of calls, and detecting outputs that were not written or that repeat."""

import math
from contextlib import nullcontext

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.timed import call_buffers as buffers_module
from flashinfer_bench.bench.runner.workers.timed.call_buffers import (
    CallBuffers,
    check_room,
)
from flashinfer_bench.errors import SolutionFailure
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu
GPU, MIB = torch.device("cuda"), 1 << 20
LARGE = 1 << 16


def lay_out(arena, size=16, *, dtype=torch.float32, outputs=1):
    specs = [OutputSpec(f"y{index}", (size,), dtype) for index in range(outputs)]
    return CallBuffers(arena, [torch.zeros(size), 0.5], specs)


def unwritten(buffers, indices=(0,), secret=0):
    """Return for each buffer whether an output was not written."""
    return buffers.find_unwritten(buffers.read_spots(indices, secret))


def fill_outputs(buffers, indices):
    writer = open_writer(buffers.arena.device)
    buffers.fill_outputs(indices, writer)
    writer.finish()


def set_free(monkeypatch, free):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80_000 * MIB))
    monkeypatch.setattr(memory, "_queries", {})


@pytest.mark.parametrize(
    ("before", "now", "held", "is_refused"),
    [
        (100, 90, 8, True),
        (100, 90, 10, False),  # memory for calls counts as free
        (98, 20, 0, False),  # there never was more
    ],
)
def test_a_solution_that_holds_the_memory_that_its_calls_need_is_refused(monkeypatch, before, now, held, is_refused):
    monkeypatch.setattr(memory, "_most_free", {})
    monkeypatch.setattr(buffers_module, "total_bytes", lambda device: 80_000 * MIB)
    for free in (before, now):
        set_free(monkeypatch, free * MIB)
        memory.query_free_bytes(GPU)
    reported = r"0\.10 GiB of the GPU's memory are left beside what the solution holds; 0\.10 are needed"
    with pytest.raises(SolutionFailure, match=reported) if is_refused else nullcontext():
        check_room(100 * MIB // 6, GPU, held * MIB)


FLOATS = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fn, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("size", [0, 1, 5, 1_000])
def test_outputs_that_were_not_written_are_found_each_for_itself_with_one_wait(arena, dtype, size):
    """Poison of floats of 16 bits or more reads as NaN. What is NaN by right is none."""
    buffers, indices = lay_out(arena, size, dtype=dtype, outputs=2), [5, 2]
    for index in range(8):
        buffers.outputs(index)[0].fill_(math.nan if dtype in FLOATS else 1)
        buffers.outputs(index)[1].fill_(index)
    with counting_operations() as counted:
        seen = buffers.read_spots(indices, 0)
    assert counted.waits() == (size > 0)
    assert buffers.find_unwritten(seen) == [False] * 2
    assert len({row.tobytes() for row in seen}) == (2 if size and dtype is not torch.bool else 1)
    fill_outputs(buffers, indices)
    assert unwritten(buffers, range(8)) == [index in indices and size > 0 for index in range(8)]
    assert dtype not in FLOATS or all(bool(buffers.outputs(index)[1].isnan().all()) for index in indices)


@pytest.mark.parametrize("secret", [0, 2**32 - 1])
def test_few_words_of_a_large_output_are_seen_and_others_for_another_secret(arena, secret):
    """A stretch that was left out is found all the same."""
    buffers = lay_out(arena, LARGE)
    (output,) = buffers.outputs(0)
    fill_outputs(buffers, [0])
    output[: -(1 << 8)] = 1.0
    assert unwritten(buffers, secret=secret) == [True]
    output.copy_(torch.randn(LARGE))
    first, other = (buffers.read_spots([0], each) for each in (secret, secret + 1))
    assert ((first != other).any(), first.nbytes, unwritten(buffers, secret=secret)) == (True, 4_096, [False])
