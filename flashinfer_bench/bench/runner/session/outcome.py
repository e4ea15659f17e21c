"""Makes the evaluation, which a trace carries, of a job's outcome. Pure: no process, no device, no clock.

Values that evaluators leave in it become values that JSON has (`to_json_value`).
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

from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.data import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR

MAX_LOG: Final = 16_384
"""A log of a trace has at most about this many characters."""
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
TEXTUAL: Final = (pathlib.PurePath, uuid.UUID, decimal.Decimal, complex, datetime.timedelta)
LIBRARIES: Final = frozenset({"numpy", "torch"})
"""Packages whose other values, such as dtypes and devices, become text."""


@dataclass(frozen=True)
class Passed:
    """The solution is right, and was measured."""

    correctness: Correctness
    performance: Performance


JobOutcome = Passed | Rejected | SolutionFailure


def make_evaluation(
    outcome: JobOutcome, *, printed: str, timestamp: str, environment: Environment, extra: dict[str, Any]
) -> Evaluation:
    """Return the evaluation. The log has the reason first, and after it the solution's output.

    Raises:
        NotPlain: an evaluator left a value that JSON cannot hold.
    """
    correctness, performance, status = None, None, EvaluationStatus.PASSED
    if isinstance(outcome, Passed):
        correctness, performance, message = outcome.correctness, outcome.performance, describe_fallbacks(extra)
    else:
        status, message = EvaluationStatus(outcome.status), outcome.message
        if isinstance(outcome, Rejected):
            correctness = outcome.correctness
            extra = extra if outcome.integrity is None else {**extra, "integrity": dict(outcome.integrity)}
        if status is not EvaluationStatus.INCORRECT_NUMERICAL:
            correctness = None
        elif correctness is None:  # rejected before its values were compared
            correctness = Correctness(max_relative_error=float("inf"), max_absolute_error=float("inf"))
    if correctness is not None and correctness.extra:
        found = to_json_value(correctness.extra, "correctness.extra")
        correctness = correctness.model_copy(update={"extra": found})
    return Evaluation(
        status=status,
        log=render_log("\n".join(filter(None, [str(message or ""), describe_printing(extra)])), printed),
        timestamp=timestamp,
        environment=environment,
        correctness=correctness,
        performance=performance,
        extra=to_json_value(extra, "extra") or None,
    )


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
    """Return a line if the solution printed in its calls."""
    printed = extra.get(PRINTED)
    return f"note: it printed {printed} bytes in its calls; printing costs it time" if printed else ""


def render_log(message: str, printed: str) -> str:
    """Join the reason and the solution's output; cut the middle of a text that is too long."""
    message, printed = message.strip(), printed.strip()
    text = f"{message}\n{OUTPUT_TITLE}\n{printed}" if message and printed else message or printed
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
    left = MOST_VALUES

    def convert(value: Any, place: str, depth: int = 0) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEEPEST:
            limit = f"more than {MOST_VALUES:,} values" if left < 0 else f"more than {DEEPEST} levels"
            raise NotPlain(f"{place[:MOST_PLACE]} has {limit}; a trace holds no more")
        plain = _open(value, place, left)
        if plain is not value:
            return convert(plain, place, depth + 1)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) < LARGEST_WHOLE else f"{value:#x}"
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str):
            return str(value).encode("utf-8", "backslashreplace").decode()
        if isinstance(value, Mapping):
            named = ((str(convert(key, place, depth + 1)), key, item) for key, item in value.items())
            return {name: convert(item, f"{place}.{key}", depth + 1) for name, key, item in named}
        if isinstance(value, (Sequence, AbstractSet, ValuesView)):
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            return [convert(item, f"{place}[{at}]", depth + 1) for at, item in enumerate(items)]
        raise NotPlain(f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which JSON cannot hold")

    try:
        return convert(value, place)
    except NotPlain:
        raise
    except Exception as error:  # of a method of the value's own
        raise NotPlain(f"{place} has a value that cannot be read: {type(error).__name__}: {error}") from error


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
    is_text = isinstance(value, TEXTUAL) or type(value).__module__.partition(".")[0] in LIBRARIES
    return str(value) if is_text else value
