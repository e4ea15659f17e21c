"""What a backend stands for where its name leaves it to the library: `auto`. For the table; nothing is chosen here.

Told of attention only, where the choice follows from our call (`code/attention_flashinfer.py`), the dtype of the cache
and the GPU. Facts of flashinfer-python 0.6.11 on CUDA 12.3 and later: prefill takes fa3 on compute capability 9.0, but
fa2 where an fp8 cache meets wider queries, as every fp8 cache does here; decoding, which we ask for on tensor cores,
takes the prefill kernels of fa2.
"""

from __future__ import annotations

from typing import Final

from flashinfer_bench.roofline.cost import size_of
from flashinfer_bench.routines.case.spec import HOPPER, Case

AUTO: Final = "auto"
DECODE: Final = "BatchDecodeWithPagedKVCacheWrapper"
PREFILL: Final = "BatchPrefillWithPagedKVCacheWrapper"


def resolve_backend(routine: str, backend: str, case: Case, capability: str) -> str:
    """Return the backend that runs in the place of `auto`; the name as it is where that is not known.

    Args:
        routine: the routine's name.
        backend: as it was asked for.
        case: its sizes and dtypes.
        capability: the GPU's compute capability, such as "9.0".
    """
    if backend != AUTO or routine not in (DECODE, PREFILL):
        return backend
    if routine == DECODE:
        return "fa2_tc"
    return "fa3" if capability in HOPPER and size_of(case.inputs["kv_cache"].dtype) > 1 else "fa2"
