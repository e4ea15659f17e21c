"""The sampling family: softmax, samplers, filters and top-k selection.

There are B rows of V entries, or of L columns in the transforms. An entry has e bytes. A selection keeps k entries, and
a chain has n drafted tokens. Samplers and selections mostly compare, so their FLOPs count as 0. Bytes:

* samplers: B V e read, 4 B written; filters: B V e read and written.
* softmax: B V e read, 4 B V written; 5 B V FLOPs (maximum, subtraction, exponential, sum, division).
* chain: 4 B (2 n + 1) V + 4 B n read, 4 B (n + 1) + 8 B written.
* top_k: B V e read, B k (e + 8) written.
* transforms, with R rows: R L e + 8 R read, 4 R k written; a page table adds 4 B L.
* top_k_varlen: 4 B read, and e for each entry within the true lengths; 4 B k written.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Final

from flashinfer_bench.roofline.cost import size_of
from flashinfer_bench.routines.case.spec import (
    ALL,
    BLACKWELL,
    CAPABILITIES,
    PDL,
    Case,
    Check,
    Routine,
    Tensor,
    at_most,
    counted,
    direct,
    generator,
    needed,
    real,
    require,
    size,
    stored,
    whole,
    word,
)

FLOATS: Final = ("float32", "float16", "bfloat16")
FLAGS: Final = (
    size("batch_size", "number of rows"),
    whole("vocab_size", "entries of a row"),
    word("input_dtype", "dtype of logits and scores", "float32", FLOATS),
    whole("top_k", "number of entries to keep", 50),
    real("top_p", "probability mass to keep", 0.9, most=1.0),
    real("min_p", "least share of the largest probability", 0.1, least=0.0, most=math.nextafter(1.0, 0.0)),
    real("temperature", "divisor of the logits", 1.0),
    word(
        "filter_apply_order", "top-k before top-p, or both on the original row", "top_k_first", ("top_k_first", "joint")
    ),
    whole("num_speculate_tokens", "drafted tokens", 5),
    whole("max_len", "columns of the transforms", 4096),
    whole("num_rows", "rows of the transforms (default: batch_size)"),
    PDL,
)
VARLEN_FLAGS: Final = (
    size("batch_size", "number of rows"),
    size("max_seq_len", "columns; lengths are random, above top_k"),
    whole("top_k", "number of entries to keep", 512),
    word("input_dtype", "dtype of the scores", "float32", FLOATS),
)
GUESSED_TOP_K: Final = (512, 1024, 2048)
"""Values of --top_k that gvr takes."""
NUMBERS: Final = {"top_k": "int32", "top_p": "float32", "min_p": "float32", "temperature": "float32"}
FILTERED: Final = {"probs": Check(1e-3, 1e-12), "logits": Check(1e-6, 1e-6)}


def _make_of_rows(args: Namespace, source: str, numbers: Sequence[str]) -> Case:
    """Make a case of softmax, a sampler or a filter.

    Args:
        args: the flags.
        source: the content of the rows: probs or logits.
        numbers: flags whose values the kernel gets after the rows.
    """
    name, dtype, vocabulary = args.routine, args.input_dtype, needed(args, "vocab_size")
    require(dtype == "float32" or source == "logits", f"--input_dtype {dtype}: this routine takes float32")
    rows, arguments, options, flops = f"{dtype}[batch_size vocab_size]", [source, *numbers], {}, 0
    outputs, check = {f"{source}_out": rows}, FILTERED[source]
    if name == "softmax":
        outputs, check = {"probs_out": "float32[batch_size vocab_size]"}, Check(1e-3, 1e-3 / vocabulary)
        flops, options = 5 * args.batch_size * vocabulary, {"enable_pdl": args.enable_pdl}
        arguments = ["logits", "temperature=temperature"]
    elif "sampling" in name:
        outputs, check = {"samples": "int32[batch_size]"}, Check()
    if len(numbers) > 1:
        options = {"filter_apply_order": args.filter_apply_order}
    return Case(
        inputs={source: rows, **{name: Tensor(NUMBERS[name], None, getattr(args, name)) for name in numbers}},
        outputs=outputs,
        call=direct(f"flashinfer.sampling.{name}", *arguments, **options),
        flops=flops,
        check=check,
    )


def make_chain_speculative_sampling(args: Namespace) -> Case:
    """Make a case of a chain of drafted tokens, which are accepted or rejected."""
    count, rows, vocabulary = args.num_speculate_tokens, args.batch_size, needed(args, "vocab_size")
    drafted = generator(args).integers(0, vocabulary, (rows, count), "int32")
    inputs = {
        "draft_probs": f"float32[batch_size {count} vocab_size]",
        "draft_token_ids": stored(drafted),
        "target_probs": f"float32[batch_size {count + 1} vocab_size]",
    }
    counts = dict.fromkeys(("accepted", "emitted"), "int32[batch_size]")
    return Case(
        inputs=inputs,
        outputs={"output_token_ids": f"int32[batch_size {count + 1}]", **counts},
        call=direct("flashinfer.sampling.chain_speculative_sampling", *inputs),
    )


def make_top_k(args: Namespace) -> Case:
    """Make a case that selects the k largest entries of each row."""
    needed(args, "vocab_size")
    kept, dtype = at_most(args, "top_k", "vocab_size"), args.input_dtype
    return Case(
        op_type="top_k",
        inputs={"scores": f"{dtype}[batch_size vocab_size]"},
        outputs={"values": f"{dtype}[batch_size top_k]", "indices": "int64[batch_size top_k]"},
        call=direct("flashinfer.top_k", "scores", str(kept)),
    )


def make_transform(args: Namespace) -> Case:
    """Make a case of a top-k selection that translates indices by a page table, or adds offsets to indices.

    Every row is as long as `--max_len`; the entries of a page table are distinct.
    """
    name, batch, length, rows = args.routine, args.batch_size, args.max_len, args.num_rows or args.batch_size
    axes, options, more = {"rows": rows}, [str(args.top_k)], {}
    if name == "top_k_page_table_transform":
        axes["num_pages"] = batch * length
        second = {"src_page_table": "int32[batch_size max_len]"}
        more = {"row_to_batch": stored([row % batch for row in range(rows)])}
        options.append(f"row_to_batch={None if rows == batch else 'row_to_batch'}")
    else:
        second = {"offsets": stored([row * length for row in range(rows)])}
    given = {"scores": f"{args.input_dtype}[rows max_len]", **second, "lengths": stored([length] * rows)}
    return Case(
        op_type="top_k",
        axes=axes,
        inputs={**given, **more},
        outputs={"indices": "int32[rows top_k]"},
        call=direct(f"flashinfer.{name}", *given, *options),
    )


def make_top_k_varlen(args: Namespace) -> Case:
    """Make a case that selects the k largest entries within the length of each row."""
    batch, columns, kept = args.batch_size, args.max_seq_len, at_most(args, "top_k", "max_seq_len")
    lengths = generator(args).integers(min(kept + 1, columns), columns + 1, batch)  # gvr guesses up to column top_k
    fits = kept in GUESSED_TOP_K and columns * size_of(args.input_dtype) % 16 == 0 and batch <= 1024
    return Case(
        op_type="top_k",
        inputs={
            "scores": counted(f"{args.input_dtype}[batch_size max_seq_len]", int(lengths.sum())),
            "lengths": stored(lengths),
        },
        outputs={"indices": "int32[batch_size top_k]"},
        refusals={"gvr": not fits and "it takes --top_k 512, 1024 or 2048, rows of 16 bytes, and at most 1024 rows"},
    )


def _of_rows(name: str, summary: str, source: str, *numbers: str) -> Routine:
    make = partial(_make_of_rows, source=source, numbers=numbers)
    return Routine("sampling", FLAGS, make, name, summary, {"cuda": ALL}, module="sampling")


_routine = partial(Routine, "sampling", FLAGS, support={"cuda": ALL})
ROUTINES: Final = (
    _of_rows("softmax", "softmax with a temperature", "logits", "temperature"),
    _of_rows("sampling_from_probs", "draw a token from probabilities", "probs"),
    _of_rows("sampling_from_logits", "draw a token from logits", "logits"),
    _of_rows("top_k_sampling_from_probs", "draw from the k largest", "probs", "top_k"),
    _of_rows("top_p_sampling_from_probs", "draw from the nucleus", "probs", "top_p"),
    _of_rows("top_k_top_p_sampling_from_probs", "both filters, probabilities", "probs", "top_k", "top_p"),
    _of_rows("top_k_top_p_sampling_from_logits", "both filters, logits", "logits", "top_k", "top_p"),
    _of_rows("min_p_sampling_from_probs", "draw from entries that are not far below the largest", "probs", "min_p"),
    _of_rows("top_k_renorm_probs", "rescale the k largest", "probs", "top_k"),
    _of_rows("top_p_renorm_probs", "rescale the nucleus", "probs", "top_p"),
    _of_rows("top_k_mask_logits", "mask all but the k largest", "logits", "top_k"),
    _routine(
        make_chain_speculative_sampling, "chain_speculative_sampling", "accept or reject drafts", module="sampling"
    ),
    _routine(make_top_k, "top_k", "select the k largest", module="topk"),
    _routine(make_transform, "top_k_page_table_transform", "select, then look pages up", module="topk"),
    _routine(make_transform, "top_k_ragged_transform", "select, then add an offset", module="topk"),
    Routine(
        "topk_varlen",
        VARLEN_FLAGS,
        make_top_k_varlen,
        "top_k_varlen",
        "select the k largest of rows of several lengths",
        {"radix_cutlass": CAPABILITIES, "radix": CAPABILITIES[5:], "gvr": BLACKWELL},
    ),
)
