"""Decides from the kernel names in the clock's records whether a call launched kernels of a library, or own kernels.
Pure functions.

The names are demangled. The worker reports the names, so a solution can forge them. A name counts as a library's only
if user code hardly ever has such a name. So some kernels of a library count as own kernels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from flashinfer_bench.timing.measurement import Sample

LibraryKernels = Literal["all", "some", "none", "unknown"]
"""How many of a call's kernels are a library's. "unknown": the clock has no records, or too few names are known."""
LibraryCalls = Literal["allow", "flag", "refuse"]
"""Policy for calls whose kernels are all a library's."""
MAX_NAME: Final = 200
MAX_NAMES: Final = 32
"""Maximum characters of a name, and maximum names of a list. OTHERS counts the launches of all further names."""
OTHERS: Final = "..."
COPIES: Final = frozenset({"MEMCPY", "MEMSET"})
"""Names of copies and fills by the driver. These are no kernels."""
LIBRARY: Final = re.compile(
    # Namespaces of cuBLAS, cuDNN, FlashInfer, and torch with its attention.
    r"(cublasLt|cudnn|flashinfer|at::native|at::cuda|at_cuda_detail|pytorch_flash)::"
    r"|cutlass::device_kernel<(flashinfer|at)::"
    r"|fmha_cutlass[FB]_\w+\(PyTorchMemEffAttention::"
    # Types inside cuBLAS, which are in no public header.
    r"|.*\bcublas(Gemv|Dot|SplitK)(Params|Tensor)"
    # CUTLASS instances of NVIDIA's libraries. CUTLASS's open-source generator writes no bare architecture number into
    # names.
    r"|cutlass::Kernel2?<cutlass_\d\d_(wmma_)?(tensorop|simt)_"
    # Names without a signature. C++ code has such names only as extern "C".
    r"|(nvjet_\w+|sm\d\d+_xmma_\w+|cudnn_(generated|infer)_\w+|cutlass_\d\d_(wmma_)?(tensorop|simt)_\w+)$"
    r"|(maxwell|volta|turing|ampere)_(\w+_)?[sdczhi]\d*gemm_\w*\d+x\d+_\w*[nt][nt]$"
)
SCALAR: Final = r"(?:c10::)?[\w ]+(?:<[\w:]+>)?, "
"""A template argument that is a number or a scalar type."""
FOREIGN: Final = re.compile(
    r"(elementwise_kernel\w*|gpu_kernel_impl\w*|\breduce_kernel|ReduceOp|func_wrapper_t)"
    rf"<(?:{SCALAR})*(?!(?:void )?at::|{SCALAR})"
)
"""A loop or a reduction of torch over a function that is not torch's. Code that includes torch's headers has such
kernels. Torch wraps its own lambda in a template function, so the name of that function begins with "void "."""
BESIDE: Final = re.compile(r"FillFunctor|copy_kernel_cuda|CatArrayBatchedCopy")
"""Fills, copies and casts of torch."""


def keep_names(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the most frequent names with their launches, and the launches of all further names as OTHERS."""
    kept = dict(Counter(counts).most_common(MAX_NAMES))
    rest = sum(counts.values()) - sum(kept.values())
    return kept | ({OTHERS: kept.get(OTHERS, 0) + rest} if rest else {})


def describe_kernels(samples: Iterable[Sample], names: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Return the launches of each name over all samples, and whether the kernels are a library's, for the record.

    Args:
        samples: samples from a worker; each has a digest in place of its launches.
        names: digest → launches of each name in one call.
    """
    counts = Counter[str]()
    for launched, number in Counter(sample.launched for sample in samples if sample.operations).items():
        for digest, _ in launched:
            for name, count in names.get(digest, {OTHERS: 1}).items():
                counts[name] += number * count
    found = {"kernels": keep_names(counts)} if counts else {}
    return {**found, "library_kernels": find_library_kernels(counts)}


def find_library_kernels(names: Iterable[str]) -> LibraryKernels:
    """Return how many of the kernels with these names are a library's.

    If there are other kernels, copies, fills and casts do not count.
    """
    names = set(names)
    kernels = {name: is_library_kernel(name) for name in names - COPIES - {OTHERS}}
    main = {whose for name, whose in kernels.items() if not (whose and BESIDE.search(name))} or {*kernels.values()}
    if main == {True, False}:
        return "some"
    if not names or OTHERS in names:
        return "unknown"
    return "all" if True in main else "none"


def is_library_kernel(name: str) -> bool:
    """Return whether a demangled name is a kernel of cuBLAS, cuDNN, FlashInfer or torch."""
    name = name.removeprefix("void ")
    return LIBRARY.match(name) is not None and not (name.startswith("at::native::") and FOREIGN.search(name))
