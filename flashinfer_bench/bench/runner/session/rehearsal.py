"""Judges what a reference gives while a worker makes its first call: no verdict waits then until a GPU has its code.

The driver loads the code of an operation at its first use, which takes 10 to 40 ms each on an H100; comparing outputs
takes some ten operations. A worker's first call takes as long for the same reason, and the session would only wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.runner.session.job import JobContext

OURS: Final = __package__.split(".")[0]
MOST_BYTES: Final = 256 << 20
"""Of a call's inputs: a larger call is not rehearsed, for it would take memory and time of its own."""
CALLS: Final = 2
"""Calls that are judged together, as timed ones are."""


class Rehearsals:
    """Knows which judging was rehearsed in this session: once for each evaluator and kind of outputs."""

    def __init__(self) -> None:
        self._done: set[tuple[object, ...]] = set()

    def find(self, job: JobContext, inputs: Sequence[Any], context: JudgeContext) -> Callable[[], object] | None:
        """Return what is to be done once beside a worker's call; None where there is nothing.

        Args:
            job: the job whose definition is judged.
            inputs: of a call of its reference, which may write to clones of them only.
            context: the evaluator's.
        """
        block = job.block
        key = (block.evaluator, *(spec.dtype for spec in block.definition.outputs.values()))
        is_ours = block.evaluator.__module__.split(".")[0] == OURS  # others may count their calls
        if key in self._done or not is_ours or bytes_of(list(inputs)) > MOST_BYTES:
            return None
        self._done.add(key)
        return partial(rehearse, job, inputs, replace(context, notes={}))


def rehearse(job: JobContext, inputs: Sequence[Any], context: JudgeContext) -> None:
    """Judge what the reference gives for some inputs, and forget the verdict."""
    block = job.block
    with contextlib.suppress(Exception):  # it will come again where it counts
        outputs = block.reference(block.reference.spare(inputs))
        calls = [JudgedCall(list(inputs), outputs, outputs)] * CALLS
        block.evaluator.judge_reads(block.definition, calls, job.config, context)
        judge_call: Any = getattr(block.evaluator, "judge_call", None)
        if judge_call is not None:
            judge_call(block.definition, calls[0], job.config, context)
