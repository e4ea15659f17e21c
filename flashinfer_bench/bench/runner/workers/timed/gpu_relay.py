"""Relays on a GPU: rows of calls, each of which can read its inputs when the call before is over.

The calls of a burst lie in memory at the same time, so a worker may compute all of them in one operation, or side by
side, where one call leaves most of a GPU idle. In a relay their inputs are masked. A call's key comes when the call
before has committed to its outputs, by a digest that nobody knows who has not all of them. A call costs

    median(from its key to its digest) - the least that a call takes which computes nothing - START_NS + launch gap

and a latency is told as no less than RELAY_SHARE of that. Where the host launches each call, it is HOST_RELAY_SHARE of
as much without START_NS taken off.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from flashinfer_bench.bench.runner.workers.timed.call_places import FEWEST_CALLS, FEWEST_PLACES, GPU_BYTES
from flashinfer_bench.bench.runner.workers.timed.confirmation import Claimed, Confirmation, Outside, find_doubt
from flashinfer_bench.bench.runner.workers.timed.gpu_handover import (
    LAUNCH_NS,
    WAITING_LAUNCH_NS,
    Committed,
    RelayDesk,
    draw_keys,
    hand_out,
    open_gpu_board,
)
from flashinfer_bench.bench.runner.workers.timed.handover import Along
from flashinfer_bench.bench.runner.workers.timed.reader import Outputs
from flashinfer_bench.bench.runner.workers.timed.readings import (
    CREDITED_SHARE,
    HOST_RELAY_SHARE,
    RELAY_SHARE,
)
from flashinfer_bench.bench.runner.workers.timed.relay import RELAY_REFUSED_SHARE, SLACK_NS
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.gpu_relay.board import MOST_OUTPUTS, GpuBoard
from flashinfer_bench.worker.gpu_relay.kernels import Piece, split
from flashinfer_bench.worker.protocol import Relayed

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.timed.remote_clock import Ask
    from flashinfer_bench.bench.runner.workers.timed.trial import RemoteTrial

RELAY_CALLS: Final = 17
"""Calls of a relay. The median counts, so who wants to gain has to leave out half of them."""
GPU_RELAY_READS: Final = 6
"""Calls that are compared of the relay that counts: who leaves out half of all passes once in 400 times."""
LONGEST_NS: Final = 1_000_000_000
"""Calls beyond this are not relayed: each is timed by itself."""
RELAY_NS: Final = 20_000_000
RELAY_BYTES: Final = 2 << 30
"""A relay has fewer than RELAY_CALLS, and FEWEST_PLACES at the least, where more would take longer than the first of
these together, or more bytes than the second. Of calls of which FEWEST_PLACES take more than RELAY_BYTES it has as many
as there are places for."""
CACHED_BYTES: Final = 24 << 20
DIRTY_BYTES: Final = 32 << 20
BYTES_PER_NS: Final = 3_000
"""Of calls with more bytes than the first of these less is told by a relay: unmasked inputs are written back while the
call runs, up to as many as a cache holds, and what that takes is taken off. One that moves 96 MB took 38 to 42 us in
place of 31 (H100)."""
MOST_RELAYS: Final = 4
"""Relays that are run at the most; those after the first one only while the best so far would raise the latency."""
START_NS: Final = 1_250.0
"""Taken off each call: 0.9 us lie between the usual empty call and the least, for a GPU looks for its key once in a
microsecond, and in some contexts operations start later than in the session's. What is left is a span as readings have
it, so the launch gap is added as it is to theirs."""
STRIDED_SHARE: Final = 0.87
"""Results that lie otherwise than their outputs are brought into them before what commits to them. That is a part of
the work, but not of readings: a latency is told as no less than this share of a relay. With 0.79 who said so, and had
nothing to bring, was told as 1.39 times too fast."""
UNCACHED_SHARE: Final = 0.9
"""The same of a relay whose calls no cache holds: honest ones came to 0.54 to 1.04 of their readings (H100)."""
HIDDEN_NS: Final = 2_000.0
"""So much of a call, and as much as unmasking and committing take longer than they do for a few bytes, somebody saves
who does all in one kernel. Of calls that take no longer than an empty one nothing is known so."""
HOST: Final = "the host launches each call in its turn"


def count_gpu_relay_calls(claimed_ns: float, size: int, outputs: int) -> int:
    """Return how many calls a relay on a GPU has; 0 where none is run.

    Args:
        claimed_ns: latency of one call.
        size: bytes of the inputs and outputs of one call.
        outputs: of one call.
    """
    fewest = min(FEWEST_PLACES, GPU_BYTES // max(size, 1))
    if claimed_ns > LONGEST_NS or fewest < FEWEST_CALLS or not 0 < outputs <= MOST_OUTPUTS:
        return 0
    return max(fewest, int(min(RELAY_CALLS, RELAY_NS / max(claimed_ns, 1.0), RELAY_BYTES // max(size, 1))))


def count_relay_reads(calls: int, size: int) -> int:
    """Return how many calls of a relay are compared; of large ones more than half: who leaves out half meets one.

    Args:
        calls: of the relay.
        size: bytes of the inputs and outputs of one call.
    """
    return GPU_RELAY_READS if size * FEWEST_PLACES <= RELAY_BYTES else calls // 2 + 1


class GpuRelayed(NamedTuple):
    """What one relay came to."""

    numbers: list[int]
    """Of its calls."""
    cost_ns: float
    """What one of them costs."""
    share: float
    """A latency is told as no less than this share of that."""
    is_joined: bool
    """The worker says that all were one graph."""


class GpuRelayTimer:
    """Times relays of one trial's calls.

    Args:
        ask: asks the worker.
        trial: where the calls lie and what they are given.
        desk: the session's kernels.
        claimed: what the worker says of a call: no graph can hold one that waits for the GPU.
        gap_ns: the launch gap, which is a part of each reading.

    `most_ns` is what a call costs at the most.
    """

    def __init__(self, ask: Ask, trial: RemoteTrial, desk: RelayDesk, claimed: Claimed, *, gap_ns: float) -> None:
        self._ask = ask
        self._trial = trial
        self._desk = desk
        self._gap_ns = gap_ns
        operations = None if claimed.waits_inside else claimed.operations
        is_launched_ahead = operations is not None and not trial.has_setup
        self._launch_ns = LAUNCH_NS if is_launched_ahead else WAITING_LAUNCH_NS
        self._fields = {"operations": None if trial.has_setup else operations, "settles": claimed.uses_side_stream}
        self._count = len(trial.places)
        held = trial.places.input_bytes(self._count)
        self._rows = rows_of(held)
        given, self._own = trial.places.own_inputs(self._count)
        self._given, self._held = given, held
        self._outputs = [trial.places.outputs(at) for at in range(self._count)]
        self._groups = len(split(self._outputs[0]))
        self._empty_ns, least_ns = desk.find_empty(self._rows, self._outputs)
        self._hidden_ns = max(0, self._empty_ns - least_ns) + HIDDEN_NS
        self.most_ns = self._best_ns = math.inf

    def leaves_open(self, told_ns: float) -> bool:
        """Tell whether bursts could raise what a call is told as."""
        if self._best_ns <= self._empty_ns:
            return True
        return CREDITED_SHARE["cuda"] * (self._best_ns + self._hidden_ns) > told_ns

    def confirm(self, claimed_ns: float, *, is_believed: bool = False) -> Confirmation:
        """Hold a claimed latency against relays.

        Args:
            claimed_ns: latency of one call, `setup` included.
            is_believed: the claim is not refused: the call is a reference's.

        Raises:
            ClaimContradicted: RUNTIME_ERROR; relays take longer than the claim allows, each time.
            SolutionFailure: the same, and far longer; or outputs are not those that a call committed to.
        """
        best: GpuRelayed | None = None
        relays = 0
        with open_gpu_board() as (board, fd, size):
            while best is None or (relays < MOST_RELAYS and best.share * best.cost_ns > claimed_ns):
                one, outputs = self._run_one(board, fd, size)
                is_best = best is None or one.cost_ns <= best.cost_ns
                if is_best:
                    best = one
                    self._trial.reader.begin()
                self._trial.reader.look(range(self._count), one.numbers, chooses=is_best, outputs=outputs)
                del outputs  # as much memory as those of the next relay take
                relays += 1
        self.most_ns = best.cost_ns + self._empty_ns
        self._best_ns = best.cost_ns
        outside = Outside("relay", best.cost_ns, False, RELAY_REFUSED_SHARE, SLACK_NS)
        refused = None if best.is_joined else HOST
        doubt = find_doubt(claimed_ns, outside, f"{relays} relays", refused=refused, is_believed=is_believed)
        calls = relays * self._count
        return Confirmation(None, None, doubt, relay_ns=best.cost_ns, relay_calls=calls, relay_share=best.share)

    def _run_one(self, board: GpuBoard, fd: int, size: int) -> tuple[GpuRelayed, Outputs]:
        """Run a relay; return what it came to, and place → what its call gave.

        Raises:
            SolutionFailure: RUNTIME_ERROR where outputs are not those that the calls committed to.
        """
        places = self._trial.places
        # A worker's GPU is not held still: what comes into its places has to be masked.
        numbers, keys = self._trial.write(range(self._count), self._own), draw_keys(self._count)
        self._desk.mask(rows_of(self._given), keys)
        self._held.copy_(self._given)
        places.synchronize()
        board.clear()
        found: list[Committed] = []
        groups, launch_ns = self._groups, self._launch_ns
        along = Along([fd], lambda is_over: found.extend(hand_out(board, keys, groups, is_over, launch_ns)))
        fields = {**self._fields, "part": "both" if self._trial.has_setup else "run", "size": size}
        fields |= {"stride": places.stride, "inputs": self._rows[0].nbytes}
        done = self._ask("relay", Relayed, "the measurement", along=along, indices=list(range(self._count)), **fields)
        share = RELAY_SHARE["cuda"] if done.joined else HOST_RELAY_SHARE
        if done.strided:
            share = min(share, STRIDED_SHARE)
        if places.stride > CACHED_BYTES:
            share = min(share, UNCACHED_SHARE)
        # What is judged has to be what was committed to: a worker may exchange outputs behind a look.
        rows = places.output_bytes(self._count).clone(memory_format=torch.contiguous_format)
        outputs = [places.outputs_in(row) for row in rows]
        if len(found) < self._count or [one.digest for one in found] != self._desk.digests(outputs):
            raise SolutionFailure(
                "RUNTIME_ERROR",
                "an output was written after its call had ended; what a call starts has to be done when it returns",
            )
        cost_ns = median(one.span_ns for one in found) - self._empty_ns - (START_NS if done.joined else 0.0)
        if places.stride > CACHED_BYTES:
            cost_ns -= min(self._rows[0].nbytes, DIRTY_BYTES) / BYTES_PER_NS
        cost_ns = max(0.0, cost_ns) + self._gap_ns
        return GpuRelayed(numbers, cost_ns, share, done.joined), outputs.__getitem__


def rows_of(held: torch.Tensor) -> list[Piece]:
    """Return where each row of a matrix of bytes lies."""
    begin, step = held.data_ptr(), held.stride(0)
    return [Piece(begin + at * step, held.shape[1]) for at in range(held.shape[0])]
