"""Makes a model of the text of one object, with an issue for everything that is wrong in it.

`store.read` calls `parse_objects` for a JSON file, and `parse_line` for a line of a JSONL file. Text → parsed JSON →
the form of the format (`dialects.py`) → the model; a `Place` says where the object stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.issue import LoadIssue, Place
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.store.dialects import UPGRADES, Remarks
from flashinfer_bench.data.store.jsonl import MOST_JSON_BYTES
from flashinfer_bench.data.trace import Trace

Model = TypeVar("Model", bound=DataModel)
Item = TypeVar("Item")
MISSING: Final = "is missing"
MOST_ISSUES: Final = 1000
"""Issues of one file that are reported."""
MOST_WRONG: Final = 1000
"""Wrong objects after which the rest of a file is left out: each costs time, and memory for its issues."""
_SHOWN: Final = 80
"""A message shows this many characters of a wrong value."""


def bounded(objects: Iterable[Item | None], file: Path, issues: list[LoadIssue]) -> Iterator[Item]:
    """Yield the objects of a file that are not None, until too many are; bound the issues of the file."""
    start, wrong = len(issues), 0
    for one in objects:
        del issues[start + MOST_ISSUES :]
        if one is not None:
            yield one
            continue
        wrong += 1
        if wrong == MOST_WRONG:
            reason = f"{MOST_WRONG} objects of this file cannot be used; the rest of it is left out"
            issues.append(LoadIssue("error", file, None, None, reason))
            return


def parse_objects(model: type[Model], place: Place, issues: list[LoadIssue]) -> Iterator[tuple[Model, Place]]:
    """Yield the object of a JSON file, or each of the list that it holds, with its place.

    Args:
        model: what the objects are.
        place: the file.
        issues: gets what is wrong.
    """
    try:
        text = read_whole(place.file, MOST_JSON_BYTES).decode("utf-8-sig")
        parsed = from_json(text)
    except OSError as error:
        issues.append(place.issue("error", f"cannot be read: {error.strerror}"))
        return
    except ValueError as error:
        line = re.search(r" at line (\d+) ", str(error))
        issues.append(place._replace(line=int(line[1]) if line else None).issue("error", f"not JSON: {error}"))
        return

    def read() -> Iterator[tuple[Model, Place] | None]:
        is_list = isinstance(parsed, list)
        for index, raw in enumerate(parsed if is_list else [parsed]):
            at = place._replace(line=None if is_list else 1, prefix=(str(index),) if is_list else ())
            built = parse_raw(model, raw, at._replace(text=text), issues)
            yield (built, at) if built is not None else None

    yield from bounded(read(), place.file, issues)


def parse_line(model: type[Model], line: bytes, place: Place, issues: list[LoadIssue]) -> Model | None:
    """Make the model of one line; None, with issues, if it is not one."""
    try:
        raw = from_json(line)
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
    remarks: Remarks = []
    if model in UPGRADES:
        with suppress(AttributeError, KeyError, TypeError):  # of another form: the model refuses it
            raw = UPGRADES[model](raw, place, remarks)
    try:
        built = model.model_validate(raw)
    except ValidationError as error:
        issues.extend(_issues_of(error, raw, place, dict(remarks)))
        return None
    issues.extend(place.issue("warning", text, field.split(".")) for field, text in remarks[:MOST_ISSUES])
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


def _issues_of(
    error: ValidationError, raw: dict[str, Any], place: Place, remarks: Mapping[str, str]
) -> Iterator[LoadIssue]:
    """Turn a ValidationError into one issue a field; a remark on a field that is missing says why it is."""
    found: dict[tuple[str, ...], str] = {}
    for detail in error.errors(include_url=False)[:MOST_ISSUES]:
        steps, owner = _steps_in(raw, detail["loc"])
        shown = repr(detail["input"])
        reason = f"{detail['msg']}, got {shown[:_SHOWN]}{'…' * (len(shown) > _SHOWN)}"
        if detail["type"] == "missing":
            nearest = nearest_name(steps[-1], owner if isinstance(owner, dict) else (), cutoff=KEY_CUTOFF)
            usual = MISSING if nearest is None else f"{MISSING}; is {nearest!r} a misspelling of it?"
            reason = remarks.get(".".join(steps), usual)
        elif detail["type"] in ("value_error", "disagrees"):
            reason = detail["msg"].removeprefix("Value error, ")
        found[steps] = reason
    return (place.issue("error", reason, steps) for steps, reason in found.items())


def _steps_in(raw: object, location: Sequence[str | int]) -> tuple[tuple[str, ...], Any]:
    """Drop from an error's location the names of union members, which no file has; return what holds the field."""
    steps: list[str] = []
    owner = current = raw
    for depth, step in enumerate(location, 1):
        if isinstance(current, dict) and (step in current or depth == len(location)):
            owner, current = current, current.get(step)
        elif isinstance(current, list) and isinstance(step, int) and step < len(current):
            owner, current = current, current[step]
        else:
            continue
        steps.append(str(step))
    return tuple(steps), owner
