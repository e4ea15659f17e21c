"""The facts of a trial: how its readings came about. Each fact is declared once, here.

The recipe and the clocks state facts where the code ran. `worker.protocol` checks them as a worker's claims,
`timing.summary` joins those of all trials, and `timing.flags` reads them. The declaration is not in `data`, because a
worker may not import `data`; `data.measurement` declares what reports read of the record that comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from statistics import median
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Joined(Enum):
    """How one fact of several trials is told in the record; a fact without this is told as the last trial has it."""

    MEDIAN = "the median over trials"
    AGREED = "left out unless it is the same in all trials"


def printable(text: str) -> str:
    """Return a text without what moves a terminal's cursor or breaks a line."""
    return "".join(character if character.isprintable() else " " for character in text)


Words = Annotated[str, Field(max_length=512), AfterValidator(printable)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Nanoseconds = Annotated[int, Field(ge=0, le=10**15)]


class TrialFacts(BaseModel):
    """How the readings came about. Every trial has the required facts; only a trial on a GPU has others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    method: Literal["wall", "cupti", "cuda_events"]
    """The clock."""
    cache_state: Literal["cold", "warm"]
    """State of the caches before each call."""
    calls: Annotated[Count, Joined.MEDIAN]
    """Calls made in all, timed or not."""
    extra_samples: Count | None = None
    """Readings beyond the number wanted."""
    launch: Literal["stream", "graph"] | None = None
    """Whether calls were launched on the stream, or replayed as CUDA graphs."""
    launch_reason: Words | None = None
    """Why the launch is not "graph"."""
    spin_ns: Annotated[Nanoseconds | None, Joined.MEDIAN] = None
    """Length of the spin before each call."""
    enqueue_ns: Annotated[Nanoseconds | None, Joined.MEDIAN] = None
    """What the host needs to enqueue one call, when no graph is replayed."""
    lead_ns: Annotated[Nanoseconds | None, Joined.MEDIAN] = None
    """From the end of the spin to the call's first operation."""
    empty_pair_ns: Annotated[Nanoseconds | None, Joined.MEDIAN] = None
    """What a pair of CUDA events with nothing between them reads. It is part of every reading by events."""
    fallback: Words | None = None
    """Why no better clock was used."""
    waits_inside: bool | None = None
    """The call waits for the GPU before it returns."""
    side_stream: bool | None = None
    """The call uses a stream that does not wait for the current one."""
    operations_vary: bool | None = None
    """Calls on the same inputs launched different operations."""
    lines_reset: bool | None = None
    """Persisting lines of the L2 were reset before each call."""
    retaken: Annotated[Count | None, Joined.MEDIAN] = None
    """Readings that were dropped and taken again behind a longer spin."""
    streams: Count | None = None
    """Number of streams that a call's operations ran on; left out for one."""
    graphs: Annotated[Count | None, Joined.AGREED] = None
    """Number of graphs of one call that were replayed in turn; left out for one."""

    def of_gpus(self) -> set[str]:
        """Return the names of the facts that a trial on a CPU has none of."""
        return {name for name in self.model_dump(exclude_none=True) if not TrialFacts.model_fields[name].is_required()}


JOINED: Final = {
    name: mark for name, field in TrialFacts.model_fields.items() for mark in field.metadata if isinstance(mark, Joined)
}


def join_facts(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of all trials as one table."""
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for facts in trials for name in facts):
        told = [facts[name] for facts in trials if name in facts]
        match JOINED.get(name):
            case Joined.MEDIAN:
                joined[name] = int(median(told))
            case Joined.AGREED if len(told) < len(trials) or len(set(told)) > 1:
                continue
            case _:
                joined[name] = told[-1]
    return joined
