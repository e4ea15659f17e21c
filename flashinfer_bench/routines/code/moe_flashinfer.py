"""Calls of FlashInfer's MoE kernels.

Weights in another order are made in `setup`: a server makes them once. Each such call has a function with `_setup`
behind its name; what that returns the call takes by keyword.
"""

from typing import Any

import flashinfer
import torch
from flashinfer.fused_moe import convert_to_block_layout
from torch import Tensor

TOP_K = 8
N_GROUP: Any = None
TOPK_GROUP: Any = None
SCALING: Any = 2.5
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
STATE: dict[Any, Any] = {}


def call(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function. With AUTOTUNE the library tunes in the first call."""
    if AUTOTUNE and "tuned" not in STATE:
        with flashinfer.autotune(True):
            function(*arguments, **options)
        STATE["tuned"] = True
    return function(*arguments, **options)


def one_of(like: Tensor) -> Any:
    """Give the number 1 on a device, made once."""
    if "one" not in STATE:
        STATE["one"] = torch.ones((), dtype=torch.float32, device=like.device)
    return STATE["one"]


def route_and_call(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a kernel that routes tokens itself."""
    own = {"routing_method_type": METHOD, "tune_max_num_tokens": MOST_TOKENS, "activation_type": ACTIVATION}
    return call(function, *arguments, **own, **options)


def routing_of(gemm1_weights: Tensor) -> tuple[Any, ...]:
    """Give the numbers of the routing, in the order of the kernels that route."""
    return EXPERTS, TOP_K, N_GROUP, TOPK_GROUP, INTERMEDIATE, OFFSET, gemm1_weights.shape[0], SCALING


def bias_of(routing_bias: Tensor) -> Any:
    """Give the bias in the dtype of the kernel."""
    return routing_bias.to(torch.bfloat16) if USES_BIAS else None


def shuffled(weights: Tensor) -> Any:
    """Give fp8 weights in the order of --use_shuffled_weight; in blocks along k with --weight_layout 2."""
    if not SHUFFLES:
        return weights
    rows = [flashinfer.shuffle_matrix_a(matrix.view(torch.uint8), SMALL_TILE) for matrix in weights]
    blocks = [convert_to_block_layout(matrix, BLOCK_K) for matrix in rows] if LAYOUT == 2 else rows
    return torch.stack(blocks).view(weights.dtype)


def rows_of(matrices: Tensor, *, is_gated: bool) -> list[Any]:
    """Give each matrix as bytes, with the rows of both halves mixed where a gate wants them so."""
    plain = [matrix.view(torch.uint8) for matrix in matrices]
    rows = [flashinfer.reorder_rows_for_gated_act_gemm(matrix) for matrix in plain] if is_gated else plain
    return [matrix.contiguous() for matrix in rows]


def ordered(weights: Tensor, *, is_gated: bool) -> Any:
    """Give weights whose rows are in the order of the kernels that always want one."""
    rows = rows_of(weights, is_gated=is_gated)
    return torch.stack([flashinfer.shuffle_matrix_a(matrix, EPILOGUE_TILE) for matrix in rows])


def ordered_scales(scales: Tensor, *, is_gated: bool) -> Any:
    """Give the block scales of such weights."""
    rows = rows_of(scales, is_gated=is_gated)
    done = [flashinfer.shuffle_matrix_sf_a(matrix, EPILOGUE_TILE) for matrix in rows]
    return torch.stack([matrix.view(torch.float8_e4m3fn).view(scales.shape[1:]) for matrix in done])


def fp8_block_scale_setup(
    routing_logits: Tensor,
    routing_bias: Tensor,
    hidden_states: Tensor,
    hidden_states_scale: Tensor,
    gemm1_weights: Tensor,
    gemm1_weights_scale: Tensor,
    gemm2_weights: Tensor,
    gemm2_weights_scale: Tensor,
) -> dict[str, Any]:
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {
        "bias": bias_of(routing_bias),
        "first": shuffled(gemm1_weights),
        "second": shuffled(gemm2_weights),
    }


def fp8_block_scale(
    routing_logits: Tensor,
    routing_bias: Tensor,
    hidden_states: Tensor,
    hidden_states_scale: Tensor,
    gemm1_weights: Tensor,
    gemm1_weights_scale: Tensor,
    gemm2_weights: Tensor,
    gemm2_weights_scale: Tensor,
    *,
    bias: Any,
    first: Any,
    second: Any,
) -> Any:
    """trtllm_fp8_block_scale_moe."""
    return route_and_call(
        flashinfer.fused_moe.trtllm_fp8_block_scale_moe,
        routing_logits,
        bias,
        hidden_states,
        hidden_states_scale,
        first,
        gemm1_weights_scale,
        second,
        gemm2_weights_scale,
        *routing_of(gemm1_weights),
        use_shuffled_weight=SHUFFLES,
        weight_layout=LAYOUT,
    )


def fp8_per_tensor_setup(
    routing_logits: Tensor,
    routing_bias: Tensor,
    hidden_states: Tensor,
    gemm1_weights: Tensor,
    output1_scales_scalar: Tensor,
    output1_scales_gate_scalar: Tensor,
    gemm2_weights: Tensor,
    output2_scales_scalar: Tensor,
) -> dict[str, Any]:
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {
        "bias": bias_of(routing_bias),
        "first": ordered(gemm1_weights, is_gated=True).view(gemm1_weights.dtype),
        "second": ordered(gemm2_weights, is_gated=False).view(gemm2_weights.dtype),
    }


def fp8_per_tensor(
    routing_logits: Tensor,
    routing_bias: Tensor,
    hidden_states: Tensor,
    gemm1_weights: Tensor,
    output1_scales_scalar: Tensor,
    output1_scales_gate_scalar: Tensor,
    gemm2_weights: Tensor,
    output2_scales_scalar: Tensor,
    *,
    bias: Any,
    first: Any,
    second: Any,
) -> Any:
    """trtllm_fp8_per_tensor_scale_moe."""
    return route_and_call(
        flashinfer.fused_moe.trtllm_fp8_per_tensor_scale_moe,
        routing_logits,
        bias,
        hidden_states,
        first,
        output1_scales_scalar,
        output1_scales_gate_scalar,
        second,
        output2_scales_scalar,
        *routing_of(gemm1_weights),
        SCALES_INPUT,
    )


def fp4_block_scale_setup(
    routing_logits: Tensor,
    routing_bias: Tensor,
    hidden_states: Tensor,
    hidden_states_scale: Tensor,
    gemm1_weights: Tensor,
    gemm1_weights_scale: Tensor,
    gemm2_weights: Tensor,
    gemm2_weights_scale: Tensor,
    output1_scales_scalar: Tensor,
    output1_scales_gate_scalar: Tensor,
    output2_scales_scalar: Tensor,
) -> dict[str, Any]:
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {
        "bias": bias_of(routing_bias),
        "first": ordered(gemm1_weights, is_gated=True),
        "first_scales": ordered_scales(gemm1_weights_scale, is_gated=True),
        "second": ordered(gemm2_weights, is_gated=False),
        "second_scales": ordered_scales(gemm2_weights_scale, is_gated=False),
    }


def fp4_block_scale(
    routing_logits: Tensor,
    routing_bias: Tensor,
    hidden_states: Tensor,
    hidden_states_scale: Tensor,
    gemm1_weights: Tensor,
    gemm1_weights_scale: Tensor,
    gemm2_weights: Tensor,
    gemm2_weights_scale: Tensor,
    output1_scales_scalar: Tensor,
    output1_scales_gate_scalar: Tensor,
    output2_scales_scalar: Tensor,
    *,
    bias: Any,
    first: Any,
    first_scales: Any,
    second: Any,
    second_scales: Any,
) -> Any:
    """trtllm_fp4_block_scale_moe."""
    absent = (None, None, None, None)  # bias, alpha, beta and clamp limit of the first product
    done = route_and_call(
        flashinfer.fused_moe.trtllm_fp4_block_scale_moe,
        routing_logits,
        bias,
        hidden_states.view(torch.uint8),
        hidden_states_scale,
        first,
        first_scales,
        *absent,
        second,
        second_scales,
        None,
        output1_scales_scalar,
        output1_scales_gate_scalar,
        output2_scales_scalar,
        *routing_of(gemm1_weights),
        do_finalize=True,
    )
    return done[0] if isinstance(done, (list, tuple)) else done


def cutlass(x: Tensor, experts: Tensor, factors: Tensor, layers: Any, out: Tensor) -> None:
    """cutlass_fused_moe; layers: weights of both layers, their scales, and the scales of quantised tokens."""
    first, second, scales, input_scales = layers
    tokens = (x, experts, factors)
    ranks = {"tp_size": TP_SIZE, "tp_rank": TP_RANK, "ep_size": EP_SIZE, "ep_rank": EP_RANK}
    call(
        flashinfer.fused_moe.cutlass_fused_moe,
        *tokens,
        first,
        second,
        out.dtype,
        scales,
        input_sf=input_scales,
        **ranks,
        output=out,
        tune_max_num_tokens=MOST_TOKENS,
        activation_type=flashinfer.ActivationType(ACTIVATION),
    )


def cutlass_base(
    hidden_states: Tensor,
    token_selected_experts: Tensor,
    token_final_factors: Tensor,
    gemm1_weights: Tensor,
    gemm2_weights: Tensor,
    out: Tensor,
) -> None:
    """Weights as they are."""
    layers: Any = (gemm1_weights, gemm2_weights, [], None)
    cutlass(hidden_states, token_selected_experts, token_final_factors, layers, out)


def cutlass_fp8(
    hidden_states: Tensor,
    token_selected_experts: Tensor,
    token_final_factors: Tensor,
    gemm1_weights: Tensor,
    gemm2_weights: Tensor,
    fc1_dequant: Tensor,
    fc2_quant: Tensor,
    fc2_dequant: Tensor,
    fc1_input_dequant: Tensor,
    out: Tensor,
) -> None:
    """fp8 weights and tokens."""
    scales = [fc1_dequant, fc2_quant, fc2_dequant, fc1_input_dequant]
    layers = (gemm1_weights, gemm2_weights, scales, None)
    cutlass(hidden_states, token_selected_experts, token_final_factors, layers, out)


def nvfp4_layers(first: Any, second: Any, input_scales: Any) -> Any:
    """Give packed weights as the kernel takes them; (weights, scales, factor) of each layer."""
    one = one_of(first[0])
    scales = [one, first[1].view(torch.int32), first[2], one, second[1].view(torch.int32), second[2]]
    packed = [layer[0].view(torch.uint8).view(torch.int64) for layer in (first, second)]
    return (*packed, scales, input_scales)


def cutlass_nvfp4(
    hidden_states: Tensor,
    token_selected_experts: Tensor,
    token_final_factors: Tensor,
    gemm1_weights: Tensor,
    gemm1_weights_scale: Tensor,
    fc1_global: Tensor,
    gemm2_weights: Tensor,
    gemm2_weights_scale: Tensor,
    fc2_global: Tensor,
    out: Tensor,
) -> None:
    """nvfp4 weights, tokens in bfloat16."""
    layers = nvfp4_layers(
        (gemm1_weights, gemm1_weights_scale, fc1_global), (gemm2_weights, gemm2_weights_scale, fc2_global), None
    )
    cutlass(hidden_states, token_selected_experts, token_final_factors, layers, out)


def cutlass_nvfp4_quantised(
    hidden_states: Tensor,
    hidden_states_scale: Tensor,
    token_selected_experts: Tensor,
    token_final_factors: Tensor,
    gemm1_weights: Tensor,
    gemm1_weights_scale: Tensor,
    fc1_global: Tensor,
    gemm2_weights: Tensor,
    gemm2_weights_scale: Tensor,
    fc2_global: Tensor,
    out: Tensor,
) -> None:
    """nvfp4 weights and tokens."""
    layers = nvfp4_layers(
        (gemm1_weights, gemm1_weights_scale, fc1_global),
        (gemm2_weights, gemm2_weights_scale, fc2_global),
        hidden_states_scale.view(torch.uint8),
    )
    cutlass(hidden_states.view(torch.uint8), token_selected_experts, token_final_factors, layers, out)
