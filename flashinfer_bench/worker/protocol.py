"""The words of a worker: a closed list of verbs, and the checks on what it answers.

The session asks, one frame at a time; the worker answers each with one frame that repeats the request's `id`.

    verb      fields                                          answer
    (none)    sent when the worker can take work              {"id": 0, "ready": true, "launch_gap_ns",
                                                              "chain_gap_ns", "clock": ClockTraits,
                                                              "gpu_uuid"}
    load      directory, entry, symbol, kind, environment     {"id", "signature": Signature or null,
                                                              "has_setup"}
    bind      arena: {"kind": "memfd", "size"} + 1 fd, or     {"id", "bound": true}; the arena bound
              {"kind": "cuda", "size", "handle"}              before is given up
    lay_out   style, may_return_inputs, outputs: names,
              arguments, slots, count, stride                 {"id", "laid_out": number of calls}
    start     fall_back: a reason, or null                    {"id", "clock": ClockTraits, "lost": reason or null}
    calls     indices, part, lead or null, replay             {"id", "readings": CallReadings or null,
                                                              "facts": ClockFacts or null,
                                                              "returned": [[Returned]] or null,
                                                              "lost", "refused": reason or null}
    burst     indices, part, together, operations             {"id", "refused": reason or null, "copied", "strided"}
    relay     indices, part, operations, settles, size,       {"id", "relayed": number of calls, "strided",
              stride, inputs + 1 fd, of the board             "joined"}
    collect   indices, part, together                         {"id", "collected": true, "strided"}
    stop      -                                               {"id", "stopped": true}
    recover   -                                               {"id", "recovered": true}; after an error: the clock is
                                                              off, no call is laid out, the device has done its work
    exit      -                                               none; the process ends

There is one kind of call. A call has a place of its own (lay_out): inputs and output slots in the arena. `calls` makes
the calls of some places in order, each once, and reads the clock where `lead` has the preamble of each. What a call
gave lies in its output slots when the answer comes. The session writes other inputs between
two requests. `burst`, `collect` and `relay` are asked of a GPU's worker only. `burst` makes calls back to back, as one
CUDA graph where `together` is true and it holds so many operations of each, and leaves what they gave where it is;
`collect` brings that into the output slots, likewise. In a `relay` (`gated_chain/`) the inputs of a call lie in its
place, masked, and the board has its key when the call before has committed to its outputs by a digest.

`arguments` is name → {"offset", "shape", "dtype"}, a contiguous tensor in the arena, or name → {"scalar": value};
`slots` has such a tensor for each output. They lie in the first place; those of the next place lie `stride` bytes on.
`style` is "dps", "value" or "keyword"; `part` is "setup", "run", "both" (in a burst or relay, one behind the
other for each call) or, for calls that compute nothing, "nothing". Whatever
goes wrong in solution code is answered with {"id", "error": WorkerError}.

Every answer is a claim. It is checked here for type, count and range before the session looks at it; a claim that
fails is the solution's doing, since nothing else runs there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flashinfer_bench.base.wire import WireError
from flashinfer_bench.timing.measurement import Count, Nanoseconds, Sample, Words, printable

MAX_TEXT: Final = 16_384
MAX_RETURNED: Final = 256
MOST_WORDS: Final = 512
MOST_WHERE: Final = 100
"""Characters that a message quotes of a field's name: a worker may answer with names of its own."""
MAX_CALLS: Final = 4_096
"""Calls of one request."""

Text = Annotated[str, Field(max_length=MAX_TEXT)]
ShortText = Annotated[str, Field(max_length=MOST_WORDS)]
Style = Literal["dps", "value", "keyword"]
Series = Annotated[list[Nanoseconds], Field(min_length=1, max_length=MAX_CALLS)]
Digest = Annotated[str, Field(max_length=16)]


class Part(BaseModel):
    """A part of an answer: its fields are all known, and of the types that are declared."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Claim(Part):
    """What every answer has."""

    id: int


class Signature(Part):
    """How the entry function may be called; `maximum` is null where it takes any number."""

    text: ShortText
    names: Annotated[list[ShortText], Field(max_length=MAX_RETURNED)] = []
    """Its positional parameters in order, as far as they are known."""
    returns: bool | None = None
    """Whether a `return` in its own body has a value; null where that cannot be told."""
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


class Bound(Claim):
    """The arena is mapped."""

    bound: Literal[True]


class LaidOut(Claim):
    """The calls of a job have their places."""

    laid_out: Count


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


class CallReadings(Part):
    """A reading per call: the fields of `Sample`, one list each; times in nanoseconds."""

    span_ns: Series
    enqueue_ns: Series
    busy_ns: Series | None
    operations: Series | None
    lead_ns: Series | None
    work_ns: Series
    streams: Series
    launched: Annotated[list[Digest], Field(max_length=MAX_CALLS)]
    """A digest of the names of what each call launched, and of how often."""
    late: Annotated[list[bool], Field(max_length=MAX_CALLS)]
    escaped: Annotated[list[bool], Field(max_length=MAX_CALLS)]

    @model_validator(mode="after")
    def _check_lengths(self) -> CallReadings:
        for name in type(self).model_fields:
            series = getattr(self, name)
            if series is not None and len(series) != len(self.span_ns):
                raise ValueError("the readings differ in number")
        return self

    def samples(self) -> list[Sample]:
        """Return the readings one by one."""
        unseen: list[None] = [None] * len(self.span_ns)
        columns = (self.busy_ns or unseen, self.operations or unseen, self.lead_ns or unseen)
        return [
            Sample(
                span_ns=self.span_ns[index],
                enqueue_ns=self.enqueue_ns[index],
                busy_ns=columns[0][index],
                operations=columns[1][index],
                lead_ns=columns[2][index],
                work_ns=self.work_ns[index],
                streams=self.streams[index],
                launched=((self.launched[index], 1),),
                late=self.late[index],
                escaped=self.escaped[index],
            )
            for index in range(len(self.span_ns))
        ]


def answer_readings(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return readings as the fields of a `CallReadings`."""
    sees = samples[0].busy_ns is not None
    leads = all(sample.lead_ns is not None for sample in samples)
    return {
        "span_ns": [sample.span_ns for sample in samples],
        "enqueue_ns": [sample.enqueue_ns for sample in samples],
        "busy_ns": [sample.busy_ns or 0 for sample in samples] if sees else None,
        "operations": [sample.operations or 0 for sample in samples] if sees else None,
        "lead_ns": [sample.lead_ns or 0 for sample in samples] if leads else None,
        "work_ns": [sample.work_ns for sample in samples],
        "streams": [sample.streams for sample in samples],
        "launched": [hashlib.sha256(repr(sample.launched).encode()).hexdigest()[:16] for sample in samples],
        "late": [sample.late for sample in samples],
        "escaped": [sample.escaped for sample in samples],
    }


class ClockFacts(Part):
    """What a clock knows of its own readings."""

    lead_ns: Nanoseconds | None = None
    empty_pair_ns: Nanoseconds | None = None
    fallback: Words | None = None


class Called(Claim):
    """The calls came back, with a reading each where a lead was given; `returned` is null for dps style.

    `lost` says why the clock has no readings, `refused` why a call cannot be replayed as a graph; then nothing else
    is said.
    """

    readings: CallReadings | None
    facts: ClockFacts | None = None
    """What the clock knows of its readings so far."""
    returned: (
        Annotated[list[Annotated[list[Returned], Field(max_length=MAX_RETURNED)]], Field(max_length=MAX_CALLS)] | None
    )
    lost: Words | None = None
    refused: Words | None = None


class BurstDone(Claim):
    """The calls of a burst are done; or they cannot be made as one graph, and `refused` says why."""

    refused: Words | None
    copied: bool = False
    """What each call gave was brought into its slots at once; there is nothing to collect. So it is where the solution
    returns the same memory each time, and for calls that compute nothing."""
    strided: bool = False
    """To copy results changed how they lie in memory: that was a part of the work."""


class Relayed(Claim):
    """The calls of a relay are over."""

    relayed: Count
    strided: bool = False
    """To copy results changed how they lie in memory: that was a part of the work."""
    joined: bool = False
    """All of them were one graph."""


class Collected(Claim):
    """What the calls gave lies in their output slots."""

    collected: Literal[True]
    strided: bool = False
    """To copy results changed how they lie in memory: that was a part of the work."""


class Stopped(Claim):
    """The clock is off."""

    stopped: Literal[True]


class Recovered(Claim):
    """The worker is as it was before a call failed, and its device still works."""

    recovered: Literal[True]


class Unbound(Claim):
    """The worker maps no memory of the session any more, and has forgotten the calls that were laid out in it."""

    unbound: Literal[True]


class WorkerError(Part):
    """Solution code, or our loop on its behalf, raised."""

    type: ShortText
    message: Text
    location: ShortText = ""
    """Where it was raised in the solution's own files, as "at FILE:LINE, in FUNCTION"; empty if it was not there."""
    traceback: Text


class Failed(Claim):
    """The verb did not come to its end."""

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
