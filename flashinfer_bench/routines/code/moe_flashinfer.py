"""Calls of FlashInfer's MoE kernels.

Weights in another order are made in `setup`: a server makes them once. Each such call has a function with `_setup`
behind its name; what that returns the call takes by keyword.
"""

import flashinfer
import torch
from flashinfer.fused_moe import convert_to_block_layout

TOP_K = 8
N_GROUP = None
TOPK_GROUP = None
SCALING = 2.5
METHOD = 2
OFFSET = 0
ACTIVATION = 3
EXPERTS = 256
INTERMEDIATE = 2048
SCALES_INPUT = False
USES_BIAS = False
SHUFFLES = False
LAYOUT = 0
AUTOTUNE = False
TP_SIZE = 1
TP_RANK = 0
EP_SIZE = 1
EP_RANK = 0
MOST_TOKENS = 8192
EPILOGUE_TILE = 128
SMALL_TILE = 64
BLOCK_K = 128
STATE = {}
ROUTED = {"routing_method_type": METHOD, "tune_max_num_tokens": MOST_TOKENS, "activation_type": ACTIVATION}
RANKS = {"tp_size": TP_SIZE, "tp_rank": TP_RANK, "ep_size": EP_SIZE, "ep_rank": EP_RANK}


def call(function, *arguments, **options):
    """Call a function. With AUTOTUNE the library tunes in the first call."""
    if AUTOTUNE and "tuned" not in STATE:
        with flashinfer.autotune(True):
            function(*arguments, **options)
        STATE["tuned"] = True
    return function(*arguments, **options)


def one_of(like):
    """Give the number 1 on a device, made once."""
    if "one" not in STATE:
        STATE["one"] = torch.ones((), dtype=torch.float32, device=like.device)
    return STATE["one"]


def routing_of(gemm1_weights):
    """Give the numbers of the routing, in the order of the kernels that route."""
    return EXPERTS, TOP_K, N_GROUP, TOPK_GROUP, INTERMEDIATE, OFFSET, gemm1_weights.shape[0], SCALING


def bias_of(routing_bias):
    """Give the bias in the dtype of the kernel."""
    return routing_bias.to(torch.bfloat16) if USES_BIAS else None


def shuffled(weights):
    """Give fp8 weights in the order of --use_shuffled_weight; in blocks along k with --weight_layout 2."""
    if not SHUFFLES:
        return weights
    rows = [flashinfer.shuffle_matrix_a(matrix.view(torch.uint8), SMALL_TILE) for matrix in weights]
    blocks = [convert_to_block_layout(matrix, BLOCK_K) for matrix in rows] if LAYOUT == 2 else rows
    return torch.stack(blocks).view(weights.dtype)


def rows_of(matrices, is_gated):
    """Give each matrix as bytes, with the rows of both halves mixed where a gate wants them so."""
    plain = [matrix.view(torch.uint8) for matrix in matrices]
    rows = [flashinfer.reorder_rows_for_gated_act_gemm(matrix) for matrix in plain] if is_gated else plain
    return [matrix.contiguous() for matrix in rows]


def ordered(weights, is_gated):
    """Give weights whose rows are in the order of the kernels that always want one."""
    return torch.stack([flashinfer.shuffle_matrix_a(matrix, EPILOGUE_TILE) for matrix in rows_of(weights, is_gated)])


def ordered_scales(scales, is_gated):
    """Give the block scales of such weights."""
    done = [flashinfer.shuffle_matrix_sf_a(matrix, EPILOGUE_TILE) for matrix in rows_of(scales, is_gated)]
    return torch.stack([matrix.view(torch.float8_e4m3fn).view(scales.shape[1:]) for matrix in done])


def fp8_block_scale_setup(routing_bias, gemm1_weights, gemm2_weights):
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {"bias": bias_of(routing_bias), "first": shuffled(gemm1_weights), "second": shuffled(gemm2_weights)}


def fp8_block_scale(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights_scale,
    *,
    bias,
    first,
    second,
):
    """trtllm_fp8_block_scale_moe."""
    tokens, layers = (hidden_states, hidden_states_scale), (first, gemm1_weights_scale, second, gemm2_weights_scale)
    numbers, options = routing_of(gemm1_weights), {"use_shuffled_weight": SHUFFLES, "weight_layout": LAYOUT}
    function = flashinfer.fused_moe.trtllm_fp8_block_scale_moe
    return call(function, routing_logits, bias, *tokens, *layers, *numbers, **options, **ROUTED)


def fp8_per_tensor_setup(routing_bias, gemm1_weights, gemm2_weights):
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {
        "bias": bias_of(routing_bias),
        "first": ordered(gemm1_weights, True).view(gemm1_weights.dtype),
        "second": ordered(gemm2_weights, False).view(gemm2_weights.dtype),
    }


def fp8_per_tensor(
    routing_logits,
    hidden_states,
    gemm1_weights,
    output1_scales_scalar,
    output1_scales_gate_scalar,
    output2_scales_scalar,
    *,
    bias,
    first,
    second,
):
    """trtllm_fp8_per_tensor_scale_moe."""
    layers = (first, output1_scales_scalar, output1_scales_gate_scalar, second, output2_scales_scalar)
    function = flashinfer.fused_moe.trtllm_fp8_per_tensor_scale_moe
    numbers = routing_of(gemm1_weights)
    return call(function, routing_logits, bias, hidden_states, *layers, *numbers, SCALES_INPUT, **ROUTED)


def fp4_block_scale_setup(routing_bias, gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale):
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {
        "bias": bias_of(routing_bias),
        "first": ordered(gemm1_weights, True),
        "first_scales": ordered_scales(gemm1_weights_scale, True),
        "second": ordered(gemm2_weights, False),
        "second_scales": ordered_scales(gemm2_weights_scale, False),
    }


def fp4_block_scale(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    output1_scales_scalar,
    output1_scales_gate_scalar,
    output2_scales_scalar,
    *,
    bias,
    first,
    first_scales,
    second,
    second_scales,
):
    """trtllm_fp4_block_scale_moe."""
    absent = (None, None, None, None)  # bias, alpha, beta and clamp limit of the first product
    tokens, layers = (hidden_states.view(torch.uint8), hidden_states_scale), (first, first_scales, *absent)
    scalars = (output1_scales_scalar, output1_scales_gate_scalar, output2_scales_scalar)
    numbers = (*layers, second, second_scales, None, *scalars, *routing_of(gemm1_weights))
    function = flashinfer.fused_moe.trtllm_fp4_block_scale_moe
    done = call(function, routing_logits, bias, *tokens, *numbers, do_finalize=True, **ROUTED)
    return done[0] if isinstance(done, (list, tuple)) else done


def cutlass(tokens, layers, scales, out, input_scales=None):
    """cutlass_fused_moe; tokens with their experts and factors, weights of both layers, scales of all."""
    call(
        flashinfer.fused_moe.cutlass_fused_moe,
        *tokens,
        *layers,
        out.dtype,
        scales,
        input_sf=input_scales,
        output=out,
        tune_max_num_tokens=MOST_TOKENS,
        activation_type=flashinfer.ActivationType(ACTIVATION),
        **RANKS,
    )


def cutlass_base(hidden_states, token_selected_experts, token_final_factors, gemm1_weights, gemm2_weights, out):
    """Weights as they are."""
    cutlass((hidden_states, token_selected_experts, token_final_factors), (gemm1_weights, gemm2_weights), [], out)


def cutlass_fp8(
    hidden_states,
    token_selected_experts,
    token_final_factors,
    gemm1_weights,
    gemm2_weights,
    fc1_dequant,
    fc2_quant,
    fc2_dequant,
    fc1_input_dequant,
    out,
):
    """fp8 weights and tokens."""
    tokens, scales = (hidden_states, token_selected_experts, token_final_factors), (fc1_dequant, fc2_quant, fc2_dequant)
    cutlass(tokens, (gemm1_weights, gemm2_weights), [*scales, fc1_input_dequant], out)


def cutlass_fp4(tokens, first, second, out, input_scales=None):
    """Weights in nvfp4: packed weights, their scales and the factor of each expert, for both layers."""
    one = one_of(first[0])
    layers = [layer[0].view(torch.uint8).view(torch.int64) for layer in (first, second)]
    scales = [one, first[1].view(torch.int32), first[2], one, second[1].view(torch.int32), second[2]]
    cutlass(tokens, layers, scales, out, input_scales)


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
    out,
):
    """nvfp4 weights, tokens in bfloat16."""
    first, second = (gemm1_weights, gemm1_weights_scale, fc1_global), (gemm2_weights, gemm2_weights_scale, fc2_global)
    cutlass_fp4((hidden_states, token_selected_experts, token_final_factors), first, second, out)


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
    out,
):
    """nvfp4 weights and tokens."""
    tokens = (hidden_states.view(torch.uint8), token_selected_experts, token_final_factors)
    first, second = (gemm1_weights, gemm1_weights_scale, fc1_global), (gemm2_weights, gemm2_weights_scale, fc2_global)
    cutlass_fp4(tokens, first, second, out, hidden_states_scale.view(torch.uint8))
