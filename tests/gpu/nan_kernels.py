"""A kernel of Triton that makes NaN in several ways, for test_fills_on_gpu.py."""

import triton
import triton.language as tl

LINES = 6


@triton.jit
def make_nans_by_triton(nan_ptr, made_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    nan = tl.load(nan_ptr + at)
    kind = made_ptr.dtype.element_ty
    zero = nan - nan
    tl.store(made_ptr + at, nan.to(kind))
    tl.store(made_ptr + COUNT + at, (-nan).to(kind))
    tl.store(made_ptr + 2 * COUNT + at, tl.full((COUNT,), float("nan"), tl.float32).to(kind))
    tl.store(made_ptr + 3 * COUNT + at, (zero * 2.0).to(tl.float16).to(kind))
    tl.store(made_ptr + 4 * COUNT + at, tl.exp(nan).to(tl.bfloat16).to(kind))
    tl.store(made_ptr + 5 * COUNT + at, tl.sqrt(at.to(tl.float32) - COUNT).to(kind))
