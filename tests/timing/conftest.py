"""A fake GPU whose host time the event clock reads too."""

import pytest

from tests.kit.fake_gpu import FakeGpu


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that keeps a log."""
    gpu = FakeGpu()

    def read():
        gpu.log.append("read")
        return gpu.now_ns

    monkeypatch.setattr("flashinfer_bench.timing.clocks.perf_counter_ns", read)
    return gpu
