"""The RoPE family: rotary embeddings, alone, with fp8 output, and appended to a paged cache.

There are T = batch_size · seq_len tokens, Hq query heads and Hkv key heads (one in MLA). A head has d elements: r are
rotated, and n are not. An input element has e bytes. A pair of elements takes four multiplications and two additions,
so FLOPs are 3 T (Hq + Hkv) r. Bytes:

* plain: 2 T (Hq + Hkv) d e, and 4 (2 B + 1) of offsets, or 4 T of positions. A cache of angles takes 4 seq_len r.
* to fp8: T (Hq + Hkv) (r + n) (e + 1), 4 seq_len r of angles, 4 T of positions.
* appended: in addition to the bytes of the line above, T Hkv (r + n) (e + 1) for values, and the page table.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    ADA_ON,
    ALL,
    DTYPES,
    FP8,
    HALF,
    PDL,
    Case,
    Check,
    Routine,
    counted,
    direct,
    from_zero,
    generator,
    needed,
    offsets,
    real,
    require,
    size,
    stored,
    switch,
    whole,
    word,
)

FLAGS: Final = (
    size("batch_size", "number of sequences"),
    size("seq_len", "tokens of a sequence"),
    size("num_qo_heads", "query heads"),
    size("num_kv_heads", "key and value heads"),
    size("head_dim", "dimension of a head"),
    whole("rotary_dim", "rotated dimensions (default: head_dim)"),
    from_zero("no_rope_dim", "dimensions without RoPE, in the quantising routines"),
    word("input_dtype", "dtype of the input", "float16", HALF),
    word("quant_dtype", "dtype of a quantised output", "fp8_e4m3", FP8),
    real("rope_scale", "divisor of positions", 1.0),
    real("rope_theta", "base of the frequencies", 10000.0),
    switch("interleave", "pairs are neighbours (GPT-J), not halves"),
    whole("page_size", "tokens of a page", 16),
    word("kv_layout", "order of a page's dimensions", "NHD", ("NHD", "HND")),
    real("low_freq_factor", "Llama 3.1: turns below which positions are scaled", 1.0),
    real("high_freq_factor", "Llama 3.1: turns above which they are not", 4.0),
    whole("old_context_len", "Llama 3.1: context that the turns are counted over", 8192),
    PDL,
)
OPTIONS: Final = ("interleave", "rope_scale", "rope_theta")
STRETCH: Final = ("low_freq_factor", "high_freq_factor", "old_context_len")
"""OPTIONS: the flags of all plain kernels. STRETCH: additional flags of Llama 3.1."""
MAX_OFFSET: Final = 64
"""Sequences begin at positions below this, because fast kernels compute large angles imprecisely."""
FP8_MATCH: Final = 0.98
"""Share of fp8 codes that must agree. A value midway between two codes may be rounded up or down."""
HEAD_DIMS: Final = (64, 128, 256, 512)
"""Head dimensions for which the library has plain kernels."""
LANE: Final = 16
"""Elements per load and store of a thread in the library's quantising kernels."""


def _why_not_rotary(args: Namespace, rotary: int, lane: int) -> str:
    """Return why the kernels cannot rotate `rotary` dimensions; empty if they can. A thread rotates `lane` dimensions.
    Without --interleave, the dimensions of a thread are in the same half."""
    step = lane if args.interleave else 2 * lane
    return f"--rotary_dim {rotary}: its kernel wants a multiple of {step}" if rotary % step else ""


def _positions(args: Namespace) -> Any:
    return stored([*range(args.seq_len)] * args.batch_size)


def _rotary(args: Namespace) -> int:
    """Return the number of dimensions that are rotated."""
    rotary = args.rotary_dim or args.head_dim
    require(rotary % 2 == 0, f"--rotary_dim {rotary}: pairs are rotated, so it has to be even")
    return int(rotary)


def make_plain(args: Namespace) -> Case:
    """Make a case of RoPE. The routine's name decides whether the kernel takes offsets, positions or a cache of angles.

    The library requires a float32 cache, whatever the dtype of queries and keys.
    """
    name, head, rotary, dtype = args.routine, args.head_dim, _rotary(args), args.input_dtype
    is_llama, has_cache, is_usual = "llama31" in name, name.endswith("cache"), head in HEAD_DIMS
    require(rotary <= head, f"--rotary_dim {rotary} is more than --head_dim {head}")
    low, high = args.low_freq_factor, args.high_freq_factor
    require(not is_llama or high > low, f"--high_freq_factor {high}: must be above --low_freq_factor {low}")
    tokens, heads = args.batch_size * args.seq_len, {"q": args.num_qo_heads, "k": args.num_kv_heads}
    rows = {"q": "num_qo_heads head_dim", "k": "num_kv_heads head_dim"}
    where, reference = {"pos_ids": _positions(args)}, "rope_by_positions"
    flags = (*OPTIONS, *(STRETCH if is_llama else ()))
    options = {"rotary_dim": rotary, **{flag: getattr(args, flag) for flag in flags}}
    refusal = _why_not_rotary(args, rotary, max(8, head // 32) if is_usual else LANE)
    if has_cache:
        rows, reference = {side: str(count * head) for side, count in heads.items()}, "rope_with_cache"
        where["cos_sin_cache"] = f"float32[{args.seq_len} {rotary}]"
        arguments, options = ["pos_ids", "q", "k", str(head), "cos_sin_cache"], {"is_neox": not args.interleave}
    else:
        if not is_usual:
            refusal = f"--head_dim {head}: its kernels have 64, 128, 256, 512"
        if not name.endswith("pos_ids"):
            starts = generator(args).integers(0, MAX_OFFSET, args.batch_size, "int32")
            where = {"indptr": offsets([args.seq_len] * args.batch_size), "offsets": stored(starts)}
            reference = "rope_by_offsets"
        arguments = ["q", "k", *where]
    sides = {side: f"{dtype}[tokens {shape}]" for side, shape in rows.items()}
    return Case(
        axes={"tokens": tokens},
        inputs={**sides, **where},
        outputs={f"{side}_out": tensor for side, tensor in sides.items()},
        reference=reference,
        constants={"LLAMA31": is_llama, "ROTARY_DIM": rotary},
        call=direct(f"flashinfer.{name}", *arguments, **options),
        flops=3 * tokens * sum(heads.values()) * rotary,
        check=Check(1e-2, 1e-2 if dtype == "float16" else 2e-2),
        refusals={"cuda": refusal},
    )


def make_quantising(args: Namespace) -> Case:
    """Make a case of RoPE to fp8. The routine's name decides whether the case is for MLA, and whether the kernel
    appends to pages."""
    name, head, rope, nope = args.routine, args.head_dim, _rotary(args), args.no_rope_dim
    is_mla, appends, width, page = name.startswith("mla"), "append" in name, rope + nope, args.page_size
    fits = f"it has to be {rope}{f' or {width}' if nope else ''}"
    wide = f"heads are as wide as --rotary_dim {rope} and --no_rope_dim {nope}"
    require(head in (rope, width), f"--head_dim {head}: {wide}: {fits}")
    if is_mla:
        needed(args, "no_rope_dim", ": MLA has dimensions without RoPE (512 in DeepSeek)")
    dtype, out, batch, length = args.input_dtype, DTYPES[args.quant_dtype], args.batch_size, args.seq_len
    tokens, kv_heads, positions = batch * length, 1 if is_mla else args.num_kv_heads, _positions(args)
    rows = {"q": "tokens num_qo_heads", "k": "tokens" if is_mla else "tokens num_kv_heads"}
    parts = {"rope": rope, **({"nope": nope} if nope else {})}
    shapes = {f"{side}_{part}": f"[{rows[side]} {n}]" for part, n in parts.items() for side in "qk"}
    inputs = {part: f"{dtype}{shape}" for part, shape in shapes.items()}
    outputs = {f"{part}_out": f"{out}{shape}" for part, shape in shapes.items() if part[0] == "q" or not appends}
    refusal = _why_not_rotary(args, rope, LANE)
    if nope % LANE:
        refusal = f"--no_rope_dim {nope}: its kernel wants a multiple of {LANE}"
    pages: dict[str, Any] = {}
    options = {"is_neox": not args.interleave, "enable_pdl": args.enable_pdl}
    if appends:  # each sequence has its own pages, in random order
        inputs["v"] = f"{dtype}[{rows['k']} {width}]"
        count = -(-length // page)
        slots = f"{page} {kv_heads}" if args.kv_layout == "NHD" else f"{kv_heads} {page}"
        cache = counted(f"{out}[{batch * count} {slots} {width}]", tokens * kv_heads * width)
        outputs |= {"k_cache": cache, "v_cache": cache}
        pages = {
            "kv_indices": stored(generator(args).permutation(batch * count)),
            "kv_indptr": offsets([count] * batch),
            "batch_indices": stored([row for row in range(batch) for _ in range(length)]),
            "positions": positions,
        }
        options |= {"page_size": page, "kv_layout": args.kv_layout}
        if not nope % LANE and nope % rope:  # the last vector of a head would reach into the next head
            refusal = f"--no_rope_dim {nope}: its kernel wants a multiple of the {rope} dimensions that are rotated"
    inputs |= {"pos_ids": positions, "cos_sin_cache": f"float32[{length} {rope}]", **pages}
    sides = [f"{side}_{part}" if nope or part == "rope" else "None" for part in ("rope", "nope") for side in "qk"]
    rows_of = (
        ["v", "cos_sin_cache", "pos_ids", "(k_cache, v_cache)", *pages] if appends else ["cos_sin_cache", "pos_ids"]
    )
    written = [f"{one}={one}" for one in outputs if one.endswith("_out")]
    arguments = [*sides, *rows_of, *written, f"quantize_dtype=torch.{out}"]
    return Case(
        op_type="lowbit",
        axes={"tokens": tokens},
        inputs=inputs,
        outputs=outputs,
        reference=f"rope_quantize{'_append' if appends else ''}",
        constants={"OUT_DTYPE": out, "ROTARY_DIM": rope},
        call=direct(f"flashinfer.rope.{name}", *arguments, **options),
        flops=3 * tokens * (args.num_qo_heads + kv_heads) * rope,
        check=Check(1e-2, 1e-3, FP8_MATCH),
        refusals={"cuda": refusal},
    )


_plain = partial(Routine, "rope", FLAGS, make_plain, support={"cuda": ALL}, module="rope")
_quantising = partial(Routine, "rope", FLAGS, make_quantising, support={"cuda": ADA_ON}, module="rope")
ROUTINES: Final = (
    _plain("apply_rope", "RoPE by offsets"),
    _plain("apply_rope_pos_ids", "RoPE by positions"),
    _plain("apply_llama31_rope", "Llama 3.1's RoPE by offsets"),
    _plain("apply_llama31_rope_pos_ids", "Llama 3.1's RoPE by positions"),
    _plain("apply_rope_with_cos_sin_cache", "RoPE from a cache of angles"),
    _quantising("mla_rope_quantize_fp8", "MLA's RoPE to fp8"),
    _quantising("rope_quantize_fp8", "RoPE to fp8"),
    _quantising("rope_quantize_fp8_append_paged_kv_cache", "RoPE to fp8, appended to a paged cache"),
)
