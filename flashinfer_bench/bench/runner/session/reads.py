"""Judges the timed calls of a job that were chosen to be compared, in the way that the evaluator compares its own.

A latency is no better than the calls that it was held against: who computes readings alone may claim what he likes of
calls that a chain did not get. So where the reference is slow, calls of the chain and the batch come first, and where
it is too slow for these, the latency is not confirmed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.timed.bounds import add_flags
from flashinfer_bench.bench.runner.workers.timed.reader import ReadCall

SLOW_REFERENCE_S: Final = 1.0
"""Where the reference takes longer than this for one call, one call of each trial is compared instead, beside those
that the latency was held against."""
ENOUGH_READS: Final = 9
"""Compared calls of a chain, and of a batch, at most, if the reference is slow; of the samples if they settled the
latency. A solution that leaves out half of them passes once in 500 times. A chain keeps fewer of small calls."""
MOST_BYTES: Final = 4 << 30
"""Where what the reference gave for calls takes more memory, these are judged before it is called for others."""
LONG_S: Final = 0.2
"""No more than ENOUGH_READS, and one of each trial beside those that the latency was held against, are compared after
the reference has taken so long for them together."""
MOST_S: Final = 60.0
"""Seconds of the reference for ENOUGH_READS of a chain and of a batch, at most, after its first call. The host waits
twice as long for a phase beyond its limit."""
TOO_SLOW: Final = "the reference takes too long to compare enough of the calls that it was held against"

Found = tuple[int, ReadCall]
"""The number of a trial, and one of its calls."""


@dataclass
class ReferenceCalls:
    """Calls of the reference for the calls that are compared, as long as it has time for them."""

    reference: Callable[[Sequence[Any]], list[torch.Tensor]]
    trials: int
    least_s: float = 0.0
    """What a call takes at the least, also where a GPU has not done it when the host goes on."""
    spent_s: float = 0.0
    longest_s: float = 0.0
    further: int = 0
    """Calls that were not needed."""

    def may(self, compared: int, *, is_needed: bool) -> bool:
        """Tell whether the reference is called once more.

        Args:
            compared: calls that have what is expected of them.
            is_needed: the latency is not confirmed without.
        """
        if is_needed:
            return self.spent_s + self.longest_s <= MOST_S  # always at first
        if self.spent_s > SLOW_REFERENCE_S * self.trials:
            return False
        return self.spent_s <= LONG_S or compared < ENOUGH_READS or self.further < self.trials

    def call(self, inputs: Sequence[Any], *, is_needed: bool) -> list[torch.Tensor]:
        """Return what the reference gives."""
        start = time.monotonic()
        expected = self.reference(inputs)
        took_s = max(time.monotonic() - start, self.least_s)
        self.spent_s, self.longest_s = self.spent_s + took_s, max(self.longest_s, took_s)
        self.further += not is_needed
        return expected


def judge_reads(
    job: JobContext, reads: Sequence[Sequence[ReadCall]], baseline: Baseline, context: JudgeContext
) -> Rejected | None:
    """Return the verdict where it rejects; the notes get how many calls were compared, and whether these will not do.

    Args:
        job: the job.
        reads: the chosen calls of each timed trial.
        baseline: what is expected of the evaluator's own inputs.
        context: the evaluator's, with notes of its own.
    """
    block = job.block
    calls: list[JudgedCall] = []
    compared, missed, held_bytes = 0, 0, 0
    verdict: Verdict | None = None
    needed, others = sort_reads(reads)
    ours = ReferenceCalls(block.reference, len(reads), (baseline.mean_latency_ms or 0.0) / 1e3)
    for at, (trial, read) in enumerate([*needed, *others]):
        is_needed = at < len(needed)
        if read.is_base or not block.evaluator.needs_expected:
            expected = baseline.outputs[trial]
        elif not ours.may(compared, is_needed=is_needed):
            missed += is_needed
            continue
        else:
            expected = ours.call(read.inputs, is_needed=is_needed)
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
    if missed:
        withdraw_confirmation(job.notes)
    return None


def sort_reads(reads: Sequence[Sequence[ReadCall]]) -> tuple[list[Found], list[Found]]:
    """Return the calls that are needed for a latency to be confirmed, and the others; chance decides which are first.

    Args:
        reads: the chosen calls of each timed trial.
    """
    found = [(trial, read) for trial, of_trial in enumerate(reads) for read in of_trial]
    random.SystemRandom().shuffle(found)  # where not all can be compared, chance decides which are
    ways = {read.way for _, read in found}
    ways = ways & {"chain", "batch"} or {"reading"}
    needed, others = [], []
    left = dict.fromkeys(ways, ENOUGH_READS)
    for trial, read in found:
        if left.get(read.way, 0) > 0 and not read.is_base:
            left[read.way] -= 1
            needed.append((trial, read))
        else:
            others.append((trial, read))
    return needed, others


def withdraw_confirmation(notes: dict[str, Any]) -> None:
    """Have a latency that was bound from outside be flagged: too few of the calls were compared that bound it."""
    record = notes.get("measurement")
    if isinstance(record, dict) and record.get("bound", "none") != "none" and "why_unconfirmed" not in record:
        record["why_unconfirmed"] = TOO_SLOW
        add_flags(record, unconfirmed=True)
