"""Host memory that no process shows, beside a real GPU: pinned memory and the driver's are honest up to the limit.

Run by hand where there are GPUs: python -m pytest -m gpu
"""

import pytest

from tests.gpu.runs import judge, statuses, write_set

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]

PINS = """
import torch
kept = []
def run(x):
    if not kept:
        kept.append(torch.ones({gigabytes} << 28, dtype=torch.float32).pin_memory())
        kept.append(torch.empty({gigabytes} << 28, dtype=torch.float32, pin_memory=True).fill_(1))
    return x * 2
"""
MANAGED = """
import ctypes, torch
cuda = ctypes.CDLL("libcuda.so.1")
kept = []
def run(x):
    if not kept:
        kept.append(ctypes.c_uint64())
        assert cuda.cuMemAllocManaged(ctypes.byref(kept[0]), ctypes.c_size_t(1 << 30), 1) == 0
        ctypes.memset(kept[0].value, 1, 1 << 30)
    return x * 2
"""


@pytest.mark.parametrize(
    ("source", "memory_gb"),
    [
        (PINS.format(gigabytes=1), None),
        (PINS.format(gigabytes=1), 6.0),
        (MANAGED, 6.0),
        ("def run(x): return x * 2", 2),
    ],
    ids=["pinned", "pinned, with a limit", "managed", "a context alone"],
)
def test_pinned_and_managed_memory_within_the_limit_is_no_fault(tmp_path, source, memory_gb):
    trace_set = write_set(tmp_path, {"one": source}, axes=[{"n": 8}])
    assert statuses(judge(trace_set, worker_memory_gb=memory_gb)) == {"one": "PASSED"}
