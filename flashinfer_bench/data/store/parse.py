"""Makes a model of the text of one object, with an issue for everything that is wrong in it.

`store.read` calls `parse_objects` for a JSON file, and `parse_line` for a line of a JSONL file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.issue import LoadIssue, Severity
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.names import KEY_CUTOFF, HintLimit, nearest_name
from flashinfer_bench.data.store.json_text import MOST_JSON_BYTES, MOST_VALUES, find_line, parse_json
from flashinfer_bench.data.store.variants.beside import Spot
from flashinfer_bench.data.store.variants.table import UPGRADES
from flashinfer_bench.data.trace import Trace

Model = TypeVar("Model", bound=DataModel)
MISSING: Final = "is missing"
_SHOWN: Final = 80
"""A message shows this many characters of a wrong value."""
MOST_ISSUES: Final = 1000
"""Issues of one file that are told."""
MOST_WRONG: Final = 1000
"""A file with so many wrong objects is left out from there on: each costs time, and memory for its issues."""
_LOOKED_UP: Final = 20
"""Issues of one JSON file whose line is looked up: a look reads the file up to that line."""


class Place:
    """Where an object stands: file, line or text to look the line up in, and the path to it inside the file."""

    __slots__ = ("_line", "_looks", "_prefix", "_text", "file", "spot")

    def __init__(
        self,
        file: Path,
        *,
        line: int | None = None,
        text: str = "",
        prefix: tuple[str, ...] = (),
        spot: Spot | None = None,
    ) -> None:
        self.file = file
        self.spot = spot or Spot(file)
        self._line = line
        self._text = text
        self._prefix = prefix
        self._looks = _LOOKED_UP

    def issue(self, severity: Severity, reason: str, place: Sequence[str] = ()) -> LoadIssue:
        """Make an issue about a field of the object, or about all of it."""
        steps = (*self._prefix, *place)
        line = find_line(self._text, steps) if self._text and self._looks > 0 else self._line
        self._looks -= 1
        return LoadIssue(severity, self.file, line, ".".join(steps) or None, reason)

    def forget_text(self) -> None:
        """Give the text back. Later issues name the first line, or none in a list of objects."""
        self._line = None if self._prefix else 1
        self._text = ""


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
    except UnicodeDecodeError as error:
        issues.append(LoadIssue("error", file, None, None, f"not UTF-8: {error}"))
        return
    except OSError as error:
        issues.append(LoadIssue("error", file, None, None, f"cannot be read: {error.strerror}"))
        return
    try:
        parsed, repeated = parse_json(text)
    except json.JSONDecodeError as error:
        issues.append(LoadIssue("error", file, error.lineno, None, f"not JSON: {error.msg} (column {error.colno})"))
        return
    except ValueError as error:
        issues.append(LoadIssue("error", file, None, None, f"not JSON: {error}"))
        return
    kept = FileIssues(file, issues)
    twice = "the key stands twice; the last counts"
    issues.extend(LoadIssue("warning", file, None, key, twice) for key in repeated[:MOST_ISSUES])
    for index, raw in enumerate(parsed if isinstance(parsed, list) else [parsed]):
        prefix = (str(index),) if isinstance(parsed, list) else ()
        place = Place(file, text=text if kept.count < _LOOKED_UP else "", prefix=prefix, spot=spot)
        with kept.hints:
            built = parse_raw(model, raw, place, issues)
        if built is not None:
            yield built, place
            place.forget_text()
        if kept.are_too_many(built is None):
            return


class FileIssues:
    """Bounds what is told of one file, and how many of its objects may be wrong, by the list of all issues."""

    def __init__(self, file: Path, issues: list[LoadIssue]) -> None:
        self.hints = HintLimit()
        """To be entered where something of the file is checked."""
        self._file = file
        self._issues = issues
        self._start = len(issues)
        self._wrong = 0

    @property
    def count(self) -> int:
        """How many issues there are of the file so far."""
        return len(self._issues) - self._start

    def are_too_many(self, is_wrong: bool) -> bool:
        """Drop what is told beyond MOST_ISSUES; say whether so many objects were wrong that the rest is left out."""
        self._wrong += is_wrong
        del self._issues[self._start + MOST_ISSUES :]
        if self._wrong < MOST_WRONG:
            return False
        reason = f"{MOST_WRONG} objects of this file cannot be used; the rest of it is left out"
        self._issues.append(LoadIssue("error", self._file, None, None, reason))
        return True


def parse_line(model: type[Model], line: bytes, place: Place, issues: list[LoadIssue]) -> Model | None:
    """Make the model of one line; None, with issues, when it is not one."""
    if line.count(b",") > MOST_VALUES:
        issues.append(place.issue("error", f"not JSON of ours: it has more than {MOST_VALUES:,} values"))
        return None
    if place.spot.root is None:  # else blob paths may have to be upgraded
        with suppress(ValidationError):  # the slow way below finds the places of what is wrong
            built = model.model_validate_json(line)
            if built.has_unknown_keys():
                _warn_of_misspelt_keys(built, _parse_plainly(line), place, issues)
            return built
    try:
        raw, _ = parse_json(line.decode("utf-8"))
    except ValueError as error:
        issues.append(place.issue("error", f"not JSON: {error}"))
        return None
    return parse_raw(model, raw, place, issues)


def parse_raw(model: type[Model], raw: object, place: Place, issues: list[LoadIssue]) -> Model | None:
    """Make the model of parsed JSON, after bringing it into today's form; None, with issues, when it is not one."""
    if not isinstance(raw, dict):
        kind = "null" if raw is None else type(raw).__name__
        issues.append(place.issue("error", f"a JSON object is expected, this is {kind}"))
        return None
    given = raw
    if model in UPGRADES:
        raw, remarks = UPGRADES[model](raw, place.spot)
        issues.extend(place.issue("warning", text, field.split(".")) for field, text in remarks)
    try:
        built = model.model_validate(raw)
    except ValidationError as error:
        issues.extend(_issues_of(error, raw, place))
        return None
    _warn_of_misspelt_keys(built, given, place, issues)
    return built


def _warn_of_misspelt_keys(built: DataModel, given: object, place: Place, issues: list[LoadIssue]) -> None:
    """Warn of keys that have no effect here, and name the key that may be meant. Of a trace, only of misspelt ones."""
    is_record = isinstance(built, Trace) and not built.is_workload_trace()
    ignored: dict[str, None] = {}
    for steps, owner in islice(built.unknown_keys(), MOST_ISSUES):
        value = (owner.__pydantic_extra__ or {}).get(steps[-1])
        if steps[-1] in owner.ignored_extras:
            if value is not None:
                ignored[steps[-1]] = None
            continue
        holder = _find_holder(given, steps[:-1])
        there = owner.model_fields_set if holder is None else holder.keys()
        free = [name for name in type(owner).model_fields if name not in there]
        nearest = nearest_name(steps[-1], free, cutoff=KEY_CUTOFF)
        if nearest is not None:
            reason = f"unknown key, kept without effect; did you mean {nearest!r}?"
            issues.append(place.issue("warning", reason, steps))
        elif value is not None and owner.tells_unknown_keys and not is_record:
            ignored[steps[-1]] = None
    if ignored:
        issues.append(place.issue("warning", f"kept without effect: {', '.join(sorted(ignored))}"))


def describe_missing(nearest: str | None) -> str:
    """Say that a key is missing, and which one may be a misspelling of it."""
    return MISSING if nearest is None else f"{MISSING}; is {nearest!r} a misspelling of it?"


def _parse_plainly(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # pydantic's own parser allows a little more
        return None


def _find_holder(given: object, steps: Sequence[str]) -> dict[str, Any] | None:
    """Return the object at a place of the parsed file; None where older forms have it elsewhere."""
    for step in steps:
        if isinstance(given, list) and step.isdigit() and int(step) < len(given):
            given = given[int(step)]
        else:
            given = given.get(step) if isinstance(given, dict) else None
    return given if isinstance(given, dict) else None


def _issues_of(error: ValidationError, raw: dict[str, Any], place: Place) -> list[LoadIssue]:
    """Turn a ValidationError into one issue a field."""
    found: dict[tuple[str, ...], str] = {}
    for detail in error.errors(include_url=False)[:MOST_ISSUES]:
        steps, owner = _steps_in(raw, detail["loc"])
        found[steps] = _reason(detail["type"], detail["msg"], detail["input"], steps, owner)
    return [place.issue("error", reason, steps) for steps, reason in found.items()]


def _steps_in(raw: object, location: Sequence[str | int]) -> tuple[tuple[str, ...], object]:
    """Drop from an error's location the names of union members, which no file has; return what holds the field."""
    steps: list[str] = []
    owner = current = raw
    for depth, step in enumerate(location):
        is_last = depth == len(location) - 1
        if isinstance(current, dict) and (step in current or is_last):
            owner, current = current, current.get(step)
        elif isinstance(current, list) and str(step).isdigit() and int(step) < len(current):
            owner, current = current, current[int(step)]
        else:
            continue
        steps.append(str(step))
    return tuple(steps), owner


def _reason(kind: str, message: str, given: object, steps: tuple[str, ...], owner: object) -> str:
    if kind == "missing":
        nearest = nearest_name(steps[-1], owner, cutoff=KEY_CUTOFF) if isinstance(owner, dict) else None
        return describe_missing(nearest)
    if kind in ("value_error", "disagrees"):
        return message.removeprefix("Value error, ")
    shown = repr(given)
    return f"{message}, got {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}"
