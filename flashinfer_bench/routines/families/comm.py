"""Sums and exchanges between ranks: an all-reduce with the operations after it, and collectives over two groups of
ranks.

The kernels run on one GPU for each rank. The torch backend computes all ranks in one process, so its time says nothing
about GPUs.

Only bytes between ranks count. A part has N elements of e bytes.

* `allreduce_fusion`: R ranks have a part each. FLOPs are (R - 1) N, and 6 N more with a residual and RMSNorm. Bytes
  are 2 (R - 1) N e.
* `mixed_comm`: g groups of t ranks. FLOPs are g (t - 1) N if sums are gathered, and g (g t - 1) N if sums are
  scattered. Bytes are g (t + g t - 2) N e.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from flashinfer_bench.roofline.cost import size_of
from flashinfer_bench.routines.case.spec import (
    BLACKWELL,
    HALF,
    HOPPER,
    PDL,
    Case,
    Check,
    Routine,
    from_zero,
    require,
    size,
    switch,
    whole,
    word,
)
from flashinfer_bench.routines.families.moe_comm import RANKS_IN_ONE_PROCESS, count_ranks

PATTERNS: Final = ("allreduce", "ar_residual_rmsnorm", "ar_residual_rmsnorm_dynamic_fp8")
FUSION_FLAGS: Final = (
    whole("num_tokens", "tokens", 64),
    whole("hidden_size", "hidden size", 4096),
    word("input_dtype", "dtype of the tokens", "bfloat16", HALF),
    word("ar_backend", "the library's workspace", "auto", ("auto", "trtllm", "mnnvl")),
    word("pattern", "what follows the sum", PATTERNS[0], PATTERNS),
    switch("validate", "check before timing (always done here)"),
    PDL,
)
OPERATIONS: Final = ("ALLREDUCE_ALLGATHER", "REDUCESCATTER_ALLREDUCE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER")
MIXED_FLAGS: Final = (
    size("local_bs_list", "tokens of a rank; 2,4 on the command line: a case for each"),
    size("hidden_size", "hidden size"),
    word("dtype", "dtype of the tokens", None, HALF, required=True),
    size("local_tp_size", "ranks of a node whose tokens are added up"),
    size("local_dp_size", "ranks of a node whose tokens are gathered or scattered"),
    whole("inter_tp_size", "the same: nodes", 1),
    whole("inter_dp_size", "the same: nodes", 1),
    word("op_name", "collective (default: the first that the sizes allow)", None, OPERATIONS),
    from_zero("node_id", "accepted; no effect", default=0),
    word("dist_init_method", "accepted; no effect", "tcp://localhost:29501"),
)
NOT_HERE: Final = "it takes a rank for each GPU, and only FlashInfer's own benchmark starts these"
ERROR: Final = 2e-2
"""Allowed error, as a share of an element's standard deviation. Kernels round partial sums."""
FP8_MATCH: Final = 0.95


def make_allreduce_fusion(args: Namespace) -> Case:
    """Make a case of a sum over ranks, alone, or followed by a residual and RMSNorm."""
    ranks, pattern = count_ranks() or RANKS_IN_ONE_PROCESS, args.pattern
    elements, tokens = args.num_tokens * args.hidden_size, f"{args.input_dtype}[num_tokens hidden_size]"
    inputs, outputs = {"x": f"{args.input_dtype}[ranks num_tokens hidden_size]"}, {"out": tokens}
    if is_normed := pattern != PATTERNS[0]:
        inputs |= {"residual": tokens, "weight": f"{args.input_dtype}[hidden_size]"}
        outputs["residual_out"] = tokens
    if is_fp8 := pattern == PATTERNS[2]:
        outputs |= {"out": "float8_e4m3fn[num_tokens hidden_size]", "scale_out": "float32[num_tokens 1]"}
    return Case(
        op_type="lowbit" if is_fp8 else "",
        axes={"ranks": ranks},
        inputs=inputs,
        outputs=outputs,
        reference=pattern,
        flops=(ranks - 1 + 6 * is_normed) * elements,
        bytes=2 * (ranks - 1) * elements * size_of(args.input_dtype),
        check=Check(2e-2, ERROR * ranks**0.5, FP8_MATCH if is_fp8 else None),
        refusals=dict.fromkeys(("oneshot", "twoshot"), NOT_HERE),
        columns={"tp_size": ranks},
    )


def make_mixed_comm(args: Namespace) -> Case:
    """Make a case of a collective over two groups of ranks."""
    added, groups = args.local_tp_size * args.inter_tp_size, args.local_dp_size * args.inter_dp_size
    require(added * groups > 1, "--local_tp_size and --local_dp_size: at least two ranks")
    fitting = OPERATIONS[:2] if min(added, groups) > 1 else OPERATIONS[2:3] if added > 1 else OPERATIONS[3:]
    name = args.op_name or fitting[0]
    require(name in fitting, f"--op_name {name}: these sizes allow {', '.join(fitting)}")
    scatters, part = name.startswith("REDUCE"), args.local_bs_list * args.hidden_size
    rows = "rows" if scatters else "local_bs_list"
    return Case(
        axes={"ranks": added * groups, "rows": args.local_bs_list * groups},
        inputs={"x": f"{args.dtype}[ranks {rows} hidden_size]"},
        outputs={"out": f"{args.dtype}[rows hidden_size]"},
        reference="allreduce" if scatters else "gather",
        flops=groups * (added * groups - 1 if scatters else added - 1) * part,
        bytes=groups * (added + added * groups - 2) * part * size_of(args.dtype),
        check=Check(2e-2, ERROR * (added * groups) ** 0.5),
        refusals={"mixed_comm": NOT_HERE},
        columns={"op_name": name, "local_bs": args.local_bs_list, "input_dtype": args.dtype},
    )


ROUTINES: Final = (
    Routine(
        "comm",
        FUSION_FLAGS,
        make_allreduce_fusion,
        "allreduce_fusion",
        "add up the tokens of all ranks, and normalise them",
        dict.fromkeys(("oneshot", "twoshot"), (*HOPPER, *BLACKWELL)),
    ),
    Routine(
        "comm",
        MIXED_FLAGS,
        make_mixed_comm,
        "mixed_comm",
        "add up tokens of some ranks, and gather or scatter those of others",
        {"mixed_comm": ("9.0", "10.0")},
    ),
)
