"""The RoPE family: rotary embeddings, alone, with fp8 output, and appended to a paged cache.

T = batch_size · seq_len tokens, Hq and Hkv heads, d the head dimension, r the rotated part of it, e the bytes of an
input element. FLOPs: a pair takes four multiplications and two additions, so 3 for each rotated element.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import ADA_ON, ALL, Case, Check, Code, Flag, Routine, Tensor
from flashinfer_bench.routines.case.stored import int32, offsets, permutation, random_integers
from flashinfer_bench.routines.case.words import read_dtype, require

FAMILY: Final = "rope"
FLAGS: Final = (
    Flag("batch_size", "int", "number of sequences", required=True),
    Flag("seq_len", "int", "tokens of a sequence", required=True),
    Flag("num_qo_heads", "int", "query heads", required=True),
    Flag("num_kv_heads", "int", "key and value heads", required=True),
    Flag("head_dim", "int", "dimension of a head", required=True),
    Flag("rotary_dim", "int", "dimensions that are rotated; head_dim where it is left out"),
    Flag("no_rope_dim", "int", "dimensions beside the rotated ones, in the quantising routines", 0),
    Flag("input_dtype", "text", "dtype of the input", "float16", ("float16", "bfloat16")),
    Flag("quant_dtype", "text", "dtype of a quantised output", "fp8_e4m3", ("fp8_e4m3", "fp8_e5m2")),
    Flag("rope_scale", "float", "positions are divided by it", 1.0),
    Flag("rope_theta", "float", "base of the frequencies", 10000.0),
    Flag("interleave", "switch", "pairs are neighbours (GPT-J), not halves", False),
    Flag("page_size", "int", "tokens of a page", 16),
    Flag("kv_layout", "text", "order of a page's dimensions", "NHD", ("NHD", "HND")),
    Flag("low_freq_factor", "float", "Llama 3.1: turns below which positions are scaled", 1.0),
    Flag("high_freq_factor", "float", "Llama 3.1: turns above which they are not", 4.0),
    Flag("old_context_len", "int", "Llama 3.1: context that the turns are counted over", 8192),
    Flag("enable_pdl", "switch", "programmatic dependent launch", False),
)
MAX_OFFSET: Final = 64
"""Sequences begin at positions below this. Kernels compute angles quickly, and large ones lose precision."""
FP8_MATCH: Final = 0.98
"""Share of fp8 codes that must agree: a value near the middle of two codes may be rounded either way."""
HEAD_DIMS: Final = (64, 128, 256, 512)
"""Head dimensions for which the library has plain kernels."""
LANE: Final = 16
"""Elements that a thread of the library's quantising kernels reads and writes at once."""


def _check_plain(args: Namespace) -> None:
    rotary = args.rotary_dim or args.head_dim
    require(rotary <= args.head_dim, f"--rotary_dim {rotary} is more than --head_dim {args.head_dim}")
    require(rotary % 2 == 0, f"--rotary_dim {rotary}: pairs are rotated, so it has to be even")


def _check_quantising(args: Namespace) -> None:
    rotary, head = args.rotary_dim or args.head_dim, args.head_dim
    whole = rotary + args.no_rope_dim
    require(
        head in (rotary, whole),
        f"--head_dim {head}: heads are as wide as --rotary_dim {rotary} and --no_rope_dim {args.no_rope_dim}: "
        f"it has to be {rotary}{f' or {whole}' if whole != rotary else ''}",
    )
    require(rotary % 2 == 0, f"--rotary_dim {rotary}: pairs are rotated, so it has to be even")


def _refuse(reason: str) -> dict[str, str]:
    return {"cuda": reason} if reason else {}


def _why_not_rotary(args: Namespace, lane: int) -> str:
    """Say why the kernels cannot rotate these dimensions: a thread holds `lane` of them, all from the same half."""
    rotary, step = args.rotary_dim or args.head_dim, lane if args.interleave else 2 * lane
    return f"--rotary_dim {rotary}: its kernel wants a multiple of {step}" if rotary % step else ""


def _why_not_plain(args: Namespace, *, cached: bool) -> str:
    if args.head_dim in HEAD_DIMS:
        return _why_not_rotary(args, max(8, args.head_dim // 32))
    return _why_not_rotary(args, LANE) if cached else f"--head_dim {args.head_dim}: its kernels have 64, 128, 256, 512"


def _why_not_quantising(args: Namespace, *, appends: bool) -> str:
    rope, nope = args.rotary_dim or args.head_dim, args.no_rope_dim
    if nope % LANE:
        return f"--no_rope_dim {nope}: its kernel wants a multiple of {LANE}"
    if appends and nope % rope:  # its last stretch would reach into the next head
        return f"--no_rope_dim {nope}: its kernel wants a multiple of the {rope} dimensions that are rotated"
    return _why_not_rotary(args, LANE)


def _label(args: Namespace, *more: str) -> str:
    sizes = f"b{args.batch_size}_s{args.seq_len}_h{args.num_qo_heads}_kv{args.num_kv_heads}_d{args.head_dim}"
    return "_".join([sizes, f"r{args.rotary_dim or args.head_dim}", args.input_dtype, *more])


def _positions(args: Namespace) -> Tensor:
    return Tensor("int32", "tokens", int32(list(range(args.seq_len)) * args.batch_size))


def _make_plain(args: Namespace, *, by_offsets: bool, llama31: bool) -> Case:
    _check_plain(args)
    dtype, tokens = read_dtype(args.input_dtype, "input_dtype", ("float16", "bfloat16")), args.batch_size * args.seq_len
    heads, rotary = args.num_qo_heads + args.num_kv_heads, args.rotary_dim or args.head_dim
    constants: dict[str, Any] = {
        "ROTARY_DIM": rotary,
        "INTERLEAVE": args.interleave,
        "ROPE_SCALE": args.rope_scale,
        "ROPE_THETA": args.rope_theta,
        "LOW_FREQ_FACTOR": args.low_freq_factor,
        "HIGH_FREQ_FACTOR": args.high_freq_factor,
        "OLD_CONTEXT_LEN": args.old_context_len,
    }
    require(
        not llama31 or args.high_freq_factor > args.low_freq_factor,
        f"--high_freq_factor {args.high_freq_factor}: must be above --low_freq_factor {args.low_freq_factor}",
    )
    function = f"apply_{'llama31_' if llama31 else ''}rope{'' if by_offsets else '_pos_ids'}"
    q, k = "tokens num_qo_heads head_dim", "tokens num_kv_heads head_dim"
    where = {"pos_ids": _positions(args)}
    if by_offsets:
        starts = random_integers(args, 0, MAX_OFFSET, args.batch_size)
        where = {
            "indptr": Tensor("int32", str(args.batch_size + 1), offsets([args.seq_len] * args.batch_size)),
            "offsets": Tensor("int32", "batch_size", starts),
        }
    extra_bytes = (2 * args.batch_size + 1) * 4 if by_offsets else tokens * 4
    return Case(
        label=_label(args, *(["interleaved"] if args.interleave else [])),
        op_type="rope",
        axes=_axes(args, tokens),
        inputs={"q": Tensor(dtype, q), "k": Tensor(dtype, k), **where},
        outputs={"q_out": Tensor(dtype, q), "k_out": Tensor(dtype, k)},
        reference=Code(
            "rope_torch",
            "rope_by_offsets" if by_offsets else "rope_by_positions",
            {**constants, "LLAMA31": llama31},
        ),
        solutions={"cuda": Code("rope_flashinfer", function, constants)},
        cost=Cost(
            3 * tokens * heads * rotary,
            2 * tokens * heads * args.head_dim * size_of(dtype) + extra_bytes,
        ),
        check=Check(1e-2, 1e-2 if dtype == "float16" else 2e-2),
        refusals=_refuse(_why_not_plain(args, cached=False)),
    )


def _axes(args: Namespace, tokens: int) -> dict[str, int]:
    return {
        "batch_size": args.batch_size,
        "tokens": tokens,
        "num_qo_heads": args.num_qo_heads,
        "num_kv_heads": args.num_kv_heads,
        "head_dim": args.head_dim,
    }


def make_apply_rope(args: Namespace) -> Case:
    """RoPE by offsets. 3 T (Hq + Hkv) r FLOPs; 2 T (Hq + Hkv) d e, and 4 (2 B + 1) of offsets."""
    return _make_plain(args, by_offsets=True, llama31=False)


def make_apply_rope_pos_ids(args: Namespace) -> Case:
    """RoPE by positions. 3 T (Hq + Hkv) r FLOPs; 2 T (Hq + Hkv) d e, and 4 T of positions."""
    return _make_plain(args, by_offsets=False, llama31=False)


def make_apply_llama31_rope(args: Namespace) -> Case:
    """Llama 3.1's RoPE by offsets; costs as `make_apply_rope`."""
    return _make_plain(args, by_offsets=True, llama31=True)


def make_apply_llama31_rope_pos_ids(args: Namespace) -> Case:
    """Llama 3.1's RoPE by positions; costs as `make_apply_rope_pos_ids`."""
    return _make_plain(args, by_offsets=False, llama31=True)


def make_apply_rope_with_cos_sin_cache(args: Namespace) -> Case:
    """RoPE from a cache. 3 T (Hq + Hkv) r FLOPs; 2 T (Hq + Hkv) d e, 4 seq_len r of cache, 4 T of positions.

    The cache is float32, which the library asks for whatever the dtype of queries and keys.
    """
    _check_plain(args)
    dtype, tokens = read_dtype(args.input_dtype, "input_dtype", ("float16", "bfloat16")), args.batch_size * args.seq_len
    heads, rotary = args.num_qo_heads + args.num_kv_heads, args.rotary_dim or args.head_dim
    q = f"tokens {args.num_qo_heads * args.head_dim}"
    k = f"tokens {args.num_kv_heads * args.head_dim}"
    constants = {"HEAD_DIM": args.head_dim, "INTERLEAVE": args.interleave}
    return Case(
        label=_label(args, "cache", *(["interleaved"] if args.interleave else [])),
        op_type="rope",
        axes={"tokens": tokens},
        inputs={
            "q": Tensor(dtype, q),
            "k": Tensor(dtype, k),
            "pos_ids": _positions(args),
            "cos_sin_cache": Tensor("float32", f"{args.seq_len} {rotary}"),
        },
        outputs={"q_out": Tensor(dtype, q), "k_out": Tensor(dtype, k)},
        reference=Code("rope_torch", "rope_with_cache", {**constants, "ROTARY_DIM": rotary}),
        solutions={"cuda": Code("rope_flashinfer", "apply_rope_with_cos_sin_cache", constants)},
        cost=Cost(
            3 * tokens * heads * rotary,
            2 * tokens * heads * args.head_dim * size_of(dtype) + args.seq_len * rotary * 4 + tokens * 4,
        ),
        check=Check(1e-2, 1e-2 if dtype == "float16" else 2e-2),
        refusals=_refuse(_why_not_plain(args, cached=True)),
    )


def _make_quantising(args: Namespace, *, is_mla: bool, appends: bool) -> Case:
    _check_quantising(args)
    rope, nope = args.rotary_dim or args.head_dim, args.no_rope_dim
    require(nope > 0 or not is_mla, "--no_rope_dim is missing: MLA has dimensions without RoPE (512 in DeepSeek)")
    dtype, tokens = read_dtype(args.input_dtype, "input_dtype", ("float16", "bfloat16")), args.batch_size * args.seq_len
    out = read_dtype(args.quant_dtype, "quant_dtype", ("fp8_e4m3", "fp8_e5m2"))
    k = "tokens" if is_mla else "tokens num_kv_heads"
    q = "tokens num_qo_heads"
    kv_heads = 1 if is_mla else args.num_kv_heads
    inputs = {"q_rope": Tensor(dtype, f"{q} {rope}"), "k_rope": Tensor(dtype, f"{k} {rope}")}
    if nope:
        inputs |= {"q_nope": Tensor(dtype, f"{q} {nope}"), "k_nope": Tensor(dtype, f"{k} {nope}")}
    if appends:
        inputs["v"] = Tensor(dtype, f"{k} {rope + nope}")
    inputs |= {"pos_ids": _positions(args), "cos_sin_cache": Tensor("float32", f"{args.seq_len} {rope}")}
    outputs = {"q_rope_out": Tensor(out, f"{q} {rope}")}
    elements = tokens * (args.num_qo_heads + kv_heads) * (rope + nope)
    if appends:
        inputs |= _pages(args)
        outputs |= {"q_nope_out": Tensor(out, f"{q} {nope}")} if nope else {}
        outputs |= {name: Tensor(out, _cache_shape(args, rope + nope)) for name in ("k_cache", "v_cache")}
        elements += tokens * kv_heads * (rope + nope)
    else:
        outputs["k_rope_out"] = Tensor(out, f"{k} {rope}")
        if nope:
            outputs |= {"q_nope_out": Tensor(out, f"{q} {nope}"), "k_nope_out": Tensor(out, f"{k} {nope}")}
    kind = ("_append" if appends else "") + ("" if nope else "_all")
    constants = {"INTERLEAVE": args.interleave, "OUT_DTYPE": out, "PAGE_SIZE": args.page_size}
    own = {
        "KV_LAYOUT": args.kv_layout,
        "ENABLE_PDL": args.enable_pdl,
        "QUANTISER": "mla_rope_quantize_fp8" if is_mla else "rope_quantize_fp8",
    }
    index_bytes = 4 * tokens + (_page_bytes(args) if appends else 0)
    return Case(
        label=_label(args, f"n{nope}", out, *(["interleaved"] if args.interleave else [])),
        op_type="lowbit",
        axes=_axes(args, tokens),
        inputs=inputs,
        outputs=outputs,
        reference=Code(
            "rope_torch",
            f"rope_quantize{kind}",
            {**constants, "ROTARY_DIM": rope, "HND": appends and args.kv_layout == "HND"},
        ),
        solutions={"cuda": Code("rope_flashinfer", f"rope_quantize_fp8{kind}", {**constants, **own})},
        cost=Cost(
            3 * tokens * (args.num_qo_heads + kv_heads) * rope,
            elements * (size_of(dtype) + 1) + args.seq_len * rope * 4 + index_bytes,
        ),
        check=Check(1e-2, 1e-3, FP8_MATCH),
        refusals=_refuse(_why_not_quantising(args, appends=appends)),
        dps=frozenset({"cuda"}),
    )


def _cache_shape(args: Namespace, dimension: int) -> str:
    pages = args.batch_size * -(-args.seq_len // args.page_size)
    middle = (
        f"{args.page_size} {args.num_kv_heads}" if args.kv_layout == "NHD" else f"{args.num_kv_heads} {args.page_size}"
    )
    return f"{pages} {middle} {dimension}"


def _pages(args: Namespace) -> dict[str, Tensor]:
    """Return the page table: each sequence has pages of its own, in random order."""
    count = -(-args.seq_len // args.page_size)
    total = args.batch_size * count
    sequence = [index for index in range(args.batch_size) for _ in range(args.seq_len)]
    return {
        "kv_indices": Tensor("int32", str(total), permutation(args, total)),
        "kv_indptr": Tensor("int32", str(args.batch_size + 1), offsets([count] * args.batch_size)),
        "batch_indices": Tensor("int32", "tokens", int32(sequence)),
        "positions": Tensor("int32", "tokens", int32(list(range(args.seq_len)) * args.batch_size)),
    }


def _page_bytes(args: Namespace) -> int:
    tokens, pages = args.batch_size * args.seq_len, args.batch_size * -(-args.seq_len // args.page_size)
    return 4 * int(pages + args.batch_size + 1 + 2 * tokens)


def make_mla_rope_quantize_fp8(args: Namespace) -> Case:
    """MLA: rotate r, keep n dimensions, round to fp8; keys have one head.

    3 T (Hq + 1) r FLOPs; T (Hq + 1) (r + n) (e + 1), 4 seq_len r of cache, 4 T of positions.
    """
    return _make_quantising(args, is_mla=True, appends=False)


def make_rope_quantize_fp8(args: Namespace) -> Case:
    """The same with Hkv heads of keys."""
    return _make_quantising(args, is_mla=False, appends=False)


def make_rope_quantize_fp8_append_paged_kv_cache(args: Namespace) -> Case:
    """The same with values, and keys and values put into pages: T Hkv (r + n) (e + 1) more, and the page table."""
    return _make_quantising(args, is_mla=False, appends=True)


def _routine(name: str, summary: str, make: Any, capabilities: tuple[str, ...] = ALL) -> Routine:
    return Routine(name, FAMILY, summary, FLAGS, {"cuda": capabilities}, make, module="rope")


ROUTINES: Final = (
    _routine("apply_rope", "RoPE by offsets", make_apply_rope),
    _routine("apply_rope_pos_ids", "RoPE by positions", make_apply_rope_pos_ids),
    _routine("apply_llama31_rope", "Llama 3.1's RoPE by offsets", make_apply_llama31_rope),
    _routine("apply_llama31_rope_pos_ids", "Llama 3.1's RoPE by positions", make_apply_llama31_rope_pos_ids),
    _routine("apply_rope_with_cos_sin_cache", "RoPE from a cache of angles", make_apply_rope_with_cos_sin_cache),
    _routine("mla_rope_quantize_fp8", "MLA's RoPE to fp8", make_mla_rope_quantize_fp8, ADA_ON),
    _routine("rope_quantize_fp8", "RoPE to fp8", make_rope_quantize_fp8, ADA_ON),
    _routine(
        "rope_quantize_fp8_append_paged_kv_cache",
        "RoPE to fp8, appended to a paged cache",
        make_rope_quantize_fp8_append_paged_kv_cache,
        ADA_ON,
    ),
)
