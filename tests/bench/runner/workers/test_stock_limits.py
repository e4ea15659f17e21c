"""How many spares there may be, and how many start at once."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers import stock as worker_stock
from flashinfer_bench.bench.runner.workers.stock import CONTEXT_BYTES, MOST_SPARES, StockLimits

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("free", "total", "most"),
    [(140 << 30, 141 << 30, MOST_SPARES), (30 << 30, 40 << 30, 3), (2 << 30, 141 << 30, 1), (0, 24 << 30, 1)],
)
def test_idle_contexts_hold_a_bounded_share_of_a_gpu(monkeypatch, free, total, most):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(worker_stock, "recently_free_bytes", lambda _gpu: free)
    monkeypatch.setattr(worker_stock, "total_bytes", lambda _gpu: total)
    limits = StockLimits("cuda")
    assert limits.spares(0) == most
    assert most == 1 or most * CONTEXT_BYTES <= total / 16


@pytest.mark.parametrize(
    ("cores", "sessions", "first", "later"),
    [(2, 1, 1, 1), (8, 1, 2, 2), (64, 1, 2, 4), (64, 2, 1, 2), (64, 4, 1, 1), (128, 8, 1, 1)],
)
def test_few_contexts_are_made_at_once_and_fewer_until_the_first_is_there(monkeypatch, cores, sessions, first, later):
    monkeypatch.setattr(worker_stock, "usable_cores", lambda: cores)
    limits = StockLimits("cuda", sessions)
    assert [limits.starting(is_first=is_first) for is_first in (True, False)] == [first, later]


@pytest.mark.parametrize(
    ("cores", "memory", "most"), [(1, 64 << 30, 1), (2, 64 << 30, 2), (64, 64 << 30, 4), (8, 6 << 30, 1)]
)
def test_spares_of_a_cpu_are_bounded_by_cores_and_memory(monkeypatch, cores, memory, most):
    monkeypatch.setattr(worker_stock, "usable_cores", lambda: cores)
    monkeypatch.setattr(worker_stock, "usable_memory", lambda: memory)
    assert StockLimits("cpu").spares(0) == most
