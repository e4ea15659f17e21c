"""How a worker calls what it has loaded, brings results into their slots, and describes them."""

import functools
import socket

import pytest
import torch

from flashinfer_bench.base.wire import FrameReader
from flashinfer_bench.timing.clocks import make_clock
from flashinfer_bench.worker import main
from flashinfer_bench.worker.arena import MappedArena, Slot
from flashinfer_bench.worker.calls import CallLaunch, LaidCall, OutputCache, addresses_of, share_memory
from flashinfer_bench.worker.load import LoadedEntry

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")


class Swapped(torch.nn.Module):
    def forward(self, y, x):
        return x, y


def pass_positions(function):
    return functools.wraps(function)(lambda *given: function(*given))


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: (x, y),
        lambda **given: (given["x"], given["y"]),
        lambda x, /, *, y: (x, y),
        lambda *rest, **named: rest,
        lambda first, second: (first, second),
        pass_positions(lambda y, x: (x, y)),
        functools.wraps(lambda x, y: ...)(lambda **given: (given["x"], given["y"])),
        functools.partial(lambda factor, y, x: (x, y), 2),
        Swapped().forward,
    ],
)
def test_arguments_reach_a_reference_by_their_names(function):
    assert LaidCall(LoadedEntry(function), {"x": 1, "y": 2}, {}, "keyword").run() == (1, 2)


def make_call(given, outputs, *rest):
    """Lay out a call that gives something, and run it; its results are in the slots of its outputs."""
    call = LaidCall(LoadedEntry(lambda: given), {}, outputs, "value", *rest)
    launch = CallLaunch(call, OutputCache(0), "run")
    launch()
    launch.put_away()
    return call


def test_results_are_brought_into_their_slots_and_those_that_do_not_fit_are_left_out():
    memory = torch.ones(8)
    x = memory[4:]
    given = (torch.nn.Parameter(x * 2), (x * 3).requires_grad_(), torch.ones(5), 7, x * 5, x, torch.from_dlpack(x))
    outputs = {f"y{at}": torch.zeros(() if at == 3 else 4) for at in range(len(given))}
    make_call(given, outputs, addresses_of(memory))
    assert [float(output.max()) for output in outputs.values()] == [2, 3, 0, 7, 5, 0, 0]
    assert not any(output.requires_grad for output in outputs.values())
    assert [main.describe_value(one, addresses_of(memory)).get("is_input", False) for one in given[-3:]] == [
        False,
        True,
        True,
    ]


NUMBERS = torch.arange(32, dtype=torch.float32)
VALUES = {
    # a result, whether it lies otherwise than its slot, whether its bytes are those of the slot
    "plain": (NUMBERS[:16], False, True),
    "a parameter": (torch.nn.Parameter(NUMBERS[:16]), False, True),
    "strided": (NUMBERS[::2], True, False),
    "conjugated": (torch.conj(NUMBERS * (1 + 2j)), False, False),
    "negated": (torch._neg_view(NUMBERS), False, False),
    "between two words": (NUMBERS[1:17], False, False),
    "zeros without memory": (torch._efficientzerotensor(16), False, None),
}


@pytest.mark.parametrize(("result", "is_strided", "is_plain"), VALUES.values(), ids=VALUES)
def test_a_slot_holds_what_was_returned_however_that_lies(result, is_strided, is_plain):
    for given in (result, {"y1": torch.ones(3), "y0": result}):
        outputs = {"y0": torch.full(result.shape, 7, dtype=result.dtype), "y1": torch.zeros(3)}
        call = make_call(given, outputs if isinstance(given, dict) else {"y0": outputs["y0"]})
        assert torch.equal(outputs["y0"], torch.zeros_like(outputs["y0"]) + result)
        assert call.is_strided is is_strided
        if is_plain is not None:
            assert call.is_plain(result, outputs["y0"]) is is_plain
    assert not call.is_plain(result, outputs["y0"].new_zeros(3))


MEMORY = torch.zeros(64)
SHARED = {
    "own": ([MEMORY[:8], torch.zeros(8)], False),
    "a workspace that the next call may write over": ([MEMORY[:8], MEMORY[32:]], True),
    "parameters": ([torch.nn.Parameter(MEMORY), torch.nn.Parameter(MEMORY)], True),
    "two outputs of one call": ([(MEMORY[:8], MEMORY[8:16]), torch.zeros(8)], False),
}


@pytest.mark.parametrize(("results", "shared"), SHARED.values(), ids=SHARED)
def test_results_that_share_memory_are_found(results, shared):
    calls = [make_call(result, {"y": torch.zeros(8)}) for result in results]
    assert [share_memory(calls), share_memory(calls, MEMORY)] == [shared, True]
    assert not share_memory([make_call(torch.zeros(8), {"y": torch.zeros(8)})], MEMORY)


@pytest.mark.parametrize(
    "function",
    [lambda x: MEMORY[:2].copy_(x * 2), lambda x: x.mul_(2), lambda x: torch.from_dlpack(x.mul_(2))],
    ids=["one memory", "in place", "in place, as a tensor of its own"],
)
def test_results_that_do_not_stay_are_copied_within_each_batch_after_the_first(monkeypatch, function):
    def capture(launch):
        launch()
        return launch

    monkeypatch.setattr(main, "capture", capture)
    monkeypatch.setattr(main, "see_operations", lambda least: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = main.Worker(theirs, CPU, make_clock(CPU))
        worker.arena = MappedArena(torch.zeros(256, dtype=torch.uint8), lambda: None)
        worker.loaded, held = LoadedEntry(function), worker.arena.block.view(torch.float32).view(2, 2, 16)[..., :2]
        x, y = (Slot(at, (2,), torch.float32).to_json() for at in (0, 64))
        fields = {"arguments": {"x": x}, "slots": [y], "outputs": ["y"], "count": 2, "stride": 128}
        worker.lay_out({"style": "value", "may_return_inputs": True, **fields})
        request = {"first": 2, "indices": range(2), "part": "run", "together": True, "operations": 0}
        for is_copied in (False, True, True):
            held[:, 0], held[:, 1] = torch.tensor([[1.0, 1], [2, 2]]), -1.0
            assert worker.burst(request)["copied"] is is_copied
        assert (held[:, 1] >= torch.tensor([[2.0, 2], [4, 4]])).all()


def test_a_worker_makes_its_captures_before_it_can_be_given_code(monkeypatch):
    heard_before = []
    ours, theirs = socket.socketpair()

    def capture_first(device):
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        heard_before.append(device)

    monkeypatch.setattr(main, "capture_first", capture_first)
    with ours, theirs:
        ours.setblocking(False)
        ours.shutdown(socket.SHUT_WR)
        main.Worker(theirs, CPU, make_clock(CPU)).serve()
        ours.setblocking(True)
        assert heard_before == [CPU]
        assert FrameReader(ours).read()["ready"] is True
