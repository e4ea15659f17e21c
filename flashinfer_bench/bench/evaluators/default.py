"""The Default evaluator: every element of every output within tolerance, on fresh inputs in each trial.

Its three steps are functions too, so that another evaluator can borrow one by name.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.built_in import DEFAULT
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import (
    Accepted,
    Baseline,
    Evaluator,
    JudgeContext,
    Rejected,
    SolutionRunnable,
    Verdict,
)
from flashinfer_bench.bench.evaluators.inputs.make import make_inputs
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of, total_bytes
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.verdict import (
    check_form,
    compare_outputs,
    describe_problems,
    resolve_tolerance,
    summarise,
)
from flashinfer_bench.data import Definition, EvaluationStatus, Performance, Workload

INPUT_SHARE: Final = 4
"""All sets of inputs and expected outputs together take at most the device's memory divided by this."""


class DefaultEvaluator(Evaluator):
    """Takes every definition that no other evaluator takes."""

    revision = DEFAULT.revision

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Take any definition."""
        return DEFAULT.takes(definition)

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
        """Make the inputs of each trial, have the reference compute them, and check that it does so twice alike."""
        baseline = build_baseline(definition, workload, cfg, device, context=context)
        check_reference(definition, baseline, resolve_tolerance(cfg, default_ratio=1.0), context=context)
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
        """Compare the solution's outputs with the reference's."""
        del context
        return check_elements(
            definition, sol_runnable, inputs, ref_outputs, tolerance=resolve_tolerance(cfg, default_ratio=1.0)
        )

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
    """Make the inputs of each trial and what the reference gives for them; time the reference where that is wanted.

    Where the sets of all trials would take too much memory, later trials use earlier sets again; the notes say so.
    """
    inputs: list[list[Any]] = []
    outputs: list[list[torch.Tensor]] = []
    stored: dict[str, Any] = {}
    room = total_bytes(device) // INPUT_SHARE
    while len(inputs) < cfg.num_trials and (
        not inputs or bytes_of([*inputs[0], *outputs[0]]) * (len(inputs) + 1) <= room
    ):
        seed = derive_seed(context.seed, "trial", len(inputs))
        made = make_inputs(
            definition,
            workload,
            seed=seed,
            device=device,
            blob_root=context.blob_root,
            notes=context.notes,
            stored=stored,
        )
        inputs.append(made)
        outputs.append(context.reference(made))
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


def check_reference(definition: Definition, baseline: Baseline, tolerance: Tolerance, *, context: JudgeContext) -> None:
    """Hold the reference against itself on a second call.

    Raises:
        DefinitionFault: the two calls differ by more than the tolerance.
    """
    reference = context.reference
    if isinstance(reference, Reference) and baseline.inputs:
        reference.check_repeats(
            baseline.inputs[0],
            baseline.outputs[0],
            lambda first, second: describe_problems(compare_outputs(definition, second, first, tolerance)),
        )


def check_elements(
    definition: Definition,
    sol_runnable: SolutionRunnable,
    inputs: list[list[Any]],
    ref_outputs: list[list[torch.Tensor]],
    *,
    tolerance: Tolerance,
) -> Verdict:
    """Call the solution on each trial's inputs and compare every element; the first wrong trial decides."""
    done = []
    for trial, (trial_inputs, expected) in enumerate(zip(inputs, ref_outputs, strict=True)):
        got = check_form(definition, sol_runnable(*trial_inputs), expected)
        if isinstance(got, Rejected):
            return got
        comparisons = compare_outputs(definition, got, expected, tolerance)
        done.append(comparisons)
        problems = describe_problems(comparisons)
        if problems is not None:
            which = f" (trial {trial + 1} of {len(inputs)})" if len(inputs) > 1 else ""
            return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, f"{problems}{which}", summarise([comparisons]))
    return Accepted(summarise(done))


def eval_performance(
    sol_runnable: SolutionRunnable,
    inputs: list[list[Any]],
    ref_mean_latency_ms: float | None,
    *,
    context: JudgeContext,
) -> Performance:
    """Time the solution on the inputs of all trials; how that was done goes into the notes under "measurement"."""
    measured = sol_runnable.measure(inputs)
    context.notes["measurement"] = {"trials_ms": measured.trials, **measured.record}
    reference_ms = ref_mean_latency_ms or 0.0
    speedup = reference_ms / measured.latency_ms if reference_ms and measured.latency_ms else 0.0
    return Performance(latency_ms=measured.latency_ms, reference_latency_ms=reference_ms, speedup_factor=speedup)
