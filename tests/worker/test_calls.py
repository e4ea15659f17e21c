"""How a worker calls what it has loaded."""

import functools

import pytest
import torch

from flashinfer_bench.worker.arena import Slot
from flashinfer_bench.worker.calls import (
    CallLaunch,
    LaidCall,
    Shelf,
    lay_out_calls,
    share_memory,
)
from flashinfer_bench.worker.load import LoadedEntry

pytestmark = pytest.mark.cpu


class Swapped(torch.nn.Module):
    def forward(self, y, x):
        return x, y


def pass_positions(function):
    return functools.wraps(function)(lambda *given: function(*given))


def pass_keywords(function):
    return functools.wraps(function)(lambda **given: function(**given))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x, y),
        lambda y, x: (x, y),
        lambda **given: (given["x"], given["y"]),
        lambda x, /, *, y: (x, y),
        lambda *rest, y: (rest[0], y),
        lambda *rest, **named: rest,
        lambda first, second: (first, second),
        pass_positions(lambda y, x: (x, y)),
        pass_keywords(lambda x, y: (x, y)),
        functools.partial(lambda factor, y, x: (x, y), 2),
        Swapped().forward,
    ],
)
def test_arguments_reach_a_reference_by_their_names(function):
    assert LaidCall(LoadedEntry(function), {"x": 1, "y": 2}, {}, "keyword").run() == (1, 2)


def call_for(given, outputs, *rest):
    """Lay out a call that gives something, run it and bring that into the slots of its outputs."""
    call = LaidCall(LoadedEntry(lambda: given), {}, outputs, "value", *rest)
    launch = CallLaunch(call, Shelf(0), "run")
    launch()
    launch.put_away()
    return call


def test_what_several_outputs_gave_is_brought_into_their_slots_and_what_does_not_fit_is_left_out():
    x = torch.ones(4)
    given = (torch.nn.Parameter(x * 2), (x * 3).requires_grad_(), torch.ones(5), 7, x * 5, x)
    outputs = {f"y{at}": torch.zeros(() if at == 3 else 4) for at in range(len(given))}
    call_for(given, outputs, x.untyped_storage().data_ptr())
    assert [float(output.max()) for output in outputs.values()] == [2, 3, 0, 7, 5, 0]
    assert not any(output.requires_grad for output in outputs.values())


VALUES = {
    "large": torch.arange(1 << 15, dtype=torch.float32),
    "strided": torch.arange(32, dtype=torch.float32)[::2],
    "expanded": torch.arange(16, dtype=torch.float32).expand(2, -1),
    "conjugated": torch.conj(torch.arange(16) * (1 + 2j)).imag,
    "negated": torch._neg_view(torch.arange(16, dtype=torch.float32)),
    "bfloat16": torch.arange(16, dtype=torch.float32).view(torch.bfloat16),
    "zeros without memory": torch._efficientzerotensor(16),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("among", [0, 2])
def test_what_is_brought_into_a_slot_is_what_was_returned_however_it_lies(kind, among):
    given = (VALUES[kind], *[torch.ones(3)] * among)
    outputs = {f"y{at}": torch.full(one.shape, 7, dtype=one.dtype) for at, one in enumerate(given)}
    call_for(given, outputs)
    for output, one in zip(outputs.values(), given, strict=True):
        assert torch.equal(output.nan_to_num(), torch.zeros_like(output) + one.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (4, 0), (2, 3, 5)])
def test_calls_lie_one_stride_behind_the_other(dtype, shape):
    block, stride = torch.zeros(1 << 16, dtype=torch.uint8), 2048
    slots = [Slot(offset, shape, dtype) for offset in (256, 1024)]
    request = {"style": "dps", "may_return_inputs": True, "outputs": ["y"], "count": 3, "stride": stride}
    where = {"arguments": {"x": slots[0].to_json(), "n": {"scalar": 7}}, "slots": [slots[1].to_json()]}
    laid = lay_out_calls(LoadedEntry(lambda *given: given), block, request | where)
    assert len(laid) == 3
    for at, call in enumerate(laid):
        x, n, y = call.run()
        assert (n, y) == (7, call.outputs[0])
        for found, slot in ((x, slots[0]), (y, slots[1])):
            assert (found.shape, found.dtype, found.is_contiguous()) == (torch.Size(shape), dtype, True)
            if found.numel():
                assert found.data_ptr() == block.data_ptr() + slot.offset + at * stride


@pytest.mark.parametrize(
    ("result", "is_strided"),
    [
        (torch.ones(3, 4), False),
        (torch.ones(1, 4).expand(3, 4), True),
        ({"y": torch.ones(4, 3).t()}, True),
        (torch.ones(4, 3), False),  # it does not fit, and is not copied
    ],
)
def test_a_result_that_lies_otherwise_than_its_slot_is_noticed(result, is_strided):
    assert call_for(result, {"y": torch.zeros(3, 4)}).is_strided is is_strided


MEMORY = torch.zeros(64)
SHARED = {
    "own": ([MEMORY[:8], torch.zeros(8)], False),
    "a workspace that the next call may write over": ([MEMORY[:8], MEMORY[32:]], True),
    "parameters": ([torch.nn.Parameter(MEMORY), torch.nn.Parameter(MEMORY)], True),
    "two outputs of one call": ([(MEMORY[:8], MEMORY[8:16]), torch.zeros(8)], False),
    "no tensors": ([7, None], False),
}


@pytest.mark.parametrize("case", SHARED)
def test_results_that_share_memory_are_found(case):
    results, shared = SHARED[case]
    calls = [LaidCall(LoadedEntry(lambda: None), {}, {"y": torch.zeros(8)}, "value") for _ in results]
    for call, result in zip(calls, results, strict=True):
        call.result = result
    assert share_memory(calls) is shared
