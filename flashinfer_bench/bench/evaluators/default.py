"""The Default evaluator: every element of every output must be within tolerance, on fresh inputs in each trial.

The other evaluators derive from it: they override a hook (`tolerance`, `judge_trial`, `check_reference`) and inherit
all other methods. The steps of the Default evaluator are also functions of this module, for evaluators that need a
single step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import (
    MAX_ABSOLUTE_ERROR,
    MAX_ERROR_CAP,
    MAX_ERROR_NORM,
    RECORDS,
    SUMMED_TOLERANCE,
)
from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.pattern import describe_problem
from flashinfer_bench.bench.evaluators.compare.tolerance import Comparison, Tolerance
from flashinfer_bench.bench.evaluators.evaluator import (
    Accepted,
    Baseline,
    Evaluator,
    JudgeContext,
    JudgedCall,
    Rejected,
    SolutionRunnable,
    Verdict,
)
from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.evaluators.inputs.generate import InputMaker
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.integrity.norm_rule import (
    LOST_ROWS,
    NORM,
    NormRule,
    find_limit,
    judge_norms,
    surely_pass,
)
from flashinfer_bench.bench.evaluators.integrity.stability import Stability
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks
from flashinfer_bench.bench.evaluators.verdict import check_form, decide, read_parameter, summarise
from flashinfer_bench.data import Correctness, Definition, Performance, Workload
from flashinfer_bench.errors import DefinitionFault

MAX_RECORDED_OUTPUTS: Final = 16
"""Maximum number of outputs whose errors a trace records."""
INPUT_SHARE: Final = 8
"""The inputs and expected outputs of all trials take at most 1/INPUT_SHARE of the device's memory."""


class DefaultEvaluator(Evaluator):
    """Takes every definition that no other evaluator takes."""

    record = RECORDS["DefaultEvaluator"]
    """The definitions that this evaluator takes, and the revision of its rules."""
    revision = record.revision
    judges_calls_alone = True
    is_elementwise: ClassVar[bool] = True
    """Whether each element of an output must be near the reference's."""
    is_random: ClassVar[bool] = False
    """Whether equal inputs may give different outputs. If so, the reference is not called a second time for
    comparison."""
    own_rule: ClassVar[str] = ""
    """The rule for outputs, in words, if `judge_trial` needs no expected outputs. The rule then also judges the
    reference's outputs."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Take the revision from the subclass's record. Clear the flags that an overridden method makes untrue; a flag
        that the subclass sets stays."""
        super().__init_subclass__(**keywords)
        own = vars(cls)
        if "record" in own:
            cls.revision = cls.record.revision
        if "check_correctness" in own:
            cls.judges_calls_alone = own.get("judges_calls_alone", False)
        if "check_correctness" in own or "judge_trial" in own:
            cls.is_elementwise = own.get("is_elementwise", False)

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Take the definitions that `record` covers."""
        return cls.record.covers(definition)

    @classmethod
    def tolerance(cls, cfg: ResolvedEvalConfig) -> Tolerance:
        """Return the tolerance for comparing elements."""
        return Tolerance(
            cfg.rtol,
            cfg.atol,
            1.0 if cfg.required_matched_ratio is None else cfg.required_matched_ratio,
            read_parameter(cfg, MAX_ERROR_CAP, Tolerance.max_error_cap),
            max_absolute_error=read_parameter(cfg, MAX_ABSOLUTE_ERROR, Tolerance.max_absolute_error),
            is_sum=bool(cfg.extra.get(SUMMED_TOLERANCE, False)),
        )

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Compare every element of every output."""
        tolerance, result, problems = cls.tolerance(cfg), list[Comparison](), list[str]()
        for name, got, expected in zip(definition.outputs, trial.got, trial.expected, strict=True):
            one = compare(expected, got, tolerance, output=name)
            result.append(one)
            if problem := describe_problem(one, expected, got):
                problems.append(problem)
        correctness = Correctness(
            max_relative_error=max((one.max_rel_error for one in result), default=0.0),
            max_absolute_error=max((one.max_abs_error for one in result), default=0.0),
            extra={
                "trials": 1,
                "matched_ratio": min((one.matched_ratio for one in result), default=1.0),
                "outputs": {one.output: one.to_record() for one in result[:MAX_RECORDED_OUTPUTS]},
            },
        )
        return decide("\n".join(problems) or None, correctness)

    @classmethod
    def compares_elements(cls, definition: Definition) -> bool:
        """Return whether outputs must be near the reference's. If so, the rules besides the tolerance apply, too."""
        return cls.is_elementwise

    @classmethod
    def norm_rule(cls, definition: Definition, cfg: ResolvedEvalConfig) -> NormRule:
        """Return the rule for the norms of errors."""
        limit = read_parameter(cfg, MAX_ERROR_NORM, find_limit(definition, cfg.rtol))
        is_on, row_rule = (cfg.lost_rows_rule, LOST_ROWS) if cls.tolerance(cfg).by_ratio else (cfg.norm_rule, NORM)
        return NormRule(limit, cfg.norm_rule, row_rule if is_on else None)

    @classmethod
    def judge_call(
        cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge one call by the user's tolerance, and then by the additional rules."""
        verdict = cls.judge_trial(definition, trial, cfg)
        if isinstance(verdict, Rejected) or not cls.compares_elements(definition):
            return verdict
        stability = Stability(context.reference, trial.inputs, trial.expected, context.seed)
        return judge_norms(definition, trial, cls.norm_rule(definition, cfg), stability, verdict.correctness)

    @classmethod
    def stress_checks(cls, definition: Definition, cfg: ResolvedEvalConfig) -> StressChecks | None:
        """Return the checks for stress cases; None if outputs are not compared element by element, or the rule is
        off."""
        has_any = cfg.regimes_rule and cls.compares_elements(definition)
        rule = replace(cls.norm_rule(definition, cfg), judges_output=True, row_rule=NORM)
        return StressChecks(definition, rule) if has_any else None

    @classmethod
    def check_reference(
        cls, definition: Definition, baseline: Baseline, cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> None:
        """Judge the reference by `own_rule`. Without such a rule, call it again on the first trial's inputs and
        compare.

        Raises:
            DefinitionFault: the reference is rejected.
        """
        if cls.own_rule and not cls.compares_elements(definition):
            for inputs, outputs in zip(baseline.inputs, baseline.outputs, strict=True):
                result = cls.judge_trial(definition, JudgedCall(inputs, outputs, outputs), cfg)
                if isinstance(result, Rejected):
                    raise DefinitionFault(
                        f"the reference of {definition.name} does not {cls.own_rule}: {result.message}"
                    )
        elif not cls.is_random and isinstance(context.reference, Reference) and baseline.inputs:
            inputs = baseline.inputs[0]

            def find_difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> str | None:
                verdict = cls.judge_trial(definition, JudgedCall(inputs, second, first), cfg)
                return verdict.message if isinstance(verdict, Rejected) else None

            context.reference.check_repeats(inputs, baseline.outputs[0], find_difference)

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
        """Make the inputs and expected outputs of each trial, then check the reference and time it."""
        baseline = make_expected(definition, workload, cfg, device, context)
        cls.check_reference(definition, baseline, cfg, context)  # the worker that times the reference starts meanwhile
        return time_reference(baseline, context)

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
        """Call the solution on the inputs of each trial and judge its outputs; the first wrong trial decides."""
        right = []
        for trial, (given, expected) in enumerate(zip(inputs, ref_outputs, strict=True), start=1):
            got = check_form(definition, sol_runnable(*given), expected)
            if isinstance(got, Rejected):
                return got
            call = JudgedCall(given, got, expected)
            verdict = cls.judge_call(definition, call, cfg, context)
            if isinstance(verdict, Rejected):
                which = f" (trial {trial} of {len(inputs)})" if len(inputs) > 1 else ""
                return replace(verdict, message=f"{verdict.message}{which}", call=call)
            right.append(verdict.correctness)
        return Accepted(summarise(right))

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls. A joint check of all calls comes first; if it decides nothing, each call is judged
        alone."""
        can_check = cls.judges_calls_alone and cls.compares_elements(definition)
        if can_check and surely_pass(calls, cls.norm_rule(definition, cfg), cls.tolerance(cfg)) is not None:
            return Accepted(Correctness())
        return super().judge_reads(definition, calls, cfg, context)

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
        """Time the solution on the inputs of all trials; the notes get the measurement under "measurement"."""
        measured = sol_runnable.measure(inputs)
        context.notes["measurement"] = {"trials_ms": measured.trials, **measured.record}
        reference_ms = ref_mean_latency_ms or 0.0
        speedup = reference_ms / measured.latency_ms if reference_ms and measured.latency_ms else 0.0
        return Performance(latency_ms=measured.latency_ms, reference_latency_ms=reference_ms, speedup_factor=speedup)


def build_baseline(
    definition: Definition,
    workload: Workload,
    cfg: ResolvedEvalConfig,
    device: torch.device,
    *,
    context: JudgeContext,
) -> Baseline:
    """Make the inputs and expected outputs of each trial, and time the reference if the context requests it."""
    return time_reference(make_expected(definition, workload, cfg, device, context), context)


def make_expected(
    definition: Definition, workload: Workload, cfg: ResolvedEvalConfig, device: torch.device, context: JudgeContext
) -> Baseline:
    """Return the inputs and expected outputs of each trial, without a latency.

    If the inputs of all trials would take too much memory, later trials reuse earlier inputs. Then `input_sets` in the
    notes has the number of different inputs.
    """
    inputs: list[list[Any]] = []
    outputs: list[list[torch.Tensor]] = []
    maker = InputMaker(definition, workload, device, context.blob_root, context.notes)
    room, needed, reference = memory.total_bytes(device) // INPUT_SHARE, 0, context.reference
    while len(inputs) < cfg.num_trials and (not inputs or needed * (len(inputs) + 1) <= room):
        made = maker.make(derive_seed(context.seed, "trial", len(inputs)))
        inputs.append(made)
        outputs.append(reference(made))
        needed = memory.bytes_of([*inputs[0], *outputs[0]])
    if len(inputs) < cfg.num_trials:
        context.notes["input_sets"] = len(inputs)
        again = [trial % len(inputs) for trial in range(cfg.num_trials)]
        inputs, outputs = [inputs[trial] for trial in again], [outputs[trial] for trial in again]
    return Baseline(inputs, outputs, None, None)


def time_reference(baseline: Baseline, context: JudgeContext) -> Baseline:
    """Return a baseline with the reference's time, if the context requests it."""
    if not context.profile_baseline:
        return baseline
    inputs, reference = baseline.inputs, context.reference
    spared = [reference.clone_written(trial) for trial in inputs] if isinstance(reference, Reference) else inputs
    measured = context.measure_reference(spared)
    record = {"trials_ms": measured.trials, **measured.record}
    return replace(baseline, mean_latency_ms=measured.latency_ms, measurement=record)


check_reference, check_elements, eval_performance = (
    DefaultEvaluator.check_reference,
    DefaultEvaluator.check_correctness,
    DefaultEvaluator.eval_performance,
)
"""Steps that other evaluators may import by name."""
