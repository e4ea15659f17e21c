"""Asks the judge's own check about a solution that `repro.py` calls. IN THE CALLER'S PROCESS: nothing is isolated.

It is for what cannot be compared element by element: samplers, indexers, and whatever an evaluator from outside judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.runnable import Builder
from flashinfer_bench.data import Definition, Solution, SourceFile
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.timing.measurement import Measured

Call = Callable[[list[Any]], list[torch.Tensor]]
"""Inputs in the order of the definition → outputs in its order."""


class CalledHere:
    """A solution of this process, as evaluators call one."""

    class Metadata:
        """What an evaluator may know of it."""

        destination_passing_style = False

    metadata = Metadata()

    def __init__(self, call: Call, inputs: int) -> None:
        self._call = call
        self._inputs = inputs

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Call it on copies, so that nothing it writes reaches what it is judged by."""
        given = list(args[: self._inputs])
        copies = [one.clone() if isinstance(one, torch.Tensor) else one for one in given]
        results = self._call(copies)
        for target, result in zip(args[self._inputs :], results, strict=False):
            target.copy_(result)
        return results

    def call_repeatedly(self, inputs: Sequence[Any], count: int) -> Iterator[list[torch.Tensor]]:
        """Call it so often."""
        return (self(*inputs) for _ in range(count))

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Refuse: nothing is timed here."""
        del input_sets
        raise WorkloadFault("the evaluator asks for a measurement, which there is none of here")


def judge_again(
    folder: Path, facts: dict[str, Any], inputs: list[Any], expected: list[torch.Tensor], call: Call | None
) -> str | None:
    """Have the definition's evaluator judge calls on the recorded inputs; return what is wrong, None where nothing is.

    Args:
        folder: where `repro` has written.
        facts: what is in its `call.json`.
        inputs: those of the call that decided.
        expected: what the reference gave for them.
        call: the solution; None where it has to be built.
    """
    definition = Definition.model_validate_json((folder / "definition.json").read_text(encoding="utf-8"))
    evaluator, config = find_evaluator(definition), ResolvedEvalConfig.model_validate(facts["config"])
    context = JudgeContext(
        seed=facts["seed"],
        blob_root=Path(facts["blob_root"]),
        reference=Reference.compile(definition),
        profile_baseline=False,
        measure_reference=_refuse,
        notes={},
    )
    kernel = CalledHere(call or _build(folder, definition), len(definition.inputs))
    verdict: Verdict = evaluator.check_correctness(definition, kernel, [inputs], [expected], config, context=context)
    if not isinstance(verdict, Rejected) and facts["was_timed"]:
        timed = JudgedCall(inputs, kernel(*inputs), expected)
        verdict = evaluator.judge_reads(definition, [timed], config, context)
    return verdict.message if isinstance(verdict, Rejected) else None


def _build(folder: Path, definition: Definition) -> Call:
    """Build the sources as they are in the folder, and load them."""
    solution = Solution.model_validate(json.loads((folder / "solution.json").read_text(encoding="utf-8")))
    sources = [
        SourceFile(path=one.path, content=(folder / "solution" / one.path).read_text(encoding="utf-8"))
        for one in solution.sources
    ]
    runnable = Builder().build(definition, solution.model_copy(update={"sources": sources}))
    return lambda inputs: list(runnable.call_value_returning(*inputs))


def _refuse(input_sets: list[list[Any]]) -> Measured:
    del input_sets
    raise WorkloadFault("nothing is timed here")
