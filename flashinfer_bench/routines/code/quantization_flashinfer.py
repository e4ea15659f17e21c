"""Calls of FlashInfer's quantisation kernels. They return bytes; the functions here give them type and shape."""

from typing import Any

import flashinfer
import torch
from torch import Tensor

BACKEND = "cuda"
SWIZZLED = True
ALIGNMENT = 32
ENABLE_PDL = False
LAYOUT = "128x4"
SHUFFLES = False
BLOCK = 16


def finish(packed: Any, scales: Any) -> tuple[Any, Any]:
    """View packed bytes as 4-bit floats and scales as flat bytes."""
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(-1)


def mxfp8_quantize(x: Tensor) -> Any:
    """mxfp8_quantize."""
    values, scales = flashinfer.mxfp8_quantize(
        x, is_sf_swizzled_layout=SWIZZLED, alignment=ALIGNMENT, enable_pdl=ENABLE_PDL, backend=BACKEND
    )
    return values, scales.view(torch.uint8).reshape(-1)


def mxfp4_quantize(x: Tensor) -> Any:
    """mxfp4_quantize."""
    return finish(*flashinfer.mxfp4_quantize(x, backend=BACKEND))


def nvfp4_quantize(x: Tensor, global_scale: Tensor) -> Any:
    """nvfp4_quantize."""
    layout = {"128x4": "layout_128x4", "8x4": "layout_8x4", "linear": "layout_linear"}[LAYOUT]
    packed, scales = flashinfer.nvfp4_quantize(
        x,
        global_scale,
        sfLayout=getattr(flashinfer.SfLayout, layout),
        do_shuffle=SHUFFLES,
        sf_vec_size=BLOCK,
        enable_pdl=ENABLE_PDL,
        backend=BACKEND,
    )
    return finish(packed, scales)


def nvfp4_batched_quantize(x: Tensor, global_scale: Tensor) -> Any:
    """nvfp4_batched_quantize."""
    packed, scales = flashinfer.nvfp4_batched_quantize(x, global_scale, sf_vec_size=BLOCK)
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.uint8).reshape(x.shape[0], -1)
