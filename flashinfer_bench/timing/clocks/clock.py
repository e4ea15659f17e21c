"""What a clock is: it takes readings of calls, and says by which method and in which cache state."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, cast

from flashinfer_bench.timing.lane import Leads
from flashinfer_bench.timing.measurement import Facts, Sample

Launch = Callable[[], object]


class PutAway(Protocol):
    """A launch whose call leaves something to be brought into its place, after the reading."""

    @property
    def puts_away(self) -> bool:
        """Whether `put_away` launches work on the device."""

    def put_away(self) -> bool:
        """Bring what the call returned into its place; tell whether it lay otherwise: then that is part of the work."""


def puts_away(launch: Launch) -> bool:
    """Tell whether a launch has work to do after its reading."""
    return bool(getattr(launch, "puts_away", False))


def put_away(launch: Launch) -> bool:
    """Have a launch bring what its call returned into its place; tell whether that is part of the work."""
    return cast("PutAway", launch).put_away()


class Replay:
    """The replay of one CUDA graph. Torch's fills before the graph are no part of the call.

    Args:
        replay: torch's own.
    """

    is_replay: Final = True

    def __init__(self, replay: Launch) -> None:
        self._replay = replay

    def __call__(self) -> None:
        """Replay the graph."""
        self._replay()


def is_replay(launch: Launch) -> bool:
    """Tell whether a launch replays one graph, and does nothing else that it is timed for."""
    return bool(getattr(launch, "is_replay", False))


class ClockLost(Exception):
    """The clock cannot give the readings that were asked for; the reason is its text."""


class CaptureRefused(Exception):
    """A call cannot be captured as a CUDA graph; the reason is its text."""


class Clock(Protocol):
    """Takes readings between `with clock:` and its end. Nothing but the call lies between the two ends of one."""

    method: str
    """"cupti", "cuda_events" or "wall"."""
    cache_state: str
    """"cold" or "warm"."""
    fills_queue: bool
    """Whether a call is enqueued behind a spin, so that its operations run back to back."""
    sees_operations: bool
    """Whether readings hold the single operations of a call."""

    def __enter__(self) -> object:
        """Switch on."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch off, whatever happened."""

    def sample(self, launches: list[Launch], lead: Leads) -> list[Sample]:
        """Call each once, in order; return a reading each. What a call leaves is put away after its reading.

        Raises:
            ClockLost: readings were lost.
        """

    def captured(self, supply: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a supplier of replays of what `supply` gives; each distinct call is captured once.

        It raises CaptureRefused where a call cannot be captured.
        """

    @property
    def fresh_graphs(self) -> int | None:
        """How many graphs the replays of distinct calls take in turn, where one of them was not replayed yet; else 0.

        None where each call has a graph of its own.
        """

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock to use instead of this one, which says why in its facts; None where there is none."""

    def launch_gap_ns(self) -> int:
        """Return the nanoseconds that one more launch in a full queue costs before it runs.

        They are added to every span. 0 where the clock's spans hold them already.
        """

    def chain_gap_ns(self) -> int:
        """Return the nanoseconds that each of several dependent empty kernels takes in this context; 0 where not known.

        On an H200 contexts fall into two classes, 8 % apart, for as long as they live.
        """

    def least_span_ns(self) -> int:
        """Return the nanoseconds of the least call that can be right, which moves one word; 0 where not known.

        The launch gap is no part of it.
        """

    def facts(self) -> Facts:
        """Return what the clock knows of its own readings."""


class WholeCallClock:
    """A clock that sees whole calls only, not their operations: what such clocks do not do. None has a fall-back."""

    sees_operations = False
    fresh_graphs = None

    def captured(self, supply: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return the calls themselves: this clock could not tell what a replay launches."""
        return supply

    def fall_back(self, reason: str) -> Clock | None:
        """Return None: this clock is the last one."""
        del reason
        return None

    def launch_gap_ns(self) -> int:
        """Return 0: the readings hold it."""
        return 0

    def chain_gap_ns(self) -> int:
        """Return 0: this clock does not see single kernels."""
        return 0

    def least_span_ns(self) -> int:
        """Return 0: this clock does not see single kernels."""
        return 0
