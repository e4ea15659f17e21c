"""Runs an evaluator through its whole life on a definition, with a solution that is a plain function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Evaluator, JudgeContext, JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.data import Definition, Performance, Workload
from flashinfer_bench.timing.measurement import Measured
from tests.kit.runnable import FakeRunnable

CPU = torch.device("cpu")


class Judging:
    """One job, taken step by step.

    Args:
        definition: picks the evaluator.
        workload: what is judged on.
        seed: of the job.
        settings: fields of the eval config.
    """

    def __init__(
        self, definition: Definition, workload: Workload, *, seed: int = 1, root: Path = Path(), **settings: Any
    ):
        self.definition = definition
        self.workload = workload
        self.evaluator: type[Evaluator] = find_evaluator(definition)
        self.config = ResolvedEvalConfig(**settings)
        self.notes: dict[str, Any] = {}
        self.context = JudgeContext(
            seed=seed,
            blob_root=root,
            reference=Reference.compile(definition),
            profile_baseline=True,
            measure_reference=lambda sets: Measured(4.0, [4.0] * len(sets), {"method": "fake"}),
            notes=self.notes,
        )

    def baseline(self) -> Baseline:
        return self.evaluator.build_baseline(self.definition, self.workload, self.config, CPU, context=self.context)

    def check(self, function: Callable[..., Any], baseline: Baseline | None = None) -> Verdict:
        made = baseline or self.baseline()
        return self.evaluator.check_correctness(
            self.definition, FakeRunnable(function), made.inputs, made.outputs, self.config, context=self.context
        )

    def judge(self, inputs: list[Any], got: list[torch.Tensor], expected: list[torch.Tensor] | None = None) -> Verdict:
        """Judge what one call gave, as one trial."""
        return self.evaluator.judge_trial(self.definition, JudgedCall(inputs, got, expected or got), self.config)

    def measure(self, function: Callable[..., Any]) -> Performance:
        made = self.baseline()
        assert isinstance(self.check(function, made), Accepted)
        return self.evaluator.eval_performance(
            self.definition,
            FakeRunnable(function),
            made.inputs,
            made.mean_latency_ms,
            self.config,
            context=self.context,
        )
