"""The board of a gated chain: keys go one way, and what calls commit to comes back. And the worker's end of it."""

import os

import pytest
import torch

from flashinfer_bench.bench.runner.workers.arena import SharedArena, open_memory_file
from flashinfer_bench.worker.gated_chain.kernels import BLOCK_BYTES, MOST_CALLS, ControlBlock
from tests.kit.chain_on_cpu import CALLS, CODE, PlayedGpu, PlayedWorker
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
SIZE, LARGEST = 3 * BLOCK_BYTES, (1 << 64) - 1
KEYS = [101, 102, 103, 104, 105]


@pytest.fixture
def fd():
    """The memory file of a board, and of what stands behind it."""
    fd = open_memory_file(SIZE)
    os.pwrite(fd, CODE, BLOCK_BYTES)
    yield fd
    os.close(fd)


def read_keys(fd, calls=MOST_CALLS):
    return [int.from_bytes(os.pread(fd, 8, ControlBlock(fd).key_at(at)), "little") for at in range(calls)]


@pytest.fixture
def gpu(monkeypatch):
    return PlayedGpu(monkeypatch)


@pytest.fixture
def open_worker(gpu):
    with SharedArena(torch.device("cpu")) as arena:
        yield lambda size=16, **traits: PlayedWorker(gpu, make_trial(arena, most=CALLS, size=size), **traits)


def run_chain(worker, fd, keys=KEYS, **changes):
    """Have a worker answer a request for a chain whose keys are there ahead."""
    ControlBlock(fd).clear()
    worker.gpu.ahead, places = iter(keys), worker.trial.places
    fields = {"size": SIZE, "indices": range(CALLS), "operations": 5, "settles": False, **changes}
    return worker.run_chain(fd, stride=places.stride, inputs=places.inputs_end, **fields)


BY_HOST, SETTLED = {"operations": None}, {"settles": True}


def steps(*names):
    """Return what is done for each call in turn."""
    return [(name, at + (name == "launched")) for at in range(CALLS) for name in names]


RUN = steps("call", "copy")


@pytest.mark.parametrize(
    ("size", "fields", "log"),
    [
        ((1 << 13) + 1, {}, [("operations", 7), ("launched", CALLS), *RUN]),  # another kernel unmasks what is large
        (16, BY_HOST, [*steps("call", "copy", "launched"), ("launched", CALLS)]),
        (16, SETTLED, [*steps("launched", "call", "copy"), ("launched", CALLS)]),
    ],
)
def test_calls_are_a_graph_where_one_can_hold_them_and_are_launched_or_waited_for_otherwise(
    gpu, fd, open_worker, size, fields, log
):
    worker = open_worker(size)
    assert run_chain(worker, fd, **fields) is (not fields)
    assert (gpu.log, gpu.keys, {call.result for call in worker.calls}) == (log, KEYS, {None})


@pytest.mark.parametrize("refused", [(), [1]])
def test_calls_are_captured_once_until_they_are_forgotten(gpu, fd, open_worker, refused):
    """Those that no graph holds are launched."""
    worker, gpu.refused = open_worker(), refused
    for keys in (KEYS, [7, 8, 9, 10, 11]):
        assert run_chain(worker, fd, keys) is not bool(refused)
        assert (gpu.keys[-CALLS:], gpu.captures) == (keys, 1)
    assert [one for one in gpu.log if one in RUN] == 2 * RUN
    assert (worker.chains.forget(), worker.chains.forget(), gpu.log.count(("released", 1))) == (True, False, 1)
    assert run_chain(worker, fd)
    assert gpu.captures == 2


def fail(*given):
    raise RuntimeError("an illegal memory access")


@pytest.mark.parametrize(
    ("fields", "keys", "synchronize"), [({}, [], None), (BY_HOST, [], None), (SETTLED, KEYS, None), ({}, [], fail)]
)
def test_where_a_call_raises_no_kernel_waits_for_a_key_any_more(
    gpu, fd, open_worker, monkeypatch, fields, keys, synchronize
):
    """What it raised is told even where it has broken the device."""
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize or gpu.synchronize)
    raises = CALLS - 2
    with pytest.raises(ZeroDivisionError, match=str(raises)):
        run_chain(open_worker(raising=[raises]), fd, keys, **fields)
    given = keys[: raises + 1]
    assert read_keys(fd, CALLS + 1) == [*given, *[1] * (CALLS - len(given)), 0]
    calls = [at for what, at in gpu.log if what == "call"]
    assert calls == list(range(raises)) * (synchronize is None)  # the device was waited for
