"""Calls of FlashInfer's GEMM kernels, which write to the given output."""

import flashinfer
import torch

from flashinfer_bench.routines.code.formats import BLOCK, from_tiles
from flashinfer_bench.routines.code.tuning import call

BACKEND = "cudnn"
USE_NVFP4 = True
ENABLE_PDL = False
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
    options = {"block_size": BLOCK, "backend": BACKEND, "use_nvfp4": USE_NVFP4, "enable_pdl": ENABLE_PDL}
    call(flashinfer.mm_fp4, packed, weights.T, scale, factors.T, alpha, out.dtype, out, **options)


def mm_bf16(a, b, out, *bias):
    """mm_bf16."""
    call(flashinfer.mm_bf16, a, b.T, *(bias or (None,)), ENABLE_PDL, out, out.dtype, BACKEND)


def bmm_bf16(a, b, out):
    """bmm_bf16."""
    call(flashinfer.bmm_bf16, a, b.mT, out, out.dtype, BACKEND)


def mm_fp8_setup(b):
    """Give the weights in the order of the low-latency kernels."""
    return {"weights": flashinfer.prepare_low_latency_gemm_weights(b, {})}


def mm_fp8(a, alpha, out, *, weights):
    """mm_fp8."""
    call(flashinfer.mm_fp8, a, weights, alpha, out.dtype, out, BACKEND)


def flat(scale):
    """Give the bytes of the scales in one dimension, as mxfp8 kernels want them."""
    return scale.view(torch.uint8).reshape(-1)


def bmm_mxfp8(a, b, a_scale, b_scale, out):
    """bmm_mxfp8."""
    call(flashinfer.bmm_mxfp8, a, b.mT, flat(a_scale), flat(b_scale), out.dtype, out, BACKEND)


def mm_mxfp8(a, b, a_scale, b_scale, out):
    """mm_mxfp8."""
    call(flashinfer.mm_mxfp8, a, b.T, flat(a_scale), flat(b_scale), out, out.dtype, False, BACKEND)


def mm_mxfp8_trtllm_setup(b, b_scale):
    """Give weights and scales in the order of the trtllm backend."""
    linear = from_tiles(b_scale.view(torch.uint8), b.shape[0], b.shape[1] // 32)
    factors = flashinfer.shuffle_matrix_sf_a(linear, EPILOGUE_TILE, num_elts_per_sf=32)
    return {"weights": flashinfer.shuffle_matrix_a(b, EPILOGUE_TILE), "factors": factors}


def mm_mxfp8_trtllm(a, a_scale, out, *, weights, factors):
    """mm_mxfp8 of the trtllm backend, which wants weights in another order."""
    mm_mxfp8(a, weights, a_scale, factors, out)


def mm_bf16_fp4_setup(b, b_scale, alpha):
    """Give weights and scales in the order of the backend."""
    tiles = b_scale.view(torch.uint8)
    return {"weights": flashinfer.prepare_bf16_fp4_weights(b.view(torch.uint8), tiles, alpha, backend=BACKEND)}


def mm_bf16_fp4(a, out, *, weights):
    """mm_bf16_fp4."""
    call(flashinfer.mm_bf16_fp4, a, *weights, backend=BACKEND, out_dtype=out.dtype, out=out, enable_pdl=ENABLE_PDL)
