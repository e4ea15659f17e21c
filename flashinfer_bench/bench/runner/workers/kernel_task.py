"""A solution's work for one workload, and the session's tools for it: values that `kernel.py` uses."""

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
from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.timing.settings import PRECISION, USUAL, TimingSettings

Vary = Callable[[int, Sequence[Any]], Contents]
"""Takes a unique number and the evaluator's inputs of a set; makes the contents of the set's calls."""

READS: Final = {"cpu": 6, "cuda": 3}
"""Kind of device → number of calls that are compared in each timed trial, not counting the call on the evaluator's own
inputs. A solution that skips a quarter or half of its calls rarely passes."""


@dataclass(frozen=True)
class KernelMetadata:
    """The properties of a solution that an evaluator can read."""

    name: str
    definition: str
    destination_passing_style: bool


@dataclass(frozen=True)
class MeasurePlan:
    """How often and how long a solution is measured."""

    warmup_runs: int
    iterations: int
    """Maximum number of samples of each trial."""
    budget_s: float
    """Seconds for all trials together."""
    precision: float = PRECISION
    """Target relative half-width of the interval."""
    trials: int | None = None
    """Maximum number of input sets that are measured; None for all."""
    timing: TimingSettings = USUAL
    metadata: dict[str, Any] | None = None
    """Fields added to the record, for example that the timing has no meaning."""
    reads: int = 0
    """Number of calls of a trial that are compared, not counting the call on the evaluator's own inputs."""
    stops_early: bool = False
    """Whether a slow call gets only the samples that its median needs."""
    fewest: int | None = None
    """Samples after which a trial can stop once it reaches its precision; None to take all samples."""
    makes_up: bool = False
    """Whether more calls are made if a trial has fewer timed calls than calls to compare."""


@dataclass(frozen=True)
class KernelTask:
    """A solution's work for one workload."""

    input_names: list[str]
    outputs: list[OutputSpec]
    timeout_seconds: float
    """Seconds for all calls together."""
    plan: MeasurePlan
    vary: Vary
    call_timeout_seconds: float | None = None
    """Maximum seconds of a later call, and of the first call while nothing compiles; None for no limit."""
    reference_s: float = 0.0
    """Seconds of a call of the reference; 0 if it is unknown."""
    is_reference: bool = False
    """The kernel is the reference: it gets its inputs by name, may change them, and its time is not checked."""
    in_out_inputs: frozenset[str] = frozenset()
    """Inputs that a call may change."""
    may_return_inputs: bool = False
    """An output may use the memory of an input, as in the reference."""
    stress: StressPlan | None = None
    """Stress cases of some calls; None without stress cases."""
    expect: Callable[[Sequence[Any]], list[torch.Tensor]] | None = None
    """Calls the reference; None if it is slow. The reference computes expected outputs of earlier calls while a worker
    prepares batches."""
    floor_ms: Callable[[float], float] = lambda _claimed_ms: 0.0
    """Takes a reported latency; returns the shortest time to read the inputs. The result is 0 if that time is unknown,
    or not longer than the latency."""


@dataclass(frozen=True)
class SessionTools:
    """The session's tools for every kernel."""

    arena: SharedArena
    """Shared memory. Every kernel may overwrite its content."""
    run_metadata: RunMetadata
    """Makes a measurement from trials."""
    pool: WorkerPool
    """The workers. They can disturb a measurement."""
    settle: Callable[[bool], bool] = lambda _host_counts: False
    """Waits until no process of ours can disturb a timed call; returns whether there was such a process. The argument
    says whether the host's time is part of the call. No such process starts before the job is over."""
