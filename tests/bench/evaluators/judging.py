"""Definitions from a line of code, their inputs, and a whole judgement of a solution that is a plain function."""

import re
from pathlib import Path

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgeContext, JudgedCall
from flashinfer_bench.bench.evaluators.inputs.generate import InputMaker
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.timing.measurement import Measured
from tests.kit.make import make_definition, make_workload
from tests.kit.runnable import FakeRunnable

CPU = torch.device("cpu")


def define(inputs, body="return 1", *, before="", axes=(), outputs=None, **others):
    """Return a definition whose reference has this body; every axis that `axes` does not say is variable."""
    outputs = outputs or {"y": "float32"}
    specs = [
        one if isinstance(one, str) else f"[{' '.join(one['shape'])}" for one in [*inputs.values(), *outputs.values()]
    ]
    names = {name for spec in specs for name in re.findall(r"\b[a-z]\w*", spec.partition("[")[2])}
    lines = body.replace("\n", "\n    ")
    reference = (
        f"import torch\nfrom torch.nn import functional as F\n{before}\ndef run({', '.join(inputs)}):\n    {lines}\n"
    )
    axes = dict.fromkeys(sorted(names)) | dict(axes)
    return make_definition(axes=axes, inputs=inputs, outputs=outputs, reference=reference, **others)


def make(definition, sources=None, *, seed=1, root=Path("nowhere"), device=CPU, runs=False, **sizes):
    """Return inputs by name; the reference must accept them if it runs."""
    sizes = {name: size for name, size in sizes.items() if name in definition.axes}
    made = InputMaker(definition, make_workload(axes=sizes, inputs=sources or {}), device, root).make(seed)
    if runs:
        names = {}
        exec(compile(definition.reference, "reference", "exec"), names)
        names["run"](*(value.clone() if isinstance(value, torch.Tensor) else value for value in made))
    return dict(zip(definition.inputs, made, strict=True))


def expect(verdict, words):
    """Hold a verdict against words of its message; None: it accepts."""
    assert isinstance(verdict, Accepted) if words is None else words in verdict.message, verdict


class Judging:
    """One job, taken step by step.

    Args:
        definition: picks the evaluator.
        workload: of the call; or axes of a workload with random inputs.
        seed: of the job.
        settings: fields of the eval config.
    """

    def __init__(self, definition, workload=None, *, seed=1, root=Path(), **settings):
        self.definition = definition
        self.workload = make_workload(axes=workload or {}, inputs={}) if isinstance(workload, dict | None) else workload
        self.evaluator = find_evaluator(definition)
        self.config = ResolvedEvalConfig(**settings)
        self.notes = {}
        self.context = JudgeContext(
            seed=seed,
            blob_root=root,
            reference=Reference.compile(definition),
            profile_baseline=True,
            measure_reference=lambda sets: Measured(4.0, [4.0] * len(sets), {"method": "fake"}),
            notes=self.notes,
        )

    def baseline(self):
        return self.evaluator.build_baseline(self.definition, self.workload, self.config, CPU, context=self.context)

    def check(self, function, baseline=None):
        made, runnable = baseline or self.baseline(), FakeRunnable(function)
        given = self.definition, runnable, made.inputs, made.outputs, self.config
        return self.evaluator.check_correctness(*given, context=self.context)

    def judge(self, inputs, got, expected=None):
        """Judge the outputs of one call, as one trial."""
        return self.evaluator.judge_trial(self.definition, JudgedCall(inputs, got, expected or got), self.config)

    def measure(self, function):
        made = self.baseline()
        expect(self.check(function, made), None)
        given = self.definition, FakeRunnable(function), made.inputs, made.mean_latency_ms, self.config
        return self.evaluator.eval_performance(*given, context=self.context)
