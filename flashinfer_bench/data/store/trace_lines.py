"""Recorded traces as lines: plans and reports read a few fields, and a model is made when somebody asks.

A set may have 100,000 traces of 3 kB; as models they are gigabytes and many seconds. `read_trace_line` keeps a right
line as a `TraceLine`: its text, and the fields that plans and reports read. `to_trace` makes the model. `TraceList` is
the list that users see: it holds lines and hands out traces.

`extra` stays text; `measurement.read_extra` reads from it what a record names.

A line that the models would refuse, or that deserves a warning, is none for `read_trace_line`: `parse_line` takes it.
msgspec is as strict as the models but for text that is no UTF-8, integers that Python refuses, and depth. A line that
may hold one of them is also parsed by the models' own parser.
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
"""Deepest nesting of JSON, as pydantic allows it."""
PLAIN_BYTES: Final = 4000
"""A longer line, in bytes, is parsed twice: Python refuses integers of more than 4,300 digits."""
SHARED: Final = 1 << 16
"""Workloads and environments that further lines share."""

Named = Annotated[str, msgspec.Meta(min_length=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
if TYPE_CHECKING:
    _Shared = Environment
else:
    _Shared = msgspec.Raw  # text, until `read_trace_line` puts the model in its place


class _AnyTable(msgspec.Struct, gc=False):
    """A table of which nothing is read."""


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
    """An `Evaluation` whose `extra` is text."""

    status: EvaluationStatus
    log: str
    timestamp: str
    environment: _Shared
    """Where it ran; lines with the same environment share it."""
    correctness: CorrectnessLine | None = None
    performance: PerformanceLine | None = None
    extra_text: msgspec.Raw = msgspec.field(name="extra", default=msgspec.Raw(b"null"))

    @property
    def extra(self) -> dict[str, Any] | None:
        """All of it, parsed at each access."""
        return cast("dict[str, Any] | None", from_json(bytes(self.extra_text)))


class TraceLine(msgspec.Struct, gc=False, eq=False):
    """A trace with an evaluation, as the line of a file; it has the fields of a `Trace`."""

    definition: str
    solution: str
    workload: Workload
    """What it was judged on; lines with the same workload share it."""
    evaluation: EvaluationLine
    text: bytes
    """The line."""

    def is_successful(self) -> bool:
        """Tell whether the solution passed."""
        return self.evaluation.status is EvaluationStatus.PASSED

    def to_trace(self) -> Trace:
        """Parse all of it."""
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
    """A list of traces that keeps lines; a trace is made anew each time that it is taken out."""

    data: list[Any]

    def __init__(self, traces: Iterable[AnyTrace] = ()) -> None:
        super().__init__()
        self.data = list(kept_of(traces))

    def __getitem__(self, index: Any) -> Any:
        return TraceList(self.data[index]) if isinstance(index, slice) else to_trace(self.data[index])

    def __iter__(self) -> Iterator[Trace]:
        return map(to_trace, self.data)

    def pop(self, index: SupportsIndex = -1) -> Trace:
        """Take a trace out."""
        return to_trace(self.data.pop(index))


def kept_of(traces: Iterable[AnyTrace]) -> Iterable[AnyTrace]:
    """Return what is kept of traces, for a reader that needs no more than lines have."""
    return traces.data if isinstance(traces, TraceList) else traces


def to_trace(kept: AnyTrace) -> Trace:
    """Make a whole trace of what is kept of one."""
    return kept.to_trace() if isinstance(kept, TraceLine) else kept


def read_trace_line(text: bytes) -> TraceLine | None:
    """Keep a line that the models take without a warning; None for any other."""
    openers = len(text) - len(text.replace(b"[", b"").replace(b"{", b""))  # `bytes.count` takes four times as long
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
"""Parses JSON as the models do, and makes nothing of it."""


@lru_cache(SHARED)
def _read_shared(model: type[DataModel], text: bytes) -> DataModel:
    """Read a part that further lines have, too; raise ValueError if it deserves a warning."""
    found = model.model_validate_json(text)
    if any(found.unknown_keys()):
        raise ValueError("it has keys that may be misspelt")
    return found
