"""Relays: rows of calls, each of which gets its inputs when the call before is over. On a CPU, for short calls.

The calls of a burst lie in memory at the same time, so a worker may compute all of them in one operation, or side by
side on all processors. In a relay it cannot (`handover.py`). A call costs

    median(from its inputs to its outputs) - a share of the same for an empty call - copies of outputs

and a latency is told as no less than RELAY_SHARE of that.
"""

from __future__ import annotations

import math
import time
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from flashinfer_bench.bench.runner.workers.cpu_time import BetweenRequests, tree_waiting_ns
from flashinfer_bench.bench.runner.workers.timed.call_places import CPU_BYTES
from flashinfer_bench.bench.runner.workers.timed.confirmation import BUSY_SHARE, Confirmation, Outside, find_doubt
from flashinfer_bench.bench.runner.workers.timed.copies import OutputCopies
from flashinfer_bench.bench.runner.workers.timed.glances import OutputGlances
from flashinfer_bench.bench.runner.workers.timed.handover import (
    OWN_MOVES,
    RELAY_CALLS,
    Along,
    CallSpan,
    Handover,
    open_board,
)
from flashinfer_bench.bench.runner.workers.timed.reader import Outputs
from flashinfer_bench.bench.runner.workers.timed.readings import CREDITED_SHARE, RELAY_SHARE
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.protocol import Relayed

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.timed.remote_clock import Ask
    from flashinfer_bench.bench.runner.workers.timed.trial import RemoteTrial

RELAY_READS: Final = 12
"""Calls that are compared of the relay that counts: who leaves out half of all passes once in 20,000 times."""
FEWEST_CALLS: Final = 9
"""A relay has so many calls at the least."""
LONGEST_NS: Final = 10_000_000
"""Calls beyond this are not relayed, since so many of them take long: requests of theirs settle a claim, or bursts."""
RELAY_NS: Final = 10_000_000
"""A relay has fewer than RELAY_CALLS where they would take longer than this together."""
LARGEST_BYTES: Final = CPU_BYTES // FEWEST_CALLS
"""Calls with more bytes of inputs and outputs are not relayed: there is no room for FEWEST_CALLS of them."""
RELAY_BYTES: Final = 8 << 20
"""A relay has fewer than RELAY_CALLS where they would take more bytes than this together: each is copied thrice."""
FEWEST_RELAYS: Final = 2
MOST_RELAYS: Final = 6
"""Relays that are run of quick calls, and of all. Those after the first ones only while the best so far would raise the
latency."""
QUICK_NS: Final = 1_000_000
"""Of calls from this on one relay will do: what a handover takes is little beside them."""
WAITED_NS: Final = 30_000
LONG_NS: Final = 500_000
"""Of calls from WAITED_NS on, in every other relay the session waits without a processor, since threads of the call may
need it: calls of a millisecond with two threads took 1.8 times as long on two cores. Of calls from LONG_NS on it does
so first. To wake up takes 20 to 100 us."""
WRITES_SHARE: Final = 0.2
RETURNS_SHARE: Final = 0.4
"""Of what a call takes that computes nothing and returns a number these shares are taken off a call that writes its
outputs itself, and one that returns them. Who has taken the worker over may spare all of it. The rest is about what a
call takes longer where it is timed alone."""
RELAY_REFUSED_SHARE: Final = 0.25
"""A claim below this share of what a call costs in a relay, or in bursts after it, is refused. The session has a core
of its own in a relay, which threads of a call may lack, and its inputs are cold: honest calls of two threads on two
cores came to 0.4. Relays and bursts raise the latency all the same. Bursts refused below half of theirs, which without
a relay they do, and one of 2,128 honest jobs claimed 0.495 of its bursts four times in a row."""
SLACK_NS: Final = 10_000
"""A claim that is no more than this below what a call costs is doubted, and never refused: on a busy machine the
handovers of a whole relay took 1.3 us longer than they had before. The latency is told by the relay all the same."""
OUTPUT_SHARE: Final = 0.1
"""For each returned output after the first this share of an empty call is taken off: outputs are copied together."""
COPIES_SHARE: Final = 0.4
"""No more than this share of a call and its copies is taken off for copies of what it returns. Who has taken the worker
over may write in place of copying: a call that fills 256 KB was told as 7 to 11 times as fast. Honest copies take more
only where a call does nothing but copy."""


def count_relay_calls(claimed_ns: float, size: int) -> int:
    """Return how many calls a relay has; 0 where none is run.

    Args:
        claimed_ns: latency of one call.
        size: bytes of the inputs and outputs of one call.
    """
    if claimed_ns > LONGEST_NS or size > LARGEST_BYTES:
        return 0
    most = min(RELAY_NS / max(claimed_ns, 1.0), RELAY_BYTES / max(size, 1))
    return int(min(RELAY_CALLS, max(FEWEST_CALLS, most)))


class Relay(NamedTuple):
    """What one relay came to."""

    numbers: list[int]
    """Of its calls."""
    cost_ns: float
    """What one of them costs."""
    move_ns: float
    """What was taken off for the move of its inputs."""
    outputs: Outputs
    """Place → what its call gave."""


class RelayTimer:
    """Times relays of one trial's calls.

    Args:
        ask: asks the worker.
        trial: where the calls lie and what they are given.
        empty_ns: what an empty call takes in a relay.
    """

    def __init__(self, ask: Ask, trial: RemoteTrial, empty_ns: float) -> None:
        self._ask = ask
        self._trial = trial
        self._between = BetweenRequests(trial.guard_pid)
        more = max(0, len(trial.places.outputs(0)) - 1)
        self._beside_ns = empty_ns * (RETURNS_SHARE + OUTPUT_SHARE * more if trial.returns else WRITES_SHARE)
        self._copy_ns = math.inf
        self._copies = OutputCopies(trial.places.outputs(0) if trial.returns else [])
        count = len(trial.places)
        self._given, self._own = trial.places.own_inputs(count)
        self._scratch = torch.ones_like(self._given[:OWN_MOVES])
        self.most_ns = math.inf
        """What a call costs where it is computed along with the move of its inputs, which is not taken off then."""

    def leaves_open(self, told_ns: float) -> bool:
        """Tell whether bursts could raise what a call is told as: one may compute along with the move of its inputs."""
        return CREDITED_SHARE["cpu"] * self.most_ns > told_ns

    def confirm(self, claimed_ns: float, *, is_believed: bool = False) -> Confirmation:
        """Hold a claimed latency against relays.

        Args:
            claimed_ns: latency of one call, `setup` included.
            is_believed: the claim is not refused: the call is a reference's, or another look has confirmed it.

        Raises:
            ClaimContradicted: RUNTIME_ERROR; relays take longer than the claim allows, each time.
            SolutionFailure: the same, and far longer; or outputs came after their call was told as over, or before it.
        """
        trial = self._trial
        indices = list(range(len(trial.places)))
        waited_ns, start = tree_waiting_ns(trial.guard_pid), time.perf_counter_ns()
        best_ns, relays, fewest = math.inf, 0, FEWEST_RELAYS if claimed_ns < QUICK_NS else 1
        while relays < fewest or (relays < MOST_RELAYS and RELAY_SHARE["cpu"] * best_ns > claimed_ns):
            waits = claimed_ns >= WAITED_NS and (relays % 2 == 0) is (claimed_ns >= LONG_NS)
            one = self._run_one(indices, waits=waits)
            is_best = one.cost_ns <= best_ns
            if is_best:
                best_ns, self.most_ns = one.cost_ns, one.cost_ns + one.move_ns
                trial.reader.begin()
            trial.reader.look(indices, one.numbers, chooses=is_best, outputs=one.outputs)
            relays += 1
        is_busy = tree_waiting_ns(trial.guard_pid) - waited_ns > BUSY_SHARE * (time.perf_counter_ns() - start)
        outside = Outside("relay", best_ns, is_busy, RELAY_REFUSED_SHARE, SLACK_NS)
        doubt = find_doubt(claimed_ns, outside, f"{relays} relays", is_believed=is_believed)
        return Confirmation(
            None, None, doubt, relay_ns=best_ns, relay_calls=relays * len(indices), relay_share=RELAY_SHARE["cpu"]
        )

    def _run_one(self, indices: list[int], *, waits: bool) -> Relay:
        """Run one relay."""
        trial = self._trial
        numbers = trial.write(indices, self._own)
        if trial.returns:
            left = [output for index in indices for output in trial.places.outputs(index)]
            self._copy_ns = min(self._copy_ns, self._copies.time(left, len(indices)))
        inputs = trial.places.input_bytes(len(indices))
        inputs.zero_()
        glances = OutputGlances(trial.places.output_bytes(len(indices)), trial.places.output_spans())
        moves = Handover(self._given, inputs, glances, self._scratch, waits=waits)
        spans: list[CallSpan] = []
        part = "both" if trial.has_setup else "run"
        _, ahead_ns = self._between.end()
        with open_board() as (board, fds):
            done = self._ask(
                "relay",
                Relayed,
                "the measurement",
                along=Along(fds, lambda is_over: spans.extend(moves.run(board, trial.worker_pid, is_over))),
                indices=indices,
                part=part,
            )
        self._between.begin()
        rows = glances.copy_if_as_seen()
        if len(spans) < len(indices) or rows is None:
            raise SolutionFailure(
                "RUNTIME_ERROR",
                "an output was written after its call had ended; what a call starts has to be done when it returns",
            )
        if glances.were_written_ahead():
            raise SolutionFailure(
                "RUNTIME_ERROR",
                "an output was written before its call had begun; a call may write to its own outputs only",
            )
        span_ns = max(0.0, median(span.call for span in spans) + ahead_ns / len(indices) - self._beside_ns)
        copy_ns = 0.0
        if trial.returns and not done.strided:
            copy_ns = min(self._copy_ns, COPIES_SHARE * span_ns)
        move_ns = median(span.move for span in spans)
        return Relay(numbers, max(0.0, span_ns - copy_ns), move_ns, lambda index: trial.places.outputs_in(rows[index]))
