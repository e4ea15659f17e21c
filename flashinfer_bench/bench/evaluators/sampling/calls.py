"""The places of draws from several calls, each on inputs of its own; a draw that is not allowed is told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.sampling.rules import PlacedDraws, SamplingProblem, place_draws, read_problem
from flashinfer_bench.bench.evaluators.verdict import Rejected, check_form, decide
from flashinfer_bench.data import Correctness, Definition

ORDERS: Final = {"by_probability": "probability", "by_id": "token id", "by_reversed_bits": "token id, even ids first"}
"""Field of `PlacedDraws` → the order of the tokens, in words."""


def place_calls(
    definition: Definition, calls: Sequence[JudgedCall], generator: torch.Generator
) -> dict[str, torch.Tensor] | Rejected:
    """Give the places [calls, rows] of draws, by the order of the tokens; or the verdict on a wrong one.

    Calls on the same inputs stand together.
    """
    places: dict[str, list[torch.Tensor]] = {order: [] for order in ORDERS}
    for _, group in groupby(calls, key=lambda call: id(call.inputs)):
        alike = list(group)
        draws = [check_form(definition, call.got, call.expected) for call in alike]
        for got in draws:
            if isinstance(got, Rejected):
                return got
        problem = read_problem(definition, alike[0].inputs)
        device = problem.probabilities.device
        tokens = torch.stack([got[0].to(device, torch.int64) for got in draws if not isinstance(got, Rejected)])
        chunks = list(place_draws(problem, tokens, generator))
        wrong = find_forbidden(problem, tokens, chunks)
        if wrong is not None:
            return wrong
        clear = torch.cat([chunk.clear for chunk in chunks]).cpu()
        for order, found in places.items():
            here = torch.cat([getattr(chunk, order) for chunk in chunks], dim=1).cpu()
            if order != "by_probability":  # where ties decide what is kept, ids say nothing
                here = torch.where(clear, here, torch.rand(here.shape, dtype=here.dtype, generator=generator))
            found.append(here)
    return {order: torch.cat(found) for order, found in places.items()}


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
