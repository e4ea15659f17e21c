"""Makes the evaluation, which a trace carries, of a job's outcome. Pure: no process, no device, no clock.

What evaluators leave in it becomes values that JSON has (`to_json_value`).
"""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from typing_extensions import assert_never

from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.data import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR

MAX_LOG: Final = 16_384
"""A log of a trace has about this many characters at most."""
PRINTED: Final = "printed_bytes"
"""The note of how many bytes a solution printed in its calls."""
OUTPUT_TITLE: Final = "--- stdout and stderr of the solution ---"
DEEPEST: Final = 50
"""Levels of a tree."""
MOST_VALUES: Final = 100_000
"""Values in a tree."""
LARGEST_WHOLE: Final = 2**64
"""Whole numbers from this size on become text: readers of JSON have no such numbers."""
MOST_PLACE: Final = 80
"""Characters of a place in a message."""
LIBRARIES: Final = frozenset({"numpy", "torch"})
TEXTUAL: Final = (pathlib.PurePath, uuid.UUID, decimal.Decimal, complex, datetime.timedelta)


@dataclass(frozen=True)
class Passed:
    """The solution is right, and was measured."""

    correctness: Correctness
    performance: Performance


JobOutcome = Passed | Rejected | SolutionFailure


def make_evaluation(
    outcome: JobOutcome, *, printed: str, timestamp: str, environment: Environment, extra: dict[str, Any]
) -> Evaluation:
    """Return the evaluation. The log has the reason first, and after it what the solution printed.

    Raises:
        NotPlain: an evaluator left a value that JSON cannot hold.
    """
    match outcome:
        case Passed(correctness, performance):
            parts: dict[str, Any] = {"correctness": correctness, "performance": performance}
            status, message = EvaluationStatus.PASSED, describe_fallbacks(extra)
        case Rejected():
            extra = extra if outcome.integrity is None else {**extra, "integrity": dict(outcome.integrity)}
            status, message = outcome.status, outcome.message
            keeps = status is EvaluationStatus.INCORRECT_NUMERICAL
            parts = {"correctness": (outcome.correctness or unknown_errors()) if keeps else None}
        case SolutionFailure():
            status, message = EvaluationStatus(outcome.status), outcome.message
            parts = {"correctness": unknown_errors() if status is EvaluationStatus.INCORRECT_NUMERICAL else None}
        case unreachable:
            assert_never(unreachable)
    message = "\n".join(filter(None, [str(message or ""), describe_printing(extra)]))
    found: Correctness | None = parts.get("correctness")
    if found is not None and found.extra:
        found_extra = to_json_value(found.extra, "correctness.extra")
        parts["correctness"] = found.model_copy(update={"extra": found_extra})
    return Evaluation(
        status=status,
        log=render_log(message, printed),
        timestamp=timestamp,
        environment=environment,
        extra=to_json_value(extra, "extra") or None,
        **parts,
    )


def unknown_errors() -> Correctness:
    """Return the errors of an output that was rejected before its values were compared."""
    return Correctness(max_relative_error=float("inf"), max_absolute_error=float("inf"))


def describe_fallbacks(extra: Mapping[str, Any]) -> str:
    """Return a line for each measurement in the notes that had to use another clock."""
    lines = []
    for key, what in (("measurement", "the solution"), ("baseline", "the reference")):
        record = extra.get(key)
        fallback = record.get("fallback", EVENTS_ASKED_FOR) if isinstance(record, Mapping) else EVENTS_ASKED_FOR
        if fallback != EVENTS_ASKED_FOR:
            lines.append(f"{what} was timed by CUDA events: {fallback}")
    return "\n".join(lines)


def describe_printing(extra: Mapping[str, Any]) -> str:
    """Return a line where the solution printed in its calls."""
    printed = extra.get(PRINTED)
    return f"note: it printed {printed} bytes in its calls; printing costs it time" if printed else ""


def render_log(message: str, printed: str) -> str:
    """Join the reason and what the solution printed; cut the middle of a text that is too long."""
    parts = [message.strip()] if message.strip() else []
    if printed.strip():
        parts.append(f"{OUTPUT_TITLE}\n{printed.strip()}" if parts else printed.strip())
    text = "\n".join(parts)
    if len(text) <= MAX_LOG:
        return text
    half = MAX_LOG // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


class NotPlain(ValueError):
    """A value has no form in JSON. The message names its place."""


def to_json_value(value: Any, place: str = "") -> Any:
    """Return a value as JSON has it: arrays as lists, paths and times as text, enums as their values.

    Args:
        value: made of numbers, texts, mappings, sequences, sets, dataclasses, arrays and tensors.
        place: its name in messages.

    Raises:
        NotPlain: it is of another kind, too deep, or too large.
    """
    try:
        return _convert(value, place, 0, [MOST_VALUES])
    except NotPlain:
        raise
    except Exception as error:  # of a method of the value's own
        raise NotPlain(f"{place} has a value that cannot be read: {type(error).__name__}: {error}") from error


def _convert(value: Any, place: str, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth > DEEPEST:
        limit = f"more than {MOST_VALUES:,} values" if left[0] < 0 else f"more than {DEEPEST} levels"
        raise NotPlain(f"{place[:MOST_PLACE]} has {limit}; a trace holds no more")
    plain = _open(value, place, left[0])
    if plain is not value:
        return _convert(plain, place, depth + 1, left)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < LARGEST_WHOLE else f"{value:#x}"
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {
            str(_convert(key, place, depth + 1, left)): _convert(item, f"{place}.{key}", depth + 1, left)
            for key, item in value.items()
        }
    if isinstance(value, (Sequence, AbstractSet, ValuesView)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [_convert(item, f"{place}[{at}]", depth + 1, left) for at, item in enumerate(items)]
    raise NotPlain(f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which JSON cannot hold")


def _open(value: Any, place: str, most: int) -> Any:
    """Return the content of an array, an enum or another object as Python's own types; other values as they are."""
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(type(value), "tolist"):
        size = value.numel() if hasattr(value, "numel") else value.size
        if size > most:
            raise NotPlain(f"{place} has {size:,} elements; a trace holds {MOST_VALUES:,} values")
        return value.tolist()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump()
    is_text = isinstance(value, TEXTUAL) or type(value).__module__.partition(".")[0] in LIBRARIES  # a dtype, a device
    return str(value) if is_text else value
