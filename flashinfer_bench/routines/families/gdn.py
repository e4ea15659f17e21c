"""The gdn family: the gated delta rule of gated delta nets, in decoding, in verification and in prefill.

There are H heads of size d. H is the number of query heads or value heads, whichever is larger. A state is d x d. A
token takes 6 H d² FLOPs: the product of state and key, the update, and the product of state and query. A token of
prefill takes 4 H d² FLOPs, as FlashInfer counts. Bytes are the sizes of the tensors. Prefill begins with zeros, and
reads no state. Decoding and verification read each state once. A state that is kept is written once. With
`--cache_intermediate_states`, states are also written after each token.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    BLACKWELL,
    HALF,
    HOPPER,
    Case,
    Check,
    Routine,
    direct,
    floats,
    generator,
    require,
    size,
    stored,
    switch,
    whole,
    word,
)

PLAIN: Final = "pretranspose"
FLAGS: Final = (
    size("batch_size", "number of sequences"),
    whole("num_q_heads", "heads of the queries", 16),
    whole("num_k_heads", "heads of the keys", 16),
    whole("num_v_heads", "heads of the values", 32),
    whole("head_size", "length of a query, a key or a value", 128),
    word("input_dtype", "dtype of the inputs and the output", "bfloat16", HALF),
    word("state_dtype", "decode, mtp: dtype of the states", "float32", ("float32", "bfloat16")),
    word("state_layout", f"decode: order of a state; {PLAIN}: values, then keys", PLAIN, (PLAIN, "nontranspose")),
    word(
        "pool_mode",
        "accepted: states are written to other slots than read",
        "single",
        ("single", "split"),
    ),
    whole("seq_len", "mtp: tokens of a sequence, at least 2; default 2"),
    whole("s_qo", "chunk: tokens of a sequence", 2048),
    switch("update_state", "mtp: write the last state; bfloat16 states are always written"),
    switch("cache_intermediate_states", "mtp: write the state after each token"),
    switch("no_qk_l2norm", "decode, mtp: do not normalise queries and keys"),
)
WIDTH: Final = 128
"""The head size of the kernels. The library accepts multiples in decoding, but its kernels read one tile."""
MODULE: Final = "from flashinfer import {0}\n    {0}."
"""The beginning of a call. The explicit import is needed because `import flashinfer` does not load the module."""
ERRORS: Final = {"float32": 1e-2, "bfloat16": 2e-2}
"""dtype of states → allowed relative error of an element. Outputs are rounded to 16 bits."""
ATOL: Final = 5e-3
"""Allowed error. Outputs are near 0.1, since queries have unit length and are scaled."""
MATCH: Final = 0.9999
"""Share of elements that must match in prefill or with float16. These kernels round keys and values to bfloat16."""


def _list_heads(args: Namespace, lead: str) -> tuple[int, dict[str, Any]]:
    """Return the number of states of a sequence, and the shapes of queries, keys and values. Heads are repeated until
    each state has a head."""
    counts = {one: getattr(args, f"num_{one}_heads") for one in "qkv"}
    heads = max(counts["q"], counts["v"])
    for one, count in counts.items():
        require(heads % count == 0, f"--num_{one}_heads {count} does not divide {heads}")
    return heads, {one: f"{args.input_dtype}[{lead} num_{one}_heads head_size]" for one in counts}


def _refuse(args: Namespace, *, is_prefill: bool = False) -> dict[str, Any]:
    """Return why the library cannot run a case."""
    query, key, value = args.num_q_heads, args.num_k_heads, args.num_v_heads
    why = ""
    if not (query == key <= value or (is_prefill and key == value <= query)):
        why = f"{query}, {key} and {value} heads: two numbers must agree"
    elif args.head_size != WIDTH:
        why = f"--head_size {args.head_size}: its kernel takes {WIDTH}"
    return {"flashinfer": why}


def make_decode(args: Namespace) -> Case:
    """Make a case of one token, or of several tokens that may be rejected later. A call reads states from some slots of
    a pool, and writes to different slots. The nontransposed kernel has no pool, so the call copies the states first.
    """
    heads, inputs = _list_heads(args, "batch_size seq_len")
    is_mtp, every = args.routine.endswith("mtp"), args.cache_intermediate_states
    is_wide, is_plain = args.state_dtype == "float32", args.state_layout == PLAIN
    tokens = args.seq_len or 1 + is_mtp
    require((tokens > 1) == is_mtp, f"--seq_len {tokens}: decode takes one token, and mtp takes more")
    require(is_wide or (is_plain and not every), f"--state_dtype {args.state_dtype}: only the last state, in {PLAIN}")
    require(is_plain or not is_mtp, f"--state_layout {args.state_layout}: {args.routine} takes {PLAIN}")
    require(is_mtp or not every, f"--cache_intermediate_states: {args.routine} writes the last state")
    writes, normalises = args.update_state or not (is_mtp and is_wide), not args.no_qk_l2norm
    state = f"{args.state_dtype}[batch_size heads head_size head_size]"
    gates = f"{args.input_dtype}[batch_size seq_len heads]"
    inputs |= {"state": state, "A_log": "float32[heads]", "a": gates, "dt_bias": "float32[heads]", "b": gates}
    outputs = {"out": gates.replace("heads", "heads head_size"), **({"state_out": state} if writes else {})}
    if every:
        outputs["intermediate_states"] = state.replace("heads", "seq_len heads", 1)
    given = ("q", "k", "v", "state_out.copy_(state)", "A_log", "a", "dt_bias", "b", "output=out")
    call = direct(MODULE.format("gdn_decode") + args.routine, *given, use_qk_l2norm=normalises)
    return Case(
        axes={"heads": heads, "seq_len": tokens},
        inputs=inputs,
        outputs=outputs,
        reference="gated_delta_rule",
        constants={"UPDATE_STATE": writes},
        call="" if is_plain else call,
        flops=6 * tokens * args.batch_size * heads * args.head_size**2,
        check=Check(ERRORS[args.state_dtype], ATOL, MATCH if args.input_dtype == "float16" else None),
        refusals=_refuse(args),
        columns={"seq_len": tokens, "use_qk_l2norm": normalises},
        notes=() if is_plain else ("the timed call copies the states first, and the kernel works on the copy",),
    )


def make_chunk(args: Namespace) -> Case:
    """Make a case of prefill: packed sequences of equal lengths. Decays and rates are between 0 and 1."""
    heads, inputs = _list_heads(args, "tokens")
    tokens, random = args.batch_size * args.s_qo, generator(args)
    inputs |= {one: floats(random.random((tokens, heads))) for one in ("g", "beta")}
    call = direct(
        MODULE.format("gdn_prefill") + args.routine,
        *(*inputs, "None", "None", "True", "cu_seqlens", "output=out", "output_state=state_out"),
    )
    return Case(
        axes={"heads": heads, "tokens": tokens},
        inputs=inputs | {"cu_seqlens": stored(range(0, tokens + 1, args.s_qo), "int64")},
        outputs={
            "out": f"{args.input_dtype}[tokens heads head_size]",
            "state_out": "float32[batch_size heads head_size head_size]",
        },
        call=call,
        flops=4 * tokens * heads * args.head_size**2,
        unit="fp16",
        check=Check(1e-2, ATOL, MATCH),
        refusals=_refuse(args, is_prefill=True),
    )


GPUS: Final = (*HOPPER, *BLACKWELL)
_decode = partial(Routine, "gdn", FLAGS, make_decode, support={"flashinfer": GPUS, "triton": ()})
ROUTINES: Final = (
    _decode("gated_delta_rule_decode", "gated delta rule for one token"),
    _decode("gated_delta_rule_mtp", "gated delta rule for several tokens, in order"),
    Routine(
        *("gdn", FLAGS, make_chunk, "chunk_gated_delta_rule", "gated delta rule in prefill"),
        support={"flashinfer": (*GPUS, "12.0", "12.1"), "fla": ()},
    ),
)
