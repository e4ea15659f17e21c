"""The rules `norm` and `lost_rows`: the error of a float output may be no more than a share of the output itself.

`norm` looks at the whole output, and at each row if every element has to match. `lost_rows` looks at each row if some
elements may fail. So zeros never pass for values that are smaller than `atol`, and no row is given up for a matched
ratio. A row that the inputs do not settle (`stability`) is left out.

On stress inputs an output too small for rows is judged, too. Its few numbers may all be near zero by chance, or be what
is left of a sum, so it may also be off by several times as much as rounding of the inputs moves it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.integrity.norms import Norms, measure_norms
from flashinfer_bench.bench.evaluators.integrity.stability import Stability
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import DTYPES

NORM: Final = "norm"
LOST_ROWS: Final = "lost_rows"
USUAL_LIMIT: Final = 0.1
"""Largest norm of the error, as a share of the reference's, if rtol is at most 0.01. bfloat16 comes to 0.01, fp8 in
between two products to 0.04; zeros to 1."""
RTOL_FACTOR: Final = 10.0
"""Above that, the limit is rtol times this."""
LOOSEST_LIMIT: Final = 0.5
"""The limit is never larger: half of an output may not be missing."""
LIMITS_BY_BITS: Final = {8: 0.2, 4: 0.25}
"""Bits of the smallest floats of a definition → the least limit: kernels quantise what lies between its operations,
too. Whole numbers of 8 bits count as 4: they often hold two values."""
SMALL_SLACK: Final = 4.0
"""A small output may be off by this many times what rounding moves it, if that is more than the limit: single numbers
scatter."""
SMALL_SETTLED: Final = 0.5
"""Share of the limit by which rounding may move a small output that is settled: all draws may be small."""


@dataclass(frozen=True)
class Excess:
    """Why an output breaks a rule."""

    rule: str
    message: str
    evidence: dict[str, Any]

    @property
    def integrity(self) -> dict[str, Any]:
        """What a trace says of it."""
        return {"rule": self.rule, "evidence": self.evidence}


@dataclass(frozen=True)
class NormRule:
    """How large errors may be, and which rules are on."""

    limit: float
    judges_output: bool
    row_rule: str | None
    """Name of the rule that judges rows; None if none does."""

    @classmethod
    def of(
        cls,
        definition: Definition,
        cfg: ResolvedEvalConfig,
        *,
        by_ratio: bool,
        limit: float | None,
    ) -> NormRule:
        """Return the rule for a definition.

        Args:
            definition: its dtypes say how coarse honest kernels are.
            cfg: says which rules are on.
            by_ratio: whether some elements may fail.
            limit: what the user set; None for the default.
        """
        is_on = cfg.lost_rows_rule if by_ratio else cfg.norm_rule
        row_rule = (LOST_ROWS if by_ratio else NORM) if is_on else None
        return cls(
            find_limit(definition, cfg.rtol) if limit is None else limit,
            cfg.norm_rule,
            row_rule,
        )

    @property
    def is_on(self) -> bool:
        """Whether there is anything to look at."""
        return self.judges_output or self.row_rule is not None


def find_limit(definition: Definition, rtol: float) -> float:
    """Return the default limit of a definition under a tolerance."""
    limit = max(USUAL_LIMIT, RTOL_FACTOR * rtol)
    for spec in (*definition.inputs.values(), *definition.outputs.values()):
        dtype = DTYPES[spec.dtype]
        if dtype.kind != "bool" and dtype.bits <= 8 and spec.shape:
            limit = max(limit, LIMITS_BY_BITS[8 if dtype.storage.startswith("float8") else 4])
    return min(limit, LOOSEST_LIMIT)


def describe_norms(norms: Sequence[Norms | None], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the figures of outputs for a trace, by name."""
    return {
        name: {"error_norm": one.share(), "worst_row_norm": one.figures[2]}
        for name, one in zip(names, norms, strict=True)
        if one is not None and one.says_something and not one.is_small
    }


def measure_outputs(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> list[Norms | None]:
    """Measure each output, also small ones."""
    return list(map(measure_norms, expected, got))


def find_excess(
    rule: NormRule,
    norms: Sequence[Norms | None],
    names: Sequence[str],
    stability: Stability,
) -> Excess | None:
    """Return the first output that breaks the rule; None if none does.

    Args:
        rule: what is allowed.
        norms: of each output.
        names: of the outputs.
        stability: says which rows are left out.
    """
    for index, (name, one) in enumerate(zip(names, norms, strict=True)):
        if one is None or not one.says_something:
            continue
        if one.is_small:
            share = one.share()
            found = _describe_output(name, share, rule) if _is_small_wrong(rule, share, index, stability) else None
        else:
            found = _find_excess(rule, one, index, name, stability)
        if found is not None:
            return found
    return None


def _find_excess(rule: NormRule, norms: Norms, output: int, name: str, stability: Stability) -> Excess | None:
    """Leave out rows that are not settled, and then those that were small beside them, until the rest is right."""
    share, shares = norms.share(), norms.row_shares
    left_out = torch.zeros_like(shares, dtype=torch.bool)
    judges_rows = rule.row_rule is not None and len(shares) > 1 and norms.figures[2] > rule.limit
    while judges_rows or (rule.judges_output and share > rule.limit):
        over = (shares > rule.limit) & ~left_out
        suspects = over if bool(over.any()) else ~left_out
        unsettled = stability.find_unsettled(output, rule.limit, suspects, shares, left_out) & ~left_out
        if judges_rows and bool((over & ~unsettled).any()):
            return _describe_rows(name, shares, over & ~unsettled, rule)
        judges_rows = False  # rows that were small beside others count for the output alone
        if not bool(unsettled.any()):
            return _describe_output(name, share, rule)
        left_out |= unsettled
        share, shares = norms.share(left_out), norms.shares_beside(left_out)
    return None


def _is_small_wrong(rule: NormRule, share: float, output: int, stability: Stability) -> bool:
    if not stability.rounding.judges_small or not rule.judges_output or share <= rule.limit:
        return False
    slack = max(SMALL_SLACK, SMALL_SLACK * rule.limit / USUAL_LIMIT)
    bound = max(rule.limit * SMALL_SETTLED, min(share / slack, sys.float_info.max))
    return not bool(stability.find_unsettled(output, bound, torch.ones(1, dtype=torch.bool)).any())


def _describe_rows(name: str, shares: torch.Tensor, lost: torch.Tensor, rule: NormRule) -> Excess:
    row, count = int(torch.where(lost, shares, -1.0).argmax()), int(lost.sum())
    worst, row_rule = float(shares[row]), rule.row_rule or NORM
    message = (
        f"output {name!r}: {count} of {len(lost)} rows are wrong as a whole; worst is row {row}, whose error has "
        f"{worst:.3g} times the norm of what was expected, {rule.limit:g} is allowed (rule {row_rule!r})"
    )
    evidence = {
        "output": name,
        "rows": count,
        "row": row,
        "error_norm": worst,
        "limit": rule.limit,
    }
    return Excess(row_rule, message, evidence)


def _describe_output(name: str, share: float, rule: NormRule) -> Excess:
    message = (
        f"output {name!r}: the error has {share:.3g} times the norm of what was expected, {rule.limit:g} is allowed "
        f"(rule {NORM!r}): values below atol are no reason to leave the work out"
    )
    return Excess(NORM, message, {"output": name, "error_norm": share, "limit": rule.limit})
