"""Recorded traces as lines: what plans and reports ask for is parsed at once, the rest when somebody asks for it.

A set may have 100,000 traces of 3 kB; as models they are gigabytes and many seconds. So a line of a traces file that is
right in every respect is kept as its text and a few values: a `TraceLine`. It has the fields of a `Trace` as far as
plans and reports read them; `to_trace` makes the whole model. `trace_list.TraceList` is the list that users see. Who
reads many lines gives `decode_measurement` or `decode_run` a type that names what is wanted of that entry of `extra`:
where the entries stand is known from the first look at the line. `decode_extra` looks at all of the line again.

`read_trace_line` takes no line that the models would refuse, or that is worth a remark: any other is for `parse_line`.
msgspec passes over what is not asked for, and is strict in that, but for three things: text that is no UTF-8, integers
that Python refuses, and depth. A line that may hold one of them is parsed by the models' own parser, too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from pydantic_core import SchemaValidator, core_schema, from_json

from flashinfer_bench.data.evaluation import (
    HAS_CORRECTNESS,
    HAS_PERFORMANCE,
    RAISED,
    WAITS_INSIDE,
    Environment,
    Evaluation,
    EvaluationStatus,
    both_wait,
    says_quick,
    was_raised,
)
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.store.json_text import DEEPEST
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload

PLAIN_BYTES: Final = 4000
"""A line of more bytes is parsed twice: it may hold an integer of so many digits that Python refuses it (4,300)."""
SHARED: Final = 1 << 16
"""So many workloads, and environments, are known again in further lines."""

Model = TypeVar("Model", bound=DataModel)
Read = TypeVar("Read")
Named = Annotated[str, msgspec.Meta(min_length=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_NOTHING: Final = msgspec.Raw(b"{}")


class AnyTable(msgspec.Struct, gc=False):
    """A table of which nothing is read."""


class CorrectnessLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What is read of a `Correctness`."""

    max_relative_error: float = 0.0
    max_absolute_error: float = 0.0
    extra: AnyTable | None = None


class PerformanceLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A `Performance`."""

    latency_ms: NotNegative = 0.0
    reference_latency_ms: NotNegative = 0.0
    speedup_factor: NotNegative = 0.0


class ExtraLine(msgspec.Struct, gc=False):
    """Entries of `extra` that reports and plans ask many lines for, as text; an empty table where there is none."""

    measurement: msgspec.Raw = _NOTHING
    run: msgspec.Raw = _NOTHING


class EvaluationLine(msgspec.Struct, gc=False):
    """What is kept of an `Evaluation`."""

    status: EvaluationStatus
    log: str
    timestamp: str
    environment: Environment
    """Where it ran; lines with the same one share it."""
    correctness: CorrectnessLine | None
    performance: PerformanceLine | None
    entries: ExtraLine | None
    line: bytes
    """The line that it stands in."""

    @property
    def extra(self) -> dict[str, Any] | None:
        """All of it, which is parsed at each look; who asks many lines calls `decode_run` or the like."""
        return cast("dict[str, Any] | None", from_json(bytes(_read_extra(self.line))))

    @property
    def is_quick(self) -> bool:
        """Whether it is of a quick look."""
        found = decode_run(self, _QUICK)
        return says_quick((self.extra or {}).get("run")) if found is None else found.quick

    @property
    def may_be_best(self) -> bool:
        """As `Evaluation.may_be_best`."""
        if self.is_quick or not any(word.encode() in self.line for word in (WAITS_INSIDE, RAISED)):
            return not self.is_quick
        extra = self.extra
        return not both_wait(extra) and not was_raised(extra, self.performance)


class TraceLine(msgspec.Struct, gc=False):
    """A trace with an evaluation, as the line of a file; it has the fields of a `Trace`."""

    definition: str
    solution: str
    workload: Workload
    """What it was judged on; lines with the same one share it."""
    evaluation: EvaluationLine

    @property
    def text(self) -> bytes:
        """The line."""
        return self.evaluation.line

    def is_successful(self) -> bool:
        """Tell whether the solution passed."""
        return self.evaluation.status is EvaluationStatus.PASSED

    def to_trace(self) -> Trace:
        """Parse all of it."""
        return Trace.model_validate_json(self.text)


AnyTrace = Trace | TraceLine
AnyEvaluation = Evaluation | EvaluationLine


def read_trace_line(text: bytes) -> TraceLine | None:
    """Make a line of a text that the models take without a remark; None where it is another one."""
    is_plain = len(text) <= PLAIN_BYTES and text.isascii() and _count_openers(text) < DEEPEST
    try:
        if not is_plain:
            _ANY_TABLE.validate_json(text)
        found = _LINE.decode(text)
        said = found.evaluation
        workload = _read_workload(bytes(found.workload))
        environment = _read_environment(bytes(said.environment))
    except (msgspec.MsgspecError, ValueError):
        return None
    is_whole = (said.correctness is not None) == (said.status in HAS_CORRECTNESS) and (
        said.performance is not None
    ) == (said.status in HAS_PERFORMANCE)
    if not is_whole:
        return None
    evaluation = EvaluationLine(
        said.status, said.log, said.timestamp, environment, said.correctness, said.performance, said.extra, text
    )
    return TraceLine(found.definition, found.solution, workload, evaluation)


def _count_openers(text: bytes) -> int:
    """Count brackets and braces that open; `bytes.count` takes four times as long."""
    return len(text) - len(text.replace(b"[", b"").replace(b"{", b""))


def to_trace(kept: AnyTrace) -> Trace:
    """Make a whole trace of what is kept of one."""
    return kept.to_trace() if isinstance(kept, TraceLine) else kept


def decode_extra(evaluation: AnyEvaluation, decoder: msgspec.json.Decoder[Read]) -> Read | None:
    """Read from a line what a decoder asks for of `extra`; None for a model, and where an entry has another form."""
    return _decode(_read_extra(evaluation.line), decoder) if isinstance(evaluation, EvaluationLine) else None


def decode_measurement(evaluation: AnyEvaluation, decoder: msgspec.json.Decoder[Read]) -> Read | None:
    """Read what a decoder asks for of the `measurement` in `extra`, as `decode_extra` does, without the rest."""
    if not isinstance(evaluation, EvaluationLine) or evaluation.entries is None:
        return None
    return _decode(evaluation.entries.measurement, decoder)


def decode_run(evaluation: AnyEvaluation, decoder: msgspec.json.Decoder[Read]) -> Read | None:
    """Read what a decoder asks for of the `run` in `extra`, as `decode_extra` does, without the rest."""
    if not isinstance(evaluation, EvaluationLine) or evaluation.entries is None:
        return None
    return _decode(evaluation.entries.run, decoder)


def _decode(text: msgspec.Raw, decoder: msgspec.json.Decoder[Read]) -> Read | None:
    try:
        return decoder.decode(text)
    except msgspec.MsgspecError:
        return None


class _QuickRun(msgspec.Struct, frozen=True, gc=False):
    quick: bool = False


class _WholeExtra(msgspec.Struct, gc=False):
    extra: msgspec.Raw = msgspec.Raw(b"null")


class _WholeLine(msgspec.Struct, gc=False):
    evaluation: _WholeExtra


def _read_extra(line: bytes) -> msgspec.Raw:
    return _WHOLE.decode(line).evaluation.extra


class _EvaluationText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What is read of an `Evaluation`."""

    status: EvaluationStatus
    log: str
    timestamp: str
    environment: msgspec.Raw
    correctness: CorrectnessLine | None = None
    performance: PerformanceLine | None = None
    extra: ExtraLine | None = None


class _TraceText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line of a traces file."""

    definition: Named
    workload: msgspec.Raw
    solution: Named
    evaluation: _EvaluationText


_LINE: Final = msgspec.json.Decoder(_TraceText)
_WHOLE: Final = msgspec.json.Decoder(_WholeLine)
_QUICK: Final = msgspec.json.Decoder(_QuickRun)
_ANY_TABLE: Final = SchemaValidator(core_schema.typed_dict_schema({}, extra_behavior="ignore"))
"""Parses JSON as the models do, and makes nothing of it."""


@lru_cache(SHARED)
def _read_workload(text: bytes) -> Workload:
    return _without_remarks(Workload.model_validate_json(text))


@lru_cache(SHARED)
def _read_environment(text: bytes) -> Environment:
    return _without_remarks(Environment.model_validate_json(text))


def _without_remarks(model: Model) -> Model:
    if model.has_unknown_keys():
        raise ValueError("it has keys that may be misspelt")
    return model
