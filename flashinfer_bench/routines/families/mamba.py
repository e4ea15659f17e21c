"""The mamba family: the state update of Mamba-2 in decoding.

A token takes 5 FLOPs for each element of a state: decay, product of step, input and B, sum, and product with C. Bytes
are the sizes of the tensors. States are read once and written once. With `--varlen`, states are written after every
token. Each head has one number for each of these: the step of a token, A, D, and the bias of steps.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from flashinfer_bench.routines.case.spec import (
    Case,
    Check,
    Routine,
    floats,
    from_zero,
    generator,
    require,
    size,
    split,
    switch,
    whole,
    word,
)
from flashinfer_bench.routines.families.gemm import FROM_AMPERE

FLAGS: Final = (
    size("batch_size", "number of sequences"),
    size("nheads", "heads of a state"),
    size("dim", "rows of a head's state"),
    size("dstate", "columns of a head's state"),
    whole("ngroups", "groups of heads that share B and C", 8),
    from_zero("cache_steps", "tokens of a sequence; 0 is one token, without a dimension of its own"),
    word("input_dtype", "dtype of x, B, C, z and the output", "bfloat16", ("bfloat16",)),
    word("state_dtype", "dtype of the states", "bfloat16", ("bfloat16", "float16", "float32")),
    word("weight_dtype", "dtype of steps, their bias and D", "float32", ("float32", "bfloat16")),
    switch("has_z", "multiply the output by SiLU of another input"),
    switch("dt_softplus", "steps are the softplus of their sum with the bias"),
    switch("varlen", "packed sequences of --cache_steps tokens; the state after every token is written"),
    word("algorithm", "the library's kernel", "auto", ("auto", "simple", "vertical", "horizontal")),
)
SIZES: Final = (64, 128, 256)
"""Numbers of rows or columns of a state for which there are kernels."""
RATIOS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Heads per group that the kernels support."""


def make_update(args: Namespace) -> Case:
    """Make a case. Most steps are negative without softplus. So the rates A are small, which keeps states finite."""
    steps, weight, ratio = args.cache_steps, args.weight_dtype, split(args, "nheads", args.ngroups)
    require(steps or not args.varlen, "--varlen: --cache_steps must be at least 1")
    require(not steps or args.algorithm in ("auto", "simple"), f"--algorithm {args.algorithm}: --cache_steps must be 0")
    lead = "tokens" if args.varlen else "batch_size cache_steps" if steps else "batch_size"
    x, group = f"bfloat16[{lead} nheads dim]", f"bfloat16[{lead} ngroups dstate]"
    fits = ratio in RATIOS and {args.dim, args.dstate} <= set(SIZES)
    refusal = f"--dim and --dstate must be one of {SIZES}, and a group must have one of {RATIOS} heads"
    return Case(
        op_type="mamba_ssu",
        axes={"tokens": args.batch_size * steps} if args.varlen else {},
        inputs={
            "state": f"{args.state_dtype}[batch_size nheads dim dstate]",
            "x": x,
            "dt": f"{weight}[{lead} nheads]",
            "A": "float32[nheads]" if args.dt_softplus else floats(generator(args).uniform(-0.1, 0, args.nheads)),
            "B": group,
            "C": group,
            "D": f"{weight}[nheads]",
            "dt_bias": f"{weight}[nheads]",
            **({"z": x} if args.has_z else {}),
        },
        outputs={
            "out": x,
            "state_out": f"{args.state_dtype}[batch_size {'cache_steps ' if args.varlen else ''}nheads dim dstate]",
        },
        # Only the algorithm "simple" can process several tokens and write to a different slot.
        constants={"ALGORITHM": "simple"} if steps else {},
        flops=5 * args.batch_size * max(steps, 1) * args.nheads * args.dim * args.dstate,
        check=Check(1e-2, 1e-3),
        refusals={"flashinfer": not fits and refusal},
    )


ROUTINES: Final = (
    Routine(
        *("mamba", FLAGS, make_update, "selective_state_update", "state update of Mamba-2"),
        support={"flashinfer": FROM_AMPERE, "triton": ()},
    ),
)
