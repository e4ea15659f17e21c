"""Keeps the call that decides a verdict: its inputs, the expected outputs, and the solution's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import Evaluator, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks
from flashinfer_bench.data import Definition


@dataclass
class KeptCall:
    """The call that decides, or the last one so far."""

    inputs: list[Any] | None = None
    expected: list[torch.Tensor] | None = None
    got: list[torch.Tensor] | None = None
    """None if the solution gave nothing."""
    is_final: bool = False
    """Whether it was rejected: then no later call takes its place."""
    was_timed: bool = False
    """Whether it was a call that was timed."""

    def take(self, inputs: Sequence[Any], expected: Sequence[Any] | None, got: Any, *, is_final: bool = False) -> None:
        """Keep copies of a call, unless one was rejected."""
        if self.is_final:
            return
        values = got if got is None or isinstance(got, (list, tuple)) else [got]
        self.inputs, self.expected, self.got = (
            None if values is None else [_copy(one) for one in values] for values in (inputs, expected, values)
        )
        self.is_final = is_final


def _copy(value: Any) -> Any:
    return value.detach().clone().cpu() if isinstance(value, torch.Tensor) else value


class KeepingKernel:
    """A solution as a callable that keeps each call."""

    def __init__(self, kernel: Any, kept: KeptCall, inputs: list[Any], expected: list[Any]) -> None:
        self._kernel = kernel
        self._kept = kept
        self._known = list(zip(inputs, expected, strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, *args: Any) -> Any:
        """Call the solution, and keep the call."""

        def are_of(inputs: list[Any]) -> bool:
            return len(inputs) <= len(args) and all(one is other for one, other in zip(inputs, args, strict=False))

        # Evaluators of samplers make inputs of their own: what is expected of these is not known.
        inputs, expected = next((call for call in self._known if are_of(call[0])), (list(args), None))
        self._kept.take(inputs, expected, None)
        got = self._kernel(*args)
        self._kept.take(inputs, expected, got)
        return got


@dataclass(frozen=True)
class KeepingChecks(StressChecks):
    """Judges calls on other inputs, and keeps the one that is wrong."""

    kept: KeptCall

    def judge(self, case: str, call: JudgedCall, context: JudgeContext) -> Verdict:
        """Judge a call."""
        verdict = super().judge(case, call, context)
        if isinstance(verdict, Rejected):
            self.kept.take(call.inputs, call.expected, call.got, is_final=True)
        return verdict


def keeping(evaluator: type[Evaluator], kept: KeptCall) -> type[Evaluator]:
    """Return an evaluator that judges as another one does, and keeps the call that decides."""
    base: Any = evaluator

    class Keeping(base):  # type: ignore[misc]
        """Judges as its base, call by call."""

        is_elementwise = getattr(evaluator, "is_elementwise", False)

        @classmethod
        def check_correctness(
            cls, definition: Definition, sol_runnable: Any, inputs: Any, *rest: Any, **named: Any
        ) -> Verdict:
            """Judge, and keep the last call. The first of the others is what is expected."""
            kernel = KeepingKernel(sol_runnable, kept, inputs, rest[0])
            verdict: Verdict = super().check_correctness(definition, kernel, inputs, *rest, **named)
            if isinstance(verdict, Rejected):
                if kept.expected is None:  # many calls decided together, on inputs that are made of the first ones
                    kept.take(inputs[0], rest[0][0], None)
                kept.is_final = True
            return verdict

        @classmethod
        def judge_reads(
            cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
        ) -> Verdict:
            """Judge timed calls one by one, so that the wrong one is kept; then together, if all are right."""
            for call in calls:
                verdict: Verdict = super().judge_reads(definition, [call], cfg, context)
                if isinstance(verdict, Rejected):
                    kept.take(call.inputs, call.expected, call.got, is_final=True)
                    kept.was_timed = True
                    return verdict
            return super().judge_reads(definition, calls, cfg, context)  # type: ignore[no-any-return]

        @classmethod
        def stress_checks(cls, definition: Definition, cfg: ResolvedEvalConfig) -> StressChecks | None:
            """Judge calls on other inputs, and keep the one that is wrong."""
            checks = super().stress_checks(definition, cfg)
            return None if checks is None else KeepingChecks(checks.definition, checks.rule, kept)

    Keeping.__name__ = evaluator.__name__
    return Keeping
