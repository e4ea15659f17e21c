"""The DSA evaluator, for DeepSeek's sparse attention over a paged cache.

Attention is compared element by element: the output and, if the definition has one, the lse. If a token attends to
nothing, the reference's lse is -inf, and the solution's must be -inf. The indices of a top-k indexer are judged by the
scores that they select, see `choices`.

The score of a token is the sum over heads of weight * relu(query . key), as in DeepSeek V3.2. A right implementation
may round the score by a share of its magnitude: the sum of |weight| * relu(query . key). The keys are paged: token =
page * page size + offset. The block table lists the pages of each sequence. A packed cache holds bytes: in each page
first the fp8 values of all its tokens, then one float32 scale for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import DSA_TOLERANCE, RECORDS
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.selection.choices import Offer, judge_choice
from flashinfer_bench.bench.evaluators.verdict import read_parameter
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.errors import WorkloadFault

DEFAULT_TOLERANCE: Final = 2e-3
"""Largest error of a score, as a share of its magnitude. Rounding the scaled keys to bfloat16 causes errors of this
size; differences between scores are about a hundred times as large."""
SCALE_BYTES: Final = 4
"""Bytes of a float32 scale in a packed cache."""
ROLES: Final = {("float", 3): "queries", ("float", 2): "weights", ("int", 1): "lengths", ("int", 2): "table"}
"""Kind of dtype and number of axes → role of an input."""


class DSAEvaluator(DefaultEvaluator):
    """Takes op type dsa_paged, also spelt dsa-paged."""

    record = RECORDS["DSAEvaluator"]
    own_rule = "choose by the DSA evaluator's scores, weight * relu(query . key) summed over heads"

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Compare attention; judge an indexer's choice by the scores that it selects."""
        roles = find_roles(definition)
        if roles is None:
            return super().judge_trial(definition, trial, cfg)
        tolerance = read_parameter(cfg, DSA_TOLERANCE, DEFAULT_TOLERANCE)
        problem = read_problem(definition, roles, trial.inputs)
        return judge_indices(problem, trial.got[0], tolerance, name=next(iter(definition.outputs)))

    @classmethod
    def compares_elements(cls, definition: Definition) -> bool:
        """Attention is compared element by element, an indexer's choice is not."""
        return find_roles(definition) is None


@dataclass(frozen=True)
class IndexerProblem:
    """An indexer's inputs."""

    queries: torch.Tensor
    """[sequences, heads, dim], any float dtype."""
    keys: torch.Tensor
    """Packed: bytes [pages, page size, 1, dim + 4]. Else floats [pages, page size, dim] or [pages, page size, 1,
    dim]."""
    weights: torch.Tensor
    """[sequences, heads]."""
    lengths: torch.Tensor
    """Number of cached tokens of each sequence."""
    table: torch.Tensor
    """Pages of each sequence, [sequences, largest number of pages]."""

    @property
    def is_packed(self) -> bool:
        """Whether the keys are bytes."""
        return self.keys.element_size() == 1 and not self.keys.dtype.is_floating_point

    def read_keys(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Return the keys of some pages [tokens, dim] in float32, and their scales [tokens], or 1 if the cache has no
        scales."""
        keys, dim = self.keys[pages], self.queries.shape[-1]
        if not self.is_packed:
            return keys.reshape(-1, dim).float(), 1.0
        raw, split = keys.flatten(1).view(torch.uint8), keys.shape[1] * dim
        values = raw[:, :split].contiguous().view(torch.float8_e4m3fn).view(-1, dim)
        return values.float(), raw[:, split:].contiguous().view(torch.float32).view(-1)


def find_roles(definition: Definition) -> dict[str, str] | None:
    """Find the input of each role: the keys by their name, all other inputs by their kind of dtype and number of axes.

    Return None if the definition is no indexer. An indexer has these five inputs, and one integer output with a row for
    each sequence.
    """
    outputs = list(definition.outputs.values())
    if len(outputs) != 1 or DTYPES[outputs[0].dtype].kind != "int" or len(outputs[0].shape or ()) != 2:
        return None
    result: dict[str, str] = {}
    for name, spec in definition.inputs.items():
        if spec.shape:
            is_keys = "cache" in name.lower() and len(spec.shape) >= 3
            role = "keys" if is_keys else ROLES.get((DTYPES[spec.dtype].kind, len(spec.shape)))
            if role is None or role in result:
                return None
            result[role] = name
    rows = {(definition.inputs[name].shape or [""])[0] for role, name in result.items() if role != "keys"}
    return result if len(result) == len(ROLES) + 1 and rows == {(outputs[0].shape or [""])[0]} else None


def read_problem(definition: Definition, roles: dict[str, str], inputs: Sequence[Any]) -> IndexerProblem:
    """Read the inputs of an indexer.

    Raises:
        WorkloadFault: a sequence's length or page is out of range, or the layout of the cache is not known.
    """
    values = dict(zip(definition.inputs, inputs, strict=True))
    problem = IndexerProblem(**{role: values[name] for role, name in roles.items()})
    keys, dim, lengths, table = problem.keys, problem.queries.shape[-1], problem.lengths, problem.table
    heads = keys.shape[2] if keys.ndim == 4 else 1
    if heads != 1 or keys.shape[-1] != dim + SCALE_BYTES * problem.is_packed:
        shape = f"{keys.dtype} {list(keys.shape)}"
        raise WorkloadFault(f"input {roles['keys']!r} is {shape}: no cache of keys with {dim} elements that is known")
    pages, size = keys.shape[:2]
    used = torch.arange(table.shape[1], device=table.device) * size < lengths[:, None]
    for name, value, most, is_read in (
        (roles["lengths"], lengths, table.shape[1] * size, torch.ones_like(lengths, dtype=torch.bool)),
        (roles["table"], table, pages - 1, used),
    ):
        for at in (is_read & ((value < 0) | (value > most))).nonzero()[:1].tolist():
            raise WorkloadFault(f"input {name!r} has {int(value[tuple(at)])} at {at}; the cache has 0 to {most}")
    return problem


def judge_indices(problem: IndexerProblem, indices: torch.Tensor, tolerance: float, *, name: str) -> Verdict:
    """Judge the indices of an indexer. A page that the table lists twice offers its tokens twice.

    Args:
        problem: the indexer's inputs.
        indices: [sequences, topk].
        tolerance: largest error of a score, as a share of its magnitude.
        name: name of the output.
    """
    lengths, pages, size, device = problem.lengths.long(), *problem.keys.shape[:2], problem.table.device
    shape = (len(lengths), max(1, *lengths.tolist()))
    tokens = torch.full(shape, pages * size, device=device)
    scores, margins = (torch.zeros(shape, device=device) for _ in range(2))
    for row, length in enumerate(lengths.tolist()):
        used = problem.table[row, : -(-length // size)].long()
        values, scales = problem.read_keys(used)
        # A scale may be negative, so it is applied before the relu.
        terms = torch.relu_((problem.queries[row].float() @ values.T).mul_(scales)[:, :length])
        weights, positions = problem.weights[row].float(), used[:, None] * size + torch.arange(size, device=device)
        tokens[row, :length], order = positions.reshape(-1)[:length].sort()
        scores[row, :length] = (weights @ terms)[order]
        margins[row, :length] = (weights.abs() @ terms)[order] * tolerance
    result = judge_choice(Offer(tokens, scores, lengths, margins), indices, name=name)
    (result.correctness.extra or {})[DSA_TOLERANCE] = tolerance  # type: ignore[union-attr] # values were compared
    if isinstance(result, Rejected):
        return replace(result, message=f"{result.message}; {DSA_TOLERANCE}={tolerance:g}")
    return result
