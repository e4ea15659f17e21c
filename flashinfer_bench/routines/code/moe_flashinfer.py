"""Calls of FlashInfer's MoE kernels.

`setup` reorders weights, as a server does once. Each such call has a function with the suffix `_setup`. The call gets
the result of `setup` as keyword arguments.
"""

from functools import cache, partial

import flashinfer
import torch
from flashinfer.fused_moe import convert_to_block_layout

from flashinfer_bench.routines.code.formats import BLOCK, to_tiles
from flashinfer_bench.routines.code.tuning import call

TOP_K = 8
N_GROUP = None
TOPK_GROUP = None
ROUTED_SCALING_FACTOR = 2.5
ROUTING_METHOD = "deepseek_v3"
FP4_MODE = "nvfp4"
METHODS = {"renormalize": 1, "deepseek_v3": 2, "llama4": 3, "renormalize_naive": 4}
LOCAL_EXPERT_OFFSET = 0
NUM_TOKENS = 1024
ACTIVATION_TYPE = "Swiglu"
ACTIVATION = {"Swiglu": 3, "Geglu": 4, "Relu2": 6, "GegluTanh": 8}[ACTIVATION_TYPE]
B12X_NAMES = {"Swiglu": "silu", "Relu2": "relu2", "GegluTanh": "gelu_tanh"}
B12X_QUANT_MODE = "nvfp4"
USE_FUNCTIONAL_API = False
BACKEND = "unified"
CANDIDATES = {
    "unified": ["CuteDslConfig", "TrtllmFp4Config"],
    "unified-cute-dsl": ["CuteDslConfig"],
    "unified-trtllm": ["TrtllmFp4Config"],
}
NUM_EXPERTS = 256
HIDDEN_SIZE = 4096
INTERMEDIATE_SIZE = 2048
USE_ROUTING_SCALES_ON_INPUT = False
USE_ROUTING_BIAS = False
USE_SHUFFLED_WEIGHT = False
WEIGHT_LAYOUT = 0
TP_SIZE = 1
TP_RANK = 0
EP_SIZE = 1
EP_RANK = 0
MOST_TOKENS = max(8192, NUM_TOKENS)
EPILOGUE_TILE = 128
SMALL_TILE = 64
BLOCK_K = 128
ROUTED = {
    "routing_method_type": METHODS[ROUTING_METHOD],
    "tune_max_num_tokens": MOST_TOKENS,
    "activation_type": ACTIVATION,
}
RANKS = {"tp_size": TP_SIZE, "tp_rank": TP_RANK, "ep_size": EP_SIZE, "ep_rank": EP_RANK}


@cache
def one_on(device):
    """Give the number 1 on a device, made once."""
    return torch.ones((), dtype=torch.float32, device=device)


def route(kernel, logits, bias, tokens, first, layers, *more, **options):
    """Call a kernel that routes tokens itself; `first` are the weights of the first product."""
    scaling = ROUTED_SCALING_FACTOR if ROUTING_METHOD in ("deepseek_v3", "llama4") else None
    numbers = (NUM_EXPERTS, TOP_K, N_GROUP, TOPK_GROUP, INTERMEDIATE_SIZE, LOCAL_EXPERT_OFFSET, len(first), scaling)
    function = getattr(flashinfer.fused_moe, f"trtllm_{kernel}_moe")
    return call(function, logits, bias, *tokens, first, *layers, *numbers, *more, **options, **ROUTED)


def bias_of(routing_bias):
    """Give the bias in the dtype of the kernel."""
    return routing_bias.to(torch.bfloat16) if USE_ROUTING_BIAS else None


def shuffled(weights):
    """Give fp8 weights in the order of --use_shuffled_weight; in blocks along k with --weight_layout 2."""
    if not USE_SHUFFLED_WEIGHT:
        return weights
    rows = [flashinfer.shuffle_matrix_a(matrix.view(torch.uint8), SMALL_TILE) for matrix in weights]
    blocks = [convert_to_block_layout(matrix, BLOCK_K) for matrix in rows] if WEIGHT_LAYOUT == 2 else rows
    return torch.stack(blocks).view(weights.dtype)


def ordered(matrices, is_gated, shuffle="shuffle_matrix_a"):
    """Give weights whose rows are in the order of the kernels that always want one; a gate wants both halves mixed."""
    rows = [matrix.view(torch.uint8) for matrix in matrices]
    rows = [flashinfer.reorder_rows_for_gated_act_gemm(matrix) for matrix in rows] if is_gated else rows
    return torch.stack([getattr(flashinfer, shuffle)(matrix.contiguous(), EPILOGUE_TILE) for matrix in rows])


def ordered_scales(scales, is_gated):
    """Give the block scales of such weights."""
    return ordered(scales, is_gated, "shuffle_matrix_sf_a").view(torch.float8_e4m3fn).view(scales.shape)


def fp8_block_scale_setup(routing_bias, gemm1_weights, gemm2_weights):
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {"bias": bias_of(routing_bias), "first": shuffled(gemm1_weights), "second": shuffled(gemm2_weights)}


def fp8_block_scale(routing_logits, hidden_states, hidden_states_scale, *rest, bias, first, second):
    """trtllm_fp8_block_scale_moe; the last inputs are weights, each with its scales."""
    tokens, layers = (hidden_states, hidden_states_scale), (rest[-3], second, rest[-1])
    options = {"use_shuffled_weight": USE_SHUFFLED_WEIGHT, "weight_layout": WEIGHT_LAYOUT}
    return route("fp8_block_scale", routing_logits, bias, tokens, first, layers, **options)


def fp8_per_tensor_setup(routing_bias, gemm1_weights, gemm2_weights):
    """Weights in the order of the kernel, and the bias in its dtype."""
    first, second = (ordered(one, one is gemm1_weights).view(one.dtype) for one in (gemm1_weights, gemm2_weights))
    return {"bias": bias_of(routing_bias), "first": first, "second": second}


def fp8_per_tensor(routing_logits, hidden_states, *rest, bias, first, second):
    """trtllm_fp8_per_tensor_scale_moe; the last inputs are factors: two of the first product, one of the second."""
    layers, more = (*rest[-3:-1], second, rest[-1]), USE_ROUTING_SCALES_ON_INPUT
    return route("fp8_per_tensor_scale", routing_logits, bias, [hidden_states], first, layers, more)


def fp4_block_scale_setup(routing_bias, gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale):
    """Weights in the order of the kernel, and the bias in its dtype."""
    return {
        "bias": bias_of(routing_bias),
        "first": ordered(gemm1_weights, True),
        "first_scales": ordered_scales(gemm1_weights_scale, True),
        "second": ordered(gemm2_weights, False),
        "second_scales": ordered_scales(gemm2_weights_scale, False),
    }


def fp4_block_scale(routing_logits, hidden_states, *rest, bias, first, first_scales, second, second_scales):
    """trtllm_fp4_block_scale_moe. With nvfp4, the last inputs are factors: two of the first product, one of the second.

    Scales of tokens follow the routing's bias, except for tokens in bfloat16. They are bytes with the name of e4m3.
    """
    tokens = hidden_states.view(torch.uint8) if FP4_MODE == "nvfp4" else hidden_states
    scales = None if FP4_MODE == "mxfp4_bf16" else rest[1].view(torch.float8_e4m3fn)
    factors = rest[-3:] if FP4_MODE == "nvfp4" else (None, None, None)
    absent = (None, None, None, None)  # bias, alpha, beta and clamp limit of the first product
    given = (first_scales, *absent, second, second_scales, None, *factors)
    done = route("fp4_block_scale", routing_logits, bias, (tokens, scales), first, given, do_finalize=True)
    return done[0] if isinstance(done, (list, tuple)) else done


fp4_block_scale_mx_setup = fp4_block_scale_setup
fp4_block_scale_mx = fp4_block_scale


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


def cutlass_fp4(tokens, weights, out, input_scales=None):
    """Weights in nvfp4: codes, their scales and the factor of each expert, for both layers."""
    one, first, second = one_on(out.device), weights[:3], weights[3:]
    layers = [layer[0].view(torch.uint8).view(torch.int64) for layer in (first, second)]
    scales = [one, first[1].view(torch.int32), first[2], one, second[1].view(torch.int32), second[2]]
    cutlass(tokens, layers, scales, out, input_scales)


def cutlass_base(out, *rest):
    """Weights as they are. As in all that follow, the inputs begin with tokens, their experts and their factors."""
    cutlass(rest[:3], rest[3:], [], out)


def cutlass_fp8(out, *rest):
    """fp8 weights and tokens."""
    cutlass(rest[:3], rest[3:5], [*rest[5:]], out)


def cutlass_nvfp4(out, *rest):
    """nvfp4 weights, tokens in bfloat16."""
    cutlass_fp4(rest[:3], rest[3:], out)


def cutlass_nvfp4_quantised(hidden_states, hidden_states_scale, out, *rest):
    """nvfp4 weights and tokens."""
    tokens, scales = (hidden_states.view(torch.uint8), *rest[:2]), hidden_states_scale.view(torch.uint8)
    cutlass_fp4(tokens, rest[2:], out, scales)


def in_tiles(weights, scales, has_gate=False):
    """Give weights and scales in the layout of CuTe DSL. For a gate, 64 rows of each half take turns."""
    parts = [weights.view(torch.uint8), scales.view(torch.uint8)]
    if has_gate:
        parts = [part.unflatten(1, (2, -1, SMALL_TILE)).transpose(1, 2).flatten(1, 3) for part in parts]
    count, rows, columns = scales.shape
    tiles = torch.stack([to_tiles(matrix, 128, 0) for matrix in parts[1]]).view(scales.dtype)
    return parts[0], flashinfer.cute_dsl.convert_sf_to_mma_layout(tiles, rows, columns * BLOCK, count)


def as_layers(weights, has_gate):
    """Give weights, scales and factors of both products, by the names of CuTe DSL's calls."""
    first, second = in_tiles(*weights[:2], has_gate), in_tiles(*weights[3:5])
    names = ("w1_weight", "w1_weight_sf", "w1_alpha", "w2_weight", "w2_weight_sf", "w2_alpha")
    named = dict(zip(names, (*first, weights[2], *second, weights[5]), strict=True))
    return {**named, "fc2_input_scale": torch.ones(1, device=weights[2].device)}


@cache
def cute_dsl_layer(local):
    """Give the call of experts, made once, since the library keeps what it tuned for one object."""
    options = {"num_local_experts": local, "local_expert_offset": LOCAL_EXPERT_OFFSET}
    options["activation_type"] = ACTIVATION
    if USE_FUNCTIONAL_API:
        return partial(flashinfer.cute_dsl_fused_moe_nvfp4, num_experts=NUM_EXPERTS, top_k=TOP_K, **options)
    return flashinfer.CuteDslMoEWrapper(NUM_EXPERTS, TOP_K, HIDDEN_SIZE, INTERMEDIATE_SIZE, **options).run


def cute_dsl_fp4_block_scale_moe_setup(*inputs):
    """Weights in the layout of the kernel; the last six inputs are those of both products."""
    return {"layers": as_layers(inputs[-6:], ACTIVATION_TYPE != "Relu2")}


def cute_dsl_fp4_block_scale_moe(hidden_states, hidden_states_scale, *rest, layers):
    """CuteDslMoEWrapper, or cute_dsl_fused_moe_nvfp4; the experts of tokens and their factors follow."""
    tokens = (hidden_states.view(torch.uint8), hidden_states_scale[..., None])
    return call(cute_dsl_layer(len(layers["w1_alpha"])), *tokens, *rest[:2], **layers)


@cache
def unified_layer(local):
    """Give the layer, made once: it measures its candidates in the first call."""
    moe = flashinfer.fused_moe
    config = moe.MoEConfig(
        routing=moe.RoutingConfig(NUM_EXPERTS, TOP_K, moe.RoutingMethodType(METHODS["renormalize"])),
        quant=moe.QuantConfig(moe.QuantVariant.NVFP4),
        experts=moe.ExpertConfig(INTERMEDIATE_SIZE, LOCAL_EXPERT_OFFSET, local),
        backend=moe.BackendOptions(tuple(getattr(moe, name)() for name in CANDIDATES[BACKEND])),
        execution=moe.ExecutionConfig(tune_max_num_tokens=MOST_TOKENS),
    )
    return moe.MoELayer(config)


def unified_nvfp4_moe_setup(*inputs):
    """Weights in the layouts of both candidates."""
    first, scales1, factor1, second, scales2, factor2 = inputs[-6:]
    pack = flashinfer.fused_moe.MoEWeightPack()
    pack.prepare_for("cute_dsl_nvfp4", as_layers(inputs[-6:], True))
    routed = {
        "gemm1_weights": ordered(first, True),
        "gemm1_weights_scale": ordered_scales(scales1, True),
        "gemm2_weights": ordered(second, False),
        "gemm2_weights_scale": ordered_scales(scales2, False),
        **dict.fromkeys(("output1_scale_scalar", "output1_scale_gate_scalar"), factor1),
        "output2_scale_scalar": factor2,
    }
    pack.prepare_for("trtllm_fp4_routed", routed)
    return {"pack": pack, "layer": unified_layer(len(factor1))}


def unified_nvfp4_moe(hidden_states, hidden_states_scale, *rest, pack, layer):
    """MoELayer."""
    tokens = (hidden_states.view(torch.uint8), hidden_states_scale, *rest[:2])
    return call(layer, flashinfer.fused_moe.MoEActivationPack(*tokens), pack)


def b12x_fused_moe_setup(*inputs):
    """The call with its weights. The library packs weights in the first call with them, which is made here."""
    options = {"activation": B12X_NAMES[ACTIVATION_TYPE], "quant_mode": B12X_QUANT_MODE}
    if USE_FUNCTIONAL_API:
        function = partial(flashinfer.b12x_fused_moe, num_experts=NUM_EXPERTS, top_k=TOP_K, **options)
    else:
        function = flashinfer.B12xMoEWrapper(NUM_EXPERTS, TOP_K, HIDDEN_SIZE, INTERMEDIATE_SIZE, **options).run
    launch = partial(function, **as_layers(inputs[-6:], False))
    b12x_fused_moe(*inputs[:3], launch=launch)
    return {"launch": launch}


def b12x_fused_moe(hidden_states, token_selected_experts, token_final_factors, *, launch):
    """B12xMoEWrapper, or b12x_fused_moe."""
    routed = {"token_selected_experts": token_selected_experts, "token_final_scales": token_final_factors}
    return launch(x=hidden_states, **routed)


def table_of(weights):
    """Give the addresses of the experts of each slice, and the distance between adapters, in elements."""
    table = torch.zeros(len(weights), weights.shape[2], dtype=torch.int64, device=weights.device)
    strides = [flashinfer.fused_moe.fill_w_ptr(table, part, len(part[0]), at) for at, part in enumerate(weights)]
    return table, strides[0]


def bgmv_moe_setup(w1, w2):
    """Addresses of the weights, and the first column of each slice."""
    starts = torch.arange(len(w2), dtype=torch.int64, device=w2.device) * w2.shape[3]
    return {"first": table_of(w1), "second": table_of(w2), "starts": starts}


def bgmv_moe(hidden_states, w2, token_ids, expert_ids, lora_ids, token_final_factors, out, *, first, second, starts):
    """bgmv_moe_shrink, then bgmv_moe_expand. Both add to zeros."""
    shape, pairs = (len(w2), len(token_ids), w2.shape[4]), (token_ids, expert_ids)
    low = torch.zeros(shape, dtype=hidden_states.dtype, device=out.device)
    flashinfer.fused_moe.bgmv_moe_shrink(low, hidden_states, first[0], *pairs, lora_ids, first[1])
    out.zero_()
    table, stride = second
    sizes = [w2.shape[3]] * len(w2)
    more = (token_final_factors, lora_ids, starts, sizes, stride)
    flashinfer.fused_moe.bgmv_moe_expand(out, low, table, *pairs, *more)
