"""Judges calls on inputs of stress cases (`inputs/stress.py`), for evaluators that compare element by element.

Floats are judged by norms alone: a tolerance of single elements is made for usual inputs. A reference may leave the
range of its numbers there, so `keep_finite` takes the rows that can be judged.

Outputs that are the same on all usual inputs, such as a count or a flag, may be left out unseen. These are outputs of
whole numbers and bools, and of floats that are one number over and over. One thing is judged of them: whether they
differ from the usual ones in the elements in which the reference's do. Numbers near a threshold may differ by rounding,
so elements that roundings of the inputs turn are left out, and some others may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import is_whole, read_values
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.stress import GATES, ONE_ROW, why_no_stress
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, judge_norms, surely_pass
from flashinfer_bench.bench.evaluators.integrity.norms import has_norms, row_length
from flashinfer_bench.bench.evaluators.integrity.stability import (
    FEWEST_DRAWS,
    GATE_ROUNDING,
    LOUD_ROUNDING,
    REGIME_ROUNDING,
    Stability,
    call_rounded,
)
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus

REGIMES_RULE: Final = "regimes"
SEE: Final = "`flashinfer-bench repro` saves such a call, and `--no-regimes-rule` switches the rule off"
FLOAT_CHANGE: Final = 0.01
"""A float counts as changed if it differs by more than this share of its value on usual inputs."""
LEAST_FLOAT: Final = 1e-12
"""The same for a value of zero: a share of very many elements is more, and what some processors take for zero less."""
WRONG_SHARE: Final = 0.25
"""Elements that may be wrong, as a share of those that differ from the usual output."""
ODD_KINDS: Final = (torch.isposinf, torch.isneginf, torch.isnan)

Outputs = Sequence[torch.Tensor]
Constants = Mapping[int, torch.Tensor]
"""Number of an output → its value on all usual inputs."""


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
        return NormRule(self.rule.limit, judges_output=True, row_rule=NORM)

    def judge(self, case: str, call: JudgedCall, context: JudgeContext) -> Verdict:
        """Judge the floats of a call on inputs of a case."""
        rounding = GATE_ROUNDING if case in GATES else LOUD_ROUNDING if case == ONE_ROW else REGIME_ROUNDING
        stability = Stability(context.reference, call.inputs, call.expected, context.seed, rounding)
        verdict = judge_norms(self.definition, call, self._rule, stability, Correctness())
        if isinstance(verdict, Accepted):
            return verdict
        integrity = _integrity(case, **(verdict.integrity or {})["evidence"])
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
            constants: the outputs that are judged.
            context: of the job.
        """
        suspects: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for number, usual in constants.items():
            expected, got = call.expected[number], call.got[number]
            changed = differs(expected, usual)
            suspects[number] = changed, (changed != differs(got, usual)) & differs(expected, got)
        draws = call_rounded(context.reference, call.inputs, REGIME_ROUNDING, context.seed)
        made = 0
        while suspects := {number: both for number, both in suspects.items() if _is_left_out(*both)}:
            drawn = next(draws, None)
            if drawn is None:
                break
            made += 1
            for number, (changed, wrong) in suspects.items():
                settled = differs(drawn[0][number], constants[number]) == changed
                suspects[number] = changed & settled, wrong & settled
        if made < FEWEST_DRAWS or not suspects:
            return Accepted(Correctness())
        number, both = next(iter(suspects.items()))
        changes, faults = (int(one.sum()) for one in both)
        name = list(self.definition.outputs)[number]
        message = (
            f"on stress inputs ({case}), output {name!r}: {changes} elements differ from what they are on all "
            f"usual inputs, and {faults} are wrong in this: an output that is nearly always the same is no reason "
            f"to leave the work out (rule {REGIMES_RULE!r}); {SEE}"
        )
        integrity = _integrity(case, output=name, changed=changes, wrong=faults)
        return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, Correctness(), integrity)


def find_constants(outputs: Sequence[Outputs]) -> Constants:
    """Return the outputs that are the same in all calls.

    Args:
        outputs: what the reference gave, for each call. Of a single call, an output of whole numbers or bools counts
            that is one number over and over: nothing says that it differs elsewhere. One of floats has to be that in
            several calls.
    """
    calls = list({id(one): one for one in outputs}.values())  # where memory is short, trials share what is expected
    found: dict[int, torch.Tensor] = {}
    for number, value in enumerate(calls[0] if calls else ()):
        whole, others = is_whole(value), [call[number] for call in calls[1:]]
        if not value.numel() or not (whole or (others and not is_packed(value.dtype))):
            continue
        first = value.reshape(-1)[0]
        is_one = bool((value == first).all()) and bool(first.isfinite())
        if (is_one or (whole and others)) and all(torch.equal(value, other) for other in others):
            found[number] = value
    return found


def differs(value: torch.Tensor, usual: torch.Tensor) -> torch.Tensor:
    """Tell of each element whether it differs from its value on usual inputs; roundings of floats are no difference.

    Args:
        value: of any shape.
        usual: of the same shape and dtype: an output of `find_constants`.
    """
    if is_whole(value):
        return value != usual
    bound = usual.double().abs().mul_(FLOAT_CHANGE).clamp_(min=LEAST_FLOAT)
    return ~((value.double() - usual.double()).abs() <= bound)  # also where it is no number


def keep_finite(
    call: JudgedCall, context: JudgeContext, usual: Sequence[Outputs]
) -> tuple[JudgedCall, JudgeContext] | None:
    """Return a call, and a context for judging it, with the rows that can be judged; None if all can.

    A row in which the reference is not finite is left out whole: if a sum overflows, what is divided by it is zero, and
    a better solution has other numbers there. So is a row in which only the solution is not finite: a narrower format
    overflows sooner, and a shortcut that fits numbers of the usual size gives none that are infinite. An output that
    overflows in some rows is left out whole: what grows that fast is moved by any rounding, and rows that are nearly
    infinite outweigh all others. Infinities and nans that usual inputs give, too, such as scores that a mask leaves
    out, are meant: the rest of such a row is judged.

    Args:
        call: on inputs of a stress case.
        context: of the job.
        usual: what the reference gives for usual inputs, call by call.
    """
    kept: list[torch.Tensor | None] = []
    is_odd = False
    for expected, got, others in zip(call.expected, call.got, zip(*usual, strict=True), strict=True):
        kept.append(None)
        if not has_norms(expected) or is_packed(expected.dtype):
            continue
        columns = row_length(expected) or expected.numel()
        wanted, given = (read_values(side).reshape(-1, columns) for side in (expected, got))
        meant = torch.zeros_like(wanted, dtype=torch.bool)
        for kind in ODD_KINDS:
            if any(bool(kind(read_values(one)).any()) for one in others):
                meant |= kind(wanted)
        odd = ~(wanted.isfinite() | meant)
        is_odd |= bool(odd.any())
        rows = ((wanted.isfinite() & given.isfinite()) | meant).all(dim=1) & ~(odd & wanted.isinf()).any()
        kept[-1] = None if bool(rows.all()) else rows
    if not is_odd:
        return None

    def take(outputs: Outputs) -> list[torch.Tensor]:
        pairs = zip(outputs, kept, strict=True)
        return [value if rows is None else value.reshape(len(rows), -1)[rows] for value, rows in pairs]

    judged = JudgedCall(call.inputs, take(call.got), take(call.expected))
    return judged, replace(context, reference=lambda inputs: take(context.reference(inputs)))


def _is_left_out(changed: torch.Tensor, wrong: torch.Tensor) -> bool:
    count = int(changed.sum())
    return count > 0 and int(wrong.sum()) > WRONG_SHARE * count


def _integrity(case: str, **evidence: object) -> dict[str, object]:
    return {"rule": REGIMES_RULE, "evidence": {"regime": case, **evidence}}
