"""The places of draws from several calls, each on inputs of its own; a draw that is not allowed is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.sampling.rules import (
    CHUNK_ELEMENTS,
    PlacedDraws,
    SamplingProblem,
    join_problems,
    place_draws,
    read_problem,
)
from flashinfer_bench.bench.evaluators.verdict import Rejected, check_form, decide
from flashinfer_bench.data import Correctness, Definition

ORDERS: Final = {"by_probability": "probability", "by_id": "token id", "by_reversed_bits": "token id, even ids first"}
"""Field of `PlacedDraws` → the order of the tokens, in words."""


class PlacedCalls(NamedTuple):
    """Draws of several calls, each on rows of its own."""

    places: dict[str, torch.Tensor]
    """[calls, rows] each, by the order of the tokens."""
    peaks: torch.Tensor
    """[calls, rows]: the largest probability of each row."""


def place_calls(
    definition: Definition, calls: Sequence[JudgedCall], generator: torch.Generator
) -> PlacedCalls | Rejected:
    """Give the places of draws; or the verdict on a wrong one.

    Calls on the same inputs stand together. Several such groups are placed at once, as rows of one problem: of a
    hundred calls on two rows each, to place them one by one takes half a second on a GPU.
    """
    places: dict[str, list[torch.Tensor]] = {order: [] for order in ORDERS}
    peaks: list[torch.Tensor] = []
    for groups in _share_out(definition, calls):
        if isinstance(groups, Rejected):
            return groups
        problem, tokens = join_problems([group.problem for group in groups]), torch.cat([g.tokens for g in groups], 1)
        chunks = list(place_draws(problem, tokens, generator))
        if not all(bool(chunk.allowed.all()) for chunk in chunks):
            alone = (_find_forbidden_alone(group, generator) for group in groups)
            found = next((wrong for wrong in alone if wrong is not None), None)
            if found is not None:  # sums of other numbers of rows may round otherwise, at the edge of what is allowed
                return found
        clear = torch.cat([chunk.clear for chunk in chunks]).cpu()
        for order, of_order in places.items():
            here = torch.cat([getattr(chunk, order) for chunk in chunks], dim=1).cpu()
            if order != "by_probability":  # where ties decide what is kept, ids say nothing
                here = torch.where(clear, here, torch.rand(here.shape, dtype=here.dtype, generator=generator))
            of_order += here.chunk(len(groups), dim=1)
        peaks += problem.probabilities.amax(dim=1).cpu().expand(len(tokens), -1).chunk(len(groups), dim=1)
    return PlacedCalls({order: torch.cat(of_order) for order, of_order in places.items()}, torch.cat(peaks))


class _Group(NamedTuple):
    """Calls on the same inputs."""

    problem: SamplingProblem
    tokens: torch.Tensor
    """int64 [calls, rows]."""

    @property
    def elements(self) -> int:
        return self.problem.probabilities.numel()


def _share_out(definition: Definition, calls: Sequence[JudgedCall]) -> Iterator[list[_Group] | Rejected]:
    """Give the groups that are placed at once, all of as many calls; or the verdict on a wrong one."""
    together: list[_Group] = []
    for _, alike in groupby(calls, key=lambda call: id(call.inputs)):
        group = _read_group(definition, list(alike))
        if isinstance(group, Rejected):
            yield group
            return
        is_full = sum(one.elements for one in together) + group.elements > CHUNK_ELEMENTS
        if together and (is_full or together[0].tokens.shape != group.tokens.shape):
            yield together
            together = []
        together.append(group)
    if together:
        yield together


def _read_group(definition: Definition, calls: Sequence[JudgedCall]) -> _Group | Rejected:
    draws = []
    for call in calls:
        got = check_form(definition, call.got, call.expected)
        if isinstance(got, Rejected):
            return got
        draws.append(got[0])
    problem = read_problem(definition, calls[0].inputs)
    device = problem.probabilities.device
    return _Group(problem, torch.stack([drawn.to(device, torch.int64) for drawn in draws]))


def _find_forbidden_alone(group: _Group, generator: torch.Generator) -> Rejected | None:
    return find_forbidden(group.problem, group.tokens, list(place_draws(group.problem, group.tokens, generator)))


def find_forbidden(problem: SamplingProblem, tokens: torch.Tensor, chunks: Sequence[PlacedDraws]) -> Rejected | None:
    """Return the verdict on draws [calls, rows] that are not allowed; None where all are."""
    wrong = ~torch.cat([chunk.allowed for chunk in chunks], dim=1)
    if not bool(wrong.any()):
        return None
    kept = torch.cat([chunk.kept for chunk in chunks])
    call, row = (int(index) for index in wrong.nonzero()[0])
    token = int(tokens[call, row])
    vocabulary = problem.probabilities.shape[1]
    if 0 <= token < vocabulary:
        probability = float(problem.probabilities[row, token])
        filters = problem.describe_row(row)
        suffix = f" ({filters})" if filters else ""
        why = f"its probability is {probability:.4g}; {int(kept[row])} tokens are allowed{suffix}"
    else:
        why = f"the vocabulary has {vocabulary}"
    message = (
        f"{int(wrong.sum())} of {tokens.numel()} draws are not allowed; the first is token {token} "
        f"in call {call}, row {row}: {why}"
    )
    found = {"calls": tokens.shape[0], "draws": tokens.numel(), "not_allowed": int(wrong.sum())}
    verdict = decide(message, Correctness(max_absolute_error=float(wrong.double().mean()), extra=found))
    assert isinstance(verdict, Rejected)  # there is a message
    return verdict
