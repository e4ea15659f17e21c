"""The sampling family: softmax, samplers, filters and top-k selection.

B rows of V entries (L columns in the transforms), e the bytes of an entry, k entries kept, n drafted tokens. Samplers
and selections compare and hardly calculate: their FLOPs count as 0, and bytes bound them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import ALL, BELOW_ONE, PROBABILITY, Case, Check, Code, Flag, Routine, Tensor
from flashinfer_bench.routines.case.stored import int32, random_integers
from flashinfer_bench.routines.case.words import read_dtype, require

FAMILY: Final = "sampling"
FLOATS: Final = ("float32", "float16", "bfloat16")
FLAGS: Final = (
    Flag("batch_size", "int", "number of rows", required=True),
    Flag("vocab_size", "int", "entries of a row"),
    Flag("input_dtype", "text", "dtype of logits and scores", "float32", FLOATS),
    Flag("top_k", "int", "entries that are kept", 50),
    Flag("top_p", "float", "mass that is kept", 0.9, span=PROBABILITY),
    Flag("min_p", "float", "least share of the largest probability", 0.1, span=BELOW_ONE),
    Flag("temperature", "float", "logits are divided by it", 1.0),
    Flag(
        "filter_apply_order",
        "text",
        "top-k before top-p, or both on the row as it is",
        "top_k_first",
        ("top_k_first", "joint"),
    ),
    Flag("num_speculate_tokens", "int", "drafted tokens", 5),
    Flag("max_len", "int", "columns of the transforms", 4096),
    Flag("num_rows", "int", "rows of the transforms; batch_size where it is left out"),
    Flag("enable_pdl", "switch", "programmatic dependent launch", False),
)
EXACT: Final = Check()
RENORM: Final = Check(1e-3, 1e-12)


def _vocabulary(args: Namespace) -> int:
    require(args.vocab_size is not None, "--vocab_size is missing")
    return int(args.vocab_size)


def _label(args: Namespace, *more: Any) -> str:
    return "_".join([f"b{args.batch_size}", f"v{args.vocab_size}", *map(str, more)])


def _weights(args: Namespace, source: str) -> tuple[str, dict[str, Tensor], float]:
    """Return the dtype of the rows, the input that holds them, and their bytes."""
    dtype = read_dtype(args.input_dtype, "input_dtype", FLOATS if source == "logits" else ("float32",))
    rows = Tensor(dtype, "batch_size vocab_size")
    return dtype, {source: rows}, args.batch_size * _vocabulary(args) * size_of(dtype)


def _make_sampler(
    args: Namespace, function: str, source: str, numbers: Mapping[str, Tensor], *, constants: Any = None
) -> Case:
    dtype, weights, read = _weights(args, source)
    order = args.filter_apply_order
    is_joint = "top_k" in numbers and "top_p" in numbers and order == "joint"
    more = [f"{name}{tensor.value}" for name, tensor in numbers.items()]
    return Case(
        label=_label(args, dtype, *more, *(["joint"] if is_joint else [])),
        op_type="sampling",
        axes={"batch_size": args.batch_size, "vocab_size": _vocabulary(args)},
        inputs={**weights, **numbers},
        outputs={"samples": Tensor("int32", "batch_size")},
        reference=Code("sampling_torch", function, {"JOINT": is_joint} if constants else {}),
        solutions={"cuda": Code("sampling_flashinfer", function, {"FILTER_APPLY_ORDER": order} if constants else {})},
        cost=Cost(0, read + args.batch_size * 4),
        check=Check(extra={"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.2}),
    )


def _top_k(args: Namespace) -> dict[str, Tensor]:
    return {"top_k": Tensor("int32", None, args.top_k)}


def _top_p(args: Namespace) -> dict[str, Tensor]:
    return {"top_p": Tensor("float32", None, float(args.top_p))}


def make_softmax(args: Namespace) -> Case:
    """Softmax. 5 B V FLOPs (maximum, subtraction, exponential, sum, division); B V e read, 4 B V written."""
    dtype, weights, read = _weights(args, "logits")
    size = _vocabulary(args)
    return Case(
        label=_label(args, dtype, f"t{args.temperature:g}"),
        op_type="sampling",
        axes={"batch_size": args.batch_size, "vocab_size": size},
        inputs={**weights, "temperature": Tensor("float32", None, float(args.temperature))},
        outputs={"probs_out": Tensor("float32", "batch_size vocab_size")},
        reference=Code("sampling_torch", "softmax"),
        solutions={"cuda": Code("sampling_flashinfer", "softmax", {"ENABLE_PDL": args.enable_pdl})},
        cost=Cost(5 * args.batch_size * size, read + args.batch_size * size * 4),
        check=Check(1e-3, 1e-3 / size),
    )


def make_sampling_from_probs(args: Namespace) -> Case:
    """Draw a token of each row. 4 B V read, 4 B written."""
    return _make_sampler(args, "sampling_from_probs", "probs", {})


def make_sampling_from_logits(args: Namespace) -> Case:
    """Draw a token of each row's softmax. B V e read, 4 B written."""
    return _make_sampler(args, "sampling_from_logits", "logits", {})


def make_top_k_sampling_from_probs(args: Namespace) -> Case:
    """Draw from the k largest. 4 B V read, 4 B written."""
    return _make_sampler(args, "top_k_sampling_from_probs", "probs", _top_k(args))


def make_top_p_sampling_from_probs(args: Namespace) -> Case:
    """Draw from the nucleus. 4 B V read, 4 B written."""
    return _make_sampler(args, "top_p_sampling_from_probs", "probs", _top_p(args))


def make_top_k_top_p_sampling_from_probs(args: Namespace) -> Case:
    """Draw from what both filters leave. 4 B V read, 4 B written."""
    numbers = {**_top_k(args), **_top_p(args)}
    return _make_sampler(args, "top_k_top_p_sampling_from_probs", "probs", numbers, constants=True)


def make_top_k_top_p_sampling_from_logits(args: Namespace) -> Case:
    """Draw from what both filters leave of the softmax. B V e read, 4 B written."""
    numbers = {**_top_k(args), **_top_p(args)}
    return _make_sampler(args, "top_k_top_p_sampling_from_logits", "logits", numbers, constants=True)


def make_min_p_sampling_from_probs(args: Namespace) -> Case:
    """Draw from what has at least min_p of the largest probability. 4 B V read, 4 B written."""
    return _make_sampler(
        args, "min_p_sampling_from_probs", "probs", {"min_p": Tensor("float32", None, float(args.min_p))}
    )


def _make_filter(args: Namespace, function: str, source: str, numbers: Mapping[str, Tensor], check: Check) -> Case:
    dtype, weights, read = _weights(args, source)
    return Case(
        label=_label(args, dtype, *[f"{name}{tensor.value}" for name, tensor in numbers.items()]),
        op_type="sampling",
        axes={"batch_size": args.batch_size, "vocab_size": _vocabulary(args)},
        inputs={**weights, **numbers},
        outputs={f"{source}_out": Tensor(dtype, "batch_size vocab_size")},
        reference=Code("sampling_torch", function),
        solutions={"cuda": Code("sampling_flashinfer", function)},
        cost=Cost(0, 2 * read),
        check=check,
    )


def make_top_k_renorm_probs(args: Namespace) -> Case:
    """Rescale the k largest. B V e read and written."""
    return _make_filter(args, "top_k_renorm_probs", "probs", _top_k(args), RENORM)


def make_top_p_renorm_probs(args: Namespace) -> Case:
    """Rescale the nucleus. 4 B V read and written."""
    return _make_filter(args, "top_p_renorm_probs", "probs", _top_p(args), RENORM)


def make_top_k_mask_logits(args: Namespace) -> Case:
    """Mask all but the k largest. B V e read and written."""
    return _make_filter(args, "top_k_mask_logits", "logits", _top_k(args), Check(1e-6, 1e-6))


def make_chain_speculative_sampling(args: Namespace) -> Case:
    """Accept or reject n drafted tokens. 4 B (2 n + 1) V + 4 B n read, 4 B (n + 1) + 8 B written."""
    count, size, rows = args.num_speculate_tokens, _vocabulary(args), args.batch_size
    drafted = random_integers(args, 0, size, (rows, count))
    return Case(
        label=_label(args, f"n{count}"),
        op_type="sampling",
        axes={"batch_size": rows, "vocab_size": size, "drafted": count},
        inputs={
            "draft_probs": Tensor("float32", "batch_size drafted vocab_size"),
            "draft_token_ids": Tensor("int32", "batch_size drafted", drafted),
            "target_probs": Tensor("float32", f"batch_size {count + 1} vocab_size"),
        },
        outputs={
            "output_token_ids": Tensor("int32", f"batch_size {count + 1}"),
            "accepted": Tensor("int32", "batch_size"),
            "emitted": Tensor("int32", "batch_size"),
        },
        reference=Code("sampling_torch", "chain_speculative_sampling"),
        solutions={"cuda": Code("sampling_flashinfer", "chain_speculative_sampling")},
        cost=Cost(0, 4 * rows * ((2 * count + 1) * size + count) + 4 * rows * (count + 1) + 8 * rows),
        check=EXACT,
    )


def make_top_k(args: Namespace) -> Case:
    """Select the k largest of a row. B V e read, B k (e + 8) written."""
    dtype = read_dtype(args.input_dtype, "input_dtype", FLOATS)
    size, rows, kept = _vocabulary(args), args.batch_size, args.top_k
    require(kept <= size, f"--top_k {kept} is more than --vocab_size {size}")
    constants = {"K": kept}
    return Case(
        label=_label(args, dtype, f"k{kept}"),
        op_type="top_k",
        axes={"batch_size": rows, "vocab_size": size, "top_k": kept},
        inputs={"scores": Tensor(dtype, "batch_size vocab_size")},
        outputs={"values": Tensor(dtype, "batch_size top_k"), "indices": Tensor("int64", "batch_size top_k")},
        reference=Code("sampling_torch", "top_k", constants),
        solutions={"cuda": Code("sampling_flashinfer", "top_k", constants)},
        cost=Cost(0, rows * size * size_of(dtype) + rows * kept * (size_of(dtype) + 8)),
    )


def _rows(args: Namespace) -> tuple[str, int, dict[str, int]]:
    dtype = read_dtype(args.input_dtype, "input_dtype", FLOATS)
    rows = args.num_rows or args.batch_size
    axes = {"batch_size": args.batch_size, "rows": rows, "max_len": args.max_len, "top_k": args.top_k}
    return dtype, rows, axes


def make_top_k_page_table_transform(args: Namespace) -> Case:
    """Look the k largest up in a page table. rows L e + 4 B L + 8 rows read, 4 rows k written.

    Every row is as long as `--max_len`; the entries of a page table are distinct.
    """
    dtype, rows, axes = _rows(args)
    axes["num_pages"] = args.batch_size * args.max_len
    constants = {"K": args.top_k}
    return Case(
        label=f"b{args.batch_size}_r{rows}_l{args.max_len}_k{args.top_k}_{dtype}",
        op_type="top_k",
        axes=axes,
        inputs={
            "scores": Tensor(dtype, "rows max_len"),
            "src_page_table": Tensor("int32", "batch_size max_len"),
            "lengths": Tensor("int32", "rows", int32([args.max_len] * rows)),
            "row_to_batch": Tensor("int32", "rows", int32(row % args.batch_size for row in range(rows))),
        },
        outputs={"indices": Tensor("int32", "rows top_k")},
        reference=Code("sampling_torch", "top_k_page_table_transform", constants),
        solutions={
            "cuda": Code(
                "sampling_flashinfer",
                "top_k_page_table_transform",
                {**constants, "BY_ROW": rows == args.batch_size},
            )
        },
        cost=Cost(
            0,
            rows * args.max_len * size_of(dtype)
            + 4 * args.batch_size * args.max_len
            + 8 * rows
            + 4 * rows * args.top_k,
        ),
    )


def make_top_k_ragged_transform(args: Namespace) -> Case:
    """Add an offset to the k largest. rows L e + 8 rows read, 4 rows k written; every row is `--max_len` long."""
    dtype, rows, axes = _rows(args)
    constants = {"K": args.top_k}
    return Case(
        label=f"r{rows}_l{args.max_len}_k{args.top_k}_{dtype}",
        op_type="top_k",
        axes=axes,
        inputs={
            "scores": Tensor(dtype, "rows max_len"),
            "offsets": Tensor("int32", "rows", int32(row * args.max_len for row in range(rows))),
            "lengths": Tensor("int32", "rows", int32([args.max_len] * rows)),
        },
        outputs={"indices": Tensor("int32", "rows top_k")},
        reference=Code("sampling_torch", "top_k_ragged_transform", constants),
        solutions={"cuda": Code("sampling_flashinfer", "top_k_ragged_transform", constants)},
        cost=Cost(0, rows * args.max_len * size_of(dtype) + 8 * rows + 4 * rows * args.top_k),
    )


def _routine(name: str, summary: str, make: Any, module: str = "sampling") -> Routine:
    return Routine(name, FAMILY, summary, FLAGS, {"cuda": ALL}, make, module=module)


ROUTINES: Final = (
    _routine("softmax", "softmax with a temperature", make_softmax),
    _routine("sampling_from_probs", "draw a token from probabilities", make_sampling_from_probs),
    _routine("sampling_from_logits", "draw a token from logits", make_sampling_from_logits),
    _routine("top_k_sampling_from_probs", "draw from the k largest", make_top_k_sampling_from_probs),
    _routine("top_p_sampling_from_probs", "draw from the nucleus", make_top_p_sampling_from_probs),
    _routine("top_k_top_p_sampling_from_probs", "both filters, probabilities", make_top_k_top_p_sampling_from_probs),
    _routine("top_k_top_p_sampling_from_logits", "both filters, logits", make_top_k_top_p_sampling_from_logits),
    _routine(
        "min_p_sampling_from_probs", "draw from what is not far below the largest", make_min_p_sampling_from_probs
    ),
    _routine("top_k_renorm_probs", "rescale the k largest", make_top_k_renorm_probs),
    _routine("top_p_renorm_probs", "rescale the nucleus", make_top_p_renorm_probs),
    _routine("top_k_mask_logits", "mask all but the k largest", make_top_k_mask_logits),
    _routine("chain_speculative_sampling", "accept or reject drafted tokens", make_chain_speculative_sampling),
    _routine("top_k", "select the k largest", make_top_k, "topk"),
    _routine("top_k_page_table_transform", "select, then look pages up", make_top_k_page_table_transform, "topk"),
    _routine("top_k_ragged_transform", "select, then add an offset", make_top_k_ragged_transform, "topk"),
)
