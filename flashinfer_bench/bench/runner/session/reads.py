"""Judges the timed calls of a job that were chosen to be compared, in the way that the evaluator compares its own."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.timed.reader import ReadCall

SLOW_REFERENCE_S: Final = 1.0
"""Where the reference takes longer than this for one call, one call of each trial is compared instead."""
ENOUGH_READS: Final = 9
"""Calls of a job that are compared at least, where the reference takes no longer than SLOW_REFERENCE_S for them."""
MOST_BYTES: Final = 4 << 30
"""Where what the reference gave for calls takes more memory, these are judged before it is called for others."""
LONG_S: Final = 0.2
"""No more than ENOUGH_READS are compared after the reference has taken so long for them together."""


def judge_reads(
    job: JobContext, reads: Sequence[Sequence[ReadCall]], baseline: Baseline, context: JudgeContext
) -> Rejected | None:
    """Return the verdict where it rejects; the notes get how many calls were compared.

    Args:
        job: the job.
        reads: the chosen calls of each timed trial.
        baseline: what is expected of the evaluator's own inputs.
        context: the evaluator's, with notes of its own.
    """
    block = job.block
    calls: list[JudgedCall] = []
    spent_s, compared, held_bytes = 0.0, 0, 0
    verdict: Verdict | None = None
    found = [(trial, read) for trial, of_trial in enumerate(reads) for read in of_trial]
    random.SystemRandom().shuffle(found)  # where not all can be compared, chance decides which are
    for trial, read in found:
        if read.is_base:
            expected = baseline.outputs[trial]
        elif (spent_s > SLOW_REFERENCE_S * len(reads) and compared) or (spent_s > LONG_S and compared >= ENOUGH_READS):
            continue
        else:
            start = time.monotonic()
            expected = block.reference(read.inputs)
            spent_s += time.monotonic() - start
        calls.append(JudgedCall(read.inputs, read.outputs, expected))
        compared, held_bytes = compared + 1, held_bytes + bytes_of(expected)
        if held_bytes > MOST_BYTES:
            verdict = block.evaluator.judge_reads(block.definition, calls, job.config, context)
            calls, held_bytes = [], 0
            if isinstance(verdict, Rejected):
                break
    if calls:
        verdict = block.evaluator.judge_reads(block.definition, calls, job.config, context)
    if verdict is not None:
        job.notes["reads"] = compared
    if isinstance(verdict, Rejected):
        return replace(verdict, message=f"in a call that was timed: {verdict.message}")
    return None
