"""Memory calls go through the one binding of the driver, and their failures are known by type."""

import ctypes
from types import SimpleNamespace

import pytest

from flashinfer_bench.timing import driver
from flashinfer_bench.worker import cuda_memory

pytestmark = pytest.mark.cpu


class FakeCall:
    """A call of the driver: gives an answer, and takes the declaration of its arguments."""

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, *arguments):
        return self.answer


def say_why(code, text):
    text._obj.value = b"out of memory"
    return 0


@pytest.fixture
def library(monkeypatch):
    names = ("cuMemAlloc_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle")
    fake = SimpleNamespace(**{name: FakeCall(0) for name in names}, cuMemFree_v2=FakeCall(2), cuGetErrorString=say_why)
    monkeypatch.setattr(driver, "driver", lambda: fake)
    cuda_memory._library.cache_clear()
    yield fake
    cuda_memory._library.cache_clear()


def test_calls_are_declared_on_the_library_that_timing_loads(library):
    assert cuda_memory.allocate(64) == 0
    assert library.cuMemAlloc_v2.argtypes == [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]


def test_a_call_that_fails_says_what_and_is_no_failure_of_timing(library):
    with pytest.raises(
        cuda_memory.CudaMemoryError, match=r"freeing device memory failed: out of memory \(CUDA error 2"
    ):
        cuda_memory.free(1)
    with pytest.raises(driver.DriverError) as raised:
        driver.check(2, "launching")
    assert type(raised.value) is driver.DriverError
