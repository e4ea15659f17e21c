"""The communication of experts: tokens go to the ranks of their experts, and the results come back and are added up.

One process cannot do that: the backend moe_a2a runs under mpirun, with one rank for each GPU. The torch backend plays
all ranks in one process, so its time says nothing about GPUs. A multiplication takes the place of the experts, except
with --real_math.
"""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Mapping
from importlib import util
from typing import Any, Final

from flashinfer_bench.data.dtypes import Unit
from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import BLACKWELL, Case, Check, Code, Flag, Routine, Tensor
from flashinfer_bench.routines.case.stored import choose_experts, floats
from flashinfer_bench.routines.case.words import read_dtype, require
from flashinfer_bench.routines.families.moe import ACT_DEVIATION, E2M1_DEVIATION, ERRORS

FAMILY: Final = "moe_comm"
QUANTS: Final = ("fp8", "nvfp4", "fp8_block_scale")
FLAGS: Final = (
    Flag("num_tokens", "int", "tokens of a rank", required=True),
    Flag("hidden_size", "int", "hidden size", required=True),
    Flag("num_experts", "int", "experts of all ranks", required=True),
    Flag("top_k", "int", "experts of a token", required=True),
    Flag("input_dtype", "text", "dtype of the tokens", "bfloat16", ("bfloat16", "float16")),
    Flag("quant_dtype", "text", "format that tokens are sent in; as they are where it is left out", None, QUANTS),
    Flag("real_math", "switch", "run the experts' kernels in between", False),
    Flag("intermediate_size", "int", "with --real_math: size between the products"),
    Flag("max_num_tokens", "int", "tokens that the workspace holds; --num_tokens where it is left out"),
    Flag("validate", "switch", "check before timing; what is timed here always is", False),
    Flag("per_phase_timing", "switch", "time sending and returning apart", False),
    Flag("nvtx", "switch", "mark phases for Nsight Systems", False),
)
RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
RANKS_IN_ONE_PROCESS: Final = 8
"""Number of ranks that the torch backend plays where mpirun did not start it."""
SENT_BYTES: Final[Mapping[str | None, float]] = {"fp8": 1.0, "nvfp4": 9 / 16, "fp8_block_scale": 1 + 4 / 128}
"""Format of sent tokens → bytes of one element, with its share of the scales."""
WEIGHT_BYTES: Final[Mapping[str, float]] = {"nvfp4": 9 / 16, "fp8_block_scale": 1 + 4 / 128**2}
"""Format of tokens → bytes of one element of an expert's weights, with its share of the scales."""
UNITS: Final[Mapping[str, Unit]] = {"nvfp4": "fp4", "fp8_block_scale": "fp8"}
EXCHANGE: Final = Check(2e-2, 5e-3)
"""Allowed error without real experts: each rank rounds its partial sums."""


def count_ranks(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks that mpirun started; None without mpirun."""
    found = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(value) for value in found if value.isdigit()), None)


def why_not_here(environment: Mapping[str, str] = os.environ) -> str | None:
    """Say why the backend moe_a2a cannot start; None under mpirun with mpi4py."""
    if count_ranks(environment) is None:
        return "it takes a rank a GPU: start it with mpirun -np N"
    return "mpi4py is not installed (pip install mpi4py)" if util.find_spec("mpi4py") is None else None


def count_traffic(args: Namespace) -> tuple[float, float]:
    """Return the bytes that go out to other ranks, and those that come back, over all ranks."""
    ranks = count_ranks() or RANKS_IN_ONE_PROCESS
    dtype = read_dtype(args.input_dtype, "input_dtype", ("bfloat16", "float16"))
    chosen, _ = choose_experts(args, ranks * args.num_tokens, args.num_experts, args.top_k)
    trips = _count_trips(chosen.reshape(ranks, args.num_tokens, args.top_k), args.num_experts // ranks)
    sent = args.hidden_size * SENT_BYTES.get(args.quant_dtype, size_of(dtype)) + 8 * args.top_k
    return trips * sent, trips * args.hidden_size * size_of(dtype)


def count_work(args: Namespace) -> tuple[float, float]:
    """Return the FLOPs of the experts, and the bytes of the weights of those that are chosen, over all ranks."""
    if not args.real_math:
        return 0.0, 0.0
    ranks = count_ranks() or RANKS_IN_ONE_PROCESS
    chosen, _ = choose_experts(args, ranks * args.num_tokens, args.num_experts, args.top_k)
    weights = 3 * args.hidden_size * args.intermediate_size
    active = len(set(chosen.reshape(-1).tolist()))
    return 2.0 * chosen.size * weights, active * weights * WEIGHT_BYTES[args.quant_dtype]


def make_moe_a2a_dispatch_combine(args: Namespace) -> Case:
    """Send and return. No FLOPs; bytes between ranks only, for every token and every other rank that it goes to:
    h s + 8 k on the way out (s: bytes of an element as it is sent), h S(in) on the way back.

    --real_math adds 6 h i FLOPs for each pair of a token and an expert (i: intermediate size), and 3 h i weights of
    9/16 (nvfp4) or 1 + 4 / 128² bytes for each expert that is chosen.
    """
    if args.real_math:
        _check_real(args)
    ranks = count_ranks() or RANKS_IN_ONE_PROCESS
    experts, tokens, hidden = args.num_experts, args.num_tokens, args.hidden_size
    require(experts % ranks == 0, f"--num_experts {experts} is not a multiple of {ranks} ranks")
    require(args.top_k <= experts, f"--top_k {args.top_k} is more than --num_experts {experts}")
    require((args.max_num_tokens or tokens) >= tokens, "--max_num_tokens is below --num_tokens")
    require(hidden % 128 == 0 or args.quant_dtype is None, f"--hidden_size {hidden}: a multiple of 128 to be quantised")
    dtype = read_dtype(args.input_dtype, "input_dtype", ("bfloat16", "float16"))
    chosen, factors = choose_experts(args, ranks * tokens, experts, args.top_k)
    shape = (ranks, tokens, args.top_k)
    missing = why_not_here()
    refusals = {"moe_a2a": missing} if missing is not None else {}
    if args.real_math and args.quant_dtype == "fp8_block_scale" and (experts % 4 or args.top_k >= experts):
        refusals.setdefault("moe_a2a", "its fp8 experts want a multiple of 4 of them, and --top_k below that")
    flops, weight_bytes = count_work(args)
    label = f"r{ranks}_t{tokens}_h{hidden}_e{experts}_k{args.top_k}_{args.quant_dtype or dtype}"
    return Case(
        label=f"{label}_i{args.intermediate_size}" if args.real_math else label,
        # Rules that draw weights of experts, and that allow for their rounding, look for "moe".
        op_type="moe" if args.real_math else "moe_comm",
        axes={
            "ranks": ranks,
            "num_tokens": tokens,
            "hidden_size": hidden,
            "top_k": args.top_k,
            **({"num_experts": experts, "intermediate_size": args.intermediate_size} if args.real_math else {}),
        },
        inputs={
            "hidden_states": Tensor(dtype, "ranks num_tokens hidden_size"),
            "token_selected_experts": Tensor("int32", "ranks num_tokens top_k", chosen.reshape(shape)),
            "token_final_factors": Tensor("float32", "ranks num_tokens top_k", factors.reshape(shape)),
            **(_weights(args) if args.real_math else {}),
        },
        outputs={"out": Tensor(dtype, "ranks num_tokens hidden_size")},
        reference=Code(
            "moe_comm_torch",
            f"real_{args.quant_dtype}" if args.real_math else "dispatch_combine",
            {"RANKS": ranks, "EXPERTS": experts, "QUANT": args.quant_dtype or "none"},
        ),
        solutions={},
        needs_ranks=frozenset({"moe_a2a"}),
        cost=Cost(flops, sum(count_traffic(args)) + weight_bytes, UNITS[args.quant_dtype])
        if args.real_math
        else Cost(0, sum(count_traffic(args))),
        check=_check_of(args),
        refusals=refusals,
        columns={"ep_size": ranks},
    )


def _check_real(args: Namespace) -> None:
    require(args.intermediate_size, "--real_math needs --intermediate_size")
    require(args.quant_dtype in WEIGHT_BYTES, "--real_math needs --quant_dtype nvfp4 or fp8_block_scale")
    size = args.intermediate_size
    require(size % 128 == 0, f"--intermediate_size {size}: a multiple of 128 to be quantised")


def _check_of(args: Namespace) -> Check:
    """Return the tolerance. Kernels of experts quantise between their products, and the reference does not."""
    if not args.real_math:
        return EXCHANGE
    return Check(2e-2, ERRORS[UNITS[args.quant_dtype]] * ACT_DEVIATION / math.sqrt(args.top_k), 0.95)


def _weights(args: Namespace) -> dict[str, Tensor]:
    """Return the weights of all experts, in the order of the reference's parameters."""
    h, i = args.hidden_size, args.intermediate_size
    made = {}
    for name, factor, rows, columns in (
        ("gemm1_weights", "fc1_global", 2 * i, h),
        ("gemm2_weights", "fc2_global", h, i),
    ):
        shape = f"num_experts {rows} {'hidden_size' if columns == h else 'intermediate_size'}"
        if args.quant_dtype == "nvfp4":
            made[name] = Tensor("float4_e2m1", shape)
            made[f"{name}_scale"] = Tensor("float8_e4m3fn", f"num_experts {rows} {columns // 16}")
            made[factor] = Tensor("float32", "num_experts", floats([1 / E2M1_DEVIATION] * args.num_experts))
        else:
            made[name] = Tensor("float8_e4m3fn", shape)
            made[f"{name}_scale"] = Tensor("float32", f"num_experts {rows // 128} {columns // 128}")
    return made


def _count_trips(chosen: Any, local: int) -> int:
    """Count pairs of a token and another rank that has an expert of it."""
    trips = 0
    for source, tokens in enumerate(chosen // local):
        trips += sum(len(set(row) - {source}) for row in tokens.tolist())
    return trips


ROUTINES: Final = (
    Routine(
        "moe_a2a_dispatch_combine",
        FAMILY,
        "send tokens to experts on other GPUs, and add up what returns",
        FLAGS,
        {"moe_a2a": BLACKWELL},
        make_moe_a2a_dispatch_combine,
    ),
)
