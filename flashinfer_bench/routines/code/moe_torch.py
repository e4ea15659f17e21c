"""References of the MoE family: dequantise an expert's weights, multiply in float32, mix, round once at the end.

What kernels quantise between the two products stays in float32 here; the tolerance allows for it.
"""

import torch

from flashinfer_bench.routines.code.formats import BLOCK, by_blocks, by_rows, from_tiles, to_fp8

TOP_K = 8
N_GROUP = 1
TOPK_GROUP = 1
SCALING = 2.5
METHOD = "deepseek_v3"
OFFSET = 0
GEGLU = False
SCALES_INPUT = False


def route(logits, bias):
    """Choose experts; give their ids and weights, [tokens, top_k]. Only deepseek_v3 has a use for the bias."""
    wide = logits.float()
    if METHOD == "deepseek_v3":
        return route_in_groups(wide.sigmoid(), bias.float())
    if METHOD == "llama4":
        found = wide.topk(1, dim=-1).indices
        return found, wide.gather(1, found).sigmoid()
    found = wide.topk(TOP_K, dim=-1).indices
    return found, wide.gather(1, found).softmax(dim=-1)


def route_in_groups(scores, bias):
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


def activate(both, linear_factor=1, gate_factor=1):
    """Multiply the first half by the activated second half."""
    linear, gate = both.chunk(2, dim=-1)
    gate = gate * gate_factor
    act = torch.nn.functional.gelu(gate, approximate="tanh") if GEGLU else torch.nn.functional.silu(gate)
    return act * (linear * linear_factor)


def round_to_fp8(values):
    """Round to fp8, in float32."""
    return to_fp8(values, torch.float8_e4m3fn).float()


def mix(x, experts, factors, count, compute):
    """Send tokens through the `count` experts that are here, and add up the weighed results, in float32.

    `compute` takes tokens and the number of a local expert.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for local in range(count):
        token, place = (experts == local + OFFSET).nonzero(as_tuple=True)
        if len(token):
            share = factors[token, place, None]
            done = compute(x[token] * share if SCALES_INPUT else x[token], local)
            out.index_add_(0, token, done if SCALES_INPUT else done * share)
    return out


def fp8_block_scale(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
):
    """fp8 with a scale for 128 elements of a token and 128 by 128 of a weight."""

    def compute(x, expert):
        inner = activate(x @ by_blocks(gemm1_weights[expert], gemm1_weights_scale[expert]).T)
        return inner @ by_blocks(gemm2_weights[expert], gemm2_weights_scale[expert]).T

    x = hidden_states.float() * hidden_states_scale.T.repeat_interleave(128, dim=1)[:, : hidden_states.shape[1]]
    return mix(x, *route(routing_logits, routing_bias), len(gemm1_weights), compute).to(torch.bfloat16)


def fp8_per_tensor(
    routing_logits,
    routing_bias,
    hidden_states,
    gemm1_weights,
    output1_scales_scalar,
    output1_scales_gate_scalar,
    gemm2_weights,
    output2_scales_scalar,
):
    """fp8 with factors for each expert; the scaled first product is rounded to fp8."""

    def compute(x, expert):
        both = x @ gemm1_weights[expert].float().T
        inner = activate(both, output1_scales_scalar[expert], output1_scales_gate_scalar[expert])
        return round_to_fp8(inner) @ gemm2_weights[expert].float().T * output2_scales_scalar[expert]

    routed = route(routing_logits, routing_bias)
    return mix(hidden_states.float(), *routed, len(gemm1_weights), compute).to(torch.bfloat16)


def fp4_block_scale(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    output1_scales_scalar,
    output1_scales_gate_scalar,
    output2_scales_scalar,
):
    """4-bit floats with a scale for each block of a row."""

    def compute(x, expert):
        both = x @ by_rows(gemm1_weights[expert], gemm1_weights_scale[expert]).T
        inner = activate(both, output1_scales_scalar[expert], output1_scales_gate_scalar[expert])
        return inner @ by_rows(gemm2_weights[expert], gemm2_weights_scale[expert]).T * output2_scales_scalar[expert]

    x = by_rows(hidden_states, hidden_states_scale)
    return mix(x, *route(routing_logits, routing_bias), len(gemm1_weights), compute).to(torch.bfloat16)


def cutlass_base(hidden_states, token_selected_experts, token_final_factors, gemm1_weights, gemm2_weights):
    """Weights as they are."""

    def compute(x, expert):
        return activate(x @ gemm1_weights[expert].float().T) @ gemm2_weights[expert].float().T

    routed = token_selected_experts, token_final_factors
    return mix(hidden_states.float(), *routed, len(gemm1_weights), compute).to(hidden_states.dtype)


def cutlass_fp8(
    hidden_states,
    token_selected_experts,
    token_final_factors,
    gemm1_weights,
    gemm2_weights,
    fc1_dequant,
    fc2_quant,
    fc2_dequant,
):
    """fp8 with factors for each expert; what is between the products is rounded to fp8."""

    def compute(x, expert):
        both = x @ gemm1_weights[expert].float().T * fc1_dequant[expert]
        inner = round_to_fp8(activate(both) * fc2_quant)
        return inner @ gemm2_weights[expert].float().T * fc2_dequant[expert]

    routed = token_selected_experts, token_final_factors
    return mix(hidden_states.float(), *routed, len(gemm1_weights), compute).to(torch.bfloat16)


def cutlass_nvfp4(
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
    """nvfp4 weights; tokens come in bfloat16 and are quantised on the way, with a global factor of 1."""

    def weights(packed, scales, factor):
        return by_rows(packed, from_tiles(scales, packed.shape[0], packed.shape[1] * 2 // BLOCK)) * factor

    def compute(x, expert):
        first = weights(gemm1_weights[expert], gemm1_weights_scale[expert], fc1_global[expert])
        second = weights(gemm2_weights[expert], gemm2_weights_scale[expert], fc2_global[expert])
        return activate(x @ first.T) @ second.T

    routed = token_selected_experts, token_final_factors
    return mix(hidden_states.float(), *routed, len(gemm1_weights), compute).to(torch.bfloat16)


def cutlass_nvfp4_quantised(
    hidden_states,
    hidden_states_scale,
    token_selected_experts,
    token_final_factors,
    gemm1_weights,
    gemm1_weights_scale,
    fc1_global,
    gemm2_weights,
    gemm2_weights_scale,
    fc2_global,
):
    """The same with tokens that are nvfp4 already, their scales in tiles."""
    rows, columns = hidden_states.shape[0], hidden_states.shape[1] * 2 // BLOCK
    first, second = (gemm1_weights, gemm1_weights_scale, fc1_global), (gemm2_weights, gemm2_weights_scale, fc2_global)
    x = by_rows(hidden_states, from_tiles(hidden_states_scale, rows, columns))
    return cutlass_nvfp4(x, token_selected_experts, token_final_factors, *first, *second)
