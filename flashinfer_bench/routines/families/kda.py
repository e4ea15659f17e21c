"""The kda family: Kimi delta attention, in prefill.

The head size is d, and a state is d x d. A head of a token takes 6 d² FLOPs, as in the gated delta rule. Bytes are the
sizes of the tensors: queries, keys, values, decays, rates, output, and states.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    BLACKWELL,
    Case,
    Check,
    Flag,
    Routine,
    direct,
    size,
    stored,
    switch,
    whole,
    word,
)
from flashinfer_bench.routines.families.gdn import WIDTH

BFLOAT16: Final = ("bfloat16",)
ABSENT: Final = ("flashinfer-decomp", "flashinfer-fused", "cutekda", "flash-kda")
"""Backends of FlashInfer's benchmark. The package of FlashInfer lacks their kernels."""
FLAGS: Final = (
    size("batch_size", "number of sequences"),
    size("s_qo", "tokens of a sequence"),
    whole("num_q_heads", "heads", 16),
    whole("head_size", "length of a query, a key or a value", 128),
    word("input_dtype", "dtype of the inputs and the output", "bfloat16", BFLOAT16),
    word("state_dtype", "dtype of the states", "bfloat16", BFLOAT16),
    switch("packed", "sequences one after another, with offsets"),
    word("offsets_dtype", "dtype of the offsets", "int32", ("int32", "int64")),
    switch("has_initial_state", "begin with given states, not with zeros"),
    Flag("float", "lower_bound", "least logarithm of a decay", -5.0, least=-5.0, most=-1e-30),
)


def make_prefill(args: Namespace) -> Case:
    """Make a case. The kernel would update a given state in place, so the timed call copies the state first."""
    tokens, width, state = args.batch_size * args.s_qo, args.head_size, "num_q_heads head_size head_size"
    lead = "1 tokens num_q_heads" if args.packed else "batch_size s_qo num_q_heads"
    inputs: dict[str, Any] = {
        **dict.fromkeys(("q", "k", "v", "g"), f"bfloat16[{lead} head_size]"),
        "beta": f"bfloat16[{lead}]",
        "A_log": "float32[num_q_heads]",
        "dt_bias": "float32[num_q_heads head_size]",
    }
    if args.has_initial_state:
        inputs["initial_state"] = f"bfloat16[batch_size {state}]"
    if args.packed:
        inputs["cu_seqlens"] = stored(range(0, tokens + 1, args.s_qo), args.offsets_dtype)
    switches = ("output_final_state", "use_gate_in_kernel", "beta_is_logit")
    return Case(
        axes={"tokens": tokens} if args.packed else {},
        inputs=inputs,
        outputs={"out": f"bfloat16[{lead} head_size]", "state_out": f"bfloat16[batch_size {state}]"},
        call=direct(
            "flashinfer.recurrent_kda",
            *(f"{one}={one}{'.clone()' * (one == 'initial_state')}" for one in inputs),
            **dict.fromkeys(switches, True),
            lower_bound=args.lower_bound,
        ),
        flops=6 * tokens * args.num_q_heads * width**2,
        unit="fp16",
        # Kernels round states after each token. Slow decays keep these errors for many tokens.
        check=Check(1e-2, 2e-3, 0.95),
        refusals={"flashinfer": width != WIDTH and f"--head_size {width}: its kernel takes {WIDTH}"},
        notes=("flashinfer: the timed call copies the states first",) if args.has_initial_state else (),
    )


ROUTINES: Final = (
    Routine(
        *("kda", FLAGS, make_prefill, "recurrent_kda_prefill", "Kimi delta attention in prefill"),
        support={"flashinfer": (*BLACKWELL, "12.0"), **dict.fromkeys(ABSENT, ())},
    ),
)
