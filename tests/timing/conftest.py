"""A fake GPU whose host time the clocks read too, and a CUPTI of our own."""

import importlib

import pytest

from flashinfer_bench.timing import cupti as cupti_module
from tests.kit.fake_cupti import FakeCupti
from tests.kit.fake_gpu import FakeGpu


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that keeps a log."""
    gpu = FakeGpu()
    monkeypatch.setattr("flashinfer_bench.timing.clocks.perf_counter_ns", lambda: gpu.log.append("read") or gpu.now_ns)
    return gpu


@pytest.fixture
def cupti(monkeypatch):
    """A CUPTI that is installed and works; a test breaks it."""
    cupti = FakeCupti()
    find = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: cupti if name == "cupti.cupti" else find(name))
    monkeypatch.setattr(cupti_module, "_loaded_library", lambda: cupti.library)
    return cupti
