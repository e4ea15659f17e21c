"""Calls of FlashInfer's quantisation kernels. They return bytes; the functions here give them type and shape."""

import flashinfer
import torch

BACKEND = "cuda"
SWIZZLED = True
ALIGNMENT = 32
ENABLE_PDL = False
LAYOUT = "128x4"
DO_SHUFFLE = False
BLOCK = 16


def mxfp8_quantize(x):
    """mxfp8_quantize."""
    values, scales = flashinfer.mxfp8_quantize(
        x, is_sf_swizzled_layout=SWIZZLED, alignment=ALIGNMENT, enable_pdl=ENABLE_PDL, backend=BACKEND
    )
    return values, scales.view(torch.uint8).reshape(-1)


def mxfp4_quantize(x):
    """mxfp4_quantize."""
    packed, scales = flashinfer.mxfp4_quantize(x, backend=BACKEND)
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(-1)


def nvfp4_quantize(x, global_scale):
    """nvfp4_quantize."""
    packed, scales = flashinfer.nvfp4_quantize(
        x,
        global_scale,
        sfLayout=getattr(flashinfer.SfLayout, f"layout_{LAYOUT}"),
        do_shuffle=DO_SHUFFLE,
        sf_vec_size=BLOCK,
        enable_pdl=ENABLE_PDL,
        backend=BACKEND,
    )
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(-1)


def nvfp4_batched_quantize(x, global_scale):
    """nvfp4_batched_quantize."""
    packed, scales = flashinfer.nvfp4_batched_quantize(x, global_scale, sf_vec_size=BLOCK)
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(x.shape[0], -1)
