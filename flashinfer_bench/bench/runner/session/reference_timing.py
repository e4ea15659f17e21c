"""Times the reference: once for each workload, on memory that no worker maps.

The caller makes sure that no worker holds a solution meanwhile (`device_session.prepare`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.session.job import BaselineKey, JobContext
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.timing.clocks import Clock, Launch
from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.places import Kept, choose_places, note_places
from flashinfer_bench.timing.progress import Recipe, Supplier
from flashinfer_bench.timing.recipe import take_trial


@dataclass
class ReferenceTimer:
    """Times references on one device and keeps what it found."""

    hello: Hello
    device: torch.device
    clock: Clock
    readout: Readout
    arena: SharedArena
    """The inputs lie in it, as a solution's do later. What it held before is lost."""
    _known: dict[BaselineKey, Measured] = field(default_factory=dict)

    def measure(self, job: JobContext, input_sets: list[list[Any]]) -> Measured:
        """Return the reference's time on a job's workload."""
        if job.key not in self._known:
            before = self.readout.look()
            self._known[job.key] = self.readout.measured(self._take_trials(job, input_sets), before)
        return self._known[job.key]

    def _take_trials(self, job: JobContext, input_sets: list[list[Any]]) -> list[Trial]:
        """Take one trial per set of inputs; a reference that spends the whole budget in one gets no more."""
        reference, config = job.block.reference, job.block.config
        size = sum(output.nbytes for output in job.output_specs())
        budget_s, start = self.hello.baseline_budget_s, time.monotonic()
        trials: list[Trial] = []
        for inputs in input_sets:
            if trials and time.monotonic() - start > budget_s:
                break
            recipe = Recipe(
                warmup_runs=config.warmup_runs,
                iterations=config.iterations,
                budget_s=budget_s / len(input_sets),
                cuda_graphs=self.hello.timing.cuda_graphs,
                was_called=True,  # when the expected outputs were made
            )
            places = choose_places(size, calls=recipe.warmup_runs, clock=self.clock, device=self.device)
            launch = Kept(bind_reference(reference, inputs, self.arena), places, size)
            trial = take_trial(_always(launch), self.clock, recipe)
            trials.append(note_places(trial, launch.places))
            launch.give_back(trial)
        return trials


def bind_reference(reference: Reference, inputs: list[Any], arena: SharedArena) -> Launch:
    """Return a call of the reference.

    Its inputs are copies, to which it may write. They lie where a solution's inputs lie later, since the place of data
    changes a short call's latency by up to 10 %. No worker knows this memory yet.
    """
    arena.leave()
    slots = iter(arena.place([value for value in inputs if isinstance(value, torch.Tensor)]))
    own = [next(slots).view(arena.block) if isinstance(value, torch.Tensor) else value for value in inputs]
    return partial(reference.launch, own)


def _always(launch: Launch) -> Supplier:
    """Return the supplier that gives one launch for every call."""
    return lambda _index: launch
