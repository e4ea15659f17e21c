"""The OwnCheck evaluator: a function in the definition's reference decides.

GPU MODE's problems may have such a check, for example for a factorisation with many right answers. The function gets
inputs and outputs in the order of the definition. The function returns the reason why outputs are wrong, or an empty
text.
"""

from __future__ import annotations

import functools

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import CHECK_OUTPUTS, RECORDS
from flashinfer_bench.bench.evaluators.blame import blaming
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.inputs.custom import find_in_reference
from flashinfer_bench.bench.evaluators.reference import explain_error
from flashinfer_bench.bench.evaluators.verdict import decide
from flashinfer_bench.data import Correctness, Definition


class OwnCheckEvaluator(DefaultEvaluator):
    """Takes op type gpumode, if the reference has a function check_outputs."""

    record = RECORDS["OwnCheckEvaluator"]
    needs_expected = False
    own_rule = "pass its own check"

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Ask the definition's check."""
        check = find_in_reference(definition, CHECK_OUTPUTS)
        with blaming(functools.partial(explain_error, definition)):
            reason: str = check(trial.inputs, trial.got)
        return decide(reason or None, Correctness(extra={"trials": 1}))
