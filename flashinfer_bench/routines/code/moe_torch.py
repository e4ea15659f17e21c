"""References of the MoE family: dequantise an expert's weights, multiply in float32, mix, round once at the end.

Kernels quantise between the two products. The reference does not, and the tolerance allows the difference.
"""

import torch

from flashinfer_bench.routines.code.formats import BLOCK, by_blocks, by_columns, by_rows, by_tiles, to_fp8

TOP_K = 8
N_GROUP = None
TOPK_GROUP = None
ROUTED_SCALING_FACTOR = 2.5
ROUTING_METHOD = "deepseek_v3"
LOCAL_EXPERT_OFFSET = 0
USE_ROUTING_SCALES_ON_INPUT = False
ACTIVATION_TYPE = "Swiglu"


def route(logits, bias):
    """Choose experts; give their ids and weights, [tokens, top_k]. Only deepseek_v3 has a use for the bias."""
    wide = logits.float()
    if ROUTING_METHOD == "deepseek_v3":
        return route_in_groups(wide.sigmoid(), bias.float())
    chosen = wide.topk(TOP_K, dim=-1)
    return chosen.indices, chosen.values.sigmoid() if ROUTING_METHOD == "llama4" else chosen.values.softmax(dim=-1)


def route_in_groups(scores, bias):
    """DeepSeek V3: the groups whose two best experts are best, then the best experts of these."""
    biased = scores + bias
    if (N_GROUP or 1) > 1:
        grouped = biased.unflatten(1, (N_GROUP, -1))
        best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1).topk(TOPK_GROUP or 1, dim=-1).indices
        kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, True)
        biased = grouped.where(kept[..., None], float("-inf")).flatten(1)
    found = biased.topk(TOP_K, dim=-1).indices
    weights = scores.gather(1, found)
    return found, weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * ROUTED_SCALING_FACTOR


def activate(first, linear_factor=1, gate_factor=1):
    """Multiply the first half by the activated second half. Relu2 has no gate, and activates all."""
    if ACTIVATION_TYPE == "Relu2":
        return first.relu().square()
    linear, gate = first.chunk(2, dim=-1)
    gate, gelu = gate * gate_factor, ACTIVATION_TYPE.startswith("Geglu")
    act = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    return act * (linear * linear_factor)


def round_to_fp8(values):
    """Round to fp8, in float32."""
    return to_fp8(values, torch.float8_e4m3fn).float()


def mix(x, experts, factors, weights, plain, scales=(), between=torch.Tensor.float):
    """Send tokens through the experts that are here, and add up the weighed results, in float32.

    `weights` are the tensors of the first product, then as many of the second. `plain` makes float32 weights of the
    tensors of an expert. `scales` are factors of the first half of the first product, of its second half, and of the
    second product. `between` is done to what is between the products.
    """
    x, half = x.float(), len(weights) // 2
    out = torch.zeros_like(x)
    for local in range(len(weights[0])):
        token, place = (experts == local + LOCAL_EXPERT_OFFSET).nonzero(as_tuple=True)
        if len(token):
            own, share = [part[local] for part in weights], factors[token, place, None]
            linear, gate, last = [part[local] for part in scales] or (1, 1, 1)
            first = (x[token] * share if USE_ROUTING_SCALES_ON_INPUT else x[token]) @ plain(*own[:half]).T
            done = between(activate(first, linear, gate)) @ plain(*own[half:]).T * last
            out.index_add_(0, token, done if USE_ROUTING_SCALES_ON_INPUT else done * share)
    return out


def fp8_block_scale(routing_logits, routing_bias, hidden_states, hidden_states_scale, *weights):
    """fp8 with a scale for 128 elements of a token and 128 by 128 of a weight."""
    x = by_columns(hidden_states, hidden_states_scale.T)
    return mix(x, *route(routing_logits, routing_bias), weights, by_blocks).bfloat16()


def fp8_per_tensor(routing_logits, routing_bias, hidden_states, gemm1_weights, gemm2_weights, *scales):
    """fp8 with factors for each expert; the scaled first product is rounded to fp8."""
    routed, weights = route(routing_logits, routing_bias), (gemm1_weights, gemm2_weights)
    return mix(hidden_states, *routed, weights, torch.Tensor.float, scales, round_to_fp8).bfloat16()


def fp4_block_scale(routing_logits, routing_bias, hidden_states, hidden_states_scale, *weights):
    """4-bit floats with a scale for each block of a row, and factors for each expert."""
    x = by_rows(hidden_states, hidden_states_scale)
    return mix(x, *route(routing_logits, routing_bias), weights[:4], by_rows, weights[4:]).bfloat16()


def fp4_block_scale_mx(routing_logits, routing_bias, hidden_states, *rest):
    """mxfp4 weights; tokens in bfloat16, or in mxfp8 with their scales first in the rest."""
    x = by_columns(hidden_states, rest[0].float(), BLOCK) if len(rest) > 4 else hidden_states
    return mix(x, *route(routing_logits, routing_bias), rest[-4:], by_rows).bfloat16()


def cutlass_base(hidden_states, token_selected_experts, token_final_factors, *weights):
    """Weights as they are."""
    done = mix(hidden_states, token_selected_experts, token_final_factors, weights, torch.Tensor.float)
    return done.to(hidden_states.dtype)


def cutlass_fp8(hidden_states, token_selected_experts, token_final_factors, *weights):
    """fp8 with factors for each expert; what is between the products is rounded to fp8."""
    *layers, fc1_dequant, fc2_quant, fc2_dequant, _ = weights
    routed, scales = (token_selected_experts, token_final_factors), (fc1_dequant, fc1_dequant, fc2_dequant)
    between = lambda inner: round_to_fp8(inner * fc2_quant)  # noqa: E731
    return mix(hidden_states, *routed, layers, torch.Tensor.float, scales, between).bfloat16()


def cutlass_nvfp4(hidden_states, token_selected_experts, token_final_factors, *weights):
    """nvfp4 weights; tokens come in bfloat16 and are quantised on the way, with a global factor of 1."""
    return mix(hidden_states, token_selected_experts, token_final_factors, weights, by_tiles).bfloat16()


def cutlass_nvfp4_quantised(hidden_states, hidden_states_scale, *rest):
    """The same with tokens that are nvfp4 already, their scales in tiles."""
    return cutlass_nvfp4(by_tiles(hidden_states, hidden_states_scale), *rest)


def b12x_fused_moe(hidden_states, token_selected_experts, token_final_factors, *weights):
    """nvfp4 experts: for each product the codes, the scales of blocks, and a factor of each expert."""
    return mix(hidden_states, token_selected_experts, token_final_factors, weights, by_rows).bfloat16()


def cute_dsl_fp4_block_scale_moe(hidden_states, hidden_states_scale, *rest):
    """The same with tokens that are nvfp4, too."""
    return b12x_fused_moe(by_rows(hidden_states, hidden_states_scale), *rest)


def unified_nvfp4_moe(*inputs):
    """The same."""
    return cute_dsl_fp4_block_scale_moe(*inputs)


def bgmv_moe(hidden_states, w1, w2, token_ids, expert_ids, lora_ids, token_final_factors):
    """Add up the low-rank updates of each token's experts by its adapter; [tokens, slices * hidden], float32."""
    x, count = hidden_states.float(), w1.shape[2]
    out = x.new_zeros(len(x), len(w2), w2.shape[3])
    chosen = lora_ids[token_ids] * count + expert_ids
    for pair in chosen.unique().tolist():
        at = (chosen == pair).nonzero()[:, 0]
        token, own = token_ids[at], [part[:, pair // count, pair % count].float() for part in (w1, w2)]
        low = torch.einsum("th,srh->str", x[token], own[0])
        done = torch.einsum("str,shr->tsh", low, own[1])
        out.index_add_(0, token, done * token_final_factors[at, None, None])
    return out.flatten(1)
