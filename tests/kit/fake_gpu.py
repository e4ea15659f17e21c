"""A GPU that keeps a log: a queue, a side stream and a clock in nanoseconds, with the edges that the clocks use.

The host's time passes only when something is launched or waited for, so every figure can be worked out by hand.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from flashinfer_bench.timing.clocks import CaptureRefused, CudaEventClock, CuptiClock, Preamble
from flashinfer_bench.timing.cupti import RecordsLost
from flashinfer_bench.timing.flush import CHAIN, DELAY_KERNEL, EMPTY_KERNEL, FLUSH_KERNEL, MOVE_KERNEL
from flashinfer_bench.timing.timeline import Operation

LAUNCH_NS = 2_000
"""What one launch costs the host."""
GAP_NS = 1_000
"""From the end of one operation to the start of the next on the same stream."""
FLUSH_NS = 40_000
EVENT_NS = 1_500
"""What an event costs the GPU."""


@dataclass
class FakeGpu:
    """A device with its host; it stands for the queue of both clocks."""

    l2_cache: str = "cold"
    log: list[str] = field(default_factory=list)
    now_ns: int = 1_000_000
    free_ns: int = 0
    side_free_ns: int = 0
    done: list[Operation] = field(default_factory=list)
    launches: int = 0
    captured: list[tuple[str, int]] | None = None
    preambles: list[Preamble] = field(default_factory=list)
    persisting: bool = False
    moves_ns: Iterator[int] = field(default_factory=lambda: itertools.repeat(1_200))
    """What each kernel takes that moves a word."""

    def seconds(self):
        """Return the host's time, as a recipe reads it."""
        return self.now_ns / 1e9

    def enqueue(self, lead):
        self.preambles.append(lead)
        if lead.waits_first or lead.resets_lines:
            self.log.append("idle")
            self._wait()
        if lead.resets_lines:
            self.log.append("reset")
            self.persisting = False
        if self.l2_cache == "cold" and lead.flushes:
            self.log.append("flush")
            self._queue(FLUSH_KERNEL, FLUSH_NS, gap_ns=0)
        self.log.append("spin")
        self._queue(DELAY_KERNEL, max(lead.delay_ns, 1_000), gap_ns=0)
        if lead.drains:
            self.log.append("settle")
            self._wait()

    def synchronize(self):
        self.log.append("synchronize")
        self._wait()

    def launch_empty(self):
        self.kernel(EMPTY_KERNEL, 1_000)

    def launch_chain(self):
        for _ in range(CHAIN):
            self.launch_empty()

    def launch_move(self):
        self.kernel(MOVE_KERNEL, next(self.moves_ns))

    def kernel(self, name="kernel", length_ns=10_000, *, side=False):
        """Launch an operation on the current stream, or on one that does not wait for it."""
        if self.captured is not None and not side:
            self.captured.append((name, length_ns))
        else:
            self._queue(name, length_ns, gap_ns=GAP_NS, side=side)

    def wait(self):
        """Wait as a call does that reads a result back; a capture cannot hold that."""
        if self.captured is not None:
            raise CaptureRefused("the call cannot be captured: it waits")
        self._wait()

    def capture(self, launch):
        """Return a replay of what a call launches on the current stream; all its nodes share one correlation id."""
        self.captured = []
        try:
            launch()
        finally:
            nodes, self.captured = self.captured, None

        return lambda: self.replay(nodes)

    def replay(self, nodes):
        """Launch the nodes of a graph, each a name and a length in nanoseconds."""
        self.log.append("replay")
        self.now_ns += LAUNCH_NS
        self.launches += 1
        for name, length_ns in nodes:
            self._run(name, length_ns, gap_ns=500)

    def call(self, *, operations=1, length_ns=10_000, host_ns=0, waits=False, side=False):
        """Return a call that writes "call" to the log and launches so many kernels."""

        def launch():
            if self.captured is None:
                self.log.append("call")
            self.now_ns += host_ns
            for index in range(operations):
                self.kernel(f"kernel_{index}", length_ns, side=side)
            if waits:
                self.wait()

        return launch

    def _queue(self, name, length_ns, *, gap_ns, side=False):
        self.now_ns += LAUNCH_NS
        self.launches += 1
        self._run(name, length_ns, gap_ns=gap_ns, side=side)

    def _run(self, name, length_ns, *, gap_ns, side=False):
        start_ns = max(self.now_ns, self.side_free_ns if side else self.free_ns) + gap_ns
        end_ns = start_ns + length_ns
        if side:
            self.side_free_ns = end_ns
        else:
            self.free_ns = end_ns
        self.done.append(Operation(name, start_ns, end_ns, self.launches, stream=int(side)))

    def _wait(self):
        self.now_ns = max(self.now_ns, self.free_ns, self.side_free_ns)


class LeavingCall:
    """A call whose result is copied once it has returned; it writes "call" and "put away" to the log."""

    puts_away = True

    def __init__(self, gpu, lies_otherwise=False, **traits):
        self._gpu = gpu
        self._call = gpu.call(**traits)
        self._lies_otherwise = lies_otherwise

    def __call__(self):
        self._call()

    def put_away(self):
        self._gpu.log.append("put away")
        self._gpu.kernel("copy", 70_000)
        return self._lies_otherwise


@dataclass
class FakeRecorder:
    """CUPTI of a fake GPU; it writes "on", "read", "take" and "off" to the log."""

    gpu: FakeGpu
    refusal: str = ""
    lost_at: int | None = None
    """The take that loses records, counted from 1."""
    takes: int = 0
    is_on: bool = False

    def start(self):
        if self.refusal:
            raise RecordsLost(self.refusal)
        self.is_on = True
        self.gpu.log.append("on")
        self.gpu.done.clear()

    def stop(self):
        self.is_on = False
        self.gpu.log.append("off")

    def now(self):
        self.gpu.log.append("read")
        return self.gpu.now_ns

    def take(self):
        self.gpu.log.append("take")
        self.takes += 1
        if self.takes == self.lost_at:
            raise RecordsLost("3 dropped")
        records, self.gpu.done = self.gpu.done, []
        return records


@dataclass
class FakeEvent:
    """A CUDA event of a fake GPU; it writes "record" and "query" to the log."""

    gpu: FakeGpu
    passed_ns: int = -1

    def record(self):
        self.gpu.log.append("record")
        self.gpu.now_ns += 500
        self.passed_ns = self.gpu.free_ns = max(self.gpu.now_ns, self.gpu.free_ns) + EVENT_NS

    def query(self):
        self.gpu.log.append("query")
        return self.gpu.now_ns >= self.passed_ns

    def synchronize(self):
        self.gpu.now_ns = max(self.gpu.now_ns, self.passed_ns)

    def elapsed_time(self, end):
        return (end.passed_ns - self.passed_ns) / 1e6


def fake_event_clock(gpu, reason=""):
    """Return a clock on a fake GPU's events."""
    clock = CudaEventClock(gpu, reason)
    clock.make_event = lambda: FakeEvent(gpu)
    return clock


def fake_cupti_clock(gpu, *, capture=None, release=lambda: None, **faults):
    """Return a clock on a fake GPU's records, and its recorder."""
    recorder = replace(FakeRecorder(gpu), **faults)
    clock = CuptiClock(gpu, recorder)
    clock.capture, clock.release = capture or gpu.capture, release
    clock.fall_back = lambda reason: fake_event_clock(gpu, reason)
    return clock, recorder


def sample_all(clock, launches, preamble):
    """Return a sample of each launch behind the same preamble."""
    return clock.sample(launches, [preamble] * len(launches))
