"""What a solution has to do for one workload, and what the session gives for it: values that `kernel.py` works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.timing.settings import PRECISION, USUAL, TimingSettings

Vary = Callable[[int, Sequence[Any]], Contents]
"""Gives what the calls on a set of inputs are given, from a number that no other set has and the evaluator's inputs."""

WorkAhead = Callable[[Iterator[Sequence[Any]], Callable[[], bool]], object]
"""Is given the inputs of calls, and what tells whether there is time no more."""

READS: Final = {"cpu": 6, "cuda": 3}
"""Calls of each timed trial whose outputs are compared, beside the one on the evaluator's own inputs, by the kind of
device. With three trials a solution that leaves out every other call passes less than once in 500 jobs. On a CPU one
that leaves out a quarter passes less than once in 100: that would make it 1.5 times as fast."""


@dataclass(frozen=True)
class KernelMetadata:
    """What an evaluator may know of the solution."""

    name: str
    definition: str
    destination_passing_style: bool


@dataclass(frozen=True)
class MeasurePlan:
    """How often, and for how long at the most, a solution is measured."""

    warmup_runs: int
    iterations: int
    """Readings wanted of each trial."""
    budget_s: float
    """Seconds of all trials together."""
    precision: float = PRECISION
    """Share of its time to which a call is to be known."""
    trials: int | None = None
    """The largest number of input sets that are measured; None for all."""
    timing: TimingSettings = USUAL
    facts: dict[str, Any] | None = None
    """Added to the record, for example that the timing means nothing."""
    reads: int = 0
    """Calls of a trial that are compared, beside the one on the evaluator's own inputs."""
    stops_early: bool = False
    """A slow call gets no more readings than its median needs to be known."""
    fewest: int | None = None
    """Readings of a trial from which on it stops at its precision; None where it takes all that are wanted."""
    makes_up: bool = False
    """Where a trial has fewer timed calls than are to be compared, further ones are made."""


@dataclass(frozen=True)
class KernelTask:
    """What a solution has to do for one workload."""

    input_names: list[str]
    outputs: list[OutputSpec]
    timeout_seconds: float
    """Seconds that it may take, all calls together."""
    plan: MeasurePlan
    vary: Vary
    by_keyword: bool = False
    """Give the inputs by their names: how references are called."""
    may_write_inputs: bool = False
    """A call may change its inputs, as a reference may."""
    in_out_inputs: frozenset[str] = frozenset()
    """Inputs that the reference writes to, as the session's own calls of it have shown: a call may change these."""
    may_return_inputs: bool = False
    """An output may lie in the memory of an input, as one of the reference's does."""
    is_ours: bool = False
    """It is the reference, whose time is held against nothing."""
    stress: StressPlan | None = None
    """Change the inputs of some calls that are not timed; None where none is changed."""
    work_ahead: WorkAhead | None = None
    """Makes what is expected of calls while the worker is busy with what needs no GPU; None where that takes long."""
    floor_ms: Callable[[float], float] = lambda _claimed_ms: 0.0
    """Gives what reading the inputs takes at the least, for a claimed latency; 0 where that is not more, or unknown."""

    def is_looked_at(self, device_type: str) -> bool:
        """Tell whether what timed calls leave is looked at: always, but for a reference's on a GPU.

        Nobody compares those. On a CPU looks move the caches, for a reference as for a solution.
        """
        return not self.is_ours or device_type == "cpu"


@dataclass(frozen=True)
class SessionTools:
    """What the session gives every kernel."""

    arena: SharedArena
    """Shared memory; whatever it holds may be overwritten."""
    readout: Readout
    """Makes a measurement of trials."""
    quiesce: Callable[[], None]
    """Called before a measurement begins; it returns once no other process of ours uses the device."""
    settle: Callable[[], bool] = lambda: False
    """Waits until nothing goes on that moves the host's time, and says whether anything did; nothing is begun during a
    measurement."""
    settle_contexts: Callable[[], bool] = lambda: False
    """Waits until no context is being made on a GPU, and says whether any was."""
    is_starting: Callable[[], bool] = lambda: False
    """Says whether any spare is starting, and so a context is being made on a GPU."""
    excess_of: Callable[[WorkerProcess], int] = lambda _worker: 0
    """Nanoseconds by which each gap between operations is longer in a worker's context than it has to be."""
