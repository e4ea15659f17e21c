"""Reference of the all-to-all of experts: every rank of it in one process."""

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
