"""Calls of FlashInfer's quantisation kernels, which return bytes. The functions here give the bytes a dtype and a
shape."""

import flashinfer
import torch

BACKEND = "cuda"
SWIZZLED = True
ALIGNMENT = 32
ENABLE_PDL = False
LAYOUT = "128x4"
DO_SHUFFLE = False
PER_TOKEN_ACTIVATION = False
BLOCK = 16


def mxfp8_quantize(x):
    """mxfp8_quantize."""
    values, scales = flashinfer.mxfp8_quantize(
        x, is_sf_swizzled_layout=SWIZZLED, alignment=ALIGNMENT, enable_pdl=ENABLE_PDL, backend=BACKEND
    )
    return values, scales.view(torch.uint8).reshape(-1)


def mxfp4_quantize(x):
    """mxfp4_quantize."""
    packed, scales = flashinfer.mxfp4_quantize(x, backend=BACKEND, enable_pdl=ENABLE_PDL)
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(-1)


def nvfp4_quantize(x, global_scale):
    """nvfp4_quantize. With a scale for each row, the global scale is a number of the host, and the scales of the rows
    are a third output."""
    packed, scales, *rest = flashinfer.nvfp4_quantize(
        x,
        global_scale,
        sfLayout=getattr(flashinfer.SfLayout, f"layout_{LAYOUT}"),
        do_shuffle=DO_SHUFFLE,
        sf_vec_size=BLOCK,
        enable_pdl=ENABLE_PDL,
        backend=BACKEND,
        per_token_activation=PER_TOKEN_ACTIVATION,
    )
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(-1), *rest


nvfp4_quantize_rows = nvfp4_quantize


def nvfp4_quantize_rows_cute_dsl_setup(x, global_scale):
    """Copy the global scale to the GPU, where the CuTe DSL kernel reads it."""
    return {"scale": torch.tensor([global_scale], device=x.device)}


def nvfp4_quantize_rows_cute_dsl(x, *, scale):
    """The same for the CuTe DSL kernel."""
    return nvfp4_quantize(x, scale)


def nvfp4_batched_quantize(x, global_scale):
    """nvfp4_batched_quantize."""
    packed, scales = flashinfer.nvfp4_batched_quantize(x, global_scale, sf_vec_size=BLOCK)
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(x.shape[0], -1)
