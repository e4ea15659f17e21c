"""Asks the judge's own check about the solution beside `repro.py`. IN THE CALLER'S PROCESS: nothing is isolated.

It is for outputs that cannot be compared element by element: of samplers, of indexers, and of whatever an evaluator
from outside judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.runnable import Builder, Runnable
from flashinfer_bench.data import Definition, Solution, SourceFile
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.timing.measurement import Measured


class CalledHere:
    """A solution of this process, as evaluators call one."""

    metadata = SimpleNamespace(destination_passing_style=False)

    def __init__(self, runnable: Runnable) -> None:
        self._runnable = runnable
        self._inputs = len(runnable.metadata.definition.inputs)

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Call it on copies, so that nothing it writes reaches what it is judged by."""
        copies = [one.clone() if isinstance(one, torch.Tensor) else one for one in args[: self._inputs]]
        found = self._runnable.call_value_returning(*copies)
        results = list(found) if isinstance(found, tuple) else [found]
        for target, result in zip(args[self._inputs :], results, strict=False):
            target.copy_(result)
        return results

    def call_repeatedly(self, inputs: Sequence[Any], count: int) -> Iterator[list[torch.Tensor]]:
        """Call it `count` times."""
        return (self(*inputs) for _ in range(count))

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Refuse: nothing is timed here."""
        raise WorkloadFault(f"an evaluator wants {len(input_sets)} measurements, and nothing is timed here")


def judge_again(folder: Path, facts: dict[str, Any], inputs: list[Any], expected: list[torch.Tensor]) -> str | None:
    """Build the solution, and have the definition's evaluator judge its calls; return its reason, None if all is right.

    Args:
        folder: of `repro`.
        facts: of its `call.json`.
        inputs: those of the call that decided.
        expected: the reference's outputs for them.
    """
    definition = Definition.model_validate_json((folder / "definition.json").read_text(encoding="utf-8"))
    solution = Solution.model_validate_json((folder / "solution.json").read_text(encoding="utf-8"))
    sources = [
        SourceFile(path=one.path, content=(folder / "solution" / one.path).read_text(encoding="utf-8"))
        for one in solution.sources
    ]
    kernel: Any = CalledHere(Builder().build(definition, solution.model_copy(update={"sources": sources})))
    evaluator = find_evaluator(definition)
    config = ResolvedEvalConfig.model_validate(facts["config"])
    context = JudgeContext(
        seed=facts["seed"],
        blob_root=Path(facts["blob_root"]),
        reference=Reference.compile(definition),
        profile_baseline=False,
        measure_reference=kernel.measure,
        notes={},
    )
    verdict: Verdict = evaluator.check_correctness(definition, kernel, [inputs], [expected], config, context=context)
    if not isinstance(verdict, Rejected) and facts["was_timed"]:
        timed = JudgedCall(inputs, kernel(*inputs), expected)
        verdict = evaluator.judge_reads(definition, [timed], config, context)
    return verdict.message if isinstance(verdict, Rejected) else None
