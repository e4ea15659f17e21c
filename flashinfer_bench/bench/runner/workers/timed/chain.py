"""The gated chain: calls on a GPU, each of which can read its inputs when the call before is over.

The calls of a batch lie in memory at the same time, so a worker may compute all of them in one operation, or side by
side if one call leaves most of a GPU idle. In a chain their inputs are masked, each by a key of its own. A call's key
comes when the call before has committed to its outputs, by a digest that takes all of them:

    one call = median(from its key to its digest) - an empty call - START_NS + launch overhead

A latency is reported as no less than CHAIN_SHARE of that. If the host launches each call, it is HOST_CHAIN_SHARE of
as much without START_NS taken off. The session measures an empty call in a chain of its own, in the same places: no
worker has a hand in it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from secrets import randbits
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.bench.runner.workers.timed.call_places import FEW_READS, FEWEST_CALLS, FEWEST_PLACES, GPU_BYTES
from flashinfer_bench.bench.runner.workers.timed.reported_time import (
    CHAIN_REFUSED_SHARE,
    CHAIN_SHARE,
    HOST_CHAIN_SHARE,
    Claimed,
    Confirmation,
    find_doubt,
)
from flashinfer_bench.bench.runner.workers.timed.timed_calls import written_late
from flashinfer_bench.timing import driver
from flashinfer_bench.timing.clocks import CaptureRefused, capture, capture_first
from flashinfer_bench.worker.gated_chain.kernels import (
    BLOCK_BYTES,
    MOST_CALLS,
    MOST_OUTPUTS,
    ChainKernels,
    ControlBlock,
    Piece,
    chain_image,
    count_groups,
    piece_of,
)
from flashinfer_bench.worker.protocol import Called

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.timed.sampling import Ask
    from flashinfer_bench.bench.runner.workers.timed.timed_calls import TimedCalls

LONGEST_NS: Final = 1_000_000_000
"""Longer calls are in no chain: each is timed by itself. An empty chain that takes longer is given up."""
CHAIN_NS: Final = 20_000_000
CHAIN_BYTES: Final = 2 << 30
"""Most nanoseconds and bytes of a chain's calls beyond FEWEST_PLACES. If FEWEST_PLACES exceed CHAIN_BYTES, it has as
many calls as there are places for."""
MOST_CHAINS: Final = 4
"""Most chains; a further one is run only while the best so far would raise the latency. Empty chains: as many."""
LAUNCH_NS: Final = {False: 50_000_000, True: 300_000}
"""A call gets its key when all of it is launched, or after this. The key is whether it waits for the GPU inside."""
LONGEST_PAUSE_NS: Final = 10_000_000
"""The GPU idles before each key as long as the call before took, up to this: a GPU without a pause slows down."""
START_NS: Final = 1_250.0
"""Taken off each call: a GPU polls for its key once in a microsecond, so the usual empty call is longer than the least,
and in some contexts operations start later than in the session's."""
CACHED_BYTES: Final = 24 << 20
"""A chain bounds larger calls less: their unmasked inputs are written back while the call runs."""
WRITTEN_BACK: Final = 32 << 20, 3_000
"""Most bytes of these inputs that a cache holds, and bytes that are written back in a nanosecond. That is taken off."""
UNCACHED_SHARE: Final = 0.9
"""A latency of such calls is reported as no less than this share of the cost."""
SLACK_NS: Final = 10_000
"""A latency no more than this below the cost of a call is doubted, and never refused: another program may hold up keys.
The chain raises it all the same."""

now_ns = time.perf_counter_ns


def count_chain_calls(claimed_ns: float, size: int, outputs: int) -> int:
    """Return how many calls a chain has; 0 if none is run.

    Args:
        claimed_ns: latency of one call.
        size: bytes of the inputs and outputs of one call.
        outputs: of one call.
    """
    fewest = min(FEWEST_PLACES, GPU_BYTES // max(size, 1))
    if claimed_ns > LONGEST_NS or fewest < FEWEST_CALLS or not 0 < outputs <= MOST_OUTPUTS:
        return 0
    return max(fewest, int(min(MOST_CALLS, CHAIN_NS / max(claimed_ns, 1.0), CHAIN_BYTES // max(size, 1))))


def count_chain_reads(calls: int, size: int) -> int:
    """Return how many calls of a chain are compared. More than half of large ones are: a solution may leave out half.

    Args:
        calls: of the chain.
        size: bytes of the inputs and outputs of one call.
    """
    return FEW_READS if size * FEWEST_PLACES <= CHAIN_BYTES else calls // 2 + 1


class Committed(NamedTuple):
    """What the session saw of one call of a chain."""

    span_ns: int
    """From its key to its digest."""
    digest: list[int]
    """It commits to the outputs."""


def draw_keys(count: int) -> list[int]:
    """Return secret keys, none of them 0; each is a positive number of 64 bits with a sign."""
    return [randbits(63) | 1 for _ in range(count)]


def hand_out(
    block: ControlBlock,
    keys: Sequence[int],
    groups: int,
    is_over: Callable[[], bool],
    launch_ns: int = LAUNCH_NS[False],
) -> list[Committed]:
    """Give calls their keys one by one; return what each took. If the worker answers sooner, some calls are missing.

    Args:
        block: cleared.
        keys: of each call.
        groups: in which a call commits to its outputs.
        is_over: tells whether the worker has answered, or is gone, or late.
        launch_ns: longest wait for the launch of a call.
    """
    found: list[Committed] = []
    for at, key in enumerate(keys):
        while not block.await_ready(at + 1):
            if is_over():
                return found
        begin = now_ns()
        while not block.is_launched(at + 1) and now_ns() - begin < launch_ns:
            continue
        pause_ns = min(found[-1].span_ns if found else 0, LONGEST_PAUSE_NS)
        begin = now_ns()
        while now_ns() - begin < pause_ns:
            continue
        start = now_ns()
        block.give(at, key)
        while not block.await_digest(at, groups):
            if is_over() and not block.await_digest(at, groups):
                return found
        found.append(Committed(now_ns() - start, block.digest(at, groups)))
    return found


class ChainTools:
    """A session's own kernels and control block for chains on a GPU.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels = ChainKernels(chain_image(), device)
        self._empty_ns: dict[tuple[int, ...], int] = {}
        """Bytes of the inputs and of each output → nanoseconds of a call that computes nothing."""
        fd = open_memory_file(BLOCK_BYTES)
        try:
            self._block = ControlBlock(fd)
        finally:
            os.close(fd)
        self._block.map_to_gpu()
        self._block.give(0, 1)
        self._kernels.warm_up(self._block.key_at(0))
        self._block.clear()
        capture_first(device)

    def mask(self, rows: Sequence[Piece], keys: Sequence[int]) -> None:
        """Mask the inputs of each call by its key."""
        held = torch.tensor(keys, dtype=torch.int64).to(self._device)
        for at, row in enumerate(rows):
            self._kernels.unmask(row, held.data_ptr() + at * held.itemsize)
        torch.cuda.synchronize(self._device)

    def digests(self, outputs: Sequence[Sequence[torch.Tensor]]) -> list[list[int]]:
        """Return the digests of these outputs, for each of some calls."""
        held = torch.zeros(len(outputs), 2 * count_groups(len(outputs[0])), dtype=torch.int64).to(self._device)
        for row, own in zip(held, outputs, strict=True):
            self._kernels.commit([piece_of(one) for one in own], row.data_ptr())
        return [[number % (1 << 64) for number in row] for row in held.tolist()]

    def find_empty_ns(self, rows: Sequence[Piece], outputs: Sequence[Sequence[torch.Tensor]]) -> int:
        """Return the least nanoseconds of a call in a chain that computes nothing.

        They are measured once for inputs and outputs of some sizes: work that a worker has left on the GPU makes them
        longer. 0 if something holds the GPU up: then nothing is taken off.

        Args:
            rows: where the inputs of each call lie; they are overwritten.
            outputs: of each call.
        """
        sizes = (rows[0].nbytes, *(one.nbytes for one in outputs[0]))
        if sizes not in self._empty_ns and (taken_ns := self._take_empty(rows, outputs)):
            self._empty_ns[sizes] = taken_ns
        return self._empty_ns.get(sizes, 0)

    def _take_empty(self, rows: Sequence[Piece], outputs: Sequence[Sequence[torch.Tensor]]) -> int:
        """Return the least nanoseconds of a call in a chain that unmasks, computes nothing, and commits."""
        keys, groups = draw_keys(len(rows)), count_groups(len(outputs[0]))
        spans: list[int] = []

        def launch_all() -> None:
            for at, (row, own) in enumerate(zip(rows, outputs, strict=True)):
                self._kernels.await_and_unmask(self._block.key_at(at), row, self._block.ready_at, at + 1)
                self._kernels.commit([piece_of(one) for one in own], self._block.digest_at(at))

        try:
            replay = capture(launch_all)  # as the worker's calls are
        except CaptureRefused:
            return 0
        for _ in range(MOST_CHAINS):
            self._block.clear()
            replay()
            self._block.tell_launched(len(rows))
            found = hand_out(self._block, keys, groups, partial(_is_past, now_ns() + LONGEST_NS))
            spans += [one.span_ns for one in found]
            for at, key in enumerate(keys):
                self._block.give(at, key)
            torch.cuda.synchronize(self._device)
        return min(spans) if len(spans) == MOST_CHAINS * len(rows) else 0


def _is_past(end_ns: int) -> bool:
    return now_ns() > end_ns


@cache
def open_chain_tools(device: torch.device) -> ChainTools | None:
    """Return a session's tools for a GPU; None if this machine cannot run chains there.

    Session and worker need a core each.
    """
    if usable_cores() < 2:
        return None
    try:
        torch.cuda.current_stream(device)
        return ChainTools(device)
    except (OSError, driver.DriverError):
        return None


class ChainTimer:
    """Times chains of a job's calls.

    Args:
        ask: asks the worker.
        trial: where the calls lie and what they are given.
        tools: the session's kernels.
        claimed: what the worker says of a call. No graph can hold one that waits for the GPU.
        calls: of a chain. They lie in the first places.
        gap_ns: the launch overhead, which is a part of each sample.
    """

    def __init__(
        self, ask: Ask, trial: TimedCalls, tools: ChainTools, claimed: Claimed, *, calls: int, gap_ns: float
    ) -> None:
        self._ask = ask
        self._trial = trial
        self._tools = tools
        self._gap_ns = gap_ns
        operations = None if claimed.waits_inside or trial.has_setup else claimed.operations
        self._launch_ns = LAUNCH_NS[operations is None]
        places = trial.places
        self._count = calls
        self._held = places.held_inputs()[:calls]
        self._given, self._own = places.own_inputs(calls)
        outputs = [places.outputs(at) for at in range(calls)]
        self._empty_ns = tools.find_empty_ns(rows_of(self._held), outputs)
        self._cost_ns, self._share, self._is_joined = math.inf, 1.0, False
        """Of the best chain so far: the cost of a call, the share of it that a latency is no less than, and whether the
        worker says that all calls were one graph."""
        self._fields: dict[str, Any] = {"operations": operations, "settles": claimed.uses_side_stream}
        self._fields |= {"part": trial.part, "indices": [*range(calls)]}
        self._fields |= {"stride": places.stride, "inputs": places.inputs_end}

    def confirm(self, claimed_ns: float) -> Confirmation:
        """Hold a reported latency against chains.

        Args:
            claimed_ns: latency of one call, `setup` included.

        Raises:
            ClaimContradicted: RUNTIME_ERROR; chains take longer than the report allows, each time.
            SolutionFailure: the same, and far longer; or outputs are not those that a call committed to.
        """
        chains, image = 0, chain_image()
        size = BLOCK_BYTES + -(-len(image) // BLOCK_BYTES) * BLOCK_BYTES
        fd = open_memory_file(size)
        try:
            os.pwrite(fd, image, BLOCK_BYTES)
            block = ControlBlock(fd, size)
            while chains < MOST_CHAINS and self._share * self._cost_ns > claimed_ns:
                self._run_one(block, fd, size)
                chains += 1
        finally:
            os.close(fd)
        cost_ns, host = self._cost_ns, None if self._is_joined else "the host launches each call in its turn"
        below_ns = min(CHAIN_REFUSED_SHARE * cost_ns, cost_ns - SLACK_NS)
        doubt = find_doubt(claimed_ns, cost_ns, "chain", f"{chains} chains", host=host, refused_below_ns=below_ns)
        record = {"relay_calls": chains * self._count, "relay_ms": cost_ns / 1e6}
        most_ns = cost_ns + self._empty_ns  # one kernel may unmask, compute and commit
        return Confirmation("chain", self._share * cost_ns, doubt, record, most_ns)

    def _run_one(self, block: ControlBlock, fd: int, size: int) -> None:
        """Run a chain; if its calls cost the least so far, some of them are compared.

        Raises:
            SolutionFailure: RUNTIME_ERROR; outputs are not those that the calls committed to.
        """
        places = self._trial.places
        # A worker's GPU may run at any time: inputs are masked before they come into its places.
        numbers, keys = self._trial.write(range(self._count), self._own), draw_keys(self._count)
        self._tools.mask(rows_of(self._given), keys)
        self._held.copy_(self._given)
        places.synchronize()
        block.clear()
        found: list[Committed] = []
        groups, launch_ns = count_groups(len(places.outputs(0))), self._launch_ns

        def give_keys(is_over: Callable[[], bool]) -> None:
            found.extend(hand_out(block, keys, groups, is_over, launch_ns))

        given = {"fds": [fd], "meanwhile": give_keys, "size": size}
        done = self._ask("relay", Called, "the measurement", **given, **self._fields)
        # Outputs are judged as they were committed to: a worker may exchange them behind a check.
        rows = places.held_outputs()[: self._count].clone(memory_format=torch.contiguous_format)
        if len(found) < self._count or [one.digest for one in found] != self._tools.digests(
            [places.outputs_in(row) for row in rows]
        ):
            raise written_late()
        # To bring results to where outputs lie is a part of the work, but not of samples.
        share = CHAIN_SHARE if done.joined and not done.strided else HOST_CHAIN_SHARE
        cost_ns = median(one.span_ns for one in found) - self._empty_ns - (START_NS if done.joined else 0.0)
        if places.stride > CACHED_BYTES:
            most_bytes, bytes_per_ns = WRITTEN_BACK
            share = min(share, UNCACHED_SHARE)
            cost_ns -= min(places.inputs_end, most_bytes) / bytes_per_ns
        cost_ns = max(0.0, cost_ns) + self._gap_ns
        is_best = cost_ns <= self._cost_ns
        if is_best:
            self._cost_ns, self._share, self._is_joined = cost_ns, share, done.joined
            self._trial.begin()
        self._trial.check_calls(range(self._count), numbers, chooses=is_best, outputs=rows)


def rows_of(held: torch.Tensor) -> list[Piece]:
    """Return where each row of a matrix of bytes lies."""
    begin, step = held.data_ptr(), held.stride(0)
    return [Piece(begin + at * step, held.shape[1]) for at in range(held.shape[0])]
