"""The rules `norm` and `lost_rows`: the error of a float output may be at most a share of the output itself.

`norm` checks the whole output, and also each row if every element must match. If some elements may fail, `lost_rows`
checks each row. So an output of zeros never passes, even if all expected values are below `atol`. A matched ratio never
allows a row that is wrong as a whole. A row that is ill-conditioned for the inputs (`stability`) is skipped.

On stress inputs an output with too few elements for a row is judged, too. The few numbers of such an output may all be
near zero by chance, or because a sum cancelled. So the error of an ill-conditioned output of this size may exceed the
limit, up to a few times the output's change under rounding of the inputs.

`judge_norms` judges one call. `surely_pass` checks many calls at once. Calls that it accepts need no `judge_norms`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import is_whole, read_values
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance, bounds_of, match_bits
from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.integrity.norms import FLOOR, Norms, has_norms, measure_norms, row_length
from flashinfer_bench.bench.evaluators.integrity.stability import Stability
from flashinfer_bench.bench.evaluators.verdict import INFINITE_ERRORS, decide
from flashinfer_bench.data import Correctness, Definition
from flashinfer_bench.data.dtypes import DTYPES

NORM: Final = "norm"
LOST_ROWS: Final = "lost_rows"
USUAL_LIMIT: Final = 0.1
"""Largest norm of the error, as a share of the expected output's norm, if rtol is at most 0.01. Rounding in bfloat16 or
fp8 stays below this limit; an output of zeros has a share of 1."""
RTOL_FACTOR: Final = 10.0
"""If rtol is above 0.01, the limit is rtol times this factor."""
LOOSEST_LIMIT: Final = 0.5
"""Upper bound of the limit for any rtol. So an output that is half missing never passes."""
LIMITS_BY_BITS: Final = {8: 0.2, 4: 0.25}
"""Bits of a definition's smallest dtype → lower bound of the limit. Kernels quantise intermediate values, too. Integers
of 8 bits count as 4 bits, since each often holds two values."""
SMALL_SLACK: Final = 4.0
"""Limit on the error of a small ill-conditioned output, in multiples of its change under rounding. Single numbers vary
more than the norm of a row."""
SMALL_CONDITIONED: Final = 0.5
"""A small output is well-conditioned if rounding changes it by at most this share of the limit. The share is below 1,
because the changes in all draws may be small by chance."""
SURE: Final = 0.99
"""`surely_pass` accepts norms up to this share of the limit."""
TOGETHER: Final = {"cpu": 1 << 15, "cuda": 1 << 24}
"""Maximum elements of the calls that are checked together, by device type. On a GPU the check takes about 400 MB of
memory. On a CPU the check uses one thread."""
MOST_ELEMENTS: Final = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Maximum elements of an output that `surely_pass` checks, by device type. A check needs several times the output's
memory."""

Excess = tuple[str, dict[str, Any]]
"""Message, and `rule` and `evidence` for the trace."""


@dataclass(frozen=True)
class NormRule:
    """How large errors may be, and which rules are on."""

    limit: float
    judges_output: bool
    row_rule: str | None
    """Name of the rule that judges rows; None if rows are not judged."""

    @property
    def is_on(self) -> bool:
        """Whether the rule checks any output."""
        return self.judges_output or self.row_rule is not None

    def find_excess(self, norms: Norms, output: int, name: str, stability: Stability) -> Excess | None:
        """Return how an output breaks the rule; None if it does not.

        Ill-conditioned rows are left out. The check is repeated until the remaining rows pass, or no remaining row is
        ill-conditioned.
        """
        share, worst = norms.share(), norms.figures[2]
        judges_rows = self.row_rule is not None and len(norms.error) > 1 and worst > self.limit
        if not judges_rows and not (self.judges_output and share > self.limit):
            return None
        shares = norms.shares()
        if norms.is_small:
            slack = max(SMALL_SLACK, SMALL_SLACK * self.limit / USUAL_LIMIT)
            bound = max(self.limit * SMALL_CONDITIONED, min(share / slack, sys.float_info.max))
            is_judged = stability.rounding.judges_small
            is_well_conditioned = is_judged and not bool(
                stability.find_ill_conditioned(output, bound, shares >= 0).any()
            )
            return self._describe(NORM, name, share) if is_well_conditioned else None
        left_out = torch.zeros_like(shares, dtype=torch.bool)
        while judges_rows or (self.judges_output and share > self.limit):
            over = (shares > self.limit) & ~left_out
            suspects = over if bool(over.any()) else ~left_out
            ill_conditioned = stability.find_ill_conditioned(output, self.limit, suspects, shares, left_out) & ~left_out
            lost = over & ~ill_conditioned
            if judges_rows and bool(lost.any()):
                row, count = int(torch.where(lost, shares, -1.0).argmax()), int(lost.sum())
                words = f"{count} of {len(lost)} rows are wrong as a whole; worst is row {row}, whose error has"
                return self._describe(self.row_rule or NORM, name, float(shares[row]), words, rows=count, row=row)
            judges_rows = False  # later passes judge only the output as a whole
            if not bool(ill_conditioned.any()):
                return self._describe(NORM, name, share)
            left_out |= ill_conditioned
            share, shares = norms.share(left_out), norms.shares(left_out)
        return None

    def _describe(self, rule: str, name: str, share: float, words: str = "the error has", **location: int) -> Excess:
        size = f"{words} {share:.3g} times the norm of what was expected, {self.limit:g} is allowed"
        if math.isinf(share):
            size = "elements are nan or infinite unlike the reference"
        evidence = {"output": name, **location, "error_norm": share, "limit": self.limit}
        return f"output {name!r}: {size} (rule {rule!r})", {"rule": rule, "evidence": evidence}


def find_limit(definition: Definition, rtol: float) -> float:
    """Return the default limit of a definition for its relative tolerance."""
    limit = max(USUAL_LIMIT, RTOL_FACTOR * rtol)
    for spec in (*definition.inputs.values(), *definition.outputs.values()):
        dtype = DTYPES[spec.dtype]
        if dtype.kind != "bool" and dtype.bits <= 8 and spec.shape:
            limit = max(limit, LIMITS_BY_BITS[8 if dtype.storage.startswith("float8") else 4])
    return min(limit, LOOSEST_LIMIT)


def judge_norms(
    definition: Definition, call: JudgedCall, rule: NormRule, stability: Stability, correctness: Correctness
) -> Verdict:
    """Judge the norms of a call's errors, and add the norms to the record of its outputs."""
    if not rule.is_on:
        return Accepted(correctness)
    extra = dict(correctness.extra or {})
    outputs = dict(extra.get("outputs", {}))
    excess: Excess | None = None
    for number, (name, expected, got) in enumerate(zip(definition.outputs, call.expected, call.got, strict=True)):
        norms = measure_norms(expected, got)
        if norms is None or not norms.says_something:
            continue
        if not norms.is_small:
            figures = {"error_norm": norms.share(), "worst_row_norm": norms.figures[2]}
            outputs[name] = {**outputs.get(name, {}), **figures}
        excess = excess or rule.find_excess(norms, number, name, stability)
    message, integrity = excess or (None, None)
    is_infinite = integrity is not None and math.isinf(integrity["evidence"]["error_norm"])
    changes = {"extra": {**extra, "outputs": outputs}, **(INFINITE_ERRORS if is_infinite else {})}
    return decide(message, correctness.model_copy(update=changes), integrity)


def surely_pass(calls: Sequence[JudgedCall], rule: NormRule, tolerance: Tolerance | None = None) -> list[bool] | None:
    """Check many calls at once.

    No errors are recorded. A call that passes here also passes if it is judged alone. Outputs of several calls are
    checked as one tensor, because a kernel launch for each call would take longer than the check itself.

    Args:
        calls: the calls to judge.
        rule: the rule for norms.
        tolerance: tolerance for elements. If None, only norms are judged, even of outputs that are too small for rows.

    Returns:
        None if nothing is decided. A list means that all calls pass; each item says whether norms apply to the expected
        outputs of that call.
    """
    if tolerance is not None and (tolerance.by_ratio or tolerance.max_absolute_error < math.inf):
        return None
    have_norms = [False] * len(calls)
    for pairs in zip(*(zip(call.expected, call.got, strict=True) for call in calls), strict=True):
        first = pairs[0][0]
        kind, count = first.device.type, first.numel()
        is_mixed = len({(one.shape, one.dtype) for pair in pairs for one in pair}) > 1
        if is_mixed or is_packed(first.dtype) or count > MOST_ELEMENTS[kind]:
            return None
        most = max(1, TOGETHER[kind] // max(count, 1))
        for start in range(0, len(pairs) if count else 0, most):
            sizes = _check_together(pairs[start : start + most], rule, tolerance)
            if sizes is None:
                return None
            for at, size in enumerate(sizes, start):
                have_norms[at] |= size > 0
    return have_norms


def _check_together(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], rule: NormRule, tolerance: Tolerance | None
) -> Sequence[float] | None:
    """Check one output of several calls. Return the squared norm of each expected output, 0 if norms do not apply; None
    if an output does not surely pass.

    Comparisons with nan are false, and an infinite row has an infinite norm. So an output that is not finite never
    surely passes.
    """
    first, calls = pairs[0][0], len(pairs)
    no_norms = [0.0] * calls
    expected, got = (_stack(side) for side in zip(*pairs, strict=True))
    if is_whole(first):
        return no_norms if tolerance is None or bool(match_bits(expected, got).all()) else None
    wanted = read_values(expected)
    error = read_values(got) - wanted
    if tolerance is not None and not bool((error.abs_() <= bounds_of(wanted.abs(), tolerance)).all()):
        return None
    columns = row_length(first) or (first.numel() if tolerance is None else None)
    if columns is None or not rule.is_on or not has_norms(first):
        return no_norms
    rows = [one.reshape(calls, -1, columns) for one in (error, wanted)]
    of_rows = torch.stack([torch.linalg.vector_norm(one, dim=2, dtype=torch.float64) for one in rows]).square_()
    errors, sizes = of_rows.sum(dim=2)
    bounds = torch.maximum(of_rows[1], sizes[:, None] * (FLOOR**2 / of_rows.shape[2])) * (rule.limit * SURE) ** 2
    is_sure = (errors <= sizes * (rule.limit * SURE) ** 2) & sizes.isfinite() & (of_rows[0] <= bounds).all(dim=1)
    if not bool(is_sure.all()):
        return None
    found: list[float] = sizes.tolist()
    return found


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape and dtype as one [tensors, ...]; tensors of 8 bits are stacked as bytes."""
    dtype = tensors[0].dtype
    if dtype.itemsize > 1:
        return torch.stack(tuple(tensors))
    return torch.stack([one.view(torch.uint8) for one in tensors]).view(dtype)
