"""What the calls of one trial share: their places, their content, who looks at what they gave, what they cost.

Before the calls of a request are made, new content is written into their places. So each timed call has inputs that no
call had before, and any of them may be compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.timed.call_places import GRAPH_PLACES, CallPlaces
from flashinfer_bench.bench.runner.workers.timed.reader import TOGETHER_BYTES, Reader
from flashinfer_bench.bench.runner.workers.timed.readings import ReadingsAsked
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeCall, RegimeSchedule
from flashinfer_bench.bench.runner.workers.timed.rows import copy_rows, find_changed, slots_in
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


@dataclass(frozen=True)
class Hidden:
    """The calls of a request that have inputs of other regimes."""

    names: Mapping[int, str]
    """Their positions among its calls, and their regimes."""
    places: Sequence[int]
    rows: torch.Tensor | None
    """What each was given, one row of bytes for each; None where they are large."""
    inputs: Sequence[list[Any]]
    """The same as tensors, and other values."""


NOTHING_HIDDEN: Final = Hidden({}, [], None, [])


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

    def hide(self, indices: Sequence[int], numbers: Sequence[int]) -> Hidden:
        """Give the calls of a request that are due inputs of other regimes; return which, and what they were given."""
        if self.schedule is None:
            return NOTHING_HIDDEN
        names = self.schedule.hide(self.places, indices, numbers, self.contents.base_number)
        places = [indices[position] for position in names]
        if not places:
            return NOTHING_HIDDEN
        if self.places.stride > TOGETHER_BYTES:
            clones = [[None if one is None else one.clone() for one in self.places.inputs(index)] for index in places]
            return Hidden(names, places, None, [self._given_in(slots) for slots in clones])
        rows = copy_rows(self.places.rows_of_inputs(), places)
        return Hidden(names, places, rows, [self._given_in(self.places.inputs_in(row)) for row in rows.unbind()])

    def _given_in(self, slots: Sequence[torch.Tensor | None]) -> list[Any]:
        """Return the inputs of a call, given those that are tensors."""
        return [value if slot is None else slot for slot, value in zip(slots, self.contents.base, strict=True)]

    def take_hidden(self, hidden: Hidden) -> None:
        """Keep what the calls that were hidden gave.

        Raises:
            SolutionFailure: INCORRECT_NUMERICAL; a call has changed its inputs.
        """
        if self.schedule is None or not hidden.places:
            return
        places, at = self.places, hidden.places  # what they gave is copied first: a thread may still be at work
        if hidden.rows is None:
            gave = [[output.clone() for output in places.outputs(index)] for index in at]
        else:
            gave = [places.outputs_in(row) for row in copy_rows(places.rows_of_outputs(), at).unbind()]
        for name, inputs, outputs in zip(hidden.names.values(), hidden.inputs, gave, strict=True):
            self.schedule.made.append(RegimeCall(name, inputs, outputs))
        is_suspect = [True] * len(at)
        if hidden.rows is not None:
            held = places.rows_of_inputs()
            slots = [slot for slot in slots_in(places.arena.block, places.inputs(0)) if slot is not None]
            is_suspect = find_changed([held[index] for index in at], hidden.rows, slots, len(at))
        now = zip(hidden.inputs, map(places.inputs, at), strict=True)
        self.reader.check_inputs([one for one, looks_changed in zip(now, is_suspect, strict=True) if looks_changed])

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
