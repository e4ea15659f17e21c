"""Parses the text of one object into its model, with an issue for each problem.

`store.read` calls `parse_objects` for a JSON file, and `parse_line` for a line of a JSONL file. The steps: text →
parsed JSON → the current format (`dialects.py`) → the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.issue import LoadIssue, Location
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.store.dialects import UPGRADES, Warnings
from flashinfer_bench.data.store.jsonl import MOST_JSON_BYTES
from flashinfer_bench.data.trace import Trace

Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item")
MOST_WRONG: Final = 1000
"""Largest number of reported issues of a file. Parsing of the file stops after this number of wrong objects."""
_SHOWN: Final = 80
"""Characters of a wrong value in a message."""


def bounded(objects: Iterable[Item | None], file: Path, issues: list[LoadIssue]) -> Iterator[Item]:
    """Yield the valid objects of a file. Stop after `MOST_WRONG` wrong objects, and keep at most as many issues.

    Args:
        objects: the parsed objects; None stands for a wrong object.
    """
    start, wrong = len(issues), 0
    for one in objects:
        del issues[start + MOST_WRONG :]
        if one is not None:
            yield one
        elif (wrong := wrong + 1) == MOST_WRONG:
            reason = f"{MOST_WRONG} objects of this file cannot be used; the rest of the file is skipped"
            issues.append(LoadIssue("error", file, None, None, reason))
            return


def parse_objects(model: type[Model], location: Location, issues: list[LoadIssue]) -> Iterator[tuple[Model, Location]]:
    """Yield the object of a JSON file, or each object of its list, with its location.

    Args:
        issues: list that receives the problems.
    """
    try:
        text = read_whole(location.file, MOST_JSON_BYTES).decode("utf-8-sig")
        parsed = from_json(text)
    except OSError as error:
        issues.append(location.issue("error", f"cannot be read: {error.strerror}"))
        return
    except ValueError as error:
        line = re.search(r" at line (\d+) ", str(error))
        issues.append(location._replace(line=int(line[1]) if line else None).issue("error", f"not JSON: {error}"))
        return
    objects = [(location._replace(line=1), parsed)]
    if isinstance(parsed, list) and issubclass(model, DataModel):
        objects = [(location._replace(prefix=(str(index),)), raw) for index, raw in enumerate(parsed)]
    models = (parse_raw(model, raw, at._replace(text=text), issues) for at, raw in objects)
    pairs = ((built, at) if built is not None else None for built, (at, _) in zip(models, objects, strict=True))
    yield from bounded(pairs, location.file, issues)


def parse_line(model: type[Model], line: bytes, location: Location, issues: list[LoadIssue]) -> Model | None:
    """Return the model of one line; None, with issues, if the line is invalid."""
    try:
        raw = from_json(line)
    except ValueError as error:
        reason = str(error).replace(" at line 1 column ", " at column ")  # `location` has the line
        issues.append(location.issue("error", f"not JSON: {reason}"))
        return None
    return parse_raw(model, raw, location, issues)


def parse_raw(model: type[Model], raw: object, location: Location, issues: list[LoadIssue]) -> Model | None:
    """Return the model of parsed JSON in any dialect; None, with issues, if it is invalid."""
    is_ours = issubclass(model, DataModel)  # another model may be no object, or accept more from JSON than from Python
    if is_ours and not isinstance(raw, dict):
        kind = "null" if raw is None else type(raw).__name__
        issues.append(location.issue("error", f"a JSON object is expected, this is {kind}"))
        return None
    warnings: Warnings = []
    if model in UPGRADES and isinstance(raw, dict):
        with suppress(AttributeError, KeyError, TypeError):  # the model refuses an unexpected form
            raw = UPGRADES[model](raw, location, warnings)
    try:
        built = model.model_validate(raw) if is_ours else model.model_validate_json(to_json(raw))
    except ValidationError as error:
        issues += [location.issue("error", reason, steps) for steps, reason in _faults_in(error, raw, dict(warnings))]
        return None
    issues += [location.issue("warning", text, field.split(".")) for field, text in warnings[:MOST_WRONG]]
    if isinstance(built, DataModel):
        issues += [location.issue("warning", text, steps) for steps, text in _unknown_keys(built)]
    return built


def _unknown_keys(built: DataModel) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield warnings about keys without effect: one for each misspelt key, and one for all unknown keys together. A
    recorded verdict gets warnings only about misspelt keys."""
    is_record = isinstance(built, Trace) and not built.is_workload_trace()
    ignored = set()
    for steps, owner in islice(built.unknown_keys(), MOST_WRONG):
        nearest = nearest_name(steps[-1], owner.fields_at_default(), cutoff=KEY_CUTOFF)
        if nearest is not None:
            yield steps, f"unknown key, kept without effect; did you mean {nearest!r}?"
        elif not is_record and (owner.__pydantic_extra__ or {})[steps[-1]] is not None:
            ignored.add(steps[-1])
    if ignored:
        yield (), f"kept without effect: {', '.join(sorted(ignored))}"


def _faults_in(
    error: ValidationError, raw: object, warnings: Mapping[str, str]
) -> Iterable[tuple[tuple[str, ...], str]]:
    """Return one reason for each invalid field. The reason for a missing field includes the warning about that
    field."""
    found: dict[tuple[str, ...], str] = {}
    for detail in error.errors(include_url=False)[:MOST_WRONG]:
        steps, owner = list[str](), dict[Any, Any]()
        current: Any = raw
        for depth, step in enumerate(detail["loc"], 1):  # `loc` also has names of union members
            if isinstance(current, dict) and (step in current or depth == len(detail["loc"])):
                owner, current = current, current.get(step)
            elif isinstance(current, list) and isinstance(step, int) and step < len(current):
                owner, current = {}, current[step]
            else:
                continue
            steps.append(str(step))
        shown = repr(detail["input"])
        reason = f"{detail['msg']}, got {shown[:_SHOWN]}{'…' * (len(shown) > _SHOWN)}"
        if detail["type"] == "missing":
            nearest = nearest_name(steps[-1], owner, cutoff=KEY_CUTOFF)
            usual = "is missing" if nearest is None else f"is missing; is {nearest!r} a misspelling of it?"
            reason = warnings.get(".".join(steps), usual)
        elif detail["type"] in ("value_error", "disagrees"):
            reason = detail["msg"].removeprefix("Value error, ")
        found[tuple(steps)] = reason
    return found.items()
