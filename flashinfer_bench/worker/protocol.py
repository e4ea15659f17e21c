"""The words of a worker: a closed list of verbs, and the checks on what it answers.

The session asks, one frame at a time; the worker answers each with one frame that repeats the request's `id`.

    verb      fields                                         answer
    (none)    sent when the worker can take work             {"id": 0, "ready": true, "launch_gap_ns",
                                                             "chain_gap_ns"}
    load      directory, entry, symbol, kind, environment    {"id", "signature": Signature or null}
    bind      arena: {"kind": "memfd", "size"} + 1 fd, or    {"id", "bound": true}; the arena bound
              {"kind": "cuda", "size", "handle"}             before is given up
    call      style, arguments, outputs                      {"id", "returned": [Returned] or null}
    measure   style, arguments, outputs, warmup_runs,        {"id", "span_ns": [int], "enqueue_ns": [int],
              iterations, budget_s, cuda_graphs              "busy_ns", "operations": [int] or null,
                                                             "late": [bool], "stop", "facts"}
    exit      -                                              none; the process ends

An argument is {"offset", "shape", "dtype"}: a contiguous tensor in the arena, or {"scalar": value}. `style` is
"dps" or "value". Whatever goes wrong in solution code is answered with {"id", "error": WorkerError}.

Every answer is a claim. It is checked here for type, count and range before the session looks at it. A claim that fails
is the solution's doing, since nothing else runs there. The facts of a trial are declared in `timing.facts`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flashinfer_bench.timing.facts import Nanoseconds, TrialFacts
from flashinfer_bench.timing.measurement import Sample, Stop, Trial
from flashinfer_bench.worker.wire import WireError

MAX_TEXT: Final = 16_384
MAX_RETURNED: Final = 256
MAX_SAMPLES: Final = 1_000_000

Text = Annotated[str, Field(max_length=MAX_TEXT)]
ShortText = Annotated[str, Field(max_length=512)]
Style = Literal["dps", "value"]
Readings = Annotated[list[Nanoseconds], Field(min_length=1, max_length=MAX_SAMPLES)]


class Part(BaseModel):
    """A part of an answer: its fields are all known, and of the types that are declared."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Claim(Part):
    """What every answer has."""

    id: int


class Signature(Part):
    """How the entry function may be called; `maximum` is null where it takes any number."""

    text: ShortText
    minimum: Annotated[int, Field(ge=0, le=10_000)]
    maximum: Annotated[int, Field(ge=0, le=10_000)] | None


class WorkerReady(Claim):
    """The worker can take work; it has met no solution yet."""

    ready: Literal[True]
    launch_gap_ns: Annotated[int, Field(ge=0, le=10**9)]
    """Nanoseconds that one more launch costs in this worker's context; see `Clock.launch_gap_ns`."""
    chain_gap_ns: Annotated[int, Field(ge=0, le=10**9)]
    """How fast this worker's context feeds the GPU; see `Clock.chain_gap_ns`."""


class Loaded(Claim):
    """The entry function is there; `signature` is null where Python cannot tell it."""

    signature: Signature | None


class Bound(Claim):
    """The arena is mapped."""

    bound: Literal[True]


class Returned(Part):
    """One value that a value-returning solution gave back."""

    kind: Literal["tensor", "scalar", "other"]
    type: ShortText
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] | None = None
    dtype: ShortText | None = None
    device: ShortText | None = None


class Called(Claim):
    """The call came back; `returned` is null for destination-passing style."""

    returned: Annotated[list[Returned], Field(max_length=MAX_RETURNED)] | None


class Sampled(Claim):
    """One trial was taken: a reading per call, in nanoseconds."""

    span_ns: Readings
    enqueue_ns: Readings
    busy_ns: Readings | None
    operations: Readings | None
    late: Annotated[list[bool], Field(max_length=MAX_SAMPLES)]
    stop: Stop
    facts: TrialFacts

    @model_validator(mode="after")
    def _check_lengths(self) -> Sampled:
        for series in (self.enqueue_ns, self.busy_ns, self.operations, self.late):
            if series is not None and len(series) != len(self.span_ns):
                raise ValueError("the readings differ in number")
        return self

    def trial(self) -> Trial:
        """Return the readings as a trial."""
        unseen = [None] * len(self.span_ns)
        columns = (self.span_ns, self.enqueue_ns, self.busy_ns or unseen, self.operations or unseen, self.late)
        samples = tuple(
            Sample(span_ns=span, enqueue_ns=enqueue, busy_ns=busy, operations=operations, late=late)
            for span, enqueue, busy, operations, late in zip(*columns, strict=True)
        )
        return Trial(samples, self.stop, self.facts.model_dump(exclude_none=True))


def answer_trial(trial: Trial) -> dict[str, Any]:
    """Return a trial as the fields of a `Sampled`."""
    samples = trial.samples
    sees = samples[0].busy_ns is not None
    return {
        "span_ns": [sample.span_ns for sample in samples],
        "enqueue_ns": [sample.enqueue_ns for sample in samples],
        "busy_ns": [sample.busy_ns or 0 for sample in samples] if sees else None,
        "operations": [sample.operations or 0 for sample in samples] if sees else None,
        "late": [sample.late for sample in samples],
        "stop": trial.stop,
        "facts": trial.facts,
    }


class WorkerError(Part):
    """Solution code, or our loop on its behalf, raised."""

    type: ShortText
    message: Text
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
        where = ".".join(str(part) for part in first["loc"])
        raise WireError(
            f"the answer to {expected.__name__.lower()} is malformed at {where or 'its top'}: {first['msg']}"
        ) from error
    if answer.id != request_id:
        raise WireError(f"the answer is for request {answer.id}, not {request_id}")
    return answer
