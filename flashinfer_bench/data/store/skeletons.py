"""Templates for new files: a working solution in each language, and a definition with two workloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from flashinfer_bench.data.definition import Definition, TensorSpec
from flashinfer_bench.data.solution import SupportedLanguages

SKELETON_ROWS: Final = (16, 512)
"""The sizes of the workloads of a new definition."""

TRITON: Final = """\
import triton
import triton.language as tl


@triton.jit
def fill_kernel(output, elements, BLOCK: tl.constexpr):
    # This writes zeros. Replace it by the definition's computation, which is below in PyTorch.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(output + offsets, 0, mask=offsets < elements)


def run({parameters}):
    # The outputs come last and are filled in place. A function with only the inputs may return them instead.
    for output in ({outputs},):
        elements = output.numel()
        if elements:
            fill_kernel[(triton.cdiv(elements, 1024),)](output, elements, BLOCK=1024)


{reference}"""
CUTEDSL: Final = """\
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

compiled = None


@cute.kernel
def fill_kernel(output: cute.Tensor):
    # This writes zeros. Replace it by the definition's computation, which is below in PyTorch.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * 256 + thread
    if at < cute.size(output):
        output[at] = cutlass.Uint8(0)


@cute.jit
def fill(output: cute.Tensor, stream: driver.CUstream):
    fill_kernel(output).launch(grid=[cute.ceil_div(cute.size(output), 256), 1, 1], block=[256, 1, 1], stream=stream)


def run({parameters}):
    # The outputs come last and are filled in place. A function with only the inputs may return them instead.
    global compiled
    # Launch on the current stream, since only this stream is timed.
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    for output in ({outputs},):
        if output.numel():
            data = from_dlpack(output.reshape(-1).view(torch.uint8)).mark_layout_dynamic()
            compiled = compiled or cute.compile(fill, data, stream)
            compiled(data, stream)


{reference}"""
CUTILE: Final = """\
import cuda.tile as ct
import torch


@ct.kernel
def fill_kernel(output):
    # This writes zeros. Replace it by the definition's computation, which is below in PyTorch.
    ct.store(output, index=(ct.bid(0),), tile=ct.zeros((1024,), ct.uint8))


def run({parameters}):
    # The outputs come last and are filled in place. A function with only the inputs may return them instead.
    for output in ({outputs},):
        if output.numel():
            data = output.reshape(-1).view(torch.uint8)
            # Launch on the current stream, since only this stream is timed.
            ct.launch(torch.cuda.current_stream(), (ct.cdiv(data.numel(), 1024),), fill_kernel, (data,))


{reference}"""
CPP: Final = """\
#include <cstring>

#include <tvm/ffi/tvm_ffi.h>

namespace ffi = tvm::ffi;

// This writes zeros. Replace it by the definition's computation, which is below in PyTorch.
static void fill(ffi::TensorView output) {{
  TVM_FFI_CHECK(output.device().device_type == kDLCPU, ValueError) << "a tensor is on a GPU";
  std::memset(output.data_ptr(), 0, output.numel() * output.dtype().bits / 8);
}}

// The outputs come last and are filled in place.
void run({parameters}) {{
{fills}
}}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

{reference}"""
CUDA: Final = """\
#include <cuda_runtime.h>

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

namespace ffi = tvm::ffi;

// This writes zeros. Replace it by the definition's computation, which is below in PyTorch.
__global__ void fill_kernel(unsigned char* bytes, size_t count) {{
  const size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) bytes[at] = 0;
}}

static void fill(ffi::TensorView output) {{
  const size_t count = static_cast<size_t>(output.numel()) * output.dtype().bits / 8;
  if (count == 0) return;
  const DLDevice device = output.device();
  // Launch on the current stream, since only this stream is timed.
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const unsigned blocks = static_cast<unsigned>((count + 255) / 256);
  fill_kernel<<<blocks, 256, 0, stream>>>(static_cast<unsigned char*>(output.data_ptr()), count);
}}

// The outputs come last and are filled in place.
void run({parameters}) {{
{fills}
}}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

{reference}"""
CUTLASS: Final = CUDA.replace("<cuda_runtime.h>\n", "<cuda_runtime.h>\n#include <cutlass/cutlass.h>\n")
TEMPLATES: Final = {
    SupportedLanguages.TRITON: TRITON,
    SupportedLanguages.CPP: CPP,
    SupportedLanguages.CUDA: CUDA,
    SupportedLanguages.CUTLASS: CUTLASS,
    SupportedLanguages.CUTEDSL: CUTEDSL,
    SupportedLanguages.CUTILE: CUTILE,
}
"""Language → its template."""
SKELETONS: Final = (SupportedLanguages.PYTHON, *TEMPLATES)
"""The languages with a skeleton. The Python version is the reference."""
BY_NAME: Final = """

_reference = run


def run({parameters}):
    return _reference({arguments})
"""
REFERENCE: Final = """\
import torch


def run(x, weight):
    # The reference defines the correct result and need not be fast. Its parameters are the names of the inputs.
    # Compute in float32 and round once at the end, so that a solution is never more exact than the reference.
    y = x.float() * weight.float()
    return y.to(torch.float32)
"""
DEFINITION: Final = """\
{
  "description": "Scale each row by a weight. Describe the computation and its precision here.",
  "axes": {
    "rows": {"type": "var", "description": "each workload gives its size"},
    "columns": {"type": "const", "value": 128, "description": "the same for all workloads"}
  },
  "inputs": {
    "x": {"shape": ["rows", "columns"], "dtype": "float32", "description": "inputs are in call order"},
    "weight": {"shape": ["columns"], "dtype": "float32", "description": "shapes use names of axes"}
  },
  "outputs": {"y": {"shape": ["rows", "columns"], "dtype": "float32", "description": "the judged result"}}
}
"""


def make_solution_text(definition: Definition, language: SupportedLanguages) -> str:
    """Return the text of a file with a solution of a definition. In Python, the solution is the reference, which
    passes."""
    comment = "//" if language.record.is_compiled else "#"
    text = "".join(f"{comment} {line}".rstrip() + "\n" for line in _describe(definition))
    if language is SupportedLanguages.PYTHON:
        return f"{text}\n{make_reference_text(definition)}"
    inputs, outputs = definition.inputs, definition.outputs
    reference = ["The reference:", *definition.reference.splitlines()]
    commented = "".join(f"{comment} {line}".rstrip() + "\n" for line in reference).replace("\\\n", "\\ \n")
    template = TEMPLATES[language]
    if not language.record.is_compiled:
        names = {"parameters": ", ".join([*inputs, *outputs]), "outputs": ", ".join(outputs)}
        return f"{text}\n{template.format(**names, reference=commented)}"
    parameters = [f"{_c_type(spec)} {name}" for name, spec in (*inputs.items(), *outputs.items())]
    fills = "\n".join(f"  fill({name});" for name in outputs)
    return text + template.format(parameters=", ".join(parameters), fills=fills, reference=commented)


def make_definition_parts(name: str, op_type: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the JSON of a definition, and of the lines of its workloads."""
    definition = {"name": name, "op_type": op_type, **json.loads(DEFINITION), "reference": REFERENCE}
    inputs = {key: {"type": "random"} for key in definition["inputs"]}
    workloads = [{"uuid": f"{name}_rows{rows}", "axes": {"rows": rows}, "inputs": inputs} for rows in SKELETON_ROWS]
    return definition, [{"definition": name, "workload": workload} for workload in workloads]


def _describe(definition: Definition) -> Iterator[str]:
    """Yield the facts of a definition that the author of a solution needs."""
    yield f"A solution of {definition.name}."
    yield from map(str.rstrip, (definition.description or "").splitlines())
    yield ""
    for title, specs in (("Inputs, in the order of the call:", definition.inputs), ("Outputs:", definition.outputs)):
        yield title
        for name, spec in specs.items():
            shape = "a scalar," if spec.shape is None else f"[{', '.join(spec.shape)}]"
            note = f" - {' '.join(spec.description.split())}" if spec.description else ""
            yield f"  {name}: {shape} {spec.dtype}{', may be None' * spec.optional}{note}"
    yield "Axes:"
    for name, axis in definition.axes.items():
        size = getattr(axis, "value", None) or getattr(axis, "expression", None) or "given by each workload"
        yield f"  {name}: {size}"
    yield ""
    yield "Judge it:                   flashinfer-bench run SET --solution FILE"
    yield "Again each time it is saved: flashinfer-bench run SET --solution FILE --watch"


def make_reference_text(definition: Definition) -> str:
    """Return the reference as a solution. The solution takes the inputs in the definition's order."""
    text, call = definition.reference.rstrip("\n") + "\n", definition.reference_call
    if call == (tuple(definition.inputs), ()):
        return text
    arguments = [*call.positional, *(f"{name}={name}" for name in call.keywords)]
    return text + BY_NAME.format(parameters=", ".join(definition.inputs), arguments=", ".join(arguments))


def _c_type(spec: TensorSpec) -> str:
    if spec.shape is None:
        return "double" if "float" in spec.dtype else "bool" if spec.dtype == "bool" else "int64_t"
    return "ffi::Optional<ffi::TensorView>" if spec.optional else "ffi::TensorView"
