"""`bench_gpu_time` on a real GPU: methods, graphs, rotation."""

import subprocess
import sys
import warnings

import pytest
import torch

from flashinfer_bench.testing import bench_gpu_time

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    return torch.randn(5 << 20, device="cuda")  # 20 MiB: fits the L2 of an H200


PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
from flashinfer_bench.testing import bench_gpu_time
data = torch.ones(1 << 20, device="cuda")
with profile(activities=[ProfilerActivity.CUDA]):
    torch.add(data, 1)
    torch.cuda.synchronize()
    print(bench_gpu_time(torch.add, args=(data, 1)).method)
"""


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


def test_events_that_are_asked_for_are_used_without_a_warning(data):
    timed = bench_gpu_time(torch.add, args=(data, 1), enable_cupti=False)
    assert timed.method == "cuda_events"
    assert timed.measurement["empty_pair_ns"] > 0


def test_a_warm_call_is_faster_than_a_cold_one(data):
    warm, _ = bench_gpu_time(torch.sum, args=(data,), cold_l2_cache=False)
    cold, _ = bench_gpu_time(torch.sum, args=(data,))
    assert cold > 1.15 * warm


def test_rotated_arguments_are_as_cold_as_flushed_ones(data):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    cold, _ = bench_gpu_time(torch.sum, args=(data,))
    timed = bench_gpu_time(torch.sum, args=(data,), rotate_buffers=True)
    sets = timed.measurement["rotated_sets"]
    assert timed.median_ms == pytest.approx(cold, rel=0.25)
    assert timed.measurement["cache_state"] == "cold"
    assert torch.cuda.max_memory_allocated() - before < sets * data.nbytes + (1 << 29)
    assert torch.cuda.memory_allocated() - before < data.nbytes + (1 << 29)  # the flush's buffers stay


def test_rotated_arguments_keep_their_strides(data):
    seen = set()
    strided = data[: 1 << 20].view(1024, 1024).t()
    bench_gpu_time(lambda x: seen.add((x.data_ptr(), x.stride())) or x + 1, args=(strided,), rotate_buffers=True)
    assert len(seen) > 2
    assert {stride for _, stride in seen} == {(1, 1024)}


def test_a_closure_is_not_rotated_but_flushed(data):
    with pytest.warns(UserWarning, match=r"not among its arguments \(data\)"):
        timed = bench_gpu_time(lambda x: torch.sum(data) + x, args=(data[:8],), rotate_buffers=True)
    assert timed.measurement["cache_state"] == "cold"


def test_a_call_that_hides_its_data_is_found_out(data):
    hidden = {"weight": [data]}

    class Layer:
        def __call__(self, x):
            return torch.sum(hidden["weight"][0])

    with pytest.warns(UserWarning, match="something beside them"):
        bench_gpu_time(Layer(), args=(torch.ones(1 << 20, device="cuda"),), rotate_buffers=True)


def test_a_graph_replay_launches_what_the_call_does(data):
    timed = bench_gpu_time(chain, args=(data,), use_cuda_graph=True)
    assert timed.measurement["launch"] == "graph"
    assert timed.measurement["operations"] >= 5
    assert bench_gpu_time(chain, args=(data,)).measurement["launch"] == "stream"


def test_a_graph_that_is_refused_is_warned_of(data):
    with pytest.warns(UserWarning, match="use_cuda_graph: the call was launched on the stream: .*waits"):
        bench_gpu_time(lambda x: float(chain(x)), args=(data,), use_cuda_graph=True)


def test_rotation_and_graphs_go_together(data):
    timed = bench_gpu_time(chain, args=(data,), use_cuda_graph=True, rotate_buffers=True, num_iters=10)
    assert timed.measurement["launch"] == "graph"
    assert timed.measurement["rotated_sets"] > 1


def test_a_profiler_that_is_attached_makes_it_fall_back_and_say_so():
    ended = subprocess.run(  # a profiler keeps its hold on CUPTI until its process ends
        [sys.executable, "-W", "default", "-c", PROFILED], capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.stdout.splitlines()[-1] == "cuda_events", ended.stderr
    assert "another subscriber" in ended.stderr
    assert "Falling back to CUDA events." in ended.stderr


def test_a_time_to_fill_gives_a_count(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timed = bench_gpu_time(torch.add, args=(data, 1), repeat_time_ms=50, dry_run_time_ms=10)
    assert 50 < len(timed.times_ms) < 5000
