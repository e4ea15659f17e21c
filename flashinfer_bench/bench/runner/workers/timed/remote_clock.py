"""A worker's clock as the session uses it: the recipe of a trial runs in the session, the calls run in the worker.

Before the calls of a request are made, the session writes new content into their places; after them it looks at what
they gave. So each timed call has inputs that no call had before, and any of them may be compared afterwards.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from types import TracebackType
from typing import Any, Final, Protocol

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.cpu_time import BetweenRequests
from flashinfer_bench.bench.runner.workers.timed.call_places import GRAPH_PLACES, CallPlaces, is_unwritten, to_looks
from flashinfer_bench.bench.runner.workers.timed.readings import ReadingsAsked, check_clock, check_readings
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeSchedule
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Launch, Lead
from flashinfer_bench.timing.measurement import Facts, Sample
from flashinfer_bench.worker.protocol import Called, ClockTraits, Started, Stopped

MOST_ODD: Final = 4
"""Odd calls of a trial that are compared: honest outputs may repeat, as masks do, so this is bounded."""
LARGE_BYTES: Final = 1 << 26
"""Of calls whose inputs and outputs take more, no inputs are copied."""
NO_GRAPH_BESIDE_SETUP: Final = "what setup prepares belongs to the inputs of one call, and a graph would keep it"


class Ask(Protocol):
    """Asks the worker, within the solution's time; what goes wrong becomes a SolutionFailure."""

    def __call__(self, verb: str, expected: type[Any], what: str, **fields: Any) -> Any:
        """Return the checked answer."""


@dataclass(frozen=True)
class ReadCall:
    """One call whose outputs are compared: what it was given, and what it gave."""

    inputs: list[Any]
    outputs: list[torch.Tensor]
    is_base: bool
    """Its inputs are the evaluator's own, whose expected outputs are known."""


@dataclass(frozen=True)
class LeftCall:
    """What a call left in its place: copies of its outputs, and of its inputs, which it may have changed."""

    outputs: list[torch.Tensor]
    inputs: list[torch.Tensor | None]
    """Empty for a large call, whose inputs are checked at once."""
    given: list[Any] | None = None
    """What a large call was given; of others it is made again when the trial is over."""


@dataclass
class Reader:
    """Chooses, after the fact and at random, which calls of a trial are compared.

    Args:
        places: where the calls' inputs and outputs lie.
        contents: what each call was given.
        wanted: calls to keep, beside the base and those that look odd.
        check_inputs: raises where a call has changed its inputs.
        chance: the source of the choice; no worker can know its state.
    """

    places: CallPlaces
    contents: Contents
    wanted: int
    check_inputs: Callable[[Sequence[Any], Sequence[torch.Tensor | None]], None]
    """Raises where a call has changed its inputs, given what they were and what they are."""
    chance: random.Random = field(default_factory=random.SystemRandom)
    _kept: dict[int, LeftCall | None] = field(default_factory=dict)
    """The number of each call that is kept by chance; None until it is over."""
    _odd: dict[int, LeftCall] = field(default_factory=dict)
    _base: LeftCall | None = None
    _seen: int = 0
    _looks: dict[tuple[bytes, ...], int] = field(default_factory=dict)
    _look_secret: int = field(default_factory=lambda: random.SystemRandom().getrandbits(32))
    _latest: tuple[list[int], list[torch.Tensor]] | None = None
    """The places of the latest calls, and what was seen there when they were over."""

    def look(self, indices: Sequence[int], numbers: Sequence[int], *, chooses: bool = True) -> None:
        """Look at the calls that some places just had; keep what is to be compared before it is overwritten.

        What is kept by chance is copied before anything else: a call is over when the worker answers, and a thread of
        the solution may still be at work.

        Args:
            indices: the places.
            numbers: the number of each place's call.
            chooses: False keeps none of them by chance, only what looks odd.
        """
        chosen = self._choose(indices, numbers) if chooses else set()
        copies = {index: self._copy(index) for index in chosen}
        seen = self.places.glance(indices, self._look_secret)
        self._latest = (list(indices), seen)
        looks = to_looks(seen, len(indices))
        for index, number, look in zip(indices, numbers, looks, strict=True):
            is_base = number == self.contents.base_number
            is_odd = not is_base and self._is_odd(look) and len(self._odd) < MOST_ODD
            if index not in chosen and not is_odd:
                continue
            left = self._check_large(index, number, copies.get(index) or self._copy(index))
            if is_base:
                self._base = left
                continue
            if is_odd:
                self._odd[number] = left
            if number in self._kept:
                self._kept[number] = left

    def begin(self) -> None:
        """Forget the calls that are kept by chance: only those that come from now on are chosen from."""
        self._kept, self._seen = {}, 0

    def check_unchanged(self) -> None:
        """Hold what lies in the places against what lay there when the latest calls were over.

        Raises:
            SolutionFailure: RUNTIME_ERROR where an output has changed since.
        """
        latest, self._latest = self._latest, None
        if latest is None:
            return
        now = self.places.glance(latest[0], self._look_secret)
        if not all(torch.equal(one, then) for one, then in zip(now, latest[1], strict=True)):
            raise SolutionFailure(
                "RUNTIME_ERROR",
                "an output was written after its call had ended; what a call starts has to be done when it returns",
            )

    def _choose(self, indices: Sequence[int], numbers: Sequence[int]) -> set[int]:
        """Return the places whose calls are kept: the base, and some by chance, which may displace earlier ones."""
        places = dict(zip(numbers, indices, strict=True))
        chosen = {places[number] for number in numbers if number == self.contents.base_number}
        for number in numbers:
            if number == self.contents.base_number:
                continue
            self._seen += 1
            if len(self._kept) < self.wanted:
                self._kept[number] = None
            elif self.wanted and self.chance.random() < self.wanted / self._seen:
                del self._kept[self.chance.choice(list(self._kept))]
                self._kept[number] = None
        return chosen | {places[number] for number in numbers if number in self._kept}

    def _is_odd(self, looks: list[bytes]) -> bool:
        """Say whether a call left outputs unwritten, or gave what another call with other inputs gave."""
        if any(map(is_unwritten, looks)):
            return True
        key = tuple(looks)
        self._looks[key] = self._looks.get(key, 0) + 1
        return self._looks[key] > 1 and bool(looks) and self.contents.differs

    def _copy(self, index: int) -> LeftCall:
        outputs = [output.clone() for output in self.places.outputs(index)]
        if self.places.stride > LARGE_BYTES:
            return LeftCall(outputs, [])
        return LeftCall(outputs, [None if slot is None else slot.clone() for slot in self.places.inputs(index)])

    def _check_large(self, index: int, number: int, call: LeftCall) -> LeftCall:
        """Check the inputs of a large call in their place: a copy of them would take too much memory."""
        if self.places.stride <= LARGE_BYTES:
            return call
        given = self.contents.make(number)
        self.check_inputs(given, self.places.inputs(index))
        return replace(call, given=given)

    def reads(self) -> list[ReadCall]:
        """Return the calls to compare, in a random order.

        Raises:
            SolutionFailure: an output has changed since its call was over, or a call has changed its inputs.
        """
        self.check_unchanged()
        left = {number: call for number, call in self._kept.items() if call is not None} | self._odd
        if self._base is not None:
            left[self.contents.base_number] = self._base
        small = [number for number, call in left.items() if call.given is None]
        given = dict(zip(small, self.contents.make_all(small), strict=True))
        for number, inputs in given.items():
            self.check_inputs(inputs, left[number].inputs)
        base = self.contents.base_number
        found = []
        for number, call in left.items():
            inputs = given[number] if call.given is None else call.given
            found.append(ReadCall(inputs, call.outputs, number == base))
        self.chance.shuffle(found)
        return found


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


class RemoteClock:
    """The clock of one worker for one trial. It takes the calls of a request together, each in another place.

    Args:
        ask: asks the worker.
        traits: the worker's clock, as it was before a solution was loaded.
        trial: where calls lie, what they are given, who looks at what they gave.
        fall_back: why the worker is to use another clock than its own; None for its own.
    """

    def __init__(self, ask: Ask, traits: ClockTraits, trial: RemoteTrial, *, fall_back: str | None = None) -> None:
        self._ask = ask
        self._trial = trial
        self._fall_back = fall_back
        self._take_traits(traits)
        self._facts: Facts = {}
        self._spent_ns = 0.0
        self._between = BetweenRequests(trial.guard_pid)

    def _take_traits(self, traits: ClockTraits) -> None:
        self._traits = traits
        self.method: str = traits.method
        self.cache_state: str = traits.cache_state
        self.fills_queue = traits.fills_queue
        self.sees_operations = traits.sees_operations

    def __enter__(self) -> RemoteClock:
        started = self._ask("start", Started, "the measurement", fall_back=self._fall_back)
        self._take_traits(started.clock)
        check_clock(started.clock, self._trial.asked)
        if started.lost is not None:
            raise ClockLost(started.lost)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch the worker's clock off, unless the worker is gone or the solution has failed."""
        if error is None or isinstance(error, (ClockLost, CaptureRefused)):
            self._ask("stop", Stopped, "the measurement")

    def sample(self, launches: list[Launch], lead: Lead) -> list[Sample]:
        """Have the worker make the calls; no two of a request lie in one place."""
        samples: list[Sample] = []
        chosen = [launch for launch in launches if isinstance(launch, PlaceLaunch)]
        most = count_taken(self._trial.places, replay=chosen[0].replay) if chosen else 1
        for start in range(0, len(chosen), most):
            samples += self._sample_together(chosen[start : start + most], lead)
        return samples

    def _sample_together(self, launches: Sequence[PlaceLaunch], lead: Lead) -> list[Sample]:
        """Have the worker make calls, and those on inputs of other regimes that are due beside them."""
        trial, count = self._trial, len(launches)
        launches = [*launches, *trial.spares(launches)]
        indices = [launch.index for launch in launches]
        numbers = trial.write(indices)
        hidden = trial.hide(indices, numbers)
        fields = {"indices": indices, "lead": asdict(lead), "replay": launches[0].replay}
        self._spent_ns = 0.0
        setups = self._call(part="setup", **fields) if trial.has_setup else []
        samples = self._call(part="run", **fields)
        trial.costs_ns += [self._spent_ns / len(indices)] * len(indices)
        for position, (name, inputs) in hidden.items():
            trial.take_hidden(name, indices[position], inputs)
        usual = [at for at in range(len(indices)) if at not in hidden]
        trial.setup_samples += [setups[at] for at in usual if setups]
        trial.reader.look([indices[at] for at in usual], [numbers[at] for at in usual])
        taken = [samples[at] for at in usual][:count]
        left = [launches[at] for at in hidden][: count - len(taken)]  # where there was no place beside the usual calls
        return [*taken, *self._sample_together(left, lead)] if left else taken

    def _call(self, **fields: Any) -> list[Sample]:
        _, ahead_ns = self._between.end()
        start = time.monotonic()
        called = self._ask("calls", Called, "the measurement", **fields)
        wall_ns = (time.monotonic() - start) * 1e9
        self._between.begin()
        self._spent_ns += wall_ns + ahead_ns
        if called.lost is not None:
            raise ClockLost(called.lost)
        if called.refused is not None:
            raise CaptureRefused(called.refused)
        if called.facts is not None:
            self._facts = called.facts.model_dump(exclude_none=True)
        return check_readings(called, len(fields["indices"]), self._traits, wall_ns=wall_ns)

    def captured(self, supply: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a supplier of replays: the worker captures the call of each place once."""
        if self._trial.has_setup:
            raise CaptureRefused(NO_GRAPH_BESIDE_SETUP)
        if not self.sees_operations:
            return supply

        places = count_taken(self._trial.places, replay=True)

        def give(index: int) -> Launch:
            return PlaceLaunch(index % places, replay=True)

        return give

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock that the worker uses instead; a wall clock has none."""
        if self.method != "cupti":
            return None
        return RemoteClock(self._ask, self._traits, self._trial, fall_back=reason)

    def launch_gap_ns(self) -> int:
        """Return 0: the worker has told it when it was ready."""
        return 0

    def chain_gap_ns(self) -> int:
        """Return 0: the worker has told it when it was ready."""
        return 0

    def facts(self) -> Facts:
        """Return what the worker's clock knows of its readings."""
        return self._facts


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
    guard_pid: int | None = None
    """The process above a worker that is held still; None where it is not."""
    setup_samples: list[Sample] = field(default_factory=list)
    """Readings of `setup`, where the solution has one."""
    costs_ns: list[float] = field(default_factory=list)
    """What each call took by the session's clock, `setup` and all that goes before a call included: its share of the
    time from a request to its answer."""
    number: int = 0
    """Number of the next call."""
    schedule: RegimeSchedule | None = None
    """Which calls get inputs of other regimes; None where none does."""

    def write(self, indices: Sequence[int]) -> list[int]:
        """Write new content into some places, and poison their outputs; return the numbers of the calls."""
        self.reader.check_unchanged()
        numbers = list(range(self.number, self.number + len(indices)))
        self.number += len(indices)
        self.hold_worker()
        writer = open_writer(self.places.arena.device)
        for index, number in zip(indices, numbers, strict=True):
            self.contents.write(number, self.places.inputs(index), writer)
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

    def take_hidden(self, name: str, index: int, inputs: list[Any]) -> None:
        """Keep what a call that was hidden gave."""
        assert self.schedule is not None  # else nothing was hidden
        self.reader.check_inputs(inputs, self.places.inputs(index))
        self.schedule.take(name, inputs, self.places.outputs(index))

    def moved_to(self, places: CallPlaces, wanted: int) -> RemoteTrial:
        """Return the trial in other places, with a reader of its own for so many calls; no content comes again."""
        reader = Reader(places, self.contents, wanted, self.reader.check_inputs)
        return replace(self, places=places, reader=reader)

    def supply(self, index: int) -> PlaceLaunch:
        """Give the launch of the i-th call: in the places in turn."""
        return PlaceLaunch(index % len(self.places))

    @property
    def setup_ns(self) -> float | None:
        """The usual time of `setup`, its warm-up calls among it; None where the solution has none."""
        spans = [sample.span_ns for sample in self.setup_samples]
        return median(spans[len(spans) // 4 :]) if spans else None
