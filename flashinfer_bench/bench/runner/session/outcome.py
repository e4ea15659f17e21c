"""Makes the evaluation, which a trace carries, of a job's outcome. Pure: no process, no device, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import assert_never

from flashinfer_bench.base.plain_values import to_json_value
from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.data import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR

MAX_LOG: Final = 16_384
"""A log of a trace has about this many characters at most."""
PRINTED: Final = "printed_bytes"
"""The note of how many bytes a solution printed in its calls."""
OUTPUT_TITLE: Final = "--- stdout and stderr of the solution ---"


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
