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
from functools import partial
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
class IndexerRoles:
    """The name of the input that has each role."""

    queries: str
    keys: str
    weights: str
    lengths: str
    table: str


@dataclass(frozen=True)
class IndexerProblem:
    """What an indexer was given."""

    queries: torch.Tensor
    """[sequences, heads, dim], any float dtype."""
    keys: torch.Tensor
    """Packed: bytes [pages, page size, 1, dim + 4]. Else floats [pages, page size, dim], or with a 1 before dim."""
    weights: torch.Tensor
    """[sequences, heads]."""
    lengths: list[int]
    """Cached tokens of each sequence."""
    table: torch.Tensor
    """Pages of each sequence, [sequences, largest number of pages]."""

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.keys.shape[1]

    @property
    def tokens(self) -> int:
        """Tokens in the whole cache; an index is below this."""
        return self.keys.shape[0] * self.page_size


def find_roles(definition: Definition) -> IndexerRoles | None:
    """Find the input of each role: the keys by their name, the others by their kind of dtype and number of axes.

    None where the definition is no indexer. An indexer has these five inputs, and one integer output with a line for
    each sequence.
    """
    outputs = list(definition.outputs.values())
    if len(outputs) != 1 or DTYPES[outputs[0].dtype].kind != "int" or len(outputs[0].shape or ()) != 2:
        return None
    found: dict[str, str] = {}
    for name, spec in definition.inputs.items():
        if spec.shape is None or not spec.shape:
            continue
        role = _role(name, DTYPES[spec.dtype].kind, len(spec.shape))
        if role is None or role in found:
            return None
        found[role] = name
    if set(found) != set(IndexerRoles.__dataclass_fields__):
        return None
    roles = IndexerRoles(**found)
    rows = {(definition.inputs[name].shape or [""])[0] for role, name in found.items() if role != "keys"}
    return roles if rows == {(outputs[0].shape or [""])[0]} else None


def _role(name: str, kind: str, axes: int) -> str | None:
    if "cache" in name.lower() and axes >= 3:
        return "keys"
    roles = {("float", 3): "queries", ("float", 2): "weights", ("int", 1): "lengths", ("int", 2): "table"}
    return roles.get((kind, axes))


def read_problem(definition: Definition, roles: IndexerRoles, inputs: Sequence[Any]) -> IndexerProblem:
    """Read the inputs of an indexer.

    Raises:
        WorkloadFault: a sequence's length or page is out of range, or the layout of the cache is not known.
    """
    values = dict(zip(definition.inputs, inputs, strict=True))
    problem = IndexerProblem(
        queries=values[roles.queries],
        keys=values[roles.keys],
        weights=values[roles.weights],
        lengths=values[roles.lengths].tolist(),
        table=values[roles.table].long(),
    )
    dim, width = problem.queries.shape[-1], problem.keys.shape[-1]
    heads = problem.keys.shape[2] if problem.keys.ndim == 4 else 1
    if heads != 1 or width != dim + (SCALE_BYTES if _is_packed(problem.keys) else 0):
        shape = f"{problem.keys.dtype} {list(problem.keys.shape)}"
        raise WorkloadFault(f"input {roles.keys!r} is {shape}: no cache of keys with {dim} elements that is known")
    capacity = problem.table.shape[1] * problem.page_size
    outside = [row for row, length in enumerate(problem.lengths) if not 0 <= length <= capacity]
    if outside:
        has = f"input {roles.lengths!r} gives sequence {outside[0]} {problem.lengths[outside[0]]} tokens"
        raise WorkloadFault(f"{has}; its line in {roles.table!r} has room for 0 to {capacity}")
    needed = torch.tensor([-(-length // problem.page_size) for length in problem.lengths], device=problem.table.device)
    used = torch.arange(problem.table.shape[1], device=problem.table.device) < needed[:, None]
    wrong = used & ((problem.table < 0) | (problem.table >= problem.keys.shape[0]))
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        page = f"page {int(problem.table[row, column])} at [{row}, {column}]"
        raise WorkloadFault(f"input {roles.table!r} has {page}; the cache has {problem.keys.shape[0]} pages")
    return problem


def offer_tokens(problem: IndexerProblem, tolerance: float) -> Offer:
    """Score the tokens that each sequence can reach. A page that the table lists twice gives its tokens twice.

    Args:
        problem: what the indexer was given.
        tolerance: how far off a score may be, as a share of its magnitude.
    """
    most, device = max(1, *problem.lengths), problem.table.device
    shape = (len(problem.lengths), most)
    tokens = torch.full(shape, problem.tokens, device=device)
    scores, margins = (torch.zeros(shape, device=device) for _ in range(2))
    for row, length in enumerate(problem.lengths):
        pages = problem.table[row, : -(-length // problem.page_size)]
        offsets = torch.arange(problem.page_size, device=device)
        values, scales = _read_keys(problem.keys[pages], problem.queries.shape[-1])
        dots = problem.queries[row].float() @ values[:length].T
        # A scale may be negative, so it is applied before the relu.
        terms = torch.relu_(dots if scales is None else dots.mul_(scales[:length]))
        weights = problem.weights[row].float()
        tokens[row, :length], order = (pages[:, None] * problem.page_size + offsets).reshape(-1)[:length].sort()
        scores[row, :length] = (weights @ terms)[order]
        margins[row, :length] = (weights.abs() @ terms)[order] * tolerance
    return Offer(tokens, scores, torch.tensor(problem.lengths, device=device), margins)


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


def explain_strange(problem: IndexerProblem, row: int, index: int) -> str:
    """Say why an index is not offered to a sequence."""
    if not 0 <= index < problem.tokens:
        return f"is no token: the cache has 0 to {problem.tokens - 1}, and -1 is padding"
    pages = problem.table[row, : -(-problem.lengths[row] // problem.page_size)].tolist()
    page = index // problem.page_size
    if page in pages:
        return f"lies beyond the end of sequence {row}, which has {problem.lengths[row]} tokens"
    return f"cannot be reached: page {page} is none of the {len(pages)} pages of sequence {row} in the block table"


def judge_indices(problem: IndexerProblem, indices: torch.Tensor, tolerance: float, *, name: str) -> Verdict:
    """Judge the indices [sequences, topk] that an indexer gave; the scores may be off by a share of their magnitude."""
    offer, explain = offer_tokens(problem, tolerance), partial(explain_strange, problem)
    found = judge_choice(offer, indices, name=name, explain=explain, note=f"; {DSA_TOLERANCE}={tolerance:g}")
    (found.correctness.extra or {})[DSA_TOLERANCE] = tolerance  # type: ignore[union-attr] # values were compared
    return found
