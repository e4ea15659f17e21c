"""`bench_gpu_time` on a real GPU: methods, graphs."""

import pytest
import torch

from flashinfer_bench.testing import bench_gpu_time

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    return torch.randn(5 << 20, device="cuda")  # 20 MiB: fits the L2 of an H200


def chain(x):
    """Launch several kernels."""
    return ((x * 2 + 1).relu() - 1).sum()


def test_the_result_unpacks_as_in_the_guide(data):
    small = data[:4096]
    median_ms, std_ms = timed = bench_gpu_time(torch.add, args=(small, 1), num_iters=30, dry_run_iters=5)
    assert 0.0005 < median_ms < 0.02
    assert std_ms < median_ms
    assert (timed.method, len(timed.times_ms)) == ("cupti", 30)
    assert timed.measurement["cache_state"] == "cold"
    assert timed.measurement["gpu"]["sm_mhz"][1] > 0
    events = bench_gpu_time(torch.add, args=(small, 1), enable_cupti=False, repeat_time_ms=50, dry_run_time_ms=10)
    assert (events.method, 50 < len(events.times_ms) < 5000) == ("cuda_events", True)


def test_a_graph_replay_has_the_launches_of_the_call(data):
    timed = bench_gpu_time(chain, args=(data,), use_cuda_graph=True, num_iters=10)
    assert timed.measurement["launch"] == "graph"
    assert timed.measurement["operations"] >= 5


def test_a_flush_evicts_all_data_from_the_l2(data):
    warm, cold = (bench_gpu_time(torch.sum, args=(data,), cold_l2_cache=cold).median_ms for cold in (False, True))
    assert cold > 1.1 * warm
