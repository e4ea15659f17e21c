"""The lane of a GPU with its driver stubbed: the steps of each lead, as the fake GPU of all other tests has them."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.timing import driver
from flashinfer_bench.timing.gpu_queue import CHAIN, DELAY_KERNEL, EMPTY_KERNEL, FLUSH_KERNEL, GpuQueue, Preamble
from tests.kit.fake_gpu import FakeGpu

pytestmark = pytest.mark.cpu
DEVICE = torch.device("cuda", 0)
L2_BYTES = 1_000
STEPS = {FLUSH_KERNEL: "flush", DELAY_KERNEL: "spin", EMPTY_KERNEL: "empty"}
LEADS = [
    Preamble(1_000, flushes=flushes, drains=settled, waits_first=waits, resets_lines=resets)
    for flushes, settled, waits, resets in product([True, False], repeat=4)
]


class StubbedModule:
    """Kernels are their names."""

    def __init__(self, _image):
        pass

    def kernel(self, name):
        return name


@pytest.fixture
def log(monkeypatch):
    """Return what was done to a device that is not there: steps, or a step with what it was given."""
    log = []
    zeros = torch.zeros

    def launcher(kernel, *, blocks, threads, arguments):
        return lambda stream, *values: log.append((STEPS[kernel], stream, blocks, threads, values))

    monkeypatch.setattr(driver, "Module", StubbedModule)
    monkeypatch.setattr(driver, "Launcher", launcher)
    monkeypatch.setattr(driver, "reset_persisting_lines", lambda: log.append("reset"))
    properties = SimpleNamespace(multi_processor_count=3, L2_cache_size=L2_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: log.append("synchronize"))
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: zeros(size, dtype=dtype))
    return log


def steps(log):
    names = [step if isinstance(step, str) else step[0] for step in log]
    return ["synchronize" if name in ("idle", "settle") else name for name in names]


@pytest.mark.parametrize("l2_cache", ["cold", "warm"])
@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_a_lead_has_the_steps_of_the_fake_gpus(log, lead, l2_cache):
    lane, fake = GpuQueue(DEVICE, l2_cache=l2_cache, image=b""), FakeGpu(l2_cache=l2_cache)
    log.clear()
    lane.enqueue(lead)
    fake.enqueue(lead)
    assert steps(log) == steps(fake.log)


def test_the_flush_reads_twice_the_l2_on_the_current_stream_and_the_spin_lasts_as_long_as_it_should(log):
    GpuQueue(DEVICE, image=b"").enqueue(Preamble(12_345))
    flush, spin = log[-2:]
    assert flush[:4] == ("flush", 7, 12, 512)
    assert flush[4][1] == 2 * L2_BYTES
    assert spin == ("spin", 7, 1, 1, (12_345,))


def test_empty_kernels_are_launched_on_the_current_stream(log):
    lane = GpuQueue(DEVICE, image=b"")
    log.clear()
    lane.launch_empty()
    lane.launch_chain()
    lane.synchronize()
    assert log == [("empty", 7, 1, 1, ()), *[("empty", 7, 128, 256, ())] * CHAIN, "synchronize"]
