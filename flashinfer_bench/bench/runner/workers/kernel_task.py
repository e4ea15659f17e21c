"""What a solution has to do for one workload, and what the session gives for it: values that `kernel.py` works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.bench.runner.run_metadata import RunMetadata
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.timing.settings import PRECISION, USUAL, TimingSettings

Vary = Callable[[int, Sequence[Any]], Contents]
"""Gives what the calls on a set of inputs are given, from a number that no other set has and the evaluator's inputs."""

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
    metadata: dict[str, Any] | None = None
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
    call_timeout_seconds: float | None = None
    """Seconds of one call after the first, and of a first call that compiles nothing; None for no such limit."""
    reference_s: float = 0.0
    """Seconds of a call of the reference; 0 if unknown."""
    is_reference: bool = False
    """It is the reference: called with its inputs by name, which it may change. Its time is held against nothing."""
    in_out_inputs: frozenset[str] = frozenset()
    """Inputs that the reference writes to: a call may change these."""
    may_return_inputs: bool = False
    """An output may lie in the memory of an input, as one of the reference's does."""
    stress: StressPlan | None = None
    """Stress cases of some calls; None if there are none."""
    expect: Callable[[Sequence[Any]], list[torch.Tensor]] | None = None
    """Calls a quick reference: while a worker prepares batches, expected outputs of calls so far are computed."""
    floor_ms: Callable[[float], float] = lambda _claimed_ms: 0.0
    """Gives the least time to read the inputs, for a claimed latency; 0 if that is not more, or unknown."""


@dataclass(frozen=True)
class SessionTools:
    """Tools that the session gives every kernel."""

    arena: SharedArena
    """Shared memory; its content may be overwritten."""
    run_metadata: RunMetadata
    """Makes a measurement of trials."""
    quiesce: Callable[[], object]
    """Called before a measurement begins; it returns once no other process of ours uses the device."""
    is_slowed: Callable[[WorkerProcess, int, float, bool], bool] = lambda *_: False
    """Tells by worker, operations and time of a call, and whether it uses several streams, if its context slows it."""
    is_starting: Callable[[], bool] = lambda: False
    """Tells whether a context is being made on a GPU."""
    settle: Callable[[bool], bool] = lambda _host_counts: False
    """Waits until nothing goes on that moves the time of a call, of which the host's time may be part; says whether
    anything did. Nothing of it begins until the job is over."""
