"""The MoE family: fused expert layers that include the routing (trtllm) or follow it, and low-rank updates of experts.

There are T tokens, and E experts, of which L are on this rank. Each token has k experts. The hidden size is h, and the
intermediate size i. A pair of a token and an expert takes 6 h i FLOPs: 4 h i for both halves of the first product, and
2 h i for the second product. With Relu2, the first product has one half, so that a pair takes 4 h i FLOPs.

If the routing is an input, this input gives the numbers of pairs and active experts. If the kernel routes tokens, a
case expects T k L / E pairs, and L (1 - (1 - k / E)^T) active experts.

Bytes are tokens, logits, the output, and 3 h i weights with their scales for each active expert. An element with its
scales has 9 / 16 bytes in nvfp4, 17 / 32 in mxfp4, 33 / 32 in mxfp8, and 1 byte in fp8. With block scales, an element
has 1 + 1 / 32 bytes in fp8 tokens, and 1 + 4 / 128² bytes in fp8 weights.

`bgmv_moe` has updates of rank r: a pair takes 4 h r FLOPs for each slice of the output. Bytes are tokens, indices, the
float32 output, and 2 h r weights for each slice and each chosen pair of an adapter and an expert.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from flashinfer_bench.data.dtypes import Unit
from flashinfer_bench.routines.case.spec import (
    BLACKWELL,
    CAPABILITIES,
    GEFORCE,
    HALF,
    Case,
    Check,
    Routine,
    at_most,
    counted,
    floats,
    from_zero,
    generator,
    real,
    require,
    round_up,
    size,
    split,
    stored,
    switch,
    whole,
    word,
)

METHODS: Final = ("renormalize", "deepseek_v3", "llama4", "renormalize_naive")
ACTIVATIONS: Final = ("Swiglu", "Geglu", "GegluTanh", "Relu2")
"""The library's names of activations. Each routine takes some of these activations. Relu2 has no gate."""
MX_TOKENS: Final[Mapping[str, tuple[str, Unit]]] = {
    "mxfp4_mxfp8": ("float8_e4m3fn", "fp8"),
    "mxfp4_bf16": ("bfloat16", "fp16"),
}
"""--fp4_mode with mxfp4 weights → dtype of the tokens, and the unit of the products."""
FLAGS: Final = (
    size("num_tokens", "tokens"),
    size("hidden_size", "hidden size"),
    size("intermediate_size", "size between the two products"),
    size("num_experts", "experts in all"),
    size("top_k", "experts of a token"),
    whole("n_group", "groups of experts (deepseek_v3)"),
    whole("topk_group", "groups that a token can use (deepseek_v3)"),
    real("routed_scaling_factor", "sum of the weights of a token's experts (deepseek_v3)", 2.5),
    from_zero("local_expert_offset", "first expert of this rank"),
    whole("local_num_experts", "experts of this rank (default: all)"),
    word("routing_method", "method that chooses experts", "deepseek_v3", METHODS),
    switch("use_shuffled_weight", "weights in the order of the kernel (fp8 block scale)"),
    whole("weight_layout", "0 by k, 1 by rows, 2 blocks along k (fp8 block scale)", 0, (0, 1, 2), least=0),
    switch("use_routing_bias", "add a bias to the routing scores (deepseek_v3)"),
    switch("use_routing_scales_on_input", "weight the input, not the output (llama4)"),
    word("input_dtype", "dtype of tokens that are not quantised", "bfloat16", HALF),
    word("weight_dtype", "dtype of weights before quantisation", "bfloat16", HALF),
    word("cutlass_variant", "cutlass: quantisation", "base", ("base", "fp8", "nvfp4")),
    switch("quantized_input", "cutlass nvfp4: tokens are quantised already"),
    whole("tp_size", "cutlass: ranks that share every expert", 1),
    from_zero("tp_rank", "cutlass: this one of them"),
    whole("ep_size", "cutlass: ranks that each have a part of the experts", 1),
    from_zero("ep_rank", "cutlass: this one of them"),
    word("activation_type", "activation", "Swiglu", ACTIVATIONS),
    word("gated_act", "older spelling of --activation_type Swiglu and Geglu", "swiglu", ("swiglu", "geglu")),
    word("fp4_mode", "trtllm_fp4: weights and tokens", "nvfp4", ("nvfp4", *MX_TOKENS)),
    switch("use_functional_api", "cute_dsl, b12x: call the library's function, not its wrapper"),
    word("b12x_quant_mode", "b12x: products of 4 bits, or of bfloat16 tokens", "nvfp4", ("nvfp4", "w4a16")),
    whole("rank", "bgmv: rank of the updates", 32),
    whole("num_loras", "bgmv: adapters", 8),
    whole("num_slices", "bgmv: updates of a pair, beside each other", 1),
    switch("autotune", "let the library tune before timing"),
)
ACT_DEVIATION: Final = 0.6
"""Standard deviation of an activated gate times a linear part. The standard deviation of both factors is 1 before the
activation."""
RELU2_DEVIATION: Final = 1.2
"""Root of the mean square of values after Relu2."""
UNITS: Final[Mapping[str, Unit]] = {"base": "fp16", "fp8": "fp8", "nvfp4": "fp4"}
"""--cutlass_variant → the unit of the products."""
ERRORS: Final[Mapping[Unit, float]] = {"fp16": 0.03, "fp8": 0.1, "fp4": 0.25}
"""Unit of the products → the allowed error, as a share of an output's standard deviation.

Kernels quantise the values between the two products, unlike the reference."""
ROUNDED_TOKENS: Final = 1.8
"""Factor of the allowed error for kernels that also round tokens to 4 bits, unlike the reference."""
E2M1_DEVIATION: Final = math.sqrt(8.5625 * 13 / 12)
"""Standard deviation of a random 4-bit code with a random scale between 0.5 and 1.5."""
E8M0_DEVIATION: Final = math.sqrt(4.2625)
"""Root of the mean square of a random power of two between 2^-2 and 2^2."""
EVENNESS: Final = 8.0
"""Concentration of the Dirichlet distribution of a token's weights. The value keeps weights away from 0 and 1."""
BIASES: Final = 140
"""Routing biases are integers up to this limit, divided by 2^13. They are exact in bfloat16, with standard deviation
0.01."""


def check_experts(unit: Unit, top_k: int, scaling: float = 1.0) -> Check:
    """Return the tolerance of the weighted sum of experts. The input and the output of the second product have the same
    standard deviation.

    Args:
        unit: unit of the products.
        top_k: number of experts of a token.
        scaling: factor of the allowed error, such as the sum of the weights of a token's experts.
    """
    return Check(2e-2, ERRORS[unit] * (ACT_DEVIATION * scaling / math.sqrt(top_k)), 0.95)


def choose_experts(args: Namespace, tokens: int) -> tuple[Any, Any]:
    """Return the distinct experts of each token (int32) and their weights (float32), which sum to 1."""
    source, top_k = generator(args, 3), at_most(args, "top_k", "num_experts")
    chosen = source.random((tokens, args.num_experts)).argsort(axis=1)[:, :top_k]
    return chosen.astype("int32"), source.dirichlet([EVENNESS] * top_k, tokens).astype("float32")


def _count_local(args: Namespace) -> int:
    """Return the number of experts of this rank, or raise UsageError."""
    local = args.local_num_experts or args.num_experts
    beyond = "--local_expert_offset and --local_num_experts go beyond --num_experts"
    require(args.local_expert_offset <= args.num_experts - local, beyond)
    return int(local)


def _choose_activation(args: Namespace, known: Sequence[str] = ACTIVATIONS[:2]) -> str:
    """Return the activation of --activation_type or --gated_act; raise UsageError for an activation that the routine
    lacks."""
    older = {"swiglu": "Swiglu", "geglu": "Geglu"}[args.gated_act]
    chosen = older if args.activation_type == "Swiglu" else args.activation_type
    require(older in ("Swiglu", chosen), f"--gated_act {args.gated_act} contradicts --activation_type {chosen}")
    require(chosen in known, f"--activation_type {chosen}: {args.routine} takes {', '.join(known)}")
    return str(chosen)


def _check_routing(args: Namespace) -> int:
    """Return the number of experts of this rank, or raise UsageError."""
    top_k, groups, kept = args.top_k, args.n_group or 1, args.topk_group or 1
    method = args.routing_method
    at_most(args, "top_k", "num_experts")
    in_groups = args.n_group is not None or args.topk_group is not None
    implied = "Routing kernel with groups implies DeepSeekV3 routing method."
    require(not in_groups or method == "deepseek_v3", implied)
    require(method != "llama4" or top_k == 1, "--routing_method llama4 takes --top_k 1")
    each = split(args, "num_experts", groups)
    require(kept <= groups, f"--topk_group {kept} is more than --n_group {groups}")
    require(top_k <= kept * each, "--top_k is more than the experts of --topk_group groups")
    return _count_local(args)


def make_layers(
    kind: str,
    experts: str,
    inner: str,
    sizes: tuple[int, int],
    *,
    active: float,
    halves: int = 2,
    is_tiled: bool = False,
    factors: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return the weights of both products, and the scales of the weights.

    Args:
        kind: nvfp4 or mxfp4, with one scale for 16 or 32 elements of a row; fp8_block_scale, with one scale for 128 by
            128 elements; or a dtype without scales.
        experts: the axis of experts.
        inner: the axis between the products.
        sizes: the hidden size, and the size between the products.
        active: number of experts whose weights are read.
        halves: 2 if the activation has a gate, else 1.
        is_tiled: whether scales are padded to whole tiles of 128 rows by 4 columns.
        factors: for each product, one factor for each expert.
    """
    h, i = sizes
    made: dict[str, Any] = {}
    dtype = {"nvfp4": "float4_e2m1", "mxfp4": "float4_e2m1", "fp8_block_scale": "float8_e4m3fn"}.get(kind, kind)
    up = halves * i
    for layer, rows, columns, shape in (1, up, h, f"{up} hidden_size"), (2, h, i, f"hidden_size {inner}"):
        name, count = f"gemm{layer}_weights", active * rows * columns
        made[name] = counted(f"{dtype}[{experts} {shape}]", count)
        if kind == "nvfp4":
            tile = (128, 4) if is_tiled else (1, 1)
            tall, wide = round_up(rows, tile[0]), round_up(columns // 16, tile[1])
            made[f"{name}_scale"] = counted(f"float8_e4m3fn[{experts} {tall} {wide}]", count / 16)
        elif kind == "mxfp4":
            made[f"{name}_scale"] = counted(f"float8_e8m0fnu[{experts} {rows} {columns // 32}]", count / 32)
        elif kind == "fp8_block_scale":
            made[f"{name}_scale"] = counted(f"float32[{experts} {rows // 128} {columns // 128}]", count / 128**2)
        if factors:
            made[f"fc{layer}_global"] = counted(factors[layer - 1], active)
    return made


FORMATS: Final[Mapping[str, tuple[str, int, Unit]]] = {
    "fp8_block_scale": ("fp8_block_scale", 128, "fp8"),
    "fp8_per_tensor": ("float8_e4m3fn", 1, "fp8"),
    "fp4_block_scale": ("nvfp4", 64, "fp4"),
}
"""Reference of a trtllm kernel that routes tokens itself → `kind` in `make_layers`, the divisor of both sizes (hidden
and intermediate), and the unit of the products."""


def make_routed(args: Namespace, name: str) -> Case:
    """Make a case of a kernel that routes tokens itself.

    Args:
        args: the flags.
        name: a key of `FORMATS`.
    """
    h, i, tokens, experts = args.hidden_size, args.intermediate_size, args.num_tokens, args.num_experts
    is_mx = name == "fp4_block_scale" and args.fp4_mode != "nvfp4"
    kind, step, unit = ("mxfp4", 128, MX_TOKENS[args.fp4_mode][1]) if is_mx else FORMATS[name]
    local, is_grouped = _check_routing(args), args.routing_method == "deepseek_v3"
    split(args, "hidden_size", step)
    split(args, "intermediate_size", step)
    activation = _choose_activation(args)
    active = local * (1 - (1 - args.top_k / experts) ** tokens)
    layers = make_layers(kind, "local_experts", "intermediate_size", (h, i), active=active)
    scales = {
        "fp8_block_scale": {"hidden_states_scale": f"float32[{h // 128} num_tokens]"},
        "fp4_block_scale": {"hidden_states_scale": f"float8_e4m3fn[num_tokens {h // 16}]"},
    }
    factors = (1 / math.sqrt(h), 1 / math.sqrt(i))
    if name == "fp4_block_scale":
        factors = (1 / E2M1_DEVIATION**2, 1 / E2M1_DEVIATION)
    token, scaling = layers["gemm1_weights"].dtype, args.routed_scaling_factor if is_grouped else 1.0
    if is_mx:
        token = MX_TOKENS[args.fp4_mode][0]
        name += "_mx"
        scales = {name: {"hidden_states_scale": f"float8_e8m0fnu[num_tokens {h // 32}]"}} if unit == "fp8" else {}
        # Without factors, products are large. So one half of the gates is open, and the other half is shut.
        weight = math.sqrt(8.5625) * E8M0_DEVIATION
        before = math.sqrt(h) * weight * (E8M0_DEVIATION if unit == "fp8" else 1)
        scaling *= math.sqrt(0.5) * before**2 / ACT_DEVIATION * math.sqrt(i) * weight
    first, second = (counted(floats([factor] * local), active) for factor in factors)
    outer = {"output1_scales_scalar": first, "output1_scales_gate_scalar": first, "output2_scales_scalar": second}
    # DeepSeek's routing takes float32 logits, other methods bfloat16. Only DeepSeek's routing reads the bias.
    biases = generator(args, 2).integers(-BIASES, BIASES + 1, experts) * args.use_routing_bias / 2**13
    return Case(
        axes={"local_experts": local},
        inputs={
            "routing_logits": f"{'float32' if is_grouped else 'bfloat16'}[num_tokens num_experts]",
            "routing_bias": counted(floats(biases), experts / 2 if args.use_routing_bias and is_grouped else 0),
            "hidden_states": f"{token}[num_tokens hidden_size]",
            **scales.get(name, {}),
            **layers,
            **({} if is_mx or name == "fp8_block_scale" else outer),
        },
        outputs={"out": "bfloat16[num_tokens hidden_size]"},
        reference=name,
        constants={
            "ACTIVATION_TYPE": activation,
            **({"BLOCK": 32} if is_mx else {}),
            "USE_ROUTING_SCALES_ON_INPUT": args.use_routing_scales_on_input and name == "fp8_per_tensor",
        },
        flops=6 * h * i * tokens * args.top_k * local / experts,
        unit=unit,
        check=check_experts(unit, args.top_k, scaling),
        refusals={"trtllm": _why_not_routed(args, name)},
        columns={"activation_type": activation, "gated_act": activation.lower()},
    )


def _why_not_ordered(args: Namespace) -> str:
    """Return why the library cannot order nvfp4 weights for the trtllm kernels; empty if it can."""
    return "--hidden_size is not a multiple of 128" if args.hidden_size % 128 else ""


def _why_not_routed(args: Namespace, name: str) -> str:
    if name.startswith("fp4_block_scale"):
        return "--top_k above 8 is not supported" if args.top_k > 8 else _why_not_ordered(args)
    if args.routing_method.startswith("renormalize") and args.top_k > 1:
        return "this routing takes --top_k 1 in fp8"
    is_too_large = name == "fp8_block_scale" and (args.top_k > 8 or (args.topk_group or 1) > 4)
    in_groups = args.routing_method == "deepseek_v3"
    return "deepseek_v3 takes --top_k up to 8 and --topk_group up to 4" if in_groups and is_too_large else ""


def make_cutlass(args: Namespace) -> Case:
    """Make a case of the layer on one of several ranks. The routing is an input. Tensor-parallel ranks split the
    intermediate size."""
    variant, h, is_quantised, top_k = args.cutlass_variant, args.hidden_size, args.quantized_input, args.top_k
    i, local = split(args, "intermediate_size", args.tp_size), split(args, "num_experts", args.ep_size)
    require(args.ep_rank < args.ep_size and args.tp_rank < args.tp_size, "--ep_rank or --tp_rank: too large")
    require(not is_quantised or variant == "nvfp4", "--quantized_input goes with --cutlass_variant nvfp4")
    whole_blocks = "nvfp4: --hidden_size and the rank's --intermediate_size: multiples of 64"
    require(variant != "nvfp4" or (h % 64 == 0 and i % 64 == 0), whole_blocks)
    first, unit, activation = args.ep_rank * local, UNITS[variant], _choose_activation(args)
    chosen, weights = choose_experts(args, args.num_tokens)
    here = chosen[(chosen >= first) & (chosen < first + local)]
    token = kind = out = args.input_dtype
    inputs: dict[str, Any] = {}
    factors: list[Any] = []
    scales: dict[str, Any] = {}
    if variant == "nvfp4":
        kind, token = "nvfp4", "float4_e2m1" if is_quantised else token
        deviations = (E2M1_DEVIATION if is_quantised else 1.0, 1.0)
        factors = [floats([1 / (E2M1_DEVIATION * deviation)] * local) for deviation in deviations]
    elif variant == "fp8":
        token, kind, one = "float8_e4m3fn", "float8_e4m3fn", floats(1.0)
        fc1, fc2 = (floats([1 / math.sqrt(size)] * local) for size in (h, i))
        scales = {"fc1_dequant": fc1, "fc2_quant": one, "fc2_dequant": fc2, "fc1_input_dequant": one}
    if is_quantised:
        shape = f"{round_up(args.num_tokens, 128)} {round_up(h // 16, 4)}"
        inputs["hidden_states_scale"] = counted(f"float8_e4m3fn[{shape}]", args.num_tokens * h / 16)
    layers = make_layers(
        kind, "local_experts", "shard", (h, i), active=len({*here.tolist()}), is_tiled=True, factors=factors
    )
    routed = {"token_selected_experts": stored(chosen), "token_final_factors": floats(weights)}
    return Case(
        axes={"local_experts": local, "shard": i},
        inputs={"hidden_states": f"{token}[num_tokens hidden_size]", **inputs, **routed, **layers, **scales},
        outputs={"out": f"{out if variant == 'base' else 'bfloat16'}[num_tokens hidden_size]"},
        reference=f"cutlass_{variant}{'_quantised' if is_quantised else ''}",
        constants={
            "ACTIVATION_TYPE": activation,
            "LOCAL_EXPERT_OFFSET": first,
            "USE_ROUTING_SCALES_ON_INPUT": False,
        },
        flops=6 * len(here) * h * i,
        unit=unit,
        check=check_experts(unit, top_k, ROUNDED_TOKENS if variant == "nvfp4" and not is_quantised else 1.0),
        columns={"activation_type": activation, "gated_act": activation.lower()},
    )


def make_prerouted(args: Namespace) -> Case:
    """Make a case of nvfp4 experts after the routing. Tokens are nvfp4 or, for b12x, bfloat16: b12x quantises tokens
    itself."""
    known = ("Swiglu",) if args.routine == "unified_nvfp4_moe" else ("Swiglu", "GegluTanh", "Relu2")
    activation, local, is_b12x = _choose_activation(args, known), _count_local(args), args.routine == "b12x_fused_moe"
    first = args.local_expert_offset
    for flag in ("hidden_size", "intermediate_size"):
        split(args, flag, 64)
    h, i, has_gate = args.hidden_size, args.intermediate_size, activation != "Relu2"
    chosen, weights = choose_experts(args, args.num_tokens)
    here = chosen[(chosen >= first) & (chosen < first + local)]
    x: dict[str, Any] = {"hidden_states": "bfloat16[num_tokens hidden_size]"}
    if not is_b12x:
        scale = f"float8_e4m3fn[num_tokens {h // 16}]"
        x = {"hidden_states": "float4_e2m1[num_tokens hidden_size]", "hidden_states_scale": scale}
    # b12x scales tokens by the first factor, too, before it quantises them. So that factor is 1.
    powers = (0, -3) if is_b12x else (-2, -1)
    layers = make_layers(
        *("nvfp4", "local_experts", "intermediate_size", (h, i)),
        active=len({*here.tolist()}),
        halves=1 + has_gate,
        factors=[floats([E2M1_DEVIATION**power] * local) for power in powers],
    )
    unit: Unit = "fp16" if is_b12x and args.b12x_quant_mode == "w4a16" else "fp4"
    scaling = 1.0 if has_gate else RELU2_DEVIATION / ACT_DEVIATION
    scaling *= ROUNDED_TOKENS if is_b12x and unit == "fp4" else 1
    return Case(
        axes={"local_experts": local},
        inputs={**x, "token_selected_experts": stored(chosen), "token_final_factors": floats(weights), **layers},
        outputs={"out": "bfloat16[num_tokens hidden_size]"},
        constants={"ACTIVATION_TYPE": activation, "USE_ROUTING_SCALES_ON_INPUT": False},
        flops=(6 if has_gate else 4) * len(here) * h * i,
        unit=unit,
        check=check_experts(unit, args.top_k, scaling),
        refusals={
            "b12x": local < args.num_experts and "--local_num_experts: it takes all experts",
            **dict.fromkeys(UNIFIED, _why_not_ordered(args)),
        },
        columns={"activation_type": activation, "gated_act": activation.lower()},
    )


UNIFIED: Final = ("unified", "unified-cute-dsl", "unified-trtllm")
LORA_RANKS: Final = (8, 16, 32, 64)
LORA_SIZES: Final = (
    *(384, 736, 768, 1024, 1344, 1472, 1536, 1856, 2048, 2112, 2688, 2816, 2880, 2944, 3072, 4096, 5120, 5888),
    *(7168, 8192, 10240, 14336, 16384, 28672),
)
"""The ranks and hidden sizes for which the library compiles bgmv_moe."""
LORA_ERROR: Final = 0.02
"""Allowed error of an update, as a share of the update's standard deviation. The kernel rounds values between the two
products."""


def make_bgmv_moe(args: Namespace) -> Case:
    """Make a case of low-rank updates. Each token has an adapter, and each adapter has an update of every expert."""
    tokens, top_k, hidden = args.num_tokens, args.top_k, args.hidden_size
    chosen, weights = choose_experts(args, tokens)
    adapters = generator(args, 4).integers(args.num_loras, size=tokens)
    active = len({*(adapters[:, None] * args.num_experts + chosen).reshape(-1).tolist()})
    read, wide = args.num_slices * active * hidden * args.rank, args.num_slices * hidden
    layer = f"{args.input_dtype}[num_slices num_loras num_experts"
    is_compiled = args.rank in LORA_RANKS and hidden in LORA_SIZES
    return Case(
        inputs={
            "hidden_states": f"{args.input_dtype}[num_tokens hidden_size]",
            "w1": counted(f"{layer} rank hidden_size]", read),
            "w2": counted(f"{layer} hidden_size rank]", read),
            "token_ids": stored([token for token in range(tokens) for _ in range(top_k)], "int64"),
            "expert_ids": stored(chosen.reshape(-1), "int64"),
            "lora_ids": stored(adapters, "int64"),
            "token_final_factors": floats(weights.reshape(-1)),
        },
        outputs={"out": f"float32[num_tokens {wide}]"},
        flops=4 * args.num_slices * tokens * top_k * hidden * args.rank,
        unit="fp16",
        check=Check(LORA_ERROR, LORA_ERROR / math.sqrt(top_k)),
        refusals={"cuda": not is_compiled and f"it has ranks {LORA_RANKS} and hidden sizes {LORA_SIZES}"},
    )


def _routed(kind: str, summary: str) -> Routine:
    name = f"trtllm_{kind.removesuffix('_scale')}_scale_moe"
    return Routine("moe", FLAGS, partial(make_routed, name=kind), name, summary, {"trtllm": (*BLACKWELL, "10.7")})


_prerouted = partial(Routine, "moe", FLAGS, make_prerouted)
ROUTINES: Final = (
    _routed("fp4_block_scale", "nvfp4 experts and routing"),
    _routed("fp8_block_scale", "fp8 experts, block scales, and routing"),
    _routed("fp8_per_tensor", "fp8 experts, one scale each, and routing"),
    Routine(
        *("moe", FLAGS, make_cutlass, "cutlass_fused_moe", "experts after the routing"),
        {"cutlass": (*BLACKWELL, "10.7", *GEFORCE)},
    ),
    _prerouted("cute_dsl_fp4_block_scale_moe", "nvfp4 experts after the routing", {"cute-dsl": BLACKWELL}),
    _prerouted(
        *("unified_nvfp4_moe", "the same through MoELayer, which chooses the faster of two kernels"),
        dict.fromkeys(UNIFIED, BLACKWELL),
    ),
    _prerouted("b12x_fused_moe", "nvfp4 experts after the routing, tokens in bfloat16", {"b12x": GEFORCE}),
    Routine(
        *("moe", FLAGS, make_bgmv_moe, "bgmv_moe", "low-rank updates of experts, with an adapter for each token"),
        {"cuda": CAPABILITIES[4:]},
        module="bgmv_moe",
    ),
)
