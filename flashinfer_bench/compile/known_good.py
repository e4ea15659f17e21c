"""Our own programs that every working machine builds, loads and calls: one for each way of compiling solutions.

If a solution fails and such a program fails in the same way, the machine is at fault and not the solution.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.data import Definition, Solution, SupportedLanguages

NAME: Final = "known_good"
"""The definition that all of the programs implement."""


@dataclass(frozen=True)
class KnownGood:
    """One program."""

    what: str
    """Description: "C++ with the binding tvm-ffi"."""
    language: str
    entry: str
    """Name of its one source file."""
    source: str
    binding: str | None = None
    dependencies: tuple[str, ...] = ()
    words: str = ""
    """Pattern in the sources of Python solutions that are compiled like this program. The empty pattern matches all
    sources."""

    @property
    def needs_gpu(self) -> bool:
        """Whether the program needs a GPU. Without a GPU, Triton's interpreter would compile nothing."""
        return self.language in ("cuda", "triton")

    def solution(self, note: str = "") -> Solution:
        """Return the program as a solution of `define_double()`. A note becomes a comment in the source, so that no
        cache has the solution."""
        comment = f"# {note}\n" if note else ""
        return Solution.model_validate(
            {
                "name": "_".join(filter(None, (NAME, self.entry.replace(".", "_"), self.binding))),
                "definition": NAME,
                "author": "doctor",
                "spec": {
                    "language": self.language,
                    "binding": self.binding,
                    "dependencies": self.dependencies,
                    "entry_point": f"{self.entry}::run",
                    "target_hardware": ["any"],
                    "destination_passing_style": False,
                },
                "sources": [{"path": self.entry, "content": comment + self.source}],
            }
        )


TVM_FFI: Final = """\
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>
namespace ffi = tvm::ffi;
ffi::Tensor run(ffi::TensorView x) {
  ffi::Tensor y = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
  DOUBLE
  return y;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
TORCH: Final = """\
#include <torch/extension.h>
torch::Tensor run(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), std::string("the ABI of std::string has to be torch's"));
  torch::Tensor y = torch::empty_like(x);
  DOUBLE
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
LOOP: Final = """\
const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  if (ON_CPU)  // the host cannot reach a GPU's memory
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i];"""
TVM_FFI_CPP: Final = TVM_FFI.replace("DOUBLE", LOOP.replace("ON_CPU", "x.device().device_type == kDLCPU"))
TORCH_CPP: Final = TORCH.replace("DOUBLE", LOOP.replace("ON_CPU", "x.is_cpu()"))
LAUNCH: Final = """\
cudaStream_t stream = STREAM;
  twice<<<1, 256, 0, stream>>>(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.numel());
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));"""
TVM_FFI_STREAM: Final = "static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id))"
TORCH_STREAM: Final = "c10::cuda::getCurrentCUDAStream()"
KERNEL: Final = """\
#include <cuda_runtime.h>
#include <cstdint>
#include <stdexcept>
__global__ void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = 2 * x[i];
}
"""
TVM_FFI_CUDA: Final = KERNEL + TVM_FFI.replace("DOUBLE", LAUNCH.replace("STREAM", TVM_FFI_STREAM))
TORCH_CUDA: Final = (
    KERNEL + "#include <c10/cuda/CUDAStream.h>\n" + TORCH.replace("DOUBLE", LAUNCH.replace("STREAM", TORCH_STREAM))
)
LOADED: Final = """\
import ctypes
import os
import shutil
from pathlib import Path

import torch

library = Path(torch.__file__).parent / "lib" / "libtorch_global_deps.so"
for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR"):
    if library.exists() and os.environ.get(name):
        copy = Path(os.environ[name]) / "known_good.so"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, copy)
        ctypes.CDLL(str(copy))
        room = copy.with_suffix(".room")
        room.write_bytes(bytes(1 << 22))
        for made in (copy, room):
            made.unlink()


def run(x):
    return x * 2
"""
INDUCTOR: Final = "import torch\n\n\n@torch.compile\ndef run(x):\n    return x * 2\n"
INLINE: Final = """\
import torch
from torch.utils.cpp_extension import load_inline

host = "torch::Tensor twice(torch::Tensor x) { return x * 2; }"
device = '#include <torch/extension.h>\\n__global__ void kernel() {}\\n' + host
if torch.cuda.is_available():
    module = load_inline(
        "known_good", "torch::Tensor twice(torch::Tensor x);", cuda_sources=device, functions=["twice"]
    )
else:
    module = load_inline("known_good", host, functions=["twice"])


def run(x):
    return module.twice(x)
"""
TRITON: Final = """\
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
"""


PROGRAMS: Final = (
    KnownGood("C++ with the binding tvm-ffi", "cpp", "main.cpp", TVM_FFI_CPP, "tvm-ffi"),
    KnownGood("C++ with the binding torch", "cpp", "main.cpp", TORCH_CPP, "torch"),
    KnownGood("CUDA with the binding tvm-ffi", "cuda", "main.cu", TVM_FFI_CUDA, "tvm-ffi"),
    KnownGood("CUDA with the binding torch", "cuda", "main.cu", TORCH_CUDA, "torch"),
    KnownGood("Python that loads a library", "python", "loaded.py", LOADED),
    KnownGood("torch.compile", "python", "inductor.py", INDUCTOR, words=r"torch\.compile|inductor"),
    KnownGood(
        "torch.utils.cpp_extension",
        "python",
        "inline.py",
        INLINE,
        dependencies=("ninja",),
        words="cpp_extension|flashinfer(?!_bench)",
    ),
    KnownGood("Triton", "triton", "kernel.py", TRITON, words="triton"),
)
"""Faster Python programs come first."""


def define_double() -> Definition:
    """Return the definition of the programs: they double a vector."""
    tensor = {"shape": ["n"], "dtype": "float32"}
    return Definition.model_validate(
        {
            "name": NAME,
            "op_type": "doctor",
            "axes": {"n": {"type": "var"}},
            "inputs": {"x": tensor},
            "outputs": {"y": tensor},
            "reference": "def run(x):\n    return x * 2\n",
        }
    )


def programs_like(language: str, binding: str, sources: Iterable[str]) -> list[KnownGood]:
    """Return the programs that are compiled in the same way as a solution.

    Args:
        language: the solution's language.
        binding: the solution's binding, if it is compiled ahead.
        sources: the texts of a solution that is not compiled ahead.
    """
    text = "\n".join(sources)
    if SupportedLanguages(language).record.requires_cuda:
        language = SupportedLanguages.CUDA.value
    ahead = [one for one in PROGRAMS if one.binding is not None and (one.language, one.binding) == (language, binding)]
    return ahead or [one for one in PROGRAMS if one.binding is None and re.search(one.words, text)]
