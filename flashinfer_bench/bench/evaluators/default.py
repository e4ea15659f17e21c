"""The Default evaluator: every element of every output within tolerance, on fresh inputs in each trial.

It is the template of the other evaluators: they override one of its hooks (`tolerance`, `judge_trial`,
`check_reference`) and inherit the rest. Its steps are functions too, so that another evaluator can borrow one by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.built_in import DEFAULT, BuiltIn
from flashinfer_bench.bench.evaluators.compare.outputs import describe_nonfinite
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import Baseline, Evaluator, JudgeContext, JudgedCall, SolutionRunnable
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of, total_bytes
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.stress import GATES, ONE_ROW, why_no_stress
from flashinfer_bench.bench.evaluators.integrity.constants import Constants, find_left_out
from flashinfer_bench.bench.evaluators.integrity.norm_rule import (
    NORM,
    USUAL_LIMIT,
    NormRule,
    describe_norms,
    find_excess,
    measure_outputs,
)
from flashinfer_bench.bench.evaluators.integrity.stability import (
    GATE_ROUNDING,
    LOUD_ROUNDING,
    REGIME_ROUNDING,
    Stability,
)
from flashinfer_bench.bench.evaluators.integrity.sure import norms_surely_pass, surely_pass
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.verdict import (
    Accepted,
    Rejected,
    Verdict,
    check_form,
    judge_elements,
    read_parameter,
    resolve_tolerance,
    summarise,
)
from flashinfer_bench.bench.extra_keys import MAX_ERROR_NORM
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, Performance, Workload

INPUT_SHARE: Final = 4
"""The inputs and expected outputs of all trials may take the device's memory divided by this, at most."""


REGIMES_RULE: Final = "regimes"
SEE: Final = "`flashinfer-bench repro` saves such a call, and `--no-regimes-rule` switches the rule off"

Judge = Callable[[JudgedCall], Verdict]


class DefaultEvaluator(Evaluator):
    """Takes every definition that no other evaluator takes."""

    built_in: ClassVar[BuiltIn] = DEFAULT
    """Which definitions this evaluator takes, and the revision of its rules; the host reads the same object."""
    revision = DEFAULT.revision
    is_random: ClassVar[bool] = False
    """Whether equal inputs may give different outputs. Where they may, no second call of the reference is judged."""

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Take the definitions that `built_in` says."""
        return cls.built_in.takes(definition)

    @classmethod
    def tolerance(cls, cfg: ResolvedEvalConfig) -> Tolerance:
        """Give the tolerance for comparing elements."""
        return resolve_tolerance(cfg, default_ratio=1.0)

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Compare every element of every output."""
        return judge_elements(definition, trial.got, trial.expected, cls.tolerance(cfg))

    @classmethod
    def compares_elements(cls, definition: Definition) -> bool:
        """Tell whether outputs have to be near the reference's, element by element; then norms are judged, too."""
        del definition
        judge: Any = cls.judge_trial
        default: Any = DefaultEvaluator.judge_trial
        return judge.__func__ is default.__func__

    @classmethod
    def judge_call(
        cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge one call by the user's tolerance, and then by the rules beside it."""
        verdict = cls.judge_trial(definition, trial, cfg)
        if isinstance(verdict, Rejected) or not cls.compares_elements(definition):
            return verdict
        stability = Stability(context.reference, trial.inputs, trial.expected, context.seed)
        return judge_norms(definition, trial, cls.norm_rule(definition, cfg), stability, verdict.correctness)

    @classmethod
    def norm_rule(cls, definition: Definition, cfg: ResolvedEvalConfig) -> NormRule:
        """Give the rule for the norms of errors."""
        return NormRule.of(definition, cfg, by_ratio=cls.tolerance(cfg).by_ratio, limit=read_limit(cfg))

    @classmethod
    def takes_regimes(cls, definition: Definition, cfg: ResolvedEvalConfig) -> bool:
        """Take them where outputs are compared element by element, and one of them is a float."""
        return cfg.regimes_rule and cls.compares_elements(definition) and why_no_stress(definition) is None

    @classmethod
    def judge_regime(
        cls, definition: Definition, regime: str, call: JudgedCall, cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge by norms alone: a tolerance of single elements is made for usual inputs."""
        rule = cls.regime_rule(definition, cfg)
        rounding = {**dict.fromkeys(GATES, GATE_ROUNDING), ONE_ROW: LOUD_ROUNDING}.get(regime, REGIME_ROUNDING)
        stability = Stability(context.reference, call.inputs, call.expected, context.seed, rounding)
        verdict = judge_norms(definition, call, rule, stability, Correctness())
        if isinstance(verdict, Accepted) or verdict.integrity is None:
            return verdict
        evidence = {"regime": regime, **verdict.integrity["evidence"]}
        message = f"on stress inputs ({regime}), {verdict.message}; {SEE}"
        return replace(verdict, message=message, integrity={"rule": REGIMES_RULE, "evidence": evidence})

    @classmethod
    def regime_rule(cls, definition: Definition, cfg: ResolvedEvalConfig) -> NormRule:
        """Give the rule for the norms of errors on stress inputs: outputs and rows are always judged."""
        return replace(cls.norm_rule(definition, cfg), judges_output=True, row_rule=NORM)

    @classmethod
    def regimes_surely_pass(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig
    ) -> list[bool] | None:
        """Look at all calls together, where `judge_regime` is the one of this class."""
        judge: Any = cls.judge_regime
        default: Any = DefaultEvaluator.judge_regime
        is_same = judge.__func__ is default.__func__
        return norms_surely_pass(calls, cls.regime_rule(definition, cfg)) if is_same else None

    @classmethod
    def tries_constants(cls, definition: Definition, cfg: ResolvedEvalConfig) -> bool:
        """Try them where outputs are compared element by element, also where floats are judged on usual inputs only."""
        return cfg.regimes_rule and cls.compares_elements(definition)

    @classmethod
    def judge_constants(
        cls, definition: Definition, regime: str, call: JudgedCall, constants: Constants, context: JudgeContext
    ) -> Verdict:
        """Judge whether outputs differ from the usual ones where the reference's do."""
        found = find_left_out(constants, call, context.reference, context.seed)
        if found is None:
            return Accepted(Correctness())
        name = list(definition.outputs)[found.output]
        message = (
            f"on stress inputs ({regime}), output {name!r}: {found.changed} elements differ from what they are on all "
            f"usual inputs, and {found.wrong} are wrong in this: an output that is nearly always the same is no reason "
            f"to leave the work out (rule {REGIMES_RULE!r}); {SEE}"
        )
        evidence = {"regime": regime, "output": name, "changed": found.changed, "wrong": found.wrong}
        integrity = {"rule": REGIMES_RULE, "evidence": evidence}
        return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, Correctness(), integrity)

    @classmethod
    def check_reference(
        cls, definition: Definition, baseline: Baseline, cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> None:
        """Call the reference again and judge what it gives as a solution is judged.

        Raises:
            WorkloadFault: the reference would be rejected.
        """
        if not cls.is_random:
            check_repeats(baseline, context, lambda trial: cls.judge_trial(definition, trial, cfg))

    @classmethod
    def build_baseline(
        cls,
        definition: Definition,
        workload: Workload,
        cfg: ResolvedEvalConfig,
        device: torch.device,
        *,
        context: JudgeContext,
    ) -> Baseline:
        """Make the inputs of each trial, have the reference compute them, and check the reference."""
        baseline = build_baseline(definition, workload, cfg, device, context=context)
        cls.check_reference(definition, baseline, cfg, context)
        return baseline

    @classmethod
    def check_correctness(
        cls,
        definition: Definition,
        sol_runnable: SolutionRunnable,
        inputs: list[list[Any]],
        ref_outputs: list[list[torch.Tensor]],
        cfg: ResolvedEvalConfig,
        *,
        context: JudgeContext,
    ) -> Verdict:
        """Call the solution on the inputs of each trial and judge what it gives."""
        return check_trials(
            definition,
            sol_runnable,
            inputs,
            ref_outputs,
            judge=lambda trial: cls.judge_call(definition, trial, cfg, context),
        )

    @classmethod
    def judges_calls_alone(cls) -> bool:
        """Tell whether `check_correctness` is this class's: it makes one call on each trial's inputs."""
        ours = DefaultEvaluator.check_correctness.__func__  # type: ignore[attr-defined]
        return getattr(cls.check_correctness, "__func__", None) is ours

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge calls that were made while the solution was timed; all together first, as far as that is the same."""
        ours = (DefaultEvaluator.check_correctness.__func__, DefaultEvaluator.judge_call.__func__)  # type: ignore[attr-defined]
        theirs = tuple(getattr(one, "__func__", None) for one in (cls.check_correctness, cls.judge_call))
        is_same = ours == theirs and cls.compares_elements(definition)
        if is_same and surely_pass(calls, cls.tolerance(cfg), cls.norm_rule(definition, cfg)):
            return Accepted(Correctness())
        return super().judge_reads(definition, calls, cfg, context)

    @classmethod
    def rehearse(cls, definition: Definition, call: JudgedCall, cfg: ResolvedEvalConfig, context: JudgeContext) -> None:
        """Judge the call as one of several that were timed, and as one by itself."""
        super().rehearse(definition, call, cfg, context)
        cls.judge_call(definition, call, cfg, context)

    @classmethod
    def eval_performance(
        cls,
        definition: Definition,
        sol_runnable: SolutionRunnable,
        inputs: list[list[Any]],
        ref_mean_latency_ms: float | None,
        cfg: ResolvedEvalConfig,
        *,
        context: JudgeContext,
    ) -> Performance:
        """Time the solution on the inputs of all trials."""
        del definition, cfg
        return eval_performance(sol_runnable, inputs, ref_mean_latency_ms, context=context)


def build_baseline(
    definition: Definition,
    workload: Workload,
    cfg: ResolvedEvalConfig,
    device: torch.device,
    *,
    context: JudgeContext,
) -> Baseline:
    """Make the inputs of each trial, have the reference compute their outputs, and time it where the context says so.

    Where the inputs of all trials would take too much memory, later trials use earlier inputs again. The notes then say
    how many sets of inputs there are.
    """
    inputs: list[list[Any]] = []
    outputs: list[list[torch.Tensor]] = []
    maker = InputMaker(definition, workload, device, context.blob_root, context.notes)
    room = total_bytes(device) // INPUT_SHARE
    while len(inputs) < cfg.num_trials and (
        not inputs or bytes_of([*inputs[0], *outputs[0]]) * (len(inputs) + 1) <= room
    ):
        made = maker.make(derive_seed(context.seed, "trial", len(inputs)))
        call = context.reference if inputs else context.call_reference_first or context.reference
        inputs.append(made)
        outputs.append(call(made))
    if len(inputs) < cfg.num_trials:
        context.notes["input_sets"] = len(inputs)
        again = [trial % len(inputs) for trial in range(cfg.num_trials)]
        inputs, outputs = [inputs[trial] for trial in again], [outputs[trial] for trial in again]
    if not context.profile_baseline:
        return Baseline(inputs, outputs, None, None)
    reference = context.reference
    spared = [reference.spare(trial) for trial in inputs] if isinstance(reference, Reference) else inputs
    measured = context.measure_reference(spared)
    return Baseline(inputs, outputs, measured.latency_ms, {"trials_ms": measured.trials, **measured.record})


def judge_norms(
    definition: Definition, call: JudgedCall, rule: NormRule, stability: Stability, correctness: Correctness
) -> Verdict:
    """Judge the norms of a call's errors, and add them to what is known of its outputs."""
    if not rule.is_on:
        return Accepted(correctness)
    norms = measure_outputs(call.expected, call.got)
    found = describe_norms(norms, list(definition.outputs))
    extra = dict(correctness.extra or {})
    outputs = extra.get("outputs", {})
    extra["outputs"] = {**outputs, **{name: {**outputs.get(name, {}), **item} for name, item in found.items()}}
    correctness = correctness.model_copy(update={"extra": extra})
    names = list(definition.outputs)
    excess = find_excess(rule, norms, names, stability)
    if excess is None:
        return Accepted(correctness)
    output = names.index(excess.evidence["output"])
    nonfinite = describe_nonfinite(call.expected[output], call.got[output])
    if nonfinite is None:
        return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, excess.message, correctness, excess.integrity)
    largest = dict.fromkeys(("max_absolute_error", "max_relative_error"), math.inf)
    message = f"output {names[output]!r}: {nonfinite} (rule {excess.rule!r})"
    correctness = correctness.model_copy(update=largest)
    return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, correctness, excess.integrity)


def read_limit(cfg: ResolvedEvalConfig) -> float | None:
    """Return the limit of norms that the user set; None where it was left to the tolerance."""
    return read_parameter(cfg, MAX_ERROR_NORM, USUAL_LIMIT) if MAX_ERROR_NORM in cfg.extra else None


def check_reference(definition: Definition, baseline: Baseline, tolerance: Tolerance, *, context: JudgeContext) -> None:
    """Call the reference again and compare every element.

    Raises:
        DefinitionFault: the two calls differ by more than the tolerance.
    """
    check_repeats(baseline, context, _compare_elements(definition, tolerance))


def check_repeats(baseline: Baseline, context: JudgeContext, judge: Judge) -> None:
    """Call the reference again on the inputs of the first trial and judge what it gives.

    Raises:
        DefinitionFault: the second call is rejected.
    """
    reference = context.reference
    if not isinstance(reference, Reference) or not baseline.inputs:
        return
    inputs = baseline.inputs[0]

    def find_difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> str | None:
        verdict = judge(JudgedCall(inputs, second, first))
        return verdict.message if isinstance(verdict, Rejected) else None

    reference.check_repeats(inputs, baseline.outputs[0], find_difference)


def check_elements(
    definition: Definition,
    sol_runnable: SolutionRunnable,
    inputs: list[list[Any]],
    ref_outputs: list[list[torch.Tensor]],
    *,
    tolerance: Tolerance,
) -> Verdict:
    """Call the solution on each trial's inputs and compare every element; the first wrong trial decides."""
    judge = _compare_elements(definition, tolerance)
    return check_trials(definition, sol_runnable, inputs, ref_outputs, judge=judge)


def check_trials(
    definition: Definition,
    sol_runnable: SolutionRunnable,
    inputs: list[list[Any]],
    ref_outputs: list[list[torch.Tensor]],
    *,
    judge: Judge,
) -> Verdict:
    """Call the solution on each trial's inputs and judge what it gives; the first wrong trial decides."""
    right = []
    for trial, (trial_inputs, expected) in enumerate(zip(inputs, ref_outputs, strict=True), start=1):
        got = check_form(definition, sol_runnable(*trial_inputs), expected)
        if isinstance(got, Rejected):
            return got
        verdict = judge(JudgedCall(trial_inputs, got, expected))
        if isinstance(verdict, Rejected):
            which = f" (trial {trial} of {len(inputs)})" if len(inputs) > 1 else ""
            return replace(verdict, message=f"{verdict.message}{which}")
        right.append(verdict.correctness)
    return Accepted(summarise(right))


def _compare_elements(definition: Definition, tolerance: Tolerance) -> Judge:
    return lambda trial: judge_elements(definition, trial.got, trial.expected, tolerance)


def eval_performance(
    sol_runnable: SolutionRunnable,
    inputs: list[list[Any]],
    ref_mean_latency_ms: float | None,
    *,
    context: JudgeContext,
) -> Performance:
    """Time the solution on the inputs of all trials; the notes get the measurement under "measurement"."""
    measured = sol_runnable.measure(inputs)
    context.notes["measurement"] = {"trials_ms": measured.trials, **measured.record}
    reference_ms = ref_mean_latency_ms or 0.0
    speedup = reference_ms / measured.latency_ms if reference_ms and measured.latency_ms else 0.0
    return Performance(latency_ms=measured.latency_ms, reference_latency_ms=reference_ms, speedup_factor=speedup)
