"""Judges calls on inputs of stress cases (`inputs/stress.py`), for evaluators that compare element by element.

Float outputs are judged by norms alone, because the user's tolerance for elements is meant for usual inputs. On stress
inputs a reference may overflow, so `keep_finite` selects the rows that can be judged.

A solution could skip the work for outputs that are the same on all usual inputs, such as a count or a flag. Such
outputs consist of integers, of bools, or of floats that repeat one number. On stress inputs, the solution's outputs
must differ from their usual values in the same elements as the reference's. Values near a threshold may differ by
rounding. So elements that change if the inputs are rounded are skipped, and a share of the other elements may be wrong.
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
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule, judge_norms, surely_pass
from flashinfer_bench.bench.evaluators.integrity.norms import has_norms, row_length
from flashinfer_bench.bench.evaluators.integrity.stability import (
    FEWEST_DRAWS,
    GATE_ROUNDING,
    LOUD_ROUNDING,
    STRESS_ROUNDING,
    Stability,
    call_rounded,
)
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus

REGIMES_RULE: Final = "regimes"
SEE: Final = "`flashinfer-bench repro` saves such a call, and `--no-regimes-rule` switches the rule off"
FLOAT_CHANGE: Final = 0.01
"""A float counts as changed if it differs by more than this share of its value on usual inputs."""
LEAST_FLOAT: Final = 1e-12
"""Smallest change that counts, for a float whose usual value is about zero. A flushed denormal is a smaller change. A
single term of a sum of very many terms makes a larger change."""
WRONG_SHARE: Final = 0.25
"""Elements that may be wrong, as a share of the elements that differ from the usual output."""
ODD_KINDS: Final = (torch.isposinf, torch.isneginf, torch.isnan)

Outputs = Sequence[torch.Tensor]
Constants = Mapping[int, torch.Tensor]
"""Index of an output → its value on all usual inputs."""


@dataclass(frozen=True)
class StressChecks:
    """The checks of one definition. Override `judge` and `surely_pass` together to judge differently."""

    definition: Definition
    rule: NormRule
    """The norm rule for stress inputs, which judges both rows and whole outputs."""

    @property
    def judges_floats(self) -> bool:
        """Whether any output is judged by norms."""
        return why_no_stress(self.definition) is None

    def judge(self, case: str, call: JudgedCall, context: JudgeContext) -> Verdict:
        """Judge the float outputs of a call on inputs of a stress case."""
        rounding = GATE_ROUNDING if case in GATES else LOUD_ROUNDING if case == ONE_ROW else STRESS_ROUNDING
        stability = Stability(context.reference, call.inputs, call.expected, context.seed, rounding)
        verdict = judge_norms(self.definition, call, self.rule, stability, Correctness())
        if isinstance(verdict, Accepted):
            return verdict
        integrity = _integrity(case, **(verdict.integrity or {})["evidence"])
        message = f"on stress inputs ({case}), {verdict.message}; {SEE}"
        return replace(verdict, message=message, integrity=integrity)

    def surely_pass(self, calls: Sequence[JudgedCall]) -> list[bool] | None:
        """Check several calls at once, and return the result of `norm_rule.surely_pass`."""
        return surely_pass(calls, self.rule)

    def judge_constants(self, case: str, call: JudgedCall, constants: Constants, context: JudgeContext) -> Verdict:
        """Judge whether a call's outputs differ from their usual values in the same elements as the reference's."""
        suspects: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for number, usual in constants.items():
            expected, got = call.expected[number], call.got[number]
            changed = differs(expected, usual)
            suspects[number] = changed, (changed != differs(got, usual)) & differs(expected, got)
        draws = call_rounded(context.reference, call.inputs, STRESS_ROUNDING, context.seed)
        made = 0
        while suspects := {number: both for number, both in suspects.items() if _is_left_out(*both)}:
            drawn = next(draws, None)
            if drawn is None:
                break
            made += 1
            for number, (changed, wrong) in suspects.items():
                unchanged = differs(drawn[0][number], constants[number]) == changed
                suspects[number] = changed & unchanged, wrong & unchanged
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
        outputs: the reference's outputs, for each call. If there is only one call, an output of integers or bools
            counts if it repeats one number. A float output must repeat one number in several calls.
    """
    calls = list({id(one): one for one in outputs}.values())  # if memory is short, trials share their expected outputs
    result: dict[int, torch.Tensor] = {}
    for number, value in enumerate(calls[0] if calls else ()):
        whole, others = is_whole(value), [call[number] for call in calls[1:]]
        if not value.numel() or not (whole or (others and not is_packed(value.dtype))):
            continue
        first = value.reshape(-1)[0]
        is_one = bool((value == first).all()) and bool(first.isfinite())
        if (is_one or (whole and others)) and all(torch.equal(value, other) for other in others):
            result[number] = value
    return result


def differs(value: torch.Tensor, usual: torch.Tensor) -> torch.Tensor:
    """Return for each element whether it differs from its value on usual inputs. Floats must differ by more than
    rounding.

    Args:
        value: an output, of any shape.
        usual: the usual value, of the same shape and dtype; `find_constants` returns it.
    """
    if is_whole(value):
        return value != usual
    bound = usual.double().abs().mul_(FLOAT_CHANGE).clamp_(min=LEAST_FLOAT)
    return ~((value.double() - usual.double()).abs() <= bound)  # true for nan, too


def keep_finite(
    call: JudgedCall, context: JudgeContext, usual: Sequence[Outputs]
) -> tuple[JudgedCall, JudgeContext] | None:
    """Return the call, and a context for judging it, with only the rows that can be judged. None if the call is judged
    unchanged, since the reference's infinities and nans also occur on usual inputs.

    A row in which the reference or the solution is not finite is skipped. A careful solution may have a number where
    the reference has none, and a narrower format overflows sooner. A shortcut that assumes numbers of the usual size
    returns finite numbers, so it is still found. If the reference's output has infinite elements, the whole output is
    skipped: rounding strongly changes the finite rows, and nearly infinite rows outweigh all other rows. Infinities and
    nans that usual inputs give, too, such as masked scores, are expected; the other elements of their rows are judged.

    Args:
        call: a call on inputs of a stress case.
        context: the job's context.
        usual: the reference's outputs for usual inputs, call by call.
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
