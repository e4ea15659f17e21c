"""Makes a model of the text of one object, with an issue for everything that is wrong in it.

`store.read` calls `parse_objects` for a JSON file, and `parse_line` for a line of a JSONL file. Text → parsed JSON →
the form of the format (`dialects.py`) → the model; a `Place` says where the object stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.issue import LoadIssue, Severity
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.store.dialects import UPGRADES, Remarks, Spot
from flashinfer_bench.data.store.json_text import MOST_JSON_BYTES, find_line, parse_json
from flashinfer_bench.data.trace import Trace

Model = TypeVar("Model", bound=DataModel)
MISSING: Final = "is missing"
MOST_ISSUES: Final = 1000
"""Issues of one file that are reported."""
MOST_WRONG: Final = 1000
"""Wrong objects after which the rest of a file is left out: each costs time, and memory for its issues."""
_SHOWN: Final = 80
"""A message shows this many characters of a wrong value."""


class Place(NamedTuple):
    """Where an object stands."""

    file: Path
    line: int | None = None
    """Its first line, from 1."""
    spot: Spot | None = None
    """What the file's place says; None for no more than its path."""
    prefix: tuple[str, ...] = ()
    """The path to it inside the file."""
    text: str = ""
    """The file, if lines of fields are to be looked up in it."""

    def issue(self, severity: Severity, reason: str, steps: Sequence[str] = ()) -> LoadIssue:
        """Make an issue about a field of the object, or about all of it."""
        steps = (*self.prefix, *steps)
        line = find_line(self.text, steps) if self.text else self.line
        return LoadIssue(severity, self.file, line, ".".join(steps) or None, reason)


class FileIssues:
    """Bounds the issues of one file, and how many of its objects may be wrong."""

    def __init__(self, file: Path, issues: list[LoadIssue]) -> None:
        self._file, self._issues, self._start = file, issues, len(issues)
        self._wrong = 0

    def are_too_many(self, is_wrong: bool) -> bool:
        """Drop issues beyond MOST_ISSUES; tell whether the rest of the file is left out."""
        self._wrong += is_wrong
        del self._issues[self._start + MOST_ISSUES :]
        if self._wrong < MOST_WRONG:
            return False
        reason = f"{MOST_WRONG} objects of this file cannot be used; the rest of it is left out"
        self._issues.append(LoadIssue("error", self._file, None, None, reason))
        return True


def parse_objects(
    model: type[Model], file: Path, issues: list[LoadIssue], spot: Spot | None = None
) -> Iterator[tuple[Model, Place]]:
    """Yield the object of a JSON file, or each of the list that it holds.

    Args:
        model: what the objects are.
        file: the file.
        issues: gets what is wrong.
        spot: what the file's place says of what its objects leave out.
    """
    try:
        text = read_whole(file, MOST_JSON_BYTES).decode("utf-8-sig")
        parsed, repeated = parse_json(text)
    except (OSError, ValueError) as error:
        line, reason = None, f"not {'UTF-8' if isinstance(error, UnicodeDecodeError) else 'JSON'}: {error}"
        if isinstance(error, json.JSONDecodeError):
            line, reason = error.lineno, f"not JSON: {error.msg} (column {error.colno})"
        elif isinstance(error, OSError):
            reason = f"cannot be read: {error.strerror}"
        issues.append(LoadIssue("error", file, line, None, reason))
        return
    kept = FileIssues(file, issues)
    twice = "the key stands twice; the last counts"
    issues.extend(LoadIssue("warning", file, None, key, twice) for key in repeated[:MOST_ISSUES])
    is_list = isinstance(parsed, list)
    for index, raw in enumerate(parsed if isinstance(parsed, list) else [parsed]):
        place = Place(file, None if is_list else 1, spot, (str(index),) if is_list else (), text)
        built = parse_raw(model, raw, place, issues)
        if built is not None:
            yield built, place._replace(text="")
        if kept.are_too_many(built is None):
            return


def parse_line(model: type[Model], line: bytes, place: Place, issues: list[LoadIssue]) -> Model | None:
    """Make the model of one line; None, with issues, if it is not one."""
    try:
        raw, _ = parse_json(line.decode("utf-8"))
    except ValueError as error:
        issues.append(place.issue("error", f"not JSON: {error}"))
        return None
    return parse_raw(model, raw, place, issues)


def parse_raw(model: type[Model], raw: object, place: Place, issues: list[LoadIssue]) -> Model | None:
    """Make the model of parsed JSON in any dialect; None, with issues, if it is not one."""
    if not isinstance(raw, dict):
        kind = "null" if raw is None else type(raw).__name__
        issues.append(place.issue("error", f"a JSON object is expected, this is {kind}"))
        return None
    if model in UPGRADES:
        remarks: Remarks = []
        raw = UPGRADES[model](raw, place.spot or Spot(place.file), remarks)
        issues.extend(place.issue("warning", text, field.split(".")) for field, text in remarks)
    try:
        built = model.model_validate(raw)
    except ValidationError as error:
        issues.extend(_issues_of(error, raw, place))
        return None
    _warn_of_unknown_keys(built, place, issues)
    return built


def _warn_of_unknown_keys(built: DataModel, place: Place, issues: list[LoadIssue]) -> None:
    """Warn of keys that have no effect here, and name the key that may be meant; of a trace, only of misspelt keys."""
    is_record = isinstance(built, Trace) and not built.is_workload_trace()
    ignored = set()
    for steps, owner in islice(built.unknown_keys(), MOST_ISSUES):
        nearest = nearest_name(steps[-1], owner.fields_at_default(), cutoff=KEY_CUTOFF)
        if nearest is not None:
            reason = f"unknown key, kept without effect; did you mean {nearest!r}?"
            issues.append(place.issue("warning", reason, steps))
        elif not is_record and (owner.__pydantic_extra__ or {})[steps[-1]] is not None:
            ignored.add(steps[-1])
    if ignored:
        issues.append(place.issue("warning", f"kept without effect: {', '.join(sorted(ignored))}"))


def describe_missing(nearest: str | None) -> str:
    """Say that a key is missing, and which key may be a misspelling of it."""
    return MISSING if nearest is None else f"{MISSING}; is {nearest!r} a misspelling of it?"


def _issues_of(error: ValidationError, raw: dict[str, Any], place: Place) -> Iterator[LoadIssue]:
    """Turn a ValidationError into one issue a field."""
    found: dict[tuple[str, ...], str] = {}
    for detail in error.errors(include_url=False)[:MOST_ISSUES]:
        steps, owner = _steps_in(raw, detail["loc"])
        shown = repr(detail["input"])
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        found[steps] = f"{detail['msg']}, got {shown}"
        if detail["type"] == "missing":
            is_table = isinstance(owner, dict)
            found[steps] = describe_missing(nearest_name(steps[-1], owner if is_table else (), cutoff=KEY_CUTOFF))
        elif detail["type"] in ("value_error", "disagrees"):
            found[steps] = detail["msg"].removeprefix("Value error, ")
    return (place.issue("error", reason, steps) for steps, reason in found.items())


def _steps_in(raw: object, location: Sequence[str | int]) -> tuple[tuple[str, ...], Any]:
    """Drop from an error's location the names of union members, which no file has; return what holds the field."""
    steps: list[str] = []
    owner = current = raw
    for depth, step in enumerate(location, 1):
        if isinstance(current, dict) and (step in current or depth == len(location)):
            owner, current = current, current.get(step)
        elif isinstance(current, list) and str(step).isdigit() and int(step) < len(current):
            owner, current = current, current[int(step)]
        else:
            continue
        steps.append(str(step))
    return tuple(steps), owner
