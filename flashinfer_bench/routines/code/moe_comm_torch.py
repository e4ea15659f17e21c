"""References of the all-to-all of experts: every rank of it in one process."""

from collections.abc import Callable

import torch

RANKS = 8
EXPERTS = 256
QUANT = "none"
FP8_MAX = 448.0
E2M1_MAX = 6.0
E2M1_SIZES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1_LIMITS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


def carry(x: torch.Tensor) -> torch.Tensor:
    """Give what arrives of tokens [tokens, hidden] in the format that they are sent in, in float32."""
    wide = x.float()
    if QUANT == "none":
        return wide
    block = {"fp8": wide.numel(), "fp8_block_scale": 128, "nvfp4": 16}[QUANT]
    blocks = wide.reshape(-1, block)
    largest = blocks.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    if QUANT == "nvfp4":
        factor = (largest / E2M1_MAX).to(torch.float8_e4m3fn).float().clamp(min=2**-9)
        sizes = torch.tensor(E2M1_SIZES, device=x.device)
        limits = torch.tensor(E2M1_LIMITS, device=x.device)
        rounded = sizes[torch.bucketize((blocks / factor).abs().contiguous(), limits)] * blocks.sign() * factor
    else:
        factor = largest / FP8_MAX
        rounded = (blocks / factor).to(torch.float8_e4m3fn).float() * factor
    return rounded.view(wide.shape)


def dispatch_combine(
    hidden_states: torch.Tensor, token_selected_experts: torch.Tensor, token_final_factors: torch.Tensor
) -> torch.Tensor:
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


def by_rows(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale 4-bit floats, the low half of a byte first: one factor for 16 elements of a row; float32."""
    values = torch.tensor([*E2M1_SIZES, *(-size for size in E2M1_SIZES)], device=packed.device)
    raw = packed.view(torch.uint8).to(torch.int32)
    plain = values[torch.stack((raw & 0xF, raw >> 4), dim=-1)].flatten(-2)
    return plain * scale.float().repeat_interleave(16, dim=-1)


def by_blocks(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale fp8 weights: one factor for 128 by 128 elements; float32."""
    return weights.float() * scale.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)


def feed(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Send tokens through an expert (SwiGLU): the second half of the first product is the gate of the other."""
    linear, gate = (x @ first.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * linear) @ second.T


def mix(
    hidden_states: torch.Tensor,
    experts: torch.Tensor,
    factors: torch.Tensor,
    layers: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
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
    hidden_states: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_factors: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    fc1_global: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
    fc2_global: torch.Tensor,
) -> torch.Tensor:
    """With experts in nvfp4; their scales row by row."""
    return mix(
        hidden_states,
        token_selected_experts,
        token_final_factors,
        lambda expert: (
            by_rows(gemm1_weights[expert], gemm1_weights_scale[expert]) * fc1_global[expert],
            by_rows(gemm2_weights[expert], gemm2_weights_scale[expert]) * fc2_global[expert],
        ),
    )


def real_fp8_block_scale(
    hidden_states: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_factors: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
) -> torch.Tensor:
    """With experts in fp8, a scale for 128 by 128 of their weights."""
    return mix(
        hidden_states,
        token_selected_experts,
        token_final_factors,
        lambda expert: (
            by_blocks(gemm1_weights[expert], gemm1_weights_scale[expert]),
            by_blocks(gemm2_weights[expert], gemm2_weights_scale[expert]),
        ),
    )
