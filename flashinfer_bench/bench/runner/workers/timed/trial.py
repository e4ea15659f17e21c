"""What the calls of one trial share: their places, their content, who looks at what they gave, what they cost.

Before the calls of a request are made, new content is written into their places. So each timed call has inputs that no
call had before, and any of them may be compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.timed.call_places import GRAPH_PLACES, CallPlaces
from flashinfer_bench.bench.runner.workers.timed.reader import Reader
from flashinfer_bench.bench.runner.workers.timed.readings import ReadingsAsked
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeSchedule
from flashinfer_bench.timing.measurement import Sample


@dataclass(frozen=True)
class PlaceLaunch:
    """Stands for a call in one place; the worker launches it."""

    index: int
    replay: bool = False

    def __call__(self) -> None:
        """It is never called here."""
        raise AssertionError("a remote call is launched by its worker")


def count_taken(places: Sized, *, replay: bool) -> int:
    """Return how many of a trial's places its calls take in turn."""
    return min(len(places), GRAPH_PLACES) if replay else len(places)


@dataclass
class RemoteTrial:
    """What the calls of one trial share."""

    places: CallPlaces
    contents: Contents
    reader: Reader
    asked: ReadingsAsked
    has_setup: bool
    returns: bool = True
    """What calls return is copied into their output slots."""
    hold_worker: Callable[[], None] = lambda: None
    """Makes sure that nothing of the worker's runs until it is asked again."""
    may_return_inputs: bool = False
    """What calls return may lie in the memory of their inputs."""
    guard_pid: int | None = None
    """The process above a worker that is held still; None where it is not."""
    worker_pid: int | None = None
    """The worker, where it is held still."""
    setup_samples: list[Sample] = field(default_factory=list)
    """Readings of `setup`, where the solution has one."""
    costs_ns: list[float] = field(default_factory=list)
    """What each call took by the session's clock, `setup` and all that goes before a call included: its share of the
    time from a request to its answer."""
    number: int = 0
    """Number of the next call."""
    schedule: RegimeSchedule | None = None
    """Which calls get inputs of other regimes; None where none does."""

    def write(self, indices: Sequence[int], into: Sequence[Sequence[torch.Tensor] | None] | None = None) -> list[int]:
        """Write new content into some places, and poison their outputs; return the numbers of the calls.

        Args:
            indices: the places.
            into: of each input where it is written for each of the calls; None for the places themselves.
        """
        self.reader.check_unchanged()
        numbers = list(range(self.number, self.number + len(indices)))
        self.number += len(indices)
        self.hold_worker()
        writer = open_writer(self.places.arena.device)
        self.contents.write_all(numbers, into or self.places.input_targets(indices), writer)
        self.places.poison(indices, writer)
        writer.finish()
        self.places.synchronize()
        return numbers

    def spares(self, launches: Sequence[PlaceLaunch]) -> list[PlaceLaunch]:
        """Return launches in further places, as many as calls on inputs of other regimes are due, or as there is room.

        Args:
            launches: those of a request.
        """
        due = 0 if self.schedule is None else self.schedule.count_due(self.number, len(launches))
        if not due:
            return []
        taken, replay = {launch.index for launch in launches}, launches[0].replay
        free = [index for index in range(count_taken(self.places, replay=replay)) if index not in taken]
        return [PlaceLaunch(index, replay) for index in free[:due]]

    def hide(self, indices: Sequence[int], numbers: Sequence[int]) -> dict[int, tuple[str, list[Any]]]:
        """Give the calls of a request that are due inputs of other regimes; return position → regime and inputs."""
        if self.schedule is None:
            return {}
        hidden = self.schedule.hide(self.places, indices, numbers, self.contents.base_number)
        return {position: (name, self._given(indices[position])) for position, name in hidden.items()}

    def _given(self, index: int) -> list[Any]:
        """Return a copy of what lies in a place as inputs."""
        given = zip(self.places.inputs(index), self.contents.base, strict=True)
        return [value if slot is None else slot.clone() for slot, value in given]

    def take_hidden(self, hidden: Mapping[int, tuple[str, list[Any]]], indices: Sequence[int]) -> None:
        """Keep what the calls that were hidden gave.

        Args:
            hidden: what `hide` returned.
            indices: the places of all calls of the request.

        Raises:
            SolutionFailure: INCORRECT_NUMERICAL; a call has changed its inputs.
        """
        if not hidden or self.schedule is None:
            return
        for position, (name, inputs) in hidden.items():  # copied first: a thread may still be at work
            self.schedule.take(name, inputs, self.places.outputs(indices[position]))
        self.reader.check_inputs(
            [(inputs, self.places.inputs(indices[position])) for position, (_, inputs) in hidden.items()]
        )

    def moved_to(self, places: CallPlaces, wanted: int) -> RemoteTrial:
        """Return the trial in other places, with a reader of its own for so many calls; no content comes again."""
        reader = Reader(places, self.contents, wanted, self.reader.check_inputs, is_idle=self.reader.is_idle)
        return replace(self, places=places, reader=reader)

    def supply(self, index: int) -> PlaceLaunch:
        """Give the launch of the i-th call: in the places in turn."""
        return PlaceLaunch(index % len(self.places))

    @property
    def setup_ns(self) -> float | None:
        """The usual time of `setup`, its warm-up calls among it; None where the solution has none."""
        spans = [sample.span_ns for sample in self.setup_samples]
        return median(spans[len(spans) // 4 :]) if spans else None
