"""Judges calls on inputs of stress cases (`inputs/stress.py`), for evaluators that compare element by element.

Floats are judged by norms alone: a tolerance of single elements is made for usual inputs. Outputs that are the same on
all usual inputs are judged by whether they change where the reference's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.stress import GATES, ONE_ROW, why_no_stress
from flashinfer_bench.bench.evaluators.integrity.constants import Constants, find_left_out
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, surely_pass
from flashinfer_bench.bench.evaluators.integrity.stability import (
    GATE_ROUNDING,
    LOUD_ROUNDING,
    REGIME_ROUNDING,
    Stability,
)
from flashinfer_bench.bench.evaluators.verdict import judge_norms
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus

REGIMES_RULE: Final = "regimes"
SEE: Final = "`flashinfer-bench repro` saves such a call, and `--no-regimes-rule` switches the rule off"


@dataclass(frozen=True)
class StressChecks:
    """The checks of one definition. To judge in another way, override `judge` and `surely_pass` together."""

    definition: Definition
    rule: NormRule
    """The rule for usual inputs; here outputs and rows are always judged."""

    @property
    def judges_floats(self) -> bool:
        """Whether any output is judged by norms."""
        return why_no_stress(self.definition) is None

    @property
    def _rule(self) -> NormRule:
        return replace(self.rule, judges_output=True, row_rule=NORM)

    def judge(self, case: str, call: JudgedCall, context: JudgeContext) -> Verdict:
        """Judge the floats of a call on inputs of a case."""
        rounding = {**dict.fromkeys(GATES, GATE_ROUNDING), ONE_ROW: LOUD_ROUNDING}.get(case, REGIME_ROUNDING)
        stability = Stability(context.reference, call.inputs, call.expected, context.seed, rounding)
        verdict = judge_norms(self.definition, call, self._rule, stability, Correctness())
        if isinstance(verdict, Accepted) or verdict.integrity is None:
            return verdict
        integrity = _integrity(case, **verdict.integrity["evidence"])
        message = f"on stress inputs ({case}), {verdict.message}; {SEE}"
        return replace(verdict, message=message, integrity=integrity)

    def surely_pass(self, calls: Sequence[JudgedCall]) -> list[bool] | None:
        """Tell by one look at several calls whether `judge` would accept each, as `norm_rule.surely_pass` does."""
        return surely_pass(calls, self._rule)

    def judge_constants(self, case: str, call: JudgedCall, constants: Constants, context: JudgeContext) -> Verdict:
        """Judge whether outputs differ from the usual ones where the reference's do.

        Args:
            case: the name of the stress case.
            call: what is judged.
            constants: number of an output → what it is on all usual inputs.
            context: of the job.
        """
        found = find_left_out(constants, call, context.reference, context.seed)
        if found is None:
            return Accepted(Correctness())
        name = list(self.definition.outputs)[found.output]
        message = (
            f"on stress inputs ({case}), output {name!r}: {found.changed} elements differ from what they are on all "
            f"usual inputs, and {found.wrong} are wrong in this: an output that is nearly always the same is no reason "
            f"to leave the work out (rule {REGIMES_RULE!r}); {SEE}"
        )
        integrity = _integrity(case, output=name, changed=found.changed, wrong=found.wrong)
        return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, Correctness(), integrity)


def _integrity(case: str, **evidence: object) -> dict[str, object]:
    return {"rule": REGIMES_RULE, "evidence": {"regime": case, **evidence}}
