"""Recorded traces as lines. Plans and reports need only a few fields. Models are made on demand.

A set may have 100,000 traces of 3 kB, whose models would take gigabytes and many seconds. `read_trace_line` stores a
valid line as a `TraceLine`: its text, and the fields for plans and reports. `to_trace` makes the model. `TraceList` is
the public list: it stores lines and returns traces.

`extra` stays text; `measurement.read_reported` reads its fields.

`read_trace_line` returns None for a line that the models refuse or accept with a warning. `parse_line` parses this
line. msgspec is as strict as the models, except for invalid UTF-8, integers that Python refuses, and deep nesting. The
models' parser also parses lines that may have one of these three faults.
"""

from __future__ import annotations

from collections import UserList
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, SupportsIndex, cast

import msgspec
from pydantic_core import SchemaValidator, core_schema, from_json

from flashinfer_bench.data.evaluation import (
    HAS_CORRECTNESS,
    HAS_PERFORMANCE,
    Environment,
    Evaluation,
    EvaluationStatus,
)
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload

DEEPEST: Final = 200
"""Deepest nesting of JSON that pydantic allows."""
PLAIN_BYTES: Final = 4000
"""Maximum bytes of a line that is parsed once. A longer line is parsed twice, since it may have an integer with more
digits than Python accepts (4,300)."""
SHARED: Final = 1 << 16
"""Number of cached workloads and environments, which lines share."""

Named = Annotated[str, msgspec.Meta(min_length=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
if TYPE_CHECKING:
    _Shared = Environment
else:
    _Shared = msgspec.Raw  # text, which `read_trace_line` replaces by the model


class _AnyTable(msgspec.Struct, gc=False):
    """A table whose content is not read."""


class CorrectnessLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A `Correctness`, without its `extra`."""

    max_relative_error: float = 0.0
    max_absolute_error: float = 0.0
    extra: _AnyTable | None = None


class PerformanceLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A `Performance`."""

    latency_ms: NotNegative = 0.0
    reference_latency_ms: NotNegative = 0.0
    speedup_factor: NotNegative = 0.0


class EvaluationLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An `Evaluation` with `extra` as text."""

    status: EvaluationStatus
    log: str
    timestamp: str
    environment: _Shared
    """Device and versions; lines with the same environment share the object."""
    correctness: CorrectnessLine | None = None
    performance: PerformanceLine | None = None
    extra_text: msgspec.Raw = msgspec.field(name="extra", default=msgspec.Raw(b"null"))

    @property
    def extra(self) -> dict[str, Any] | None:
        """The whole `extra`, parsed at each access."""
        return cast("dict[str, Any] | None", from_json(bytes(self.extra_text)))


class TraceLine(msgspec.Struct, gc=False, eq=False):
    """A trace with an evaluation, stored as the line of a file. The fields are those of a `Trace`."""

    definition: str
    solution: str
    workload: Workload
    """The workload; lines with the same workload share the object."""
    evaluation: EvaluationLine
    text: bytes
    """The text of the line."""

    def is_successful(self) -> bool:
        """Return whether the solution passed."""
        return self.evaluation.status is EvaluationStatus.PASSED

    def to_trace(self) -> Trace:
        """Return the whole line as a model."""
        return Trace.model_validate_json(self.text)

    def __eq__(self, other: object) -> bool:
        return self.to_trace() == (other.to_trace() if isinstance(other, TraceLine) else other)

    def __repr__(self) -> str:
        return repr(self.to_trace())

    def __reduce__(self) -> tuple[Any, ...]:
        return read_trace_line, (self.text,)

    __hash__ = None  # type: ignore[assignment] # as of any trace


AnyTrace = Trace | TraceLine
AnyEvaluation = Evaluation | EvaluationLine


class TraceList(UserList[Trace]):
    """A list of traces that stores lines. Each access makes a new trace."""

    data: list[Any]

    def __init__(self, traces: Iterable[AnyTrace] = ()) -> None:
        super().__init__()
        self.data = list(kept_of(traces))

    def __getitem__(self, index: Any) -> Any:
        return TraceList(self.data[index]) if isinstance(index, slice) else to_trace(self.data[index])

    def __iter__(self) -> Iterator[Trace]:
        return map(to_trace, self.data)

    def pop(self, index: SupportsIndex = -1) -> Trace:
        """Return one trace."""
        return to_trace(self.data.pop(index))


def kept_of(traces: Iterable[AnyTrace]) -> Iterable[AnyTrace]:
    """Return the stored lines of traces, for a reader that needs only the fields of a line."""
    return traces.data if isinstance(traces, TraceList) else traces


def to_trace(kept: AnyTrace) -> Trace:
    """Return the model of a stored trace."""
    return kept.to_trace() if isinstance(kept, TraceLine) else kept


def read_trace_line(text: bytes) -> TraceLine | None:
    """Return a line that the models accept without a warning; None for any other line."""
    openers = len(text) - len(text.replace(b"[", b"").replace(b"{", b""))  # four times faster than `count`
    is_plain = len(text) <= PLAIN_BYTES and text.isascii() and openers < DEEPEST
    try:
        if not is_plain:
            _ANY_TABLE.validate_json(text)
        found = _LINE.decode(text)
        said, workload = found.evaluation, cast("Workload", _read_shared(Workload, bytes(found.workload)))
        text_of_environment = bytes(cast("msgspec.Raw", said.environment))
        said.environment = cast("Environment", _read_shared(Environment, text_of_environment))
    except (msgspec.MsgspecError, ValueError):
        return None
    is_whole = (
        (said.correctness is not None) == (said.status in HAS_CORRECTNESS)
        and (said.performance is not None) == (said.status in HAS_PERFORMANCE)
        and bytes(said.extra_text)[:1] in (b"{", b"n")
    )
    return TraceLine(found.definition, found.solution, workload, said, text) if is_whole else None


class _TraceText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line of a traces file."""

    definition: Named
    workload: msgspec.Raw
    solution: Named
    evaluation: EvaluationLine


_LINE: Final = msgspec.json.Decoder(_TraceText)
_ANY_TABLE: Final = SchemaValidator(core_schema.typed_dict_schema({}, extra_behavior="ignore"))
"""Parses JSON like the models, only to find errors."""


@lru_cache(SHARED)
def _read_shared(model: type[DataModel], text: bytes) -> DataModel:
    """Parse a part that several lines may share; raise ValueError if a key is unknown."""
    found = model.model_validate_json(text)
    if any(found.unknown_keys()):
        raise ValueError("it has keys that may be misspelt")
    return found
