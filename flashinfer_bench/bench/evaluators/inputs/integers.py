"""Random integers with a meaning: offsets, lengths, pages, positions, slots, words. All values fit the definition's
axes.

A table maps an input's name to the function that makes its values. `integer_probe` finds what the reference indexes
with an input, and so the valid values. The probe also finds padding and packed words. It runs once for the sizes of a
workload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeGuard

import torch

from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.inputs import distributions
from flashinfer_bench.bench.evaluators.inputs.constraints import asking_for
from flashinfer_bench.bench.evaluators.inputs.distributions import (
    ANY,
    Make,
    Rule,
    ValueSpec,
    fill_bytes,
    find_rule,
    split_total,
)
from flashinfer_bench.bench.evaluators.inputs.integer_probe import IntegerProbe
from flashinfer_bench.bench.evaluators.inputs.stand_ins import MOST_ELEMENTS, take_values
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import DTYPES, torch_dtype
from flashinfer_bench.errors import DefinitionFault

_TOTAL: Final = re.compile(r"(?:(\w+) == )?(\w+)\[-1\](?:\.item\(\))?(?: == (\w+))?")
_TOTAL_AXES: Final = {
    "q": ("total_q", "total_qo", "total_num_tokens", "num_tokens"),
    "kv": ("num_kv_indices", "total_kv", "total_num_pages", "total_k"),
    "": ("total_seq_len", "total_tokens", "num_tokens", "total_q", "total_kv"),
}
"""Axes whose size may be the last offset, if no constraint gives that offset. Keys: "q" for queries, "kv" for keys and
values, "" for others."""
_TABLE_AXES: Final = ("max_num_pages", "max_num_blocks", "max_pages_per_seq", "max_blocks_per_seq")
_LENGTH_AXES: Final = ("max_seq_len", "max_kv_len", "max_seqlen", "max_context_len", "seq_len", "kv_len")
_POSITION_AXES: Final = ("max_seq_len", "max_position_embeddings", "max_position", "max_positions")
_SLOT_AXES: Final = ("pool_size", "state_cache_size", "num_slots", "cache_size", "max_batch_size")
_CLASS_AXES: Final = (
    *("num_classes", "n_classes", "num_labels", "n_labels", "num_categories"),
    *("vocab_size", "vocabulary_size", "n_vocab", "vocab"),
)
SMALL: Final = 8
"""Exclusive bound of integers without a rule."""
PADDED_SHARE: Final = 1 / 8
"""Share of the indices that are -1 if the reference tests for -1."""
IGNORED_SHARE: Final = 1 / 4
"""Share of the values that are padding if the reference tests for another negative number, such as -100 for labels."""
SURELY_PADDED: Final = 8
"""An input with at least this many indices gets at least one padding index."""
FREE_LENGTH: Final = 4
"""Mean length of a sequence if the total is not given."""
MOST_PROBES: Final = 64
_probes: dict[tuple[Any, ...], IntegerProbe | None] = {}
"""Definition, device type, sizes and numbers → the trial runs; None if the reference cannot be called."""


def row_offsets(value_spec: ValueSpec) -> torch.Tensor:
    """Make offsets that begin at 0, never decrease, and end at the total that a constraint or an axis gives.

    Each sequence gets enough keys for causal attention to have an answer for every query.
    """
    parts = max(value_spec.shape[0] - 1, 0)
    total = _total(value_spec)
    if total is None:
        total = _find(value_spec, FREE_LENGTH * parts + 1)[0].stop - 1
    base, queries = torch.zeros(parts, dtype=torch.long), _lengths_of(value_spec.made.get("qo_indptr"))
    if "kv" in value_spec.name.lower() and queries is not None and len(queries) == parts:
        page_size = value_spec.size("page_size") or 1
        is_paged = "kv_indices" in value_spec.definition.inputs
        base = -(-queries // page_size) + (page_size > 1) if is_paged else queries
    if int(base.sum()) > total:
        base = torch.zeros_like(base)
    lengths = base + split_total(total - int(base.sum()), parts, value_spec.generator())
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    return value_spec.finish(offsets[: value_spec.shape[0]])


def _total(value_spec: ValueSpec) -> int | None:
    """Return the required last offset; None if no rule gives it."""
    for constraint in value_spec.definition.constraints:
        match = _TOTAL.fullmatch(constraint.strip())
        if match is not None and match[2] == value_spec.name and (match[1] or match[3]) in value_spec.axes:
            return value_spec.axes[match[1] or match[3]]
    owner = value_spec.name.lower()
    side = "kv" if "kv" in owner or owner.endswith("_k") else "q" if "q" in owner.split("_")[0] else ""
    return value_spec.size(*_TOTAL_AXES[side])


def _lengths_of(offsets: Any) -> torch.Tensor | None:
    return torch.diff(offsets.long().cpu()) if isinstance(offsets, torch.Tensor) and offsets.ndim == 1 else None


def last_page_lengths(value_spec: ValueSpec) -> torch.Tensor:
    """Make the number of tokens in each last page. If the queries of each sequence are known, its last page has enough
    tokens for causal attention."""
    page_size = value_spec.size("page_size") or 1
    least = torch.ones(value_spec.shape[0], dtype=torch.long)
    queries, pages = _lengths_of(value_spec.made.get("qo_indptr")), _lengths_of(value_spec.made.get("kv_indptr"))
    if queries is not None and pages is not None and len(queries) == len(pages) <= len(least):
        least[: len(queries)] = (queries - (pages - 1) * page_size).clamp(1, page_size)
    picked = torch.rand(value_spec.shape[0], generator=value_spec.generator(), dtype=torch.float64) * (
        page_size + 1 - least
    )
    return value_spec.finish(least + picked.long())


def _capacity(value_spec: ValueSpec) -> int | None:
    """Return the longest sequence that the block table or an axis allows."""
    pages = value_spec.size(*_TABLE_AXES)
    return (
        value_spec.size(*_LENGTH_AXES) if pages is None else pages * (value_spec.size("page_size", "block_size") or 1)
    )


def sparse_tokens(value_spec: ValueSpec) -> torch.Tensor:
    """Make the cached tokens that each query attends to: distinct tokens, and -1 if the cache has too few."""
    tokens = (value_spec.size("num_pages") or 1) * (value_spec.size("page_size") or 1)
    chosen = min(value_spec.shape[-1], tokens)
    indices = torch.full(value_spec.shape, -1, dtype=torch.long)
    narrow = replace(value_spec, shape=(*value_spec.shape[:-1], chosen))
    indices[..., :chosen] = distributions.distinct_rows(narrow, tokens).cpu()
    return value_spec.finish(indices)


def below(
    find_size: Callable[[ValueSpec], int | None],
    usual: int | None = SMALL,
    *,
    least: int = 0,
    is_distinct: bool = False,
) -> Make:
    """Make valid values below a size.

    Args:
        find_size: returns the size; None if it is unknown.
        usual: replaces an unknown size if the reference indexes nothing with the values. None: the smallest first
            dimension of the other inputs.
        least: the smallest value. `least` is also added to the size, so with 1 the size itself is valid.
        is_distinct: whether values are distinct, if enough valid values exist. If two sequences write to one slot,
            there is no right answer.
    """

    def make(value_spec: ValueSpec) -> torch.Tensor:
        size = find_size(value_spec)
        most = max(size or usual or _leading_size(value_spec), 1) + least
        valid, padding = _find(value_spec, most)
        start = max(valid.start, least)
        stop = max(min(valid.stop, most) if size or is_distinct else valid.stop, start + 1)
        if is_distinct:
            values = distributions.distinct_rows(value_spec, stop - start).add_(start)
        else:
            values = value_spec.empty().random_(start, stop, generator=value_spec.generator(value_spec.device))
        return values if padding is None or values.numel() < 2 else _pad(value_spec, values, padding)

    return make


def within(*axes: str, usual: int | None = SMALL, is_distinct: bool = False) -> Make:
    """Make valid values below the size of the first of these axes that the definition has."""
    return below(lambda value_spec: value_spec.size(*axes), usual, is_distinct=is_distinct)


def top_k(value_spec: ValueSpec) -> torch.Tensor:
    """Make numbers of tokens to keep: uniform on a logarithmic scale, up to the vocabulary."""
    vocabulary = max(value_spec.size("vocab_size", "vocabulary_size", "vocab") or 64, 1)
    exponent = torch.rand(value_spec.shape, dtype=torch.float64, generator=value_spec.generator())
    return value_spec.finish((vocabulary**exponent).long().clamp(1, vocabulary))


def experts(value_spec: ValueSpec) -> torch.Tensor:
    """Make the experts of each token.

    If no input has the experts' weights and the description says "packed", the weights are the lower 16 bits, as
    bfloat16.
    """
    count = value_spec.size("num_experts", "num_local_experts", "num_global_experts") or 1
    chosen = distributions.distinct_rows(value_spec, count)
    is_packed = "packed" in (value_spec.definition.inputs[value_spec.name].description or "").lower()
    has_weights = any(re.fullmatch(r"(top_?k|expert|routing)_?weights", name) for name in value_spec.definition.inputs)
    if has_weights or not is_packed or value_spec.dtype_name != "int32":
        return chosen
    weights = torch.rand(value_spec.shape, generator=value_spec.generator()).softmax(dim=-1).to(torch.bfloat16)
    bits = weights.view(torch.int16).to(torch.int32) & 0xFFFF
    return value_spec.finish((chosen.cpu() << 16) | bits)


def packed_keys(value_spec: ValueSpec) -> torch.Tensor:
    """Make pages of fp8 keys: first all values of a page, then one float32 scale for each of its tokens."""
    if len(value_spec.shape) != 4 or value_spec.shape[-1] <= 4:
        return fill_bytes(value_spec)
    page_count, page_size, _, width = value_spec.shape
    drawn: dict[str, Any] = {"generator": value_spec.generator(value_spec.device), "device": value_spec.device}
    values = torch.randn(page_count, page_size * (width - 4), **drawn).to(torch.float8_e4m3fn)
    scales = torch.rand(page_count, page_size, **drawn).add_(0.5)
    packed = torch.cat((values.view(torch.uint8), scales.view(torch.uint8)), dim=1)
    return packed.view(value_spec.shape).view(value_spec.empty().dtype)


def _find(value_spec: ValueSpec, usual: int) -> tuple[range, int | None]:
    """Return the valid values and the padding value (None if there is none), as trial runs of the reference show.

    Args:
        value_spec: the input.
        usual: end of the range if the reference indexes nothing with the input.
    """
    info = torch.iinfo(torch_dtype(value_spec.dtype_name))
    probe = _probe(value_spec)
    return (
        (range(max(min(usual, info.max + 1), 1)), None) if probe is None else probe.find(value_spec.name, usual, info)
    )


def _pad(value_spec: ValueSpec, values: torch.Tensor, padding: int) -> torch.Tensor:
    """Write padding over some indices. At least one index of each row stays."""
    count = values.numel()
    columns = values.shape[-1] if values.ndim and values.shape[-1] > 1 else count
    generator = value_spec.generator(torch.device("cpu"), "padding")
    is_padding = torch.rand(count // columns, columns, generator=generator)
    is_padding = is_padding < (PADDED_SHARE if padding == -1 else IGNORED_SHARE)
    kept = torch.randint(columns, (), generator=generator)
    if count >= SURELY_PADDED and not is_padding.any():
        is_padding[0, kept - 1] = True
    is_padding[:, kept] &= ~is_padding.all(dim=1)
    return values.masked_fill_(is_padding.view(values.shape).to(values.device), padding)


def _leading_size(value_spec: ValueSpec) -> int:
    """Return the smallest first dimension of the other inputs: indices below this size are valid in all other
    inputs."""
    shapes = zip(value_spec.definition.inputs, value_spec.definition.get_input_shapes(value_spec.axes), strict=True)
    return max(min((shape[0] for name, shape in shapes if shape and name != value_spec.name), default=1), 1)


def _is_wide(value_spec: ValueSpec) -> bool:
    return value_spec.dtype.bits > 8


def _has_words(value_spec: ValueSpec, *, is_masked: bool) -> bool:
    """Return whether an input has more than 8 bits, and the reference unpacks them, so that any bits are valid."""
    may_be = not is_masked or re.search(r">>|shift", value_spec.definition.reference) is not None
    if not may_be or not _is_wide(value_spec) or asking_for(value_spec.definition.constraints, value_spec.name):
        return False
    probe = _probe(value_spec)
    return probe is not None and probe.is_opened(value_spec.name, is_masked=is_masked)


def _probe(value_spec: ValueSpec) -> IntegerProbe | None:
    """Return the trial runs of a reference on the sizes of a workload. None for inputs of the trial runs themselves, or
    if the reference cannot be called."""
    if value_spec.is_plain:
        return None
    definition, given = value_spec.definition, value_spec.given
    numbers = [(name, one.sum().item() if _is_integer(one) else one) for name, one in given.items()]
    known = [one for one in (*value_spec.axes.items(), *numbers) if not isinstance(one[1], torch.Tensor)]
    key = (definition.digest(), value_spec.device.type, *known)
    if key not in _probes:
        if len(_probes) >= MOST_PROBES:
            _probes.clear()
        _probes[key] = None
        with suppress(DefinitionFault):
            values = find_plain_values(definition, value_spec.axes, given)
            _probes[key] = IntegerProbe(definition, value_spec.axes, values, value_spec.device)
    return _probes[key]


def _is_integer(value: Any) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor of integers of more than 8 bits."""
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and value.element_size() > 1


def find_plain_values(definition: Definition, axes: Mapping[str, int], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all inputs as trial runs get them: numbers, tensors with values on the CPU, or tensors without values on
    "meta".

    Args:
        definition: names the inputs.
        axes: the size of every axis.
        given: inputs that are the same for each seed, by name. Other inputs get usual values.
    """
    values = dict[str, Any]()
    for (name, spec), shape in zip(definition.inputs.items(), definition.get_input_shapes(axes), strict=True):
        dtype, one = DTYPES[spec.dtype], given.get(name)
        if _is_integer(one):
            values[name] = take_values(one)
        elif name in given and not isinstance(one, torch.Tensor):
            values[name] = one
        elif shape is None:
            values[name] = axes.get(name, 1)
        elif dtype.kind == "float" or dtype.bits == 8 or math.prod(shape) > MOST_ELEMENTS:
            values[name] = torch.empty(storage_shape(shape, spec.dtype), dtype=torch_dtype(spec.dtype), device="meta")
        else:
            plain = ValueSpec(name, definition, shape, axes, values, is_plain=True)
            values[name] = find_rule(INTEGER_RULES, plain).make(plain)
    return values


PACKED: Final = r"(.*_)?(q_?(weights?|zeros?)|packed_?(weights?|w|zeros?)|(weights?|w|zeros?|zero_points?)_packed)"
"""Names of integer inputs whose elements hold several quantised numbers each."""
LABELS: Final = r"(.*_)?(labels?|targets?|class(es)?)"
INDEX_TEXT: Final = "below the sizes of what the reference indexes; where that is unclear, below all leading sizes"
LABELS_TEXT: Final = "more than 8 bits: below what the reference indexes, else below `num_classes`, else 0 to 7"
NUMBER_TEXT: Final = "more than 8 bits: below what the reference indexes, else 0 to 7"
BYTES_TEXT: Final = "8 bits: any byte, for these hold quantised values"
OPENED_TEXT: Final = "more than 8 bits, of which the reference takes parts: any bits"
MASKED_TEXT: Final = "more than 8 bits that the reference shifts and masks: any bits"
LENGTHS: Final = below(_capacity, 16, least=1)
PAGES: Final = within("num_pages", "num_blocks", "max_num_pages", usual=None, is_distinct=True)
SLOTS: Final = within(*_SLOT_AXES, usual=None, is_distinct=True)
POSITIONS: Final = within(*_POSITION_AXES, usual=4096)
CLASSES: Final = within(*_CLASS_AXES)
NUMBERS: Final = within()

INTEGER_RULES: Final[tuple[Rule, ...]] = (
    # offsets and lengths
    Rule(ANY, "int", r".*indptr|cu_.*(lens|len)(_.*)?", row_offsets, "increasing from 0 to the total"),
    Rule(ANY, "int", r".*last_page_lens?", last_page_lengths, "1 to the page size"),
    Rule(ANY, "int", r".*(seq_?lens?|kv_lens?|context_lens?|lengths)(_.*)?", LENGTHS, "1 to the capacity"),
    # indices
    Rule("dsa_paged", "int", r"sparse_indices", sparse_tokens, "distinct cached tokens, padded with -1"),
    Rule(ANY, "int", r".*(kv|page|block)s?_(indices|tables?|ids)", PAGES, "distinct pages of the cache"),
    Rule(ANY, "int", r".*(positions?|pos_ids)", POSITIONS, "0 to the longest sequence"),
    Rule(ANY, "int", r"top_?ks?", top_k, "1 to the vocabulary, small ones as often as large ones"),
    Rule(ANY, "int", r".*(state|cache|slot|batch).*(indices|ids|mapping)|.*slots", SLOTS, "distinct slots"),
    Rule("moe", "int", r"(.*_)?(ids|indices|experts)", experts, "distinct experts in a row"),
    Rule(ANY, "int", r".*(indices|index|idx|ids)", within(usual=None), INDEX_TEXT),
    Rule("dsa_paged", "int uint", r"k_index_cache.*", packed_keys, "fp8 values, then float32 scales", "redrawn"),
    # by dtype
    Rule(ANY, "int uint", PACKED, fill_bytes, OPENED_TEXT, "rolled", partial(_has_words, is_masked=False)),
    Rule(ANY, "int uint", ANY, fill_bytes, MASKED_TEXT, "rolled", partial(_has_words, is_masked=True)),
    Rule(ANY, "int uint", LABELS, CLASSES, LABELS_TEXT, None, _is_wide),
    Rule(ANY, "int uint", ANY, NUMBERS, NUMBER_TEXT, None, _is_wide),
    Rule(ANY, "int uint", ANY, fill_bytes, BYTES_TEXT),
)
