"""The flags of a measurement: what a reader should know before acting on its number.

A flag is one record: its name in a trace, its text in reports, and when it holds. To add one, add a record and a
row of the table in `docs/timing.md`. A flag without a condition is raised where it becomes known, in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.timing.measurement import WALL, Sample, Trial, join_facts, latency_ns
from flashinfer_bench.timing.statistics import FEWEST_BATCHES, count_together

if TYPE_CHECKING:  # reports name flags without NVML
    from flashinfer_bench.timing.gpu_state import GpuState

LATE_SHARE: Final = 0.25
"""A call is host-bound if a larger share of its samples is late."""


@dataclass(frozen=True)
class Seen:
    """What the flags of a measurement are decided by."""

    trials: Sequence[Trial]
    """At least one."""
    samples: Sequence[Sample]
    """Of all trials."""
    facts: Mapping[str, Any]
    """Metadata of all trials as one table."""
    is_noisy: bool
    """The samples leave more open than the run-to-run spread (`between_workers.is_noisy`)."""
    states: Sequence[GpuState]
    """The GPU before the first trial and after the last one."""

    @property
    def is_empty(self) -> bool:
        """Whether a call launched nothing."""
        return any(sample.operations == 0 for sample in self.samples)

    @property
    def is_host_bound(self) -> bool:
        """Whether the host takes longer than the GPU."""
        if self.is_empty or self.facts.get("method") == WALL:
            return False
        late = sum(sample.late for sample in self.samples) > LATE_SHARE * len(self.samples)
        span_ns = median(latency_ns(sample, 0) for sample in self.samples)
        return late or bool(self.facts.get("waits_inside")) or self.facts.get("enqueue_ns", 0) > span_ns

    @property
    def has_too_few_samples(self) -> bool:
        """Whether there are too few samples for an interval."""
        batch = count_together([sample.span_ns for sample in self.samples], self.facts.get("method", WALL))
        return len(self.samples) < FEWEST_BATCHES * batch

    @property
    def varies(self) -> bool:
        """Whether calls on the same inputs launched different operations."""
        return any(
            bool(trial.facts.get("operations_vary")) or len({sample.operations for sample in trial.samples}) > 1
            for trial in self.trials
        )

    def differs(self, name: str) -> bool:
        """Tell whether trials that have a fact differ in it."""
        return len({trial.facts[name] for trial in self.trials if name in trial.facts}) > 1


@dataclass(frozen=True)
class Flag:
    """One flag."""

    name: str
    text: str
    """What it tells a reader."""
    when: Callable[[Seen], bool] | None = None
    """Whether it holds; None if the session raises it."""


def _has(fact: str) -> Callable[[Seen], bool]:
    return lambda seen: bool(seen.facts.get(fact))


ALL_FLAGS: Final = (
    Flag("no_gpu_work", "the call launched nothing on the GPU, so the host's time counts", lambda seen: seen.is_empty),
    Flag(
        "host_bound",
        "the host takes longer to launch the call than the GPU to run it",
        lambda seen: seen.is_host_bound,
    ),
    Flag("waits_inside", "the call waits for the GPU before it returns", _has("waits_inside")),
    Flag("side_stream", "the call uses a stream that does not wait for the current one", _has("side_stream")),
    Flag(
        "persisting_l2",
        "the call leaves persisting lines in the L2, which were reset before each reading",
        _has("lines_reset"),
    ),
    Flag(
        "noisy",
        "the readings leave more open than the difference between two workers would",
        lambda seen: seen.is_noisy,
    ),
    Flag("too_few_samples", "there are too few readings to tell a spread", lambda seen: seen.has_too_few_samples),
    Flag(
        "throttled",
        "the GPU was slowed down by power or heat",
        lambda seen: any(state.slowed_by for state in seen.states),
    ),
    Flag("mixed_methods", "the better clock was lost in some trials only", lambda seen: seen.differs("method")),
    Flag(
        "mixed_launches",
        "only some trials could be timed as replays of CUDA graphs",
        lambda seen: seen.differs("launch"),
    ),
    Flag(
        "operations_vary",
        "the call did not launch the same operations each time: it may keep results of earlier calls",
        lambda seen: seen.varies,
    ),
    Flag(
        "contradictory",
        "operations are said to have run for longer than the call took",
        lambda seen: any(one.busy_ns is not None and one.busy_ns > one.span_ns for one in seen.samples),
    ),
    Flag(
        "other_processes",
        "other processes were on the GPU",
        lambda seen: any(state.other_processes for state in seen.states),
    ),
    Flag("unconfirmed", "what was timed from outside could not confirm the time"),
    Flag("same_inputs", "the inputs could not be varied from call to call"),
    Flag("constant_output", "an output was the same on all inputs"),
    Flag(
        "regimes_left_out",
        "calls on unusual inputs were left out, since the reference or the solution is slow or large",
    ),
)
"""Reports name flags in this order."""
FLAGS: Final = {flag.name: flag.text for flag in ALL_FLAGS}
"""Name of each flag → its text."""


def find_flags(
    trials: Sequence[Trial], *, is_noisy: bool, before: GpuState | None, after: GpuState | None
) -> list[str]:
    """Return the flags of a measurement that its samples and the GPU's state show.

    Args:
        trials: its trials, at least one.
        is_noisy: its samples leave more open than the run-to-run spread.
        before: the GPU before the first trial.
        after: the GPU after the last one.
    """
    samples = [sample for trial in trials for sample in trial.samples]
    states = [state for state in (before, after) if state is not None]
    seen = Seen(trials, samples, join_facts([trial.facts for trial in trials]), is_noisy, states)
    return [flag.name for flag in ALL_FLAGS if flag.when is not None and flag.when(seen)]
