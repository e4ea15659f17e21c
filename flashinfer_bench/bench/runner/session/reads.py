"""Judges the timed calls of a job that were chosen to be compared, as the evaluator compares its own.

A latency is no better than the calls that it was held against: a solution that computes samples alone may claim
anything of calls that a chain did not get. So if the reference is slow, calls of the chain and the batch come first,
and if it is too slow for these, the latency is not confirmed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.timed.bounds import add_flags
from flashinfer_bench.bench.runner.workers.timed.timed_calls import ReadCall

ENOUGH_READS: Final = 9
"""Most compared calls of a chain and of a batch if the reference is slow; of the samples if they settled the latency. A
solution that leaves out half of them passes once in 500 times. A chain keeps fewer of small calls."""
MOST_BYTES: Final = 4 << 30
"""Calls are judged before the reference is called for others, if its outputs for them take more memory."""
LONG_S: Final = 0.2
SLOW_S: Final = 1.0
"""Seconds of the reference after which no further samples are compared: LONG_S once ENOUGH_READS calls are, and before
that SLOW_S for each trial."""
MOST_S: Final = 60.0
"""Most seconds of the reference for calls of a chain and of a batch, after its first call. The host waits twice as long
for a phase beyond its limit."""
TOO_SLOW: Final = "the reference takes too long to compare enough of the calls that it was held against"

Found = tuple[int, ReadCall]
"""The number of a trial, and one of its calls."""


def judge_reads(
    job: JobContext, reads: Sequence[Sequence[ReadCall]], baseline: Baseline, context: JudgeContext
) -> Rejected | None:
    """Return the verdict if it rejects; the notes get how many calls were compared, and whether these will not do.

    Args:
        job: the job.
        reads: the chosen calls of each timed trial.
        baseline: expected outputs of the evaluator's own inputs.
        context: the evaluator's, with notes of its own.
    """
    block, evaluator = job.block, job.block.evaluator
    needed, others = sort_reads(reads)
    least_s = (baseline.mean_latency_ms or 0.0) / 1e3  # also if a GPU has not done it when the host goes on
    spent_s, longest_s, compared, missed = 0.0, 0.0, 0, 0
    calls: list[JudgedCall] = []
    verdict: Verdict | None = None
    left = [*((True, *found) for found in needed), *((False, *found) for found in others)]
    for at, (is_needed, trial, read) in enumerate(left):
        if read.is_base or not evaluator.needs_expected:
            expected = baseline.outputs[trial]
        else:
            most_s = LONG_S if compared >= ENOUGH_READS else SLOW_S * len(reads)
            if spent_s + longest_s <= MOST_S if is_needed else spent_s <= most_s:  # always at first
                start = time.monotonic()
                expected = read.expected or block.reference(read.inputs)
                took_s = max(time.monotonic() - start, least_s)
                spent_s, longest_s = spent_s + took_s, max(longest_s, took_s)
            else:
                missed += is_needed
                expected = []
        if expected:
            calls.append(JudgedCall(read.inputs, read.outputs, expected))
            compared += 1
        is_last = at + 1 == len(left)
        if calls and (is_last or sum(bytes_of(call.expected) for call in calls) > MOST_BYTES):
            verdict, calls = evaluator.judge_reads(block.definition, calls, job.config, context), []
            if isinstance(verdict, Rejected):
                break
    if verdict is not None:
        job.notes["reads"] = compared
    if isinstance(verdict, Rejected):
        return replace(verdict, message=f"in a call that was timed: {verdict.message}")
    record: Any = job.notes.get("measurement")
    is_bound = isinstance(record, dict) and record.get("bound", "none") != "none"
    if missed and is_bound and "why_unconfirmed" not in record:
        record["why_unconfirmed"] = TOO_SLOW
        add_flags(record, unconfirmed=True)
    return None


def sort_reads(reads: Sequence[Sequence[ReadCall]]) -> tuple[list[Found], list[Found]]:
    """Return the calls that are needed for a latency to be confirmed, and the others; chance decides their order.

    Args:
        reads: the chosen calls of each timed trial.
    """
    found = [(trial, read) for trial, of_trial in enumerate(reads) for read in of_trial]
    random.SystemRandom().shuffle(found)
    ways = {read.way for _, read in found} & {"chain", "batch"} or {"reading"}
    left = dict.fromkeys(ways, ENOUGH_READS)
    needed: list[Found] = []
    others: list[Found] = []
    for trial, read in found:
        is_needed = left.get(read.way, 0) > 0 and not read.is_base
        if is_needed:
            left[read.way] -= 1
        (needed if is_needed else others).append((trial, read))
    return needed, others
