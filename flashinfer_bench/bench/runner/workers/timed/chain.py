"""The gated chain: calls on a GPU, each of which can read its inputs only after the previous call has ended.

The inputs of all calls of a batch are in memory at the same time. So a worker could compute all calls in one operation,
or run them in parallel if one call leaves most of a GPU idle. In a chain each call has its own key, which masks its
inputs. The session gives out a key after the previous call has committed to its outputs by a digest over all of them:

    one call = median(from its key to its digest) - an empty call - START_NS + launch overhead

A reported latency is at least CHAIN_SHARE of this cost. If the host launches each call, the share is HOST_CHAIN_SHARE,
and START_NS is not subtracted. The session measures an empty call in its own chain, in the same buffers, without any
worker.
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
from flashinfer_bench.bench.runner.workers.timed.call_buffers import FEW_READS, FEWEST_BUFFERS, FEWEST_CALLS, GPU_BYTES
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
"""Calls of more nanoseconds than this run in no chain: each is timed by itself. An empty chain that takes longer than
this is abandoned."""
CHAIN_NS: Final = 20_000_000
CHAIN_BYTES: Final = 2 << 30
"""Maximum nanoseconds, and maximum bytes, of all calls of a chain together. A chain has at least FEWEST_BUFFERS calls,
if GPU_BYTES allow."""
MOST_CHAINS: Final = 4
"""Maximum number of chains, and exact number of empty chains. Another chain runs only if the best chain so far would
raise the latency."""
LAUNCH_NS: Final = {False: 50_000_000, True: 300_000}
"""Longest wait, in nanoseconds, until a call is fully launched. After this wait the call gets its key in any case. True
is for calls that no graph can hold."""
LONGEST_PAUSE_NS: Final = 10_000_000
"""Maximum nanoseconds that the GPU idles before each key. The pause is as long as the previous call; without a pause
the GPU would throttle."""
START_NS: Final = 1_250.0
"""Nanoseconds subtracted from each call. A GPU polls for a key once in a microsecond, so a call usually waits longer
than the shortest empty call."""
CACHED_BYTES: Final = 24 << 20
"""Calls of more bytes than this get a lower bound from a chain, because their unmasked inputs are written back to
memory while they run."""
WRITTEN_BACK: Final = 32 << 20, 3_000
"""Maximum bytes of a call's inputs that a cache holds, and bytes that are written back to memory in a nanosecond. The
time of the write-back is subtracted."""
UNCACHED_SHARE: Final = 0.9
"""Like CHAIN_SHARE, but for calls above CACHED_BYTES."""
SLACK_NS: Final = 10_000
"""A latency that is below the cost of a call by at most this many nanoseconds is not refused, because another program
may delay keys. The chain raises the latency in any case."""

now_ns = time.perf_counter_ns


def count_chain_calls(claimed_ns: float, size: int, outputs: int) -> int:
    """Return the number of calls in a chain; 0 if no chain is run.

    Args:
        claimed_ns: latency of one call.
        size: bytes of the inputs and outputs of one call.
        outputs: number of outputs of one call.
    """
    fewest = min(FEWEST_BUFFERS, GPU_BYTES // max(size, 1))
    if claimed_ns > LONGEST_NS or fewest < FEWEST_CALLS or not 0 < outputs <= MOST_OUTPUTS:
        return 0
    return max(fewest, int(min(MOST_CALLS, CHAIN_NS / max(claimed_ns, 1.0), CHAIN_BYTES // max(size, 1))))


def count_chain_reads(calls: int, size: int) -> int:
    """Return how many calls of a chain are compared: if calls are large, more than half, so that no solution skips
    half.

    Args:
        calls: number of calls in the chain.
        size: bytes of the inputs and outputs of one call.
    """
    return FEW_READS if size * FEWEST_BUFFERS <= CHAIN_BYTES else calls // 2 + 1


class Committed(NamedTuple):
    """The session's observation of one call of a chain."""

    span_ns: int
    """Nanoseconds from its key to its digest."""
    digest: list[int]
    """The digest that commits to the outputs."""


def draw_keys(count: int) -> list[int]:
    """Return secret keys. Each key is a positive int64."""
    return [randbits(63) | 1 for _ in range(count)]


def hand_out(
    block: ControlBlock,
    keys: Sequence[int],
    groups: int,
    is_over: Callable[[], bool],
    launch_ns: int = LAUNCH_NS[False],
) -> list[Committed]:
    """Give calls their keys in order; return the duration and digest of each call. If the worker answers early, some
    calls are missing.

    Args:
        block: the control block, cleared.
        keys: key of each call.
        groups: number of digests with which a call commits to its outputs.
        is_over: returns whether the worker has answered, has ended, or is late.
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
    """A session's own kernels and control block for chains on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels = ChainKernels(chain_image(), device)
        self._empty_ns: dict[tuple[int, ...], int] = {}
        """Bytes of the inputs and of each output → nanoseconds of an empty call."""
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
        """Mask the inputs of each call with its key."""
        held = torch.tensor(keys, dtype=torch.int64).to(self._device)
        for at, row in enumerate(rows):
            self._kernels.unmask(row, held.data_ptr() + at * held.itemsize)
        torch.cuda.synchronize(self._device)

    def digests(self, outputs: Sequence[Sequence[torch.Tensor]]) -> list[list[int]]:
        """Return the digests of the outputs of each call."""
        held = torch.zeros(len(outputs), 2 * count_groups(len(outputs[0])), dtype=torch.int64).to(self._device)
        for row, own in zip(held, outputs, strict=True):
            self._kernels.commit([piece_of(one) for one in own], row.data_ptr())
        return [[number % (1 << 64) for number in row] for row in held.tolist()]

    def find_empty_ns(self, rows: Sequence[Piece], outputs: Sequence[Sequence[torch.Tensor]]) -> int:
        """Return the least nanoseconds of an empty call in a chain; 0 if other work delays the GPU.

        The time is measured once for each set of sizes, because later work of a worker on the GPU would lengthen it.

        Args:
            rows: location of the inputs of each call; they are overwritten.
            outputs: outputs of each call.
        """
        sizes = (rows[0].nbytes, *(one.nbytes for one in outputs[0]))
        if sizes not in self._empty_ns and (taken_ns := self._take_empty(rows, outputs)):
            self._empty_ns[sizes] = taken_ns
        return self._empty_ns.get(sizes, 0)

    def _take_empty(self, rows: Sequence[Piece], outputs: Sequence[Sequence[torch.Tensor]]) -> int:
        """Return the least nanoseconds of a call in a chain that only unmasks and commits."""
        keys, groups = draw_keys(len(rows)), count_groups(len(outputs[0]))
        spans: list[int] = []

        def launch_all() -> None:
            for at, (row, own) in enumerate(zip(rows, outputs, strict=True)):
                self._kernels.await_and_unmask(self._block.key_at(at), row, self._block.ready_at, at + 1)
                self._kernels.commit([piece_of(one) for one in own], self._block.digest_at(at))

        try:
            replay = capture(launch_all)  # like the worker's calls
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
    """Return a session's tools for a GPU; None if this machine cannot run chains on it.

    The session and the worker need a core each.
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
        trial: the buffers and the inputs of the calls.
        claimed: the worker's report of a call. A graph cannot hold a call that waits for the GPU.
        calls: number of calls in a chain, which use the first buffers.
        gap_ns: the launch overhead, which is part of each sample.
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
        buffers = trial.buffers
        self._count = calls
        self._held = buffers.held_inputs()[:calls]
        self._given, self._own = buffers.own_inputs(calls)
        outputs = [buffers.outputs(at) for at in range(calls)]
        self._empty_ns = tools.find_empty_ns(rows_of(self._held), outputs)
        self._cost_ns, self._share, self._is_joined = math.inf, 1.0, False
        """The best chain so far: the cost of a call, the share of that cost as a bound, and whether the worker reported
        one graph of all calls."""
        self._fields: dict[str, Any] = {"operations": operations, "settles": claimed.uses_side_stream}
        self._fields |= {"part": trial.part, "indices": [*range(calls)]}
        self._fields |= {"stride": buffers.stride, "inputs": buffers.inputs_end}

    def confirm(self, claimed_ns: float) -> Confirmation:
        """Check a reported latency against chains.

        Args:
            claimed_ns: latency of one call, including `setup`.

        Raises:
            ClaimContradicted: all chains take longer than the report allows. The status is RUNTIME_ERROR.
            SolutionFailure: a change of the machine's speed cannot explain the difference, or outputs differ from the
                committed digests.
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
        most_ns = cost_ns + self._empty_ns  # a single kernel may unmask, compute and commit
        return Confirmation("chain", self._share * cost_ns, doubt, record, most_ns)

    def _run_one(self, block: ControlBlock, fd: int, size: int) -> None:
        """Run a chain. Some calls are compared if the chain has the least cost so far.

        Raises:
            SolutionFailure: outputs differ from the digests that the calls committed to (RUNTIME_ERROR).
        """
        buffers = self._trial.buffers
        # A worker can use the GPU at any time, so inputs are masked before they reach its buffers.
        numbers, keys = self._trial.write(range(self._count), self._own), draw_keys(self._count)
        self._tools.mask(rows_of(self._given), keys)
        self._held.copy_(self._given)
        buffers.synchronize()
        block.clear()
        found: list[Committed] = []
        groups, launch_ns = count_groups(len(buffers.outputs(0))), self._launch_ns

        def give_keys(is_over: Callable[[], bool]) -> None:
            found.extend(hand_out(block, keys, groups, is_over, launch_ns))

        given = {"fds": [fd], "meanwhile": give_keys, "size": size}
        done = self._ask("relay", Called, "the measurement", **given, **self._fields)
        # Judge a copy of the committed outputs, since a worker could exchange outputs after a check.
        rows = buffers.held_outputs()[: self._count].clone(memory_format=torch.contiguous_format)
        if len(found) < self._count or [one.digest for one in found] != self._tools.digests(
            [buffers.outputs_in(row) for row in rows]
        ):
            raise written_late()
        # Copies of results into the output slots are timed here, but not in samples.
        share = CHAIN_SHARE if done.joined and not done.strided else HOST_CHAIN_SHARE
        cost_ns = median(one.span_ns for one in found) - self._empty_ns - (START_NS if done.joined else 0.0)
        if buffers.stride > CACHED_BYTES:
            most_bytes, bytes_per_ns = WRITTEN_BACK
            share = min(share, UNCACHED_SHARE)
            cost_ns -= min(buffers.inputs_end, most_bytes) / bytes_per_ns
        cost_ns = max(0.0, cost_ns) + self._gap_ns
        is_best = cost_ns <= self._cost_ns
        if is_best:
            self._cost_ns, self._share, self._is_joined = cost_ns, share, done.joined
            self._trial.begin()
        self._trial.check_calls(range(self._count), numbers, chooses=is_best, outputs=rows)


def rows_of(held: torch.Tensor) -> list[Piece]:
    """Return the location of each row of a matrix of bytes."""
    begin, step = held.data_ptr(), held.stride(0)
    return [Piece(begin + at * step, held.shape[1]) for at in range(held.shape[0])]
