"""Texts for the prompt of a model that writes a CUDA solution against tvm-ffi."""

from __future__ import annotations

from typing import Final

FFI_PROMPT_SIMPLE: Final = """\
Write the solution in C++ and CUDA, and export its entry function through TVM FFI (apache-tvm-ffi).

- Include <tvm/ffi/tvm_ffi.h> for the types, and <tvm/ffi/extra/c_env_api.h> for the stream.
- The entry function is a plain C++ function. Its parameters are the definition's inputs in order, then its outputs in
  order, where destination_passing_style is true: void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y).
- A tensor is a tvm::ffi::TensorView: data_ptr(), size(i), shape(), ndim(), dtype(), device(), IsContiguous().
  A single number is a double, an int64_t or a bool.
- Export it once, at the end of the file: TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
- Launch on the caller's stream:
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
- Do not synchronise, and allocate nothing that a call leaves behind.
- In the solution's spec: "language": "cuda", "binding": "tvm-ffi", "entry_point": "main.cu::run".
"""

FFI_PROMPT: Final = f"""\
{FFI_PROMPT_SIMPLE}
A whole file, for a definition with the input x and the output y, both float32 of shape [n]:

    #include <cuda_runtime.h>
    #include <tvm/ffi/extra/c_env_api.h>
    #include <tvm/ffi/tvm_ffi.h>

    namespace ffi = tvm::ffi;

    __global__ void double_kernel(const float* x, float* y, int64_t n) {{
      int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
      if (i < n) y[i] = 2.0f * x[i];
    }}

    void run(ffi::TensorView x, ffi::TensorView y) {{
      TVM_FFI_CHECK(x.dtype().code == kDLFloat && x.dtype().bits == 32, TypeError) << "x must be float32";
      TVM_FFI_CHECK(x.IsContiguous() && y.IsContiguous(), ValueError) << "tensors must be contiguous";
      const int64_t n = x.size(0);
      if (n == 0) return;
      const DLDevice device = x.device();
      auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
      double_kernel<<<(n + 255) / 256, 256, 0, stream>>>(
          static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), n);
      const cudaError_t error = cudaGetLastError();
      TVM_FFI_CHECK(error == cudaSuccess, RuntimeError) << cudaGetErrorString(error);
    }}

    TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

What to know beside that:

- Element types: dtype().code is kDLFloat, kDLBfloat, kDLInt, kDLUInt or kDLBool, and dtype().bits the width. A
  bfloat16 pointer is static_cast<__nv_bfloat16*>(t.data_ptr()), with <cuda_bf16.h>; half is __half, with <cuda_fp16.h>.
- An optional input that a workload leaves out is None: take it as ffi::Optional<ffi::TensorView>.
- To return values instead (destination_passing_style false), return ffi::Tensor, made by
  ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, dtype, device); several of them as ffi::Tuple<...>,
  with <tvm/ffi/container/tuple.h>.
- Errors: TVM_FFI_CHECK(condition, ValueError) << "text", or TVM_FFI_THROW(ValueError) << "text". Both reach Python as
  exceptions.
- Several source files are compiled one by one and linked; headers lie beside them. Export from one file only.
- Flags go into the spec: "compile_options": {{"cuda_cflags": ["--use_fast_math"], "ld_flags": ["-lcublas"]}}.
- Each call gets inputs of other values, and outputs may lie elsewhere in memory each time: keep nothing by content.
"""
