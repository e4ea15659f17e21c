"""The protocol of a worker: a closed list of methods, and the checks on its answers.

The session sends one request frame and waits for its answer. The worker answers with one frame, which repeats the
request's `id`. "-" means no field.

    method    fields                                          fields of the answer, besides "id"
    (none)    sent when the worker is ready                   WorkerReady, with the id 0
    load      directory, entry, symbol, kind                  Loaded
    bind      arena: {"kind": "memfd", "size"} + 1 fd, or     -; the previous arena is unmapped
              {"kind": "cuda", "size", "handle"}
    lay_out   style, may_return_inputs, outputs: names,       -
              arguments, slots, count, stride
    start     fall_back: a reason, or null                    Started
    calls     indices, part, lead or null, replay             Called: readings, facts, returned, lost, refused
    burst     first, part, together, operations               Called: refused, copied, strided
    relay     indices, part, operations, settles, size,       Called: strided, joined
              stride, inputs + 1 fd, of the control block
    collect   first, part, together                           Called: strided
    stop      -                                               Stopped: launches; the clock is off
    recover   -                                               -; after an error: the clock is off, no call is laid
                                                              out, the device is idle
    unbind    -                                               -; no memory of the session is mapped, no call laid out

Each call has its own buffer (lay_out): inputs and output slots in the arena. `calls` makes the calls in the given
buffers, once each, in order, and reads the clock if `lead` has their preambles. The results of a call are in its output
slots when the answer comes. The session writes other inputs between two requests. `first` is a number N: the calls in
the first N buffers are made. Sending a list of hundreds of buffers would take as long as the calls. Only a GPU's worker
gets `burst`, `collect` and `relay`. `burst` makes calls back to back, and leaves their results in place. If `together`
is true, the calls are one CUDA graph, which must hold at least `operations` operations of each call. `collect` copies
the results into the output slots. In a `relay` (`gated_chain/`) the inputs of a call are in its buffer, masked. The
control block gets the key of these inputs after the previous call has committed to its outputs by a digest.

`arguments` is name → {"offset", "shape", "dtype"}, a contiguous tensor in the arena, or name → {"scalar": value}.
`slots` has such a tensor for each output. These tensors are in the first buffer; the next buffer begins `stride` bytes
later. `style` is "dps", "value" or "keyword". `part` is "setup", "run", "both" (setup, then run) or "nothing" for empty
calls. An error of solution code is answered with {"id", "error": WorkerError}.

Every answer is a claim. Its types, counts and ranges are checked here before the session uses it. An invalid answer is
the solution's fault, because no other foreign code runs in the worker.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.base.wire import WireError
from flashinfer_bench.timing.libraries import MAX_NAME, MAX_NAMES
from flashinfer_bench.timing.measurement import Count, Nanoseconds, Sample, Words

MAX_TEXT: Final = 16_384
MAX_RETURNED: Final = 256
MOST_WORDS: Final = 512
MOST_WHERE: Final = 100
"""Maximum characters of a field's name in a message. A worker can answer with any names."""
STACK_FILE, STACK_SIGNAL = "stack.txt", signal.SIGRTMAX - 1
"""At this signal a worker writes the Python stack of its main thread into this file of its home. LLVM, Triton's
compiler, uses SIGUSR1 and SIGUSR2 itself."""
MAX_CALLS: Final = 4_096
"""Maximum number of calls of one request."""
MAX_LAUNCHES: Final = 16
"""Maximum number of kinds of calls whose operations are named. Calls that launch the same operations are of one
kind."""

Text = Annotated[str, Field(max_length=MAX_TEXT)]
ShortText = Annotated[str, Field(max_length=MOST_WORDS)]
Digest = Annotated[str, Field(max_length=16)]
Name = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(to_printable)]
Style = Literal["dps", "value", "keyword"]
Item = TypeVar("Item")
Column = Annotated[list[Item], Field(min_length=1, max_length=MAX_CALLS)]


class Part(BaseModel):
    """A part of an answer. All its fields are declared, with their types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Claim(Part):
    """An answer: the worker has done the request. Subclasses have more fields."""

    id: int


class Signature(Part):
    """How the entry function can be called. `maximum` is null if it takes any number of arguments."""

    text: ShortText
    names: Annotated[list[ShortText], Field(max_length=MAX_RETURNED)] = []
    """Its positional parameters in order, as far as they are known."""
    minimum: Annotated[int, Field(ge=0, le=10_000)]
    maximum: Annotated[int, Field(ge=0, le=10_000)] | None


class ClockTraits(Part):
    """The clock of a worker."""

    method: Literal["wall", "cupti", "cuda_events"]
    cache_state: Literal["cold", "warm"]
    fills_queue: bool
    sees_operations: bool


class WorkerReady(Claim):
    """The worker is ready for work. It has loaded no solution yet."""

    ready: Literal[True]
    launch_gap_ns: Annotated[int, Field(ge=0, le=10**9)]
    """Cost of one more launch in this worker's context; see `Clock.launch_gap_ns`."""
    chain_gap_ns: Annotated[int, Field(ge=0, le=10**9)]
    """Gap of a chain of kernels in this worker's context; see `Clock.chain_gap_ns`."""
    clock: ClockTraits
    gpu_uuid: ShortText = ""
    """UUID reported by CUDA; empty on a CPU."""


class Loaded(Claim):
    """The entry function is loaded. `signature` is null if Python does not know it."""

    signature: Signature | None
    has_setup: bool
    """The solution exports `setup` besides its entry function."""


class Started(Claim):
    """The clock is on; or it is unusable, and `lost` says why."""

    clock: ClockTraits
    lost: Words | None


class Returned(Part):
    """One value returned by a value-returning solution."""

    kind: Literal["tensor", "scalar", "other"]
    type: ShortText
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] | None = None
    dtype: ShortText | None = None
    device: ShortText | None = None
    is_input: bool = False
    """It uses the inputs' memory, which the reference's output does not."""


class Readings(Part):
    """The samples of several calls: a list for each field of `Sample`, in the order of the fields, without the lead."""

    span_ns: Column[Nanoseconds]
    enqueue_ns: Column[Nanoseconds]
    busy_ns: Column[Nanoseconds | None]
    operations: Column[Count | None]
    late: Column[bool]
    launched: Column[Digest]
    """A digest of the names and numbers of each call's operations."""
    escaped: Column[bool]
    work_ns: Column[Nanoseconds]
    streams: Column[Count]

    @model_validator(mode="after")
    def _check_lengths(self) -> Readings:
        if len(set(map(len, vars(self).values()))) != 1:
            raise ValueError("the readings differ in number")
        return self

    def to_samples(self) -> list[Sample]:
        """Return them as `Sample` objects of the session."""
        columns = {**vars(self), "launched": [((digest, 1),) for digest in self.launched]}
        return [Sample(*row) for row in zip(*columns.values(), strict=True)]


def answer_readings(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return samples as the fields of `Readings`."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in Readings.model_fields}
    return columns | {"launched": list(map(digest_of, columns["launched"]))}


@lru_cache
def digest_of(launched: tuple[tuple[str, int], ...]) -> str:
    """Return the digest of a call's operations, as in the call's sample."""
    return hashlib.sha256(repr(launched).encode()).hexdigest()[:16]


class ClockFacts(Part):
    """A clock's metadata of its samples."""

    empty_pair_ns: Nanoseconds | None = None
    fallback: Words | None = None


class Called(Claim):
    """The calls have ended. If `lost` or `refused` is set, no call was made."""

    readings: Readings | None = None
    """A sample of each call, if the request has preambles."""
    facts: ClockFacts | None = None
    """The clock's metadata of its samples so far."""
    returned: (
        Annotated[list[Annotated[list[Returned], Field(max_length=MAX_RETURNED)]], Field(max_length=MAX_CALLS)] | None
    ) = None
    """The values of each call; None in dps style."""
    lost: Words | None = None
    """Why the clock has no samples."""
    refused: Words | None = None
    """Why the calls cannot be one graph."""
    copied: bool = False
    """The results of each call of a burst were copied into its slots at once, so none is left to collect. This holds if
    the solution returns the same memory each time, and for empty calls."""
    strided: bool = False
    """Copying results changed their layout in memory, which was part of the work."""
    joined: bool = False
    """All calls of the gated chain (`relay`) ran as one graph."""


class Stopped(Claim):
    """The clock is off."""

    launches: Annotated[
        dict[Digest, Annotated[dict[Name, Count], Field(max_length=MAX_NAMES + 1)]], Field(max_length=MAX_LAUNCHES)
    ] = {}
    """Digest in the samples → launches of each operation by name, in one call. Names are demangled, and cut."""


class WorkerError(Part):
    """Solution code, or our loop on its behalf, raised an exception."""

    type: ShortText
    message: Text
    location: ShortText = ""
    """Location in the solution's own files, as "at FILE:LINE, in FUNCTION"; empty if it was raised elsewhere."""
    traceback: Text


class Failed(Claim):
    """The method did not finish."""

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
        where = to_printable(".".join(str(part) for part in first["loc"])[:MOST_WHERE])
        raise WireError(
            f"the answer to {expected.__name__.lower()} is malformed at {where or 'its top'}: {first['msg']}"
        ) from error
    if answer.id != request_id:
        raise WireError(f"the answer is for request {answer.id}, not {request_id}")
    return answer
