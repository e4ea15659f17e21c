"""What a top-k indexer was given, and the range in which the score of each cached token may lie.

The score of a token is the sum over heads of weight * relu(query . key), as in DeepSeek V3.2. The keys are paged: token
= page * page size + offset. The block table lists the pages of each sequence. A packed cache holds bytes: in each page
first the fp8 values of all its tokens, then one float32 scale for each token.

The magnitude of a score is the sum of |weight| * relu(query . key). A right implementation may round a score by a share
of its magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.evaluator import Verdict
from flashinfer_bench.bench.evaluators.selection.choices import Offer, judge_choice
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.errors import WorkloadFault

DSA_TOLERANCE: Final = "dsa_score_tolerance"
SCALE_BYTES: Final = 4
"""Bytes of a float32 scale in a packed cache."""


@dataclass(frozen=True)
class IndexerProblem:
    """What an indexer was given."""

    queries: torch.Tensor
    """[sequences, heads, dim], any float dtype."""
    keys: torch.Tensor
    """Packed: bytes [pages, page size, 1, dim + 4]. Else floats [pages, page size, dim], or with a 1 before dim."""
    weights: torch.Tensor
    """[sequences, heads]."""
    lengths: torch.Tensor
    """Cached tokens of each sequence."""
    table: torch.Tensor
    """Pages of each sequence, [sequences, largest number of pages]."""


ROLES: Final = {("float", 3): "queries", ("float", 2): "weights", ("int", 1): "lengths", ("int", 2): "table"}
"""Kind of dtype and number of axes → role of an input."""


def find_roles(definition: Definition) -> dict[str, str] | None:
    """Find the input of each role: the keys by their name, the others by their kind of dtype and number of axes.

    None if the definition is no indexer. An indexer has these five inputs, and one integer output with a line for
    each sequence.
    """
    outputs = list(definition.outputs.values())
    if len(outputs) != 1 or DTYPES[outputs[0].dtype].kind != "int" or len(outputs[0].shape or ()) != 2:
        return None
    found: dict[str, str] = {}
    for name, spec in definition.inputs.items():
        if spec.shape:
            is_keys = "cache" in name.lower() and len(spec.shape) >= 3
            role = "keys" if is_keys else ROLES.get((DTYPES[spec.dtype].kind, len(spec.shape)))
            if role is None or role in found:
                return None
            found[role] = name
    rows = {(definition.inputs[name].shape or [""])[0] for role, name in found.items() if role != "keys"}
    return found if len(found) == len(ROLES) + 1 and rows == {(outputs[0].shape or [""])[0]} else None


def read_problem(definition: Definition, roles: dict[str, str], inputs: Sequence[Any]) -> IndexerProblem:
    """Read the inputs of an indexer.

    Raises:
        WorkloadFault: a sequence's length or page is out of range, or the layout of the cache is not known.
    """
    values = dict(zip(definition.inputs, inputs, strict=True))
    problem = IndexerProblem(**{role: values[name] for role, name in roles.items()})
    keys, dim = problem.keys, problem.queries.shape[-1]
    heads = keys.shape[2] if keys.ndim == 4 else 1
    if heads != 1 or keys.shape[-1] != dim + (SCALE_BYTES if _is_packed(keys) else 0):
        shape = f"{keys.dtype} {list(keys.shape)}"
        raise WorkloadFault(f"input {roles['keys']!r} is {shape}: no cache of keys with {dim} elements that is known")
    lengths, table, pages, size = problem.lengths, problem.table, *keys.shape[:2]
    capacity = table.shape[1] * size
    for row in ((lengths < 0) | (lengths > capacity)).nonzero()[:1, 0].tolist():
        has = f"input {roles['lengths']!r} gives sequence {row} {int(lengths[row])} tokens"
        raise WorkloadFault(f"{has}; its line in {roles['table']!r} has room for 0 to {capacity}")
    used = torch.arange(table.shape[1], device=table.device) * size < lengths[:, None]
    for row, column in (used & ((table < 0) | (table >= pages))).nonzero()[:1].tolist():
        page = f"page {int(table[row, column])} at [{row}, {column}]"
        raise WorkloadFault(f"input {roles['table']!r} has {page}; the cache has {pages} pages")
    return problem


def offer_tokens(problem: IndexerProblem, tolerance: float) -> Offer:
    """Score the tokens that each sequence can reach. A page that the table lists twice gives its tokens twice.

    Args:
        problem: what the indexer was given.
        tolerance: how far off a score may be, as a share of its magnitude.
    """
    lengths, pages, size, device = problem.lengths.long(), *problem.keys.shape[:2], problem.table.device
    shape = (len(lengths), max(1, *lengths.tolist()))
    tokens = torch.full(shape, pages * size, device=device)
    scores, margins = (torch.zeros(shape, device=device) for _ in range(2))
    for row, length in enumerate(lengths.tolist()):
        used = problem.table[row, : -(-length // size)].long()
        values, scales = _read_keys(problem.keys[used], problem.queries.shape[-1])
        dots = problem.queries[row].float() @ values[:length].T
        # A scale may be negative, so it is applied before the relu.
        terms = torch.relu_(dots if scales is None else dots.mul_(scales[:length]))
        weights, places = problem.weights[row].float(), used[:, None] * size + torch.arange(size, device=device)
        tokens[row, :length], order = places.reshape(-1)[:length].sort()
        scores[row, :length] = (weights @ terms)[order]
        margins[row, :length] = (weights.abs() @ terms)[order] * tolerance
    return Offer(tokens, scores, lengths, margins)


def _read_keys(pages: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give the keys of some pages [tokens, dim] in float32, and their scales [tokens]; None where they have none."""
    count, size = pages.shape[:2]
    if not _is_packed(pages):
        return pages.reshape(count * size, dim).float(), None
    raw = pages.flatten(1).view(torch.uint8)
    values = raw[:, : size * dim].contiguous().view(torch.float8_e4m3fn).view(count * size, dim)
    scales = raw[:, size * dim :].contiguous().view(torch.float32).view(count * size)
    return values.float(), scales


def _is_packed(keys: torch.Tensor) -> bool:
    return keys.element_size() == 1 and not keys.dtype.is_floating_point


def judge_indices(problem: IndexerProblem, indices: torch.Tensor, tolerance: float, *, name: str) -> Verdict:
    """Judge the indices [sequences, topk] that an indexer gave; the scores may be off by a share of their magnitude."""
    found = judge_choice(offer_tokens(problem, tolerance), indices, name=name, note=f"; {DSA_TOLERANCE}={tolerance:g}")
    (found.correctness.extra or {})[DSA_TOLERANCE] = tolerance  # type: ignore[union-attr] # values were compared
    return found
