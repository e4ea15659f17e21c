"""References of the MoE family: dequantise an expert's weights, multiply in float32, mix, round once at the end.

What kernels quantise between the two products stays in float32 here; the tolerance allows for it.
"""

from collections.abc import Sequence
from typing import Any

import torch

TOP_K = 8
N_GROUP = 1
TOPK_GROUP = 1
SCALING = 2.5
METHOD = "deepseek_v3"
OFFSET = 0
GEGLU = False
SCALES_INPUT = False
BLOCK = 16
ACTIVATION_MAX = 448.0
E2M1_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def route(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts; give their ids and weights, [tokens, top_k]. Only deepseek_v3 has a use for the bias."""
    wide = logits.float()
    if METHOD == "deepseek_v3":
        return route_in_groups(wide.sigmoid(), bias.float())
    if METHOD == "llama4":
        found = wide.topk(1, dim=-1).indices
        return found, wide.gather(1, found).sigmoid()
    found = wide.topk(TOP_K, dim=-1).indices
    return found, wide.gather(1, found).softmax(dim=-1)


def route_in_groups(scores: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """DeepSeek V3: the groups whose two best experts are best, then the best experts of these."""
    biased = scores + bias
    tokens, experts = scores.shape
    if N_GROUP > 1:
        grouped = biased.view(tokens, N_GROUP, experts // N_GROUP)
        best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1).topk(TOPK_GROUP, dim=-1).indices
        kept = torch.zeros(tokens, N_GROUP, dtype=torch.bool, device=scores.device).scatter(1, best, True)
        biased = torch.where(kept[..., None], grouped, float("-inf")).view(tokens, experts)
    found = biased.topk(TOP_K, dim=-1).indices
    weights = scores.gather(1, found)
    return found, weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * SCALING


def activate(both: torch.Tensor) -> torch.Tensor:
    """Multiply the first half by the activated second half."""
    linear, gate = both.chunk(2, dim=-1)
    act = torch.nn.functional.gelu(gate, approximate="tanh") if GEGLU else torch.nn.functional.silu(gate)
    return act * linear


def by_blocks(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale fp8 weights: one factor for 128 by 128 elements."""
    factors = scale.repeat_interleave(128, dim=0)[: weights.shape[0]]
    return weights.float() * factors.repeat_interleave(128, dim=1)[:, : weights.shape[1]]


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Give the values of 4-bit floats, the low half of a byte first, in float32."""
    table = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=packed.device)
    raw = packed.view(torch.uint8).to(torch.int32)
    return table[torch.stack((raw & 0xF, raw >> 4), dim=-1)].flatten(-2)


def by_rows(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale 4-bit floats: one factor for each block of a row."""
    return unpack(packed) * scale.float().repeat_interleave(BLOCK, dim=-1)


def unswizzle(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Bring scales out of tiles of 128 rows by 4 columns; the padding is left out."""
    tall, wide = -(-rows // 128), -(-columns // 4)
    ordered = scale.reshape(-1).view(torch.uint8).view(tall, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return ordered.reshape(tall * 128, wide * 4)[:rows, :columns].contiguous().view(scale.dtype)


def places(experts: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the tokens that an expert has, and its place among each token's experts."""
    found = (experts == expert).nonzero()
    return found[:, 0], found[:, 1]


def fp8_block_scale(
    routing_logits: torch.Tensor,
    routing_bias: torch.Tensor,
    hidden_states: torch.Tensor,
    hidden_states_scale: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
) -> torch.Tensor:
    """fp8 with a scale for 128 elements of a token and 128 by 128 of a weight."""
    experts, weights = route(routing_logits, routing_bias)
    x = hidden_states.float() * hidden_states_scale.T.repeat_interleave(128, dim=1)[:, : hidden_states.shape[1]]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for local in range(gemm1_weights.shape[0]):
        token, place = places(experts, local + OFFSET)
        if len(token):
            inner = activate(x[token] @ by_blocks(gemm1_weights[local], gemm1_weights_scale[local]).T)
            done = inner @ by_blocks(gemm2_weights[local], gemm2_weights_scale[local]).T
            out.index_add_(0, token, done * weights[token, place, None])
    return out.to(torch.bfloat16)


def fp8_per_tensor(
    routing_logits: torch.Tensor,
    routing_bias: torch.Tensor,
    hidden_states: torch.Tensor,
    gemm1_weights: torch.Tensor,
    output1_scales_scalar: torch.Tensor,
    output1_scales_gate_scalar: torch.Tensor,
    gemm2_weights: torch.Tensor,
    output2_scales_scalar: torch.Tensor,
) -> torch.Tensor:
    """fp8 with factors for each expert; the scaled first product is rounded to fp8."""
    experts, weights = route(routing_logits, routing_bias)
    x = hidden_states.float()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for local in range(gemm1_weights.shape[0]):
        token, place = places(experts, local + OFFSET)
        if not len(token):
            continue
        share = weights[token, place, None]
        both = (x[token] * share if SCALES_INPUT else x[token]) @ gemm1_weights[local].float().T
        linear, gate = both.chunk(2, dim=-1)
        scaled = torch.cat((linear * output1_scales_scalar[local], gate * output1_scales_gate_scalar[local]), dim=-1)
        inner = activate(scaled).clamp(-ACTIVATION_MAX, ACTIVATION_MAX).to(torch.float8_e4m3fn).float()
        done = inner @ gemm2_weights[local].float().T * output2_scales_scalar[local]
        out.index_add_(0, token, done if SCALES_INPUT else done * share)
    return out.to(torch.bfloat16)


def fp4_block_scale(
    routing_logits: torch.Tensor,
    routing_bias: torch.Tensor,
    hidden_states: torch.Tensor,
    hidden_states_scale: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
    output1_scales_scalar: torch.Tensor,
    output1_scales_gate_scalar: torch.Tensor,
    output2_scales_scalar: torch.Tensor,
) -> torch.Tensor:
    """4-bit floats with a scale for each block of a row."""
    experts, weights = route(routing_logits, routing_bias)
    x = by_rows(hidden_states, hidden_states_scale)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for local in range(gemm1_weights.shape[0]):
        token, place = places(experts, local + OFFSET)
        if not len(token):
            continue
        both = x[token] @ by_rows(gemm1_weights[local], gemm1_weights_scale[local]).T
        linear, gate = both.chunk(2, dim=-1)
        scaled = torch.cat((linear * output1_scales_scalar[local], gate * output1_scales_gate_scalar[local]), dim=-1)
        done = activate(scaled) @ by_rows(gemm2_weights[local], gemm2_weights_scale[local]).T
        out.index_add_(0, token, done * output2_scales_scalar[local] * weights[token, place, None])
    return out.to(torch.bfloat16)


def mix(x: torch.Tensor, experts: torch.Tensor, factors: torch.Tensor, layers: Sequence[Any]) -> torch.Tensor:
    """Send each token through its local experts; layers [first, second] hold float32 weights by expert."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for local in range(len(layers[0])):
        token, place = places(experts, local + OFFSET)
        if len(token):
            inner = activate(x[token] @ layers[0][local].float().T)
            out.index_add_(0, token, inner @ layers[1][local].float().T * factors[token, place, None])
    return out


def cutlass_base(
    hidden_states: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_factors: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm2_weights: torch.Tensor,
) -> torch.Tensor:
    """Weights as they are."""
    layers = [gemm1_weights, gemm2_weights]
    return mix(hidden_states.float(), token_selected_experts, token_final_factors, layers).to(hidden_states.dtype)


def cutlass_fp8(
    hidden_states: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_factors: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm2_weights: torch.Tensor,
    fc1_dequant: torch.Tensor,
    fc2_quant: torch.Tensor,
    fc2_dequant: torch.Tensor,
    fc1_input_dequant: torch.Tensor,
) -> torch.Tensor:
    """fp8 with factors for each expert; what is between the products is rounded to fp8."""
    del fc1_input_dequant  # contained in fc1_dequant
    out = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for local in range(gemm1_weights.shape[0]):
        token, place = places(token_selected_experts, local + OFFSET)
        if not len(token):
            continue
        both = hidden_states[token].float() @ gemm1_weights[local].float().T * fc1_dequant[local]
        inner = (activate(both) * fc2_quant).clamp(-ACTIVATION_MAX, ACTIVATION_MAX).to(torch.float8_e4m3fn).float()
        done = inner @ gemm2_weights[local].float().T * fc2_dequant[local]
        out.index_add_(0, token, done * token_final_factors[token, place, None])
    return out.to(torch.bfloat16)


def cutlass_nvfp4_weights(
    gemm1: tuple[torch.Tensor, torch.Tensor, torch.Tensor], gemm2: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> list[list[torch.Tensor]]:
    """Dequantise (packed, tiled scales, factor of each expert) of both layers."""
    layers = []
    for packed, scales, factor in (gemm1, gemm2):
        rows, columns = packed.shape[1], packed.shape[2] * 2 // BLOCK
        plain = [unswizzle(scales[expert], rows, columns) for expert in range(packed.shape[0])]
        layers.append([by_rows(packed[e], plain[e]) * factor[e] for e in range(packed.shape[0])])
    return layers


def cutlass_nvfp4(
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
    """nvfp4 weights; tokens come in bfloat16 and are quantised on the way, with a global factor of 1."""
    layers = cutlass_nvfp4_weights(
        (gemm1_weights, gemm1_weights_scale, fc1_global), (gemm2_weights, gemm2_weights_scale, fc2_global)
    )
    mixed = mix(hidden_states.float(), token_selected_experts, token_final_factors, layers)
    return mixed.to(torch.bfloat16)


def cutlass_nvfp4_quantised(
    hidden_states: torch.Tensor,
    hidden_states_scale: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_factors: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    fc1_global: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
    fc2_global: torch.Tensor,
) -> torch.Tensor:
    """The same with tokens that are nvfp4 already, their scales in tiles."""
    layers = cutlass_nvfp4_weights(
        (gemm1_weights, gemm1_weights_scale, fc1_global), (gemm2_weights, gemm2_weights_scale, fc2_global)
    )
    rows, columns = hidden_states.shape[0], hidden_states.shape[1] * 2 // BLOCK
    x = by_rows(hidden_states, unswizzle(hidden_states_scale, rows, columns))
    return mix(x, token_selected_experts, token_final_factors, layers).to(torch.bfloat16)
