"""Compiled solutions on a real GPU: both bindings, both runners, features of the GPU's own architecture.

Run by hand where there are GPUs: python -m pytest -m gpu
"""

import pytest
import torch

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.data import TraceSet
from tests.conftest import CHECKOUT
from tests.gpu.runs import judge, run, statuses, write_set
from tests.kit import make_solution

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]

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


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_bundled_cuda_solutions_pass_with_both_bindings(isolated):
    trace_set = TraceSet.from_path(CHECKOUT / "flashinfer-trace")
    found = statuses(judge(trace_set, authors=["cuda"], use_isolated_runner=isolated))
    assert set(found.values()) == {"PASSED"}
    assert {trace_set.get_solution(name).spec.binding.value for name in found} == {"tvm-ffi", "torch"}


def test_features_of_hopper_run_on_hopper_and_are_no_fault_of_a_solution_elsewhere(tmp_path):
    solution = make_solution("hopper", language="cuda", sources={"main.cu": HOPPER_ONLY}, entry_point="main.cu::run")
    (event,) = run(write_set(tmp_path, [solution], axes=[{"n": 1000}]))
    if torch.cuda.get_device_capability() == (9, 0):
        assert event.trace.evaluation.status.value == "PASSED"
    else:
        assert isinstance(event, JobFaulted)
        assert "another GPU" in event.message
