"""The words of a worker: a closed list of verbs, and the checks on what it answers.

The session asks, one frame at a time; the worker answers each with one frame that repeats the request's `id`.

    verb      fields                                         answer
    (none)    sent when the worker can take work             {"id": 0, "ready": true}
    load      directory, entry, symbol, kind, environment    {"id", "signature": Signature or null}
    bind      arena: {"kind": "memfd", "size"} + 1 fd, or    {"id", "bound": true}; the arena bound
              {"kind": "cuda", "size", "handle"}             before is given up
    call      style, arguments, outputs                      {"id", "returned": [Returned] or null}
    measure   style, arguments, outputs, warmup_runs,        {"id", "samples_ns": [int], "stop", "facts"}
              iterations, budget_s
    exit      -                                              none; the process ends

An argument is {"offset", "shape", "dtype"}: a contiguous tensor in the arena, or {"scalar": value}. `style` is
"dps" or "value". Whatever goes wrong in solution code is answered with {"id", "error": WorkerError}.

Every answer is a claim. It is checked here for type, count and range before the session looks at it; a claim that
fails is the solution's doing, since nothing else runs there.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashinfer_bench.worker.wire import WireError

MAX_TEXT: Final = 16_384
MAX_RETURNED: Final = 256
MAX_SAMPLES: Final = 1_000_000

Text = Annotated[str, Field(max_length=MAX_TEXT)]
ShortText = Annotated[str, Field(max_length=512)]
Style = Literal["dps", "value"]


class Claim(BaseModel):
    """What every answer has."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    id: int


class Signature(BaseModel):
    """How the entry function may be called; `maximum` is null where it takes any number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    text: ShortText
    minimum: Annotated[int, Field(ge=0, le=10_000)]
    maximum: Annotated[int, Field(ge=0, le=10_000)] | None


class Loaded(Claim):
    """The entry function is there; `signature` is null where Python cannot tell it."""

    signature: Signature | None


class Bound(Claim):
    """The arena is mapped."""

    bound: Literal[True]


class Returned(BaseModel):
    """One value that a value-returning solution gave back."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    kind: Literal["tensor", "scalar", "other"]
    type: ShortText
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] | None = None
    dtype: ShortText | None = None
    device: ShortText | None = None


class Called(Claim):
    """The call came back; `returned` is null for destination-passing style."""

    returned: Annotated[list[Returned], Field(max_length=MAX_RETURNED)] | None


class Sampled(Claim):
    """One trial was taken: a reading per call in nanoseconds."""

    samples_ns: Annotated[list[Annotated[int, Field(ge=0, le=10**15)]], Field(min_length=1, max_length=MAX_SAMPLES)]
    stop: Literal["count", "budget"]
    facts: dict[ShortText, int | float | str | bool]


class WorkerError(BaseModel):
    """Solution code, or our loop on its behalf, raised."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
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
