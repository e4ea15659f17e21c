"""Makes the evaluation of a trace from a job's outcome. Pure: no process, no device, no clock.

Values that evaluators leave are converted to JSON values (`to_json_value`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import to_jsonable_python

from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.data import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import SolutionFailure

MAX_LOG: Final = 16_384
"""Approximate maximum characters of a trace's log."""
PRINTED: Final = "printed_bytes"
"""Key of the note with the number of bytes that a solution printed in its calls."""
OUTPUT_TITLE: Final = "--- stdout and stderr of the solution ---"
MOST_VALUES: Final = 100_000
"""Maximum number of values that an evaluator can leave in a trace."""
LARGEST_WHOLE: Final = 2**64
"""Whole numbers of at least this size become text, since JSON readers cannot hold them."""
LIBRARIES: Final = frozenset({"numpy", "torch"})
"""Packages whose values, such as dtypes and devices, become text. Arrays are an exception."""


@dataclass(frozen=True)
class Passed:
    """The solution is right, and was measured."""

    correctness: Correctness
    performance: Performance


JobOutcome = Passed | Rejected | SolutionFailure


def make_evaluation(
    outcome: JobOutcome, *, printed: str, timestamp: str, environment: Environment, extra: dict[str, Any]
) -> Evaluation:
    """Return the evaluation. The evaluation's log has the reason first, then the solution's output.

    Raises:
        NotPlain: an evaluator left a value that JSON cannot hold.
    """
    correctness, performance, status = None, None, EvaluationStatus.PASSED
    if isinstance(outcome, Passed):
        correctness, performance, message = outcome.correctness, outcome.performance, ""
    else:
        status, message = EvaluationStatus(outcome.status), outcome.message
        if isinstance(outcome, Rejected):
            correctness = outcome.correctness
            extra = extra if outcome.integrity is None else {**extra, "integrity": dict(outcome.integrity)}
        if status is not EvaluationStatus.INCORRECT_NUMERICAL:
            correctness = None
        elif correctness is None:  # the outputs were rejected before any value was compared
            correctness = Correctness(max_relative_error=float("inf"), max_absolute_error=float("inf"))
    if correctness is not None and correctness.extra:
        found = to_json_value(correctness.extra, "correctness.extra")
        correctness = correctness.model_copy(update={"extra": found})
    return Evaluation(
        status=status,
        log=render_log(str(message or ""), printed),
        timestamp=timestamp,
        environment=environment,
        correctness=correctness,
        performance=performance,
        extra=to_json_value(extra, "extra") or None,
    )


def render_log(message: str, printed: str) -> str:
    """Join the reason and the solution's output; cut the middle of a long text."""
    message, printed = message.strip(), printed.strip()
    text = f"{message}\n{OUTPUT_TITLE}\n{printed}" if message and printed else message or printed
    if len(text) <= MAX_LOG:
        return text
    half = MAX_LOG // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


class NotPlain(ValueError):
    """A value has no form in JSON. The message names its location."""


def to_json_value(value: Any, path: str = "") -> Any:
    """Return a value in JSON form: arrays as lists, paths and times as text, enums as their values.

    Args:
        value: consists of arrays, tensors, and values that pydantic serializes.
        path: its name in messages.

    Raises:
        NotPlain: the value has an unsupported type, contains itself, or has too many parts.
    """
    left = MOST_VALUES

    def trim(value: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"a trace holds {MOST_VALUES:,} values")
        if isinstance(value, str):
            return value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, int) and abs(value) >= LARGEST_WHOLE:
            return f"{value:#x}"
        if isinstance(value, list):
            return [trim(item) for item in value]
        return {trim(key): trim(item) for key, item in value.items()} if isinstance(value, dict) else value

    try:
        return trim(to_jsonable_python(value, fallback=_open, inf_nan_mode="constants", bytes_mode="base64"))
    except Exception as error:  # including errors in methods of the value
        raise NotPlain(f"{path} has a value that JSON cannot hold: {type(error).__name__}: {error}") from error


def _open(value: Any) -> Any:
    """Return an array or another sequence as a list, and other values of numpy and torch as text."""
    if hasattr(type(value), "tolist"):
        if math.prod(value.shape) > MOST_VALUES:
            raise ValueError(f"an array of shape {tuple(value.shape)}; a trace holds {MOST_VALUES:,} values")
        return value.tolist()
    if isinstance(value, Collection) and not isinstance(value, type):
        return list(value)
    if type(value).__module__.partition(".")[0] in LIBRARIES:
        return str(value)
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__}")
