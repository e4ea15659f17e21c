"""C++ solutions through the whole engine on a CPU: both bindings, both calling styles, and wrong solutions.

`run` is the unchanged code of docs/building.md; more functions follow it, so that each file is compiled once.
"""

import pytest

from flashinfer_bench.compile import find_toolchain
from flashinfer_bench.data import TraceSet
from tests.bench.small_runs import judge
from tests.kit.building_guide import read_forms
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

TOOLCHAIN = find_toolchain()
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi"),
]

MORE_TVM_FFI = """
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

ffi::Tensor value(ffi::TensorView x) {
  ffi::Tensor y = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
  run(x, y);
  return y;
}
ffi::Array<ffi::Tensor> values(ffi::TensorView x) { return {value(x)}; }
void three(ffi::TensorView, ffi::TensorView, ffi::TensorView) {}
void raises(ffi::TensorView, ffi::TensorView) { TVM_FFI_THROW(ValueError) << "no such thing"; }
void throws(ffi::TensorView, ffi::TensorView) { throw std::runtime_error("no such thing"); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(value, value);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(values, values);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(three, three);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(raises, raises);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(throws, throws);
"""
MODULE = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }'
MORE_TORCH = """
#include <ATen/ops/empty_like.h>

at::Tensor value(at::Tensor x) {
  at::Tensor y = at::empty_like(x);
  run(x, y);
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("run", &run);
  m.def("value", &value);
}
"""
EXPECTED = {
    "tvm-ffi run": ("PASSED", ""),
    "tvm-ffi value": ("PASSED", ""),
    "tvm-ffi values": ("PASSED", ""),
    "tvm-ffi three": ("COMPILE_ERROR", "not the definition's arguments (x) or (x, y)"),
    "tvm-ffi nothing": ("COMPILE_ERROR", "no function 'nothing' is exported"),
    "tvm-ffi raises": ("RUNTIME_ERROR", "ValueError in the call: no such thing, at main.cpp:"),
    "tvm-ffi throws": ("RUNTIME_ERROR", "no such thing, in compiled code (TVM_FFI_THROW names the line)"),
    "torch run": ("PASSED", ""),
    "torch value": ("PASSED", ""),
    "torch nothing": ("COMPILE_ERROR", "the module defines no function 'nothing'; it has: run, value"),
    "unnamed": ("PASSED", ""),
    "broken": ("COMPILE_ERROR", "main.cpp:1: error: expected"),
}


def make_cpp(name, source, symbol, binding):
    return make_solution(
        name,
        language="cpp",
        sources={"main.cpp": source},
        entry_point=f"main.cpp::{symbol}",
        binding=binding,
        compile_options={"cflags": ["-O0"]},
    )


def guided_sources():
    """Return binding → the one file of the guide, and after it the other functions."""
    (tvm_ffi,), (torch,) = (read_forms()["cpp", binding].values() for binding in ("tvm-ffi", "torch"))
    assert torch.count(MODULE) == 1
    return {"tvm-ffi": tvm_ffi + MORE_TVM_FFI, "torch": torch.replace(MODULE, MORE_TORCH)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run the solutions twice over one cache, in persistent and in isolated workers."""
    root, cache, sources = tmp_path_factory.mktemp("set"), tmp_path_factory.mktemp("cache"), guided_sources()
    compiled = [name.split() for name in EXPECTED if " " in name]
    solutions = [make_cpp(" ".join(pair), sources[pair[0]], pair[1], pair[0]) for pair in compiled]
    solutions.append(
        make_cpp("unnamed", sources["torch"], "run", None)
    )  # a source that uses torch needs no binding by name
    solutions.append(make_cpp("broken", "int run( {}", "run", None))
    workload = make_trace(workload=make_workload(axes={"n": 8}), solution=None)
    write_trace_set(root, definitions=[make_definition()], solutions=solutions, workloads=[workload])
    return [judge(TraceSet.from_path(root), cache=cache, use_isolated_runner=isolated) for isolated in (False, True)]


@pytest.mark.parametrize("number", [0, 1], ids=["persistent", "isolated"])
def test_every_solution_has_its_status_and_its_reason(runs, number):
    run = runs[number]
    assert (run.statuses, run.faults) == ({name: status for name, (status, _) in EXPECTED.items()}, [])
    for name, (_, words) in EXPECTED.items():
        assert words in run.logs[name]


def test_the_second_run_compiles_nothing_and_reuses_failures(runs):
    first, second = (run.notices for run in runs)
    assert first[0].startswith("compiling 12 solutions,")
    assert not any(message.startswith("compiling") for message in second)
