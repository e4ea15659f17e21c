"""Compiled solutions on a real GPU: both bindings, both runners, features of the GPU's own architecture.

Run by hand where there are GPUs: python -m pytest -m gpu
"""

from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import marked

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]

BUNDLED = Path(__file__).parents[2] / "flashinfer-trace"
HOPPER_ONLY = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

__global__ void kernel(const float* x, float* y, long n) {
  asm volatile("wgmma.fence.sync.aligned;");
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  long n = x.size(0);
  kernel<<<(n + 127) / 128, 128, 0, stream>>>(static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), n);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""


def run(trace_set, **overrides):
    """Run a set on the first GPU; return what happened to each job, by solution."""
    config = BenchmarkConfig.default(devices=["0"], warmup_runs=2, iterations=10, num_trials=1, **overrides)
    benchmark = Benchmark(trace_set, config)
    with marked() as alive:
        events = list(benchmark.run(benchmark.plan(), save_results=False))
        assert not alive()
    return benchmark.machine, [event for event in events if isinstance(event, (JobFinished, JobFaulted))]


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_bundled_cuda_solutions_pass_with_both_bindings(isolated):
    _, events = run(TraceSet.from_path(BUNDLED), authors=["cuda"], use_isolated_runner=isolated)
    statuses = {event.job.solution.name: event.trace.evaluation.status.value for event in events}
    assert set(statuses.values()) == {"PASSED"}
    assert {event.job.solution.spec.binding.value for event in events} == {"tvm-ffi", "torch"}


def test_features_of_hopper_run_on_hopper_and_are_no_fault_of_a_solution_elsewhere(tmp_path):
    solution = make_solution("hopper", language="cuda", sources={"main.cu": HOPPER_ONLY}, entry_point="main.cu::run")
    workload = make_trace(workload=make_workload(axes={"n": 1000}), solution=None)
    write_trace_set(tmp_path, definitions=[make_definition()], solutions=[solution], workloads=[workload])
    machine, (event,) = run(TraceSet.from_path(tmp_path))
    if machine.capabilities == [(9, 0)]:
        assert event.trace.evaluation.status.value == "PASSED"
    else:
        assert isinstance(event, JobFaulted)
        assert "another GPU" in event.message
