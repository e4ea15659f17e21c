"""Calls of FlashInfer's GEMM kernels. They write to the given output."""

import flashinfer
import torch

from flashinfer_bench.routines.code.formats import BLOCK, from_tiles
from flashinfer_bench.routines.code.tuning import call

BACKEND = "cudnn"
USE_NVFP4 = True
EPILOGUE_TILE = 128


def bmm_fp8(a, b, a_scale, b_scale, out):
    """bmm_fp8; the second matrix is column-major, which its transpose is."""
    call(flashinfer.bmm_fp8, a, b.transpose(-2, -1), a_scale, b_scale, out.dtype, out, backend=BACKEND)


def mm_fp4(a, b, a_scale, b_scale, alpha, out):
    """mm_fp4."""
    multiply_fp4(a, a_scale, alpha, out, b.view(torch.uint8), b_scale.view(torch.uint8))


def mm_fp4_trtllm_setup(b, b_scale):
    """Give weights and scales in the order of the trtllm backend."""
    weights, factors = b.view(torch.uint8), b_scale.view(torch.uint8)
    linear = from_tiles(factors, weights.shape[0], weights.shape[1] * 2 // BLOCK)
    shuffled = flashinfer.shuffle_matrix_sf_a(linear, EPILOGUE_TILE, num_elts_per_sf=BLOCK)
    return {
        "weights": flashinfer.shuffle_matrix_a(weights, EPILOGUE_TILE),
        "factors": shuffled.view(factors.shape),
    }


def mm_fp4_trtllm(a, a_scale, alpha, out, *, weights, factors):
    """mm_fp4 of the trtllm backend, which wants weights in another order."""
    multiply_fp4(a, a_scale, alpha, out, weights, factors)


def multiply_fp4(a, a_scale, alpha, out, weights, factors):
    """Call mm_fp4 with weights and scales in the order of the backend."""
    packed, scale = a.view(torch.uint8), a_scale.view(torch.uint8)
    options = {"block_size": BLOCK, "backend": BACKEND, "use_nvfp4": USE_NVFP4}
    call(flashinfer.mm_fp4, packed, weights.T, scale, factors.T, alpha, out.dtype, out, **options)
