"""The communication of experts: tokens go to the ranks of their experts, and the results come back and are added up.

The backend moe_a2a runs under mpirun, with one rank for each GPU. The torch backend computes all ranks in one process,
so its time says nothing about GPUs. A multiplication replaces the experts unless --real_math is given.

Only bytes between ranks count. A token for another rank moves h s + 8 k bytes to that rank, and h e bytes back. A sent
element has s bytes, and an input element has e bytes. --real_math adds 6 h i FLOPs for each pair of a token and an
expert; i is the intermediate size. The experts also read 3 h i weights for each chosen expert. A weight has 9/16 bytes
in nvfp4, and 1 + 4 / 128² bytes in fp8.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from importlib import util
from typing import Any, Final

from flashinfer_bench.data.dtypes import Unit
from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import (
    BLACKWELL,
    HALF,
    Case,
    Check,
    Routine,
    floats,
    require,
    size,
    split,
    stored,
    switch,
    whole,
    word,
)
from flashinfer_bench.routines.families.moe import E2M1_DEVIATION, check_experts, choose_experts, make_layers

FLAGS: Final = (
    size("num_tokens", "tokens of a rank"),
    size("hidden_size", "hidden size"),
    size("num_experts", "experts of all ranks"),
    size("top_k", "experts of a token"),
    word("input_dtype", "dtype of the tokens", "bfloat16", HALF),
    word(
        "quant_dtype",
        "format that tokens are sent in; as they are where it is left out",
        None,
        ("fp8", "nvfp4", "fp8_block_scale"),
    ),
    switch("real_math", "run the experts' kernels in between"),
    whole("intermediate_size", "with --real_math: size between the products"),
    whole("max_num_tokens", "tokens of the workspace (default: --num_tokens)"),
    switch("validate", "check before timing (always done here)"),
    switch("per_phase_timing", "time sending and returning separately"),
    switch("use_lora", "accepted; no effect, since the experts have no low-rank updates"),
    switch("nvtx", "mark phases for Nsight Systems"),
)
RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
RANKS_IN_ONE_PROCESS: Final = 8
"""Number of ranks that the torch backend computes without mpirun."""
SENT_BYTES: Final[Mapping[str | None, float]] = {"fp8": 1.0, "nvfp4": 9 / 16, "fp8_block_scale": 1 + 4 / 128}
"""Format of sent tokens → bytes of one element, including a share of the scales."""
WEIGHT_BYTES: Final[Mapping[str, float]] = {"nvfp4": 9 / 16, "fp8_block_scale": 1 + 4 / 128**2}
"""Format of tokens → bytes of one element of an expert's weights, including a share of the scales."""
UNITS: Final[Mapping[str, Unit]] = {"fp32": "fp32", "nvfp4": "fp4", "fp8_block_scale": "fp8"}
EXCHANGE: Final = Check(2e-2, 5e-3)
"""Tolerance without --real_math. Only the partial sums of each rank are rounded."""


def count_ranks(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks that mpirun started; None without mpirun."""
    found = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(value) for value in found if value.isdigit()), None)


def why_not_here(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why the backend moe_a2a cannot start; None under mpirun with mpi4py."""
    if count_ranks(environment) is None:
        return "it takes a rank a GPU: start it with mpirun -np N"
    return "mpi4py is not installed (pip install mpi4py)" if util.find_spec("mpi4py") is None else None


def count_phases(args: Namespace, chosen: Any) -> dict[str, Cost]:
    """Return the cost of each phase over all ranks.

    Args:
        args: the flags.
        chosen: the experts of all tokens, [ranks, tokens, top_k].
    """
    width, hidden = size_of(args.input_dtype), args.hidden_size
    ranks = (chosen // (args.num_experts // len(chosen))).tolist()
    trips = sum(len(set(row) - {source}) for source, tokens in enumerate(ranks) for row in tokens)
    out = trips * (hidden * SENT_BYTES.get(args.quant_dtype, width) + 8 * args.top_k)
    back, kernel = trips * hidden * width, Cost(0, 0)
    if args.real_math:
        weights, active = 3 * hidden * args.intermediate_size, len({*chosen.reshape(-1).tolist()})
        kernel = Cost(2 * chosen.size * weights, active * weights * WEIGHT_BYTES[args.quant_dtype])
    moved = {"a2a_total": out + back, "a2a_dispatch": out, "a2a_combine": back}
    return {**{phase: Cost(0, count) for phase, count in moved.items()}, "moe_kernel": kernel}


def make_moe_a2a_dispatch_combine(args: Namespace) -> Case:
    """Make a case of all ranks."""
    experts, inner, quant = args.num_experts, args.intermediate_size, args.quant_dtype
    ranks = count_ranks() or RANKS_IN_ONE_PROCESS
    split(args, "num_experts", ranks)
    if args.real_math:
        require(inner, "--real_math needs --intermediate_size")
        require(quant in WEIGHT_BYTES, "--real_math needs --quant_dtype nvfp4 or fp8_block_scale")
        split(args, "intermediate_size", 128)
    if quant is not None:
        split(args, "hidden_size", 128)
    require((args.max_num_tokens or args.num_tokens) >= args.num_tokens, "--max_num_tokens is below --num_tokens")
    routed = choose_experts(args, ranks * args.num_tokens)
    chosen, factors = (part.reshape(ranks, args.num_tokens, args.top_k) for part in routed)
    missing = why_not_here() or ""
    if args.real_math and quant == "fp8_block_scale" and (experts % 4 or args.top_k >= experts):
        missing = missing or "its fp8 experts want a multiple of 4 of them, and --top_k below that"
    costs = count_phases(args, chosen)
    op_type, layers, check, unit = "", {}, EXCHANGE, UNITS["fp32"]
    if args.real_math:
        # Evaluators apply the rules for expert weights and rounding only to the op type moe.
        op_type, unit = "moe", UNITS[quant]
        check = check_experts(unit, args.top_k)
        each = [floats([1 / E2M1_DEVIATION] * experts)] * 2 if quant == "nvfp4" else []
        sizes = (args.hidden_size, inner)
        layers = make_layers(quant, "num_experts", "intermediate_size", sizes, active=0, is_tiled=True, factors=each)
    tokens = f"{args.input_dtype}[ranks num_tokens hidden_size]"
    kernel, moved = costs["moe_kernel"], costs["a2a_total"].bytes
    return Case(
        op_type=op_type,
        axes={"ranks": ranks},
        inputs={
            "hidden_states": tokens,
            "token_selected_experts": stored(chosen),
            "token_final_factors": floats(factors),
            **layers,
        },
        outputs={"out": tokens},
        reference="dispatch_combine",
        constants={"RANKS": ranks},
        flops=kernel.flops,
        unit=unit,
        bytes=moved + kernel.bytes,
        check=check,
        refusals={"moe_a2a": missing},
        columns={"ep_size": ranks},
    )


ROUTINES: Final = (
    Routine(
        "moe_comm",
        FLAGS,
        make_moe_a2a_dispatch_combine,
        "moe_a2a_dispatch_combine",
        "send tokens to experts on other GPUs, and add up what returns",
        {"moe_a2a": BLACKWELL},
        needs_ranks=True,
    ),
)
