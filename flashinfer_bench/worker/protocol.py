"""The protocol of a worker: a closed list of methods, and the checks on its answers.

The session asks, one frame at a time; the worker answers each with one frame that repeats the request's `id`.

    verb      fields                                          answer, beside "id"
    (none)    sent when the worker can take work              WorkerReady, with the id 0
    load      directory, entry, symbol, kind, environment     Loaded
    bind      arena: {"kind": "memfd", "size"} + 1 fd, or     -; the arena before is given up
              {"kind": "cuda", "size", "handle"}
    lay_out   style, may_return_inputs, outputs: names,       -
              arguments, slots, count, stride
    start     fall_back: a reason, or null                    Started
    calls     indices, part, lead or null, replay             Called: readings, facts, returned, lost, refused
    burst     first, part, together, operations               Called: refused, copied, strided
    relay     indices, part, operations, settles, size,       Called: strided, joined
              stride, inputs + 1 fd, of the control block
    collect   first, part, together                           Called: strided
    stop      -                                               -; the clock is off
    recover   -                                               -; after an error: the clock is off, no call is laid
                                                              out, the device has done its work
    unbind    -                                               -; no memory of the session is mapped, no call laid out
    exit      -                                               none; the process ends

There is one kind of call. A call has a place of its own (lay_out): inputs and output slots in the arena. `calls` makes
the calls of some buffers in order, each once, and reads the clock where `lead` has the preamble of each. The results of
a call lie in its output slots when the answer comes. The session writes other inputs between two requests. `first` is
the number of the first buffers, whose calls are made: a list of hundreds would take as long as they do. `burst`,
`collect` and `relay` are asked of a GPU's worker only. `burst` makes calls back to back, as one CUDA graph if
`together` is true and it holds `operations` of each, and leaves their results where they are; `collect` brings those
into the output slots. In a `relay` (`gated_chain/`) the inputs of a call lie in its place, masked, and the control
block has its key when the call before has committed to its outputs by a digest.

`arguments` is name → {"offset", "shape", "dtype"}, a contiguous tensor in the arena, or name → {"scalar": value};
`slots` has such a tensor for each output. They lie in the first place; those of the next place lie `stride` bytes on.
`style` is "dps", "value" or "keyword"; `part` is "setup", "run", "both" (for each call one behind the other) or, for
calls that compute nothing, "nothing". An error of solution code is answered with {"id", "error": WorkerError}.

Every answer is a claim. It is checked here for type, count and range before the session looks at it; a claim that
fails is the solution's doing, since nothing else runs there.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flashinfer_bench.base.wire import WireError
from flashinfer_bench.timing.measurement import Count, Nanoseconds, Sample, Words, printable

MAX_TEXT: Final = 16_384
MAX_RETURNED: Final = 256
MOST_WORDS: Final = 512
MOST_WHERE: Final = 100
"""Characters that a message quotes of a field's name: a worker may answer with names of its own."""
STACK_FILE, STACK_SIGNAL = "stack.txt", signal.SIGRTMAX - 1
"""At this signal a worker writes the Python stack of its main thread into this file of its home. LLVM, which compiles
Triton's kernels, takes SIGUSR1 and SIGUSR2 for itself."""
MAX_CALLS: Final = 4_096
"""Calls of one request."""

Text = Annotated[str, Field(max_length=MAX_TEXT)]
ShortText = Annotated[str, Field(max_length=MOST_WORDS)]
Style = Literal["dps", "value", "keyword"]
Item = TypeVar("Item")
Column = Annotated[list[Item], Field(min_length=1, max_length=MAX_CALLS)]


class Part(BaseModel):
    """A part of an answer: its fields are all known, and of the types that are declared."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Claim(Part):
    """An answer: the worker has done what it was asked for. Others say more."""

    id: int


class Signature(Part):
    """How the entry function may be called; `maximum` is null where it takes any number."""

    text: ShortText
    names: Annotated[list[ShortText], Field(max_length=MAX_RETURNED)] = []
    """Its positional parameters in order, as far as they are known."""
    minimum: Annotated[int, Field(ge=0, le=10_000)]
    maximum: Annotated[int, Field(ge=0, le=10_000)] | None


class ClockTraits(Part):
    """The clock that a worker uses."""

    method: Literal["wall", "cupti", "cuda_events"]
    cache_state: Literal["cold", "warm"]
    fills_queue: bool
    sees_operations: bool


class WorkerReady(Claim):
    """The worker can take work; it has met no solution yet."""

    ready: Literal[True]
    launch_gap_ns: Annotated[int, Field(ge=0, le=10**9)]
    """What one more launch costs in this worker's context; see `Clock.launch_gap_ns`."""
    chain_gap_ns: Annotated[int, Field(ge=0, le=10**9)]
    """How fast this worker's context feeds the GPU; see `Clock.chain_gap_ns`."""
    clock: ClockTraits
    gpu_uuid: ShortText = ""
    """As CUDA tells it; empty on a CPU."""


class Loaded(Claim):
    """The entry function is there; `signature` is null where Python cannot tell it."""

    signature: Signature | None
    has_setup: bool
    """The solution exports `setup` beside its entry function."""


class Started(Claim):
    """The clock is on; or it cannot be used, and `lost` says why."""

    clock: ClockTraits
    lost: Words | None


class Returned(Part):
    """One value that a value-returning solution gave back."""

    kind: Literal["tensor", "scalar", "other"]
    type: ShortText
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] | None = None
    dtype: ShortText | None = None
    device: ShortText | None = None
    is_input: bool = False
    """It lies in the memory of the inputs, where the reference's does not."""


class Readings(Part):
    """The readings of some calls: a list for each field of `Sample`."""

    span_ns: Column[Nanoseconds]
    enqueue_ns: Column[Nanoseconds]
    busy_ns: Column[Nanoseconds | None]
    operations: Column[Count | None]
    late: Column[bool]
    lead_ns: Column[Nanoseconds | None]
    launched: Column[Annotated[str, Field(max_length=16)]]
    """A digest of the names of what each call launched, and of how often."""
    escaped: Column[bool]
    work_ns: Column[Nanoseconds]
    streams: Column[Count]

    @model_validator(mode="after")
    def _check_lengths(self) -> Readings:
        if len(set(map(len, vars(self).values()))) != 1:
            raise ValueError("the readings differ in number")
        return self

    def to_samples(self) -> list[Sample]:
        """Return the readings as samples of the session's."""
        columns = {**vars(self), "launched": [((digest, 1),) for digest in self.launched]}
        return [Sample(*row) for row in zip(*columns.values(), strict=True)]


def answer_readings(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return samples as the fields of `Readings`."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in Readings.model_fields}
    return columns | {"launched": list(map(_digest, columns["launched"]))}


@lru_cache
def _digest(launched: tuple[tuple[str, int], ...]) -> str:
    return hashlib.sha256(repr(launched).encode()).hexdigest()[:16]


class ClockFacts(Part):
    """What a clock knows of its own readings."""

    lead_ns: Nanoseconds | None = None
    empty_pair_ns: Nanoseconds | None = None
    fallback: Words | None = None


class Called(Claim):
    """The calls came back. If `lost` says why the clock has no readings, or `refused` why calls are no graph, no call
    was made."""

    readings: Readings | None = None
    """A reading of each call, if the request has a lead."""
    facts: ClockFacts | None = None
    """What the clock knows of its readings so far."""
    returned: (
        Annotated[list[Annotated[list[Returned], Field(max_length=MAX_RETURNED)]], Field(max_length=MAX_CALLS)] | None
    ) = None
    """The values of each call; None in dps style."""
    lost: Words | None = None
    refused: Words | None = None
    copied: bool = False
    """The results of each call of a burst were brought into its slots at once; there is nothing to collect. So it is if
    the solution returns the same memory each time, and for calls that compute nothing."""
    strided: bool = False
    """To copy results changed how they lie in memory: that was a part of the work."""
    joined: bool = False
    """All calls of a relay were one graph."""


class WorkerError(Part):
    """Solution code, or our loop on its behalf, raised."""

    type: ShortText
    message: Text
    location: ShortText = ""
    """Where it was raised in the solution's own files, as "at FILE:LINE, in FUNCTION"; empty if it was not there."""
    traceback: Text


class Failed(Claim):
    """The method did not come to its end."""

    error: WorkerError


Answer = TypeVar("Answer", bound=Claim)


def check_answer(message: dict[str, Any], request_id: int, expected: type[Answer]) -> Answer | Failed:
    """Return the answer to a request as a checked value.

    Raises:
        WireError: it is not an answer to this request, or breaks a bound of the protocol.
    """
    kind: type[Answer] | type[Failed] = Failed if "error" in message else expected
    try:
        answer = kind.model_validate(message)
    except ValidationError as error:
        first = error.errors()[0]
        where = printable(".".join(str(part) for part in first["loc"])[:MOST_WHERE])
        raise WireError(
            f"the answer to {expected.__name__.lower()} is malformed at {where or 'its top'}: {first['msg']}"
        ) from error
    if answer.id != request_id:
        raise WireError(f"the answer is for request {answer.id}, not {request_id}")
    return answer
