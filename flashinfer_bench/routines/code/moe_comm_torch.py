"""References of the all-to-all of experts: every rank of it in one process."""

import torch

from flashinfer_bench.routines.code.formats import (
    E2M1_LIMITS,
    E2M1_MAX,
    E2M1_VALUES,
    E4M3_MAX,
    by_blocks,
    by_rows,
)

RANKS = 8
EXPERTS = 256
QUANT = "none"


def carry(x):
    """Give what arrives of tokens [tokens, hidden] in the format that they are sent in, in float32."""
    wide = x.float()
    if QUANT == "none":
        return wide
    block = {"fp8": wide.numel(), "fp8_block_scale": 128, "nvfp4": 16}[QUANT]
    blocks = wide.reshape(-1, block)
    largest = blocks.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    if QUANT == "nvfp4":
        factor = (largest / E2M1_MAX).to(torch.float8_e4m3fn).float().clamp(min=2**-9)
        sizes = torch.tensor(E2M1_VALUES, device=x.device)
        limits = torch.tensor(E2M1_LIMITS, device=x.device)
        rounded = sizes[torch.bucketize((blocks / factor).abs().contiguous(), limits)] * blocks.sign() * factor
    else:
        factor = largest / E4M3_MAX
        rounded = (blocks / factor).to(torch.float8_e4m3fn).float() * factor
    return rounded.view(wide.shape)


def dispatch_combine(hidden_states, token_selected_experts, token_final_factors):
    """Send tokens [ranks, tokens, hidden] to the ranks of their experts, weigh them there, and add up what returns.

    In place of an expert e stands a multiplication by 1 + e / EXPERTS: it tells experts and their weights apart.
    """
    local = EXPERTS // RANKS
    out = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for source in range(RANKS):
        sent = carry(hidden_states[source])
        experts = token_selected_experts[source].long()
        share = token_final_factors[source] * (1 + experts / EXPERTS)
        for target in range(RANKS):
            there = torch.where(experts // local == target, share, 0.0).sum(dim=1, keepdim=True)
            out[source] += (sent * there).to(hidden_states.dtype).float()
    return out.to(hidden_states.dtype)


def feed(x, first, second):
    """Send tokens through an expert (SwiGLU): the second half of the first product is the gate of the other."""
    linear, gate = (x @ first.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * linear) @ second.T


def mix(hidden_states, experts, factors, layers):
    """Send tokens [ranks, tokens, hidden] through their experts, rank by rank, and add up what returns.

    `layers` gives both float32 weights of an expert. A rank rounds what it returns.
    """
    sent, chosen, shares = carry(hidden_states).flatten(0, 1), experts.flatten(0, 1), factors.flatten(0, 1)
    out, local = torch.zeros_like(sent), EXPERTS // RANKS
    for target in range(RANKS):
        part = torch.zeros_like(sent)
        for expert in range(target * local, (target + 1) * local):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            if len(token):
                part.index_add_(0, token, feed(sent[token], *layers(expert)) * shares[token, place, None])
        out += part.to(hidden_states.dtype).float()
    return out.to(hidden_states.dtype).view(hidden_states.shape)


def real_nvfp4(
    hidden_states,
    token_selected_experts,
    token_final_factors,
    gemm1_weights,
    gemm1_weights_scale,
    fc1_global,
    gemm2_weights,
    gemm2_weights_scale,
    fc2_global,
):
    """With experts in nvfp4; their scales row by row."""

    def layers(expert):
        first = by_rows(gemm1_weights[expert], gemm1_weights_scale[expert]) * fc1_global[expert]
        return first, by_rows(gemm2_weights[expert], gemm2_weights_scale[expert]) * fc2_global[expert]

    return mix(hidden_states, token_selected_experts, token_final_factors, layers)


def real_fp8_block_scale(
    hidden_states,
    token_selected_experts,
    token_final_factors,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
):
    """With experts in fp8, a scale for 128 by 128 of their weights."""

    def layers(expert):
        first = by_blocks(gemm1_weights[expert], gemm1_weights_scale[expert])
        return first, by_blocks(gemm2_weights[expert], gemm2_weights_scale[expert])

    return mix(hidden_states, token_selected_experts, token_final_factors, layers)
