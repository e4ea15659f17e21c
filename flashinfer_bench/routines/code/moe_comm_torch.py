"""The reference of the all-to-all of experts: all ranks in one process.

A rank of mpirun also uses `pack` and `unpack` for its tokens.
"""

import torch

from flashinfer_bench.routines.code.formats import (
    E2M1_MAX,
    E4M3_MAX,
    by_blocks,
    by_columns,
    by_rows,
    by_tiles,
    pack_e2m1,
    scale_blocks,
)
from flashinfer_bench.routines.code.moe_torch import mix

RANKS = 8
NUM_EXPERTS = 256
QUANT_DTYPE = None


def pack(x):
    """Bring tokens [tokens, hidden] into the format in which they are sent: the tokens, then their scales."""
    if QUANT_DTYPE is None:
        return [x]
    if QUANT_DTYPE == "nvfp4":
        values, scales = scale_blocks(x.float(), 16, E2M1_MAX)
        return [pack_e2m1(values).view(torch.uint8), scales.view(torch.uint8)]
    blocks = x.float().unflatten(1, (-1, 128 if QUANT_DTYPE == "fp8_block_scale" else x.shape[1]))
    largest = blocks.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)
    scale = (largest if QUANT_DTYPE == "fp8_block_scale" else largest.max().expand_as(largest)) / E4M3_MAX
    return [(blocks / scale).to(torch.float8_e4m3fn).view(x.shape).view(torch.uint8), scale[..., 0].contiguous()]


def unpack(tokens, scales=None):
    """Give the tokens of `pack` in float32."""
    if QUANT_DTYPE is None:
        return tokens.float()
    if QUANT_DTYPE == "nvfp4":
        return by_rows(tokens, scales.view(torch.float8_e4m3fn))
    return by_columns(tokens.view(torch.float8_e4m3fn), scales, tokens.shape[-1] // scales.shape[-1])


def weigh(x, experts, factors):
    """Take the place of experts: multiply by 1 + expert / all, which tells experts and their factors apart."""
    return x * (factors * (1 + experts / NUM_EXPERTS)).sum(dim=-1, keepdim=True)


def dispatch_combine(hidden_states, token_selected_experts, token_final_factors, *weights):
    """Send tokens [ranks, tokens, hidden] to the ranks of their experts, and add up what these return, rounded."""
    sent = torch.cat([unpack(*pack(part)) for part in hidden_states])
    experts, factors = token_selected_experts.flatten(0, 1).long(), token_final_factors.flatten(0, 1)
    out, local = torch.zeros_like(sent), NUM_EXPERTS // RANKS
    for first in range(0, NUM_EXPERTS, local):
        if weights:
            own = [part[first : first + local] for part in weights]
            done = mix(sent, experts - first, factors, own, by_tiles if QUANT_DTYPE == "nvfp4" else by_blocks)
        else:
            done = weigh(sent, experts, torch.where(experts // local == first // local, factors, 0.0))
        out += done.to(hidden_states.dtype).float()
    return out.to(hidden_states.dtype).view(hidden_states.shape)
