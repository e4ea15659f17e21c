"""The MoE family: fused expert layers with their routing (trtllm), or after it (cutlass).

T tokens, h hidden and i intermediate size, E experts of which L are here, k experts for each token. A pair of a token
and an expert takes 2 (2 i h) FLOPs for both halves of the first product and 2 i h for the second: 6 h i. Where the
routine routes, the case cannot know the outcome. It expects T k L / E pairs and L (1 - (1 - k / E)^T) active experts.
Bytes: tokens, logits, the weights of active experts with their scales, and the output.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flashinfer_bench.data.dtypes import Unit
from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import BLACKWELL, Case, Check, Code, Flag, Routine, Tensor
from flashinfer_bench.routines.case.stored import choose_experts, floats, small_floats
from flashinfer_bench.routines.case.words import read_dtype, require, round_up

FAMILY: Final = "moe"
METHODS: Final = {"renormalize": 1, "deepseek_v3": 2, "llama4": 3, "renormalize_naive": 4}
"""Routing method → the library's number for it."""
ACTIVATIONS: Final = {"swiglu": 3, "geglu": 4}
FLAGS: Final = (
    Flag("num_tokens", "int", "tokens", required=True),
    Flag("hidden_size", "int", "hidden size", required=True),
    Flag("intermediate_size", "int", "size between the two products", required=True),
    Flag("num_experts", "int", "experts in all", required=True),
    Flag("top_k", "int", "experts of a token", required=True),
    Flag("n_group", "int", "groups of experts (deepseek_v3)"),
    Flag("topk_group", "int", "groups that a token may use (deepseek_v3)"),
    Flag("routed_scaling_factor", "float", "weights of a token's experts sum to it (deepseek_v3)", 2.5),
    Flag("local_expert_offset", "int", "first expert that is here", 0),
    Flag("local_num_experts", "int", "experts that are here; all where it is left out"),
    Flag("routing_method", "text", "how experts are chosen", "deepseek_v3", tuple(METHODS)),
    Flag("use_shuffled_weight", "switch", "weights in the order of the kernel (fp8 block scale)", False),
    Flag("weight_layout", "int", "0 by k, 1 by rows, 2 blocks along k (fp8 block scale)", 0, (0, 1, 2)),
    Flag("use_routing_bias", "switch", "add a bias to the scores that choose (deepseek_v3)", False),
    Flag("use_routing_scales_on_input", "switch", "weigh the input, not the output (llama4)", False),
    Flag("input_dtype", "text", "dtype of tokens where they are not quantised", "bfloat16", ("bfloat16", "float16")),
    Flag("weight_dtype", "text", "dtype of weights before they are quantised", "bfloat16", ("bfloat16", "float16")),
    Flag("cutlass_variant", "text", "cutlass: what is quantised", "base", ("base", "fp8", "nvfp4")),
    Flag("quantized_input", "switch", "cutlass nvfp4: tokens are quantised already", False),
    Flag("tp_size", "int", "cutlass: ranks that share every expert", 1),
    Flag("tp_rank", "int", "cutlass: this one of them", 0),
    Flag("ep_size", "int", "cutlass: ranks that share the experts out", 1),
    Flag("ep_rank", "int", "cutlass: this one of them", 0),
    Flag("gated_act", "text", "activation", "swiglu", tuple(ACTIVATIONS)),
    Flag("autotune", "switch", "let the library tune before timing", False),
)
ACT_DEVIATION: Final = 0.6
"""Deviation of an activated gate times a linear part, both of unit deviation."""
VARIANT_UNITS: Final[Mapping[str, Unit]] = {"base": "fp16", "fp8": "fp8", "nvfp4": "fp4"}
"""Variant of cutlass → the unit that its products run on."""
ERRORS: Final[Mapping[Unit, float]] = {"fp16": 0.03, "fp8": 0.1, "fp4": 0.25}
"""Unit of the products → the allowed error, as a share of the deviation of an output.

Kernels quantise the values between the two products, and the reference does not."""
E2M1_DEVIATION: Final = math.sqrt(8.5625 * 13 / 12)
"""Deviation of a random 4-bit code with a random scale between 0.5 and 1.5."""
BIAS: Final = 0.01
"""Deviation of the routing's bias."""


def _expected(args: Namespace, local: int) -> tuple[float, float]:
    """Return the expected number of pairs, and of experts that any token goes to."""
    share = args.top_k / args.num_experts
    return args.num_tokens * args.top_k * local / args.num_experts, local * (1 - (1 - share) ** args.num_tokens)


def _check_routing(args: Namespace) -> None:
    require(args.top_k <= args.num_experts, f"--top_k {args.top_k} is more than --num_experts {args.num_experts}")
    in_groups = args.n_group is not None or args.topk_group is not None
    require(
        not in_groups or args.routing_method == "deepseek_v3",
        "Routing kernel with groups implies DeepSeekV3 routing method.",
    )
    require(args.routing_method != "llama4" or args.top_k == 1, "--routing_method llama4 takes --top_k 1")
    groups, kept = args.n_group or 1, args.topk_group or 1
    require(args.num_experts % groups == 0, f"--n_group {groups} does not divide --num_experts {args.num_experts}")
    require(kept <= groups, f"--topk_group {kept} is more than --n_group {groups}")
    require(args.top_k <= kept * args.num_experts // groups, "--top_k is more than the experts of --topk_group groups")


def _local(args: Namespace) -> int:
    local = args.local_num_experts or args.num_experts
    require(
        0 <= args.local_expert_offset <= args.num_experts - local,
        "--local_expert_offset and --local_num_experts go beyond --num_experts",
    )
    return int(local)


def _routing(args: Namespace) -> dict[str, Tensor]:
    # DeepSeek's routing takes float32 logits, the others bfloat16.
    dtype = "float32" if args.routing_method == "deepseek_v3" else "bfloat16"
    scale = BIAS if args.use_routing_bias else 0.0
    return {
        "routing_logits": Tensor(dtype, "num_tokens num_experts"),
        "routing_bias": Tensor("float32", "num_experts", small_floats(args, args.num_experts, scale)),
    }


def _routing_bytes(args: Namespace) -> float:
    size = 4 if args.routing_method == "deepseek_v3" else 2
    is_biased = args.use_routing_bias and args.routing_method == "deepseek_v3"  # the only kernel that reads it
    return float(args.num_tokens * args.num_experts * size + (2 * args.num_experts if is_biased else 0))


def _reference_constants(args: Namespace, **more: Any) -> dict[str, Any]:
    return {
        "TOP_K": args.top_k,
        "N_GROUP": args.n_group or 1,
        "TOPK_GROUP": args.topk_group or 1,
        "SCALING": args.routed_scaling_factor,
        "METHOD": args.routing_method,
        "OFFSET": args.local_expert_offset,
        "GEGLU": args.gated_act == "geglu",
        **more,
    }


def _library_constants(args: Namespace, **more: Any) -> dict[str, Any]:
    return {
        "TOP_K": args.top_k,
        "N_GROUP": args.n_group,
        "TOPK_GROUP": args.topk_group,
        "SCALING": args.routed_scaling_factor if args.routing_method in ("deepseek_v3", "llama4") else None,
        "METHOD": METHODS[args.routing_method],
        "OFFSET": args.local_expert_offset,
        "ACTIVATION": ACTIVATIONS[args.gated_act],
        "EXPERTS": args.num_experts,
        "INTERMEDIATE": args.intermediate_size,
        "USES_BIAS": args.use_routing_bias,
        "AUTOTUNE": args.autotune,
        "MOST_TOKENS": max(8192, args.num_tokens),
        **more,
    }


def _axes(args: Namespace, local: int) -> dict[str, int]:
    return {
        "num_tokens": args.num_tokens,
        "num_experts": args.num_experts,
        "local_experts": local,
        "hidden_size": args.hidden_size,
        "intermediate_size": args.intermediate_size,
    }


def _label(args: Namespace, *more: Any) -> str:
    sizes = f"t{args.num_tokens}_h{args.hidden_size}_i{args.intermediate_size}_e{args.num_experts}_k{args.top_k}"
    return "_".join([sizes, *map(str, more)])


def _deviation(args: Namespace) -> float:
    """Return the deviation of an output. The second product is scaled to the size of its input."""
    scaling = args.routed_scaling_factor if args.routing_method == "deepseek_v3" else 1.0
    return ACT_DEVIATION * scaling / math.sqrt(args.top_k)


@dataclass(frozen=True)
class RoutedKernel:
    """A kernel of trtllm, which routes tokens itself, at the sizes of one case."""

    function: str
    """The function that calls it, and its reference: both have this name."""
    inputs: Mapping[str, Tensor]
    """What it takes after the logits and the bias of the routing."""
    token_bytes: float
    """Bytes of one token with its scales."""
    expert_bytes: float
    """Bytes of one expert's weights with their scales."""
    unit: Unit
    refusal: str
    """Why the kernel cannot do this case; empty where it can."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Constants of the function beside those of the routing."""


def _make_routed(args: Namespace, kernel: RoutedKernel) -> Case:
    local, h, i = _local(args), args.hidden_size, args.intermediate_size
    pairs, active = _expected(args, local)
    marks = [args.routing_method, *([f"g{args.n_group}_{args.topk_group}"] if args.n_group else [])]
    scales_input = {"SCALES_INPUT": args.use_routing_scales_on_input} if kernel.function == "fp8_per_tensor" else {}
    constants = _library_constants(args, **kernel.constants, **scales_input)
    return Case(
        label=_label(args, *marks, *([f"local{local}"] if local != args.num_experts else [])),
        op_type="moe",
        axes=_axes(args, local),
        inputs={**_routing(args), **kernel.inputs},
        outputs={"out": Tensor("bfloat16", "num_tokens hidden_size")},
        reference=Code("moe_torch", kernel.function, _reference_constants(args, **scales_input)),
        solutions={"trtllm": Code("moe_flashinfer", kernel.function, constants)},
        cost=Cost(
            6 * pairs * h * i,
            _routing_bytes(args) + args.num_tokens * (kernel.token_bytes + 2 * h) + active * kernel.expert_bytes,
            kernel.unit,
        ),
        check=Check(2e-2, ERRORS[kernel.unit] * _deviation(args), 0.95),
        refusals={"trtllm": kernel.refusal} if kernel.refusal else {},
    )


def _why_not_fp8(args: Namespace) -> str:
    is_plain = args.routing_method.startswith("renormalize")
    return "this routing takes --top_k 1 in fp8" if is_plain and args.top_k > 1 else ""


def _why_not_groups(args: Namespace) -> str:
    is_too_large = args.top_k > 8 or (args.topk_group or 1) > 4
    is_refused = args.routing_method == "deepseek_v3" and is_too_large
    return "deepseek_v3 takes --top_k up to 8 and --topk_group up to 4" if is_refused else ""


def make_trtllm_fp8_block_scale_moe(args: Namespace) -> Case:
    """fp8, scales for 128 elements. A token takes h + h / 32 bytes, an expert 3 h i (1 + 4 / 128²)."""
    _check_routing(args)
    h, i = args.hidden_size, args.intermediate_size
    require(h % 128 == 0 and i % 128 == 0, "--hidden_size and --intermediate_size must be multiples of 128")
    inputs = {
        "hidden_states": Tensor("float8_e4m3fn", "num_tokens hidden_size"),
        "hidden_states_scale": Tensor("float32", f"{h // 128} num_tokens"),
        "gemm1_weights": Tensor("float8_e4m3fn", f"local_experts {2 * i} hidden_size"),
        "gemm1_weights_scale": Tensor("float32", f"local_experts {2 * i // 128} {h // 128}"),
        "gemm2_weights": Tensor("float8_e4m3fn", "local_experts hidden_size intermediate_size"),
        "gemm2_weights_scale": Tensor("float32", f"local_experts {h // 128} {i // 128}"),
    }
    kernel = RoutedKernel(
        "fp8_block_scale",
        inputs,
        token_bytes=h + h / 32,
        expert_bytes=3 * h * i * (1 + 4 / 128**2),
        unit="fp8",
        refusal=_why_not_fp8(args) or _why_not_groups(args),
        constants={"SHUFFLES": args.use_shuffled_weight, "LAYOUT": args.weight_layout},
    )
    return _make_routed(args, kernel)


def make_trtllm_fp8_per_tensor_scale_moe(args: Namespace) -> Case:
    """fp8, factors for each expert. A token takes h bytes, an expert 3 h i + 12."""
    _check_routing(args)
    h, i, local = args.hidden_size, args.intermediate_size, _local(args)
    inputs = {
        "hidden_states": Tensor("float8_e4m3fn", "num_tokens hidden_size"),
        "gemm1_weights": Tensor("float8_e4m3fn", f"local_experts {2 * i} hidden_size"),
        "output1_scales_scalar": _each(local, 1 / math.sqrt(h)),
        "output1_scales_gate_scalar": _each(local, 1 / math.sqrt(h)),
        "gemm2_weights": Tensor("float8_e4m3fn", "local_experts hidden_size intermediate_size"),
        "output2_scales_scalar": _each(local, 1 / math.sqrt(i)),
    }
    kernel = RoutedKernel(
        "fp8_per_tensor",
        inputs,
        token_bytes=h,
        expert_bytes=3 * h * i + 12,
        unit="fp8",
        refusal=_why_not_fp8(args),
    )
    return _make_routed(args, kernel)


def make_trtllm_fp4_block_scale_moe(args: Namespace) -> Case:
    """nvfp4, blocks of 16. A token takes h (1/2 + 1/16) bytes, an expert 3 h i (1/2 + 1/16) + 12."""
    _check_routing(args)
    h, i, local = args.hidden_size, args.intermediate_size, _local(args)
    require(h % 64 == 0 and i % 64 == 0, "--hidden_size and --intermediate_size must be multiples of 64")
    inputs = {
        "hidden_states": Tensor("float4_e2m1", "num_tokens hidden_size"),
        "hidden_states_scale": Tensor("float8_e4m3fn", f"num_tokens {h // 16}"),
        "gemm1_weights": Tensor("float4_e2m1", f"local_experts {2 * i} hidden_size"),
        "gemm1_weights_scale": Tensor("float8_e4m3fn", f"local_experts {2 * i} {h // 16}"),
        "gemm2_weights": Tensor("float4_e2m1", "local_experts hidden_size intermediate_size"),
        "gemm2_weights_scale": Tensor("float8_e4m3fn", f"local_experts hidden_size {i // 16}"),
        "output1_scales_scalar": _each(local, 1 / E2M1_DEVIATION**2),
        "output1_scales_gate_scalar": _each(local, 1 / E2M1_DEVIATION**2),
        "output2_scales_scalar": _each(local, 1 / E2M1_DEVIATION),
    }
    kernel = RoutedKernel(
        "fp4_block_scale",
        inputs,
        token_bytes=h * 9 / 16,
        expert_bytes=3 * h * i * 9 / 16 + 12,
        unit="fp4",
        refusal="--top_k above 8 is not supported" if args.top_k > 8 else "",
    )
    return _make_routed(args, kernel)


def _each(experts: int, factor: float) -> Tensor:
    """Return the same factor for each of the experts that are here."""
    return Tensor("float32", "local_experts", floats([factor] * experts))


def make_cutlass_fused_moe(args: Namespace) -> Case:
    """The layer after the routing. 6 h i / tp FLOPs a pair; pairs and active experts are counted, not expected.

    A token takes h S(in) + 8 k bytes (nvfp4: h 9/16), an expert 3 h i / tp elements of 2, 1 or 9/16 bytes.
    """
    variant, h = args.cutlass_variant, args.hidden_size
    require(args.intermediate_size % args.tp_size == 0, "--tp_size does not divide --intermediate_size")
    require(args.num_experts % args.ep_size == 0, "--ep_size does not divide --num_experts")
    require(0 <= args.ep_rank < args.ep_size and 0 <= args.tp_rank < args.tp_size, "--ep_rank or --tp_rank: too large")
    require(not args.quantized_input or variant == "nvfp4", "--quantized_input goes with --cutlass_variant nvfp4")
    require(args.top_k <= args.num_experts, f"--top_k {args.top_k} is more than --num_experts {args.num_experts}")
    i, local = _shard(args)
    first, unit = args.ep_rank * local, VARIANT_UNITS[variant]
    chosen, factors = choose_experts(args, args.num_tokens, args.num_experts, args.top_k)
    is_here = (chosen >= first) & (chosen < first + local)
    pairs, active = int(is_here.sum()), len(set(chosen[is_here].tolist()))
    dtype = read_dtype(args.input_dtype, "input_dtype", ("bfloat16", "float16"))
    routing = {
        "token_selected_experts": Tensor("int32", "num_tokens top_k", chosen),
        "token_final_factors": Tensor("float32", "num_tokens top_k", factors),
    }
    inputs, function = _cutlass_inputs(args, dtype, routing)
    weight_bytes = {"base": size_of(dtype), "fp8": 1.0, "nvfp4": 9 / 16}[variant]
    token_bytes = {"base": size_of(dtype), "fp8": 1.0, "nvfp4": 9 / 16 if args.quantized_input else size_of(dtype)}
    out = dtype if variant == "base" else "bfloat16"
    shards = {"TP_SIZE": args.tp_size, "TP_RANK": args.tp_rank, "EP_SIZE": args.ep_size, "EP_RANK": args.ep_rank}
    own = {
        **shards,
        "ACTIVATION": ACTIVATIONS[args.gated_act],
        "AUTOTUNE": args.autotune,
        "MOST_TOKENS": max(8192, args.num_tokens),
    }
    return Case(
        label=_label(args, variant, f"tp{args.tp_size}", f"ep{args.ep_size}_{args.ep_rank}"),
        op_type="moe",
        axes={
            "num_tokens": args.num_tokens,
            "top_k": args.top_k,
            "local_experts": local,
            "hidden_size": h,
            "shard": i,
        },
        inputs=inputs,
        outputs={"out": Tensor(out, "num_tokens hidden_size")},
        reference=Code("moe_torch", function, {"OFFSET": first, "GEGLU": args.gated_act == "geglu"}),
        solutions={"cutlass": Code("moe_flashinfer", function, own)},
        cost=Cost(
            6 * pairs * h * i,
            args.num_tokens * (h * (token_bytes[variant] + size_of(out)) + 8 * args.top_k)
            + active * 3 * h * i * weight_bytes,
            unit,
        ),
        check=Check(2e-2, ERRORS[unit] * ACT_DEVIATION / math.sqrt(args.top_k), 0.95),
        dps=frozenset({"cutlass"}),
    )


def _shard(args: Namespace) -> tuple[int, int]:
    """Return the intermediate size and the number of experts of one rank."""
    return args.intermediate_size // args.tp_size, args.num_experts // args.ep_size


def _cutlass_inputs(args: Namespace, dtype: str, routing: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the inputs in call order, and the function that takes them."""
    variant, h, (i, local) = args.cutlass_variant, args.hidden_size, _shard(args)
    shapes = {"gemm1_weights": f"local_experts {2 * i} hidden_size", "gemm2_weights": "local_experts hidden_size shard"}
    if variant == "base":
        weights = {name: Tensor(dtype, shape) for name, shape in shapes.items()}
        return {"hidden_states": Tensor(dtype, "num_tokens hidden_size"), **routing, **weights}, "cutlass_base"
    if variant == "fp8":
        weights = {name: Tensor("float8_e4m3fn", shape) for name, shape in shapes.items()}
        numbers = {
            "fc1_dequant": _each(local, 1 / math.sqrt(h)),
            "fc2_quant": Tensor("float32", "", floats([1.0]).reshape(())),
            "fc2_dequant": _each(local, 1 / math.sqrt(i)),
            "fc1_input_dequant": Tensor("float32", "", floats([1.0]).reshape(())),
        }
        tokens = {"hidden_states": Tensor("float8_e4m3fn", "num_tokens hidden_size")}
        return {**tokens, **routing, **weights, **numbers}, "cutlass_fp8"
    require(h % 64 == 0 and i % 64 == 0, "nvfp4: --hidden_size and the rank's --intermediate_size: multiples of 64")
    token_deviation = E2M1_DEVIATION if args.quantized_input else 1.0
    own = {}
    for name, factor, rows, columns, unit in (
        ("gemm1_weights", "fc1_global", 2 * i, h, 1 / (E2M1_DEVIATION * token_deviation)),
        ("gemm2_weights", "fc2_global", h, i, 1 / E2M1_DEVIATION),
    ):
        own[name] = Tensor("float4_e2m1", shapes[name])
        scales = f"local_experts {round_up(rows, 128)} {round_up(columns // 16, 4)}"
        own[f"{name}_scale"] = Tensor("float8_e4m3fn", scales)
        own[factor] = _each(local, unit)
    if not args.quantized_input:
        return {"hidden_states": Tensor(dtype, "num_tokens hidden_size"), **routing, **own}, "cutlass_nvfp4"
    tokens = {
        "hidden_states": Tensor("float4_e2m1", "num_tokens hidden_size"),
        "hidden_states_scale": Tensor("float8_e4m3fn", f"{round_up(args.num_tokens, 128)} {round_up(h // 16, 4)}"),
    }
    return {**tokens, **routing, **own}, "cutlass_nvfp4_quantised"


def _routine(name: str, summary: str, backend: str, make: Any) -> Routine:
    return Routine(name, FAMILY, summary, FLAGS, {backend: BLACKWELL}, make)


ROUTINES: Final = (
    _routine("trtllm_fp4_block_scale_moe", "nvfp4 experts and routing", "trtllm", make_trtllm_fp4_block_scale_moe),
    _routine(
        "trtllm_fp8_block_scale_moe",
        "fp8 experts, block scales, and routing",
        "trtllm",
        make_trtllm_fp8_block_scale_moe,
    ),
    _routine(
        "trtllm_fp8_per_tensor_scale_moe",
        "fp8 experts, one scale each, and routing",
        "trtllm",
        make_trtllm_fp8_per_tensor_scale_moe,
    ),
    _routine("cutlass_fused_moe", "experts after the routing", "cutlass", make_cutlass_fused_moe),
)
