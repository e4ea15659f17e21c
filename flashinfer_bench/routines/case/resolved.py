"""The backend that the library takes for `auto`. The table of results shows it; nothing is chosen here.

Only attention is known. There the choice follows from our call (`code/attention_flashinfer.py`), the dtype of the cache
and the GPU. In flashinfer-python 0.6.11 on CUDA 12.3 and later, prefill takes fa3 on compute capability 9.0. It takes
fa2 where the cache is fp8 and the queries are wider, as they are with every fp8 cache here. We ask decoding to use
tensor cores, and then it takes the prefill kernels of fa2.
"""

from __future__ import annotations

from typing import Final

from flashinfer_bench.roofline.cost import size_of
from flashinfer_bench.routines.case.spec import HOPPER, Case

AUTO: Final = "auto"
DECODE: Final = "BatchDecodeWithPagedKVCacheWrapper"
PREFILL: Final = "BatchPrefillWithPagedKVCacheWrapper"


def resolve_backend(routine: str, backend: str, case: Case, capability: str) -> str:
    """Return the backend that the library takes for `auto`; any other name, and an unknown case, stay as they are.

    Args:
        routine: the routine's name.
        backend: the name that was asked for.
        case: the case with its sizes and dtypes.
        capability: the GPU's compute capability, such as "9.0".
    """
    if backend != AUTO or routine not in (DECODE, PREFILL):
        return backend
    if routine == DECODE:
        return "fa2_tc"
    return "fa3" if capability in HOPPER and size_of(case.inputs["kv_cache"].dtype) > 1 else "fa2"
