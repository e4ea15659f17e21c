"""Reads and writes models in single files, for scripts: JSON with one object, JSONL with one object per line.

Any pydantic model works. The functions accept the dialects that sets may have. A file with errors is refused with one
DataSetError that lists all of them. Functions that write into a trace set follow no link out of the set.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from flashinfer_bench.data.issue import LoadIssue, Location
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.store.jsonl import append_lines, read_lines, write_whole
from flashinfer_bench.data.store.layout import find_set_around
from flashinfer_bench.data.store.parse import parse_line, parse_objects
from flashinfer_bench.errors import DataSetError

Model = TypeVar("Model", bound=BaseModel)


def save_json_file(model: BaseModel, path: Path | str) -> None:
    """Write a model to its own file, atomically; missing folders are made."""
    location, root = find_set_around(Path(path))
    write_whole(location, _to_json(model, indent=2) + "\n", root=root)


def load_json_file(model_class: type[Model], path: Path | str) -> Model:
    """Read the single model of a file.

    Raises:
        DataSetError: the file does not exist, or contains an error.
    """
    location, issues = Location(Path(path)), list[LoadIssue]()
    found = [model for model, _ in parse_objects(model_class, location, issues)]
    _raise_errors(location.file, issues)
    if len(found) != 1:
        raise DataSetError(f"{path} holds {len(found)} objects; one is expected")
    return found[0]


def save_jsonl_file(models: Iterable[BaseModel], path: Path | str) -> None:
    """Write models to a file, one per line, and replace the old content."""
    location, root = find_set_around(Path(path))
    write_whole(location, "".join(f"{_to_json(model)}\n" for model in models), root=root)


def load_jsonl_file(model_class: type[Model], path: Path | str) -> list[Model]:
    """Read the models of a file, one per line.

    Raises:
        DataSetError: the file does not exist, or contains an error.
    """
    file, issues = Path(path), list[LoadIssue]()
    try:
        lines = read_lines(file)
        found = [parse_line(model_class, line, Location(file, number), issues) for number, line, _ in lines]
    except OSError as error:
        raise DataSetError(f"{file} cannot be read: {error.strerror}") from error
    _raise_errors(file, issues)
    return [model for model in found if model is not None]


def append_jsonl_file(models: Iterable[BaseModel], path: Path | str) -> None:
    """Append models to a file, one per line: all of them or none. Other processes may append concurrently."""
    location, root = find_set_around(Path(path))
    append_lines(location, [_to_json(model) for model in models], root=root)


def _to_json(model: BaseModel, *, indent: int | None = None) -> str:
    return model.to_json(indent=indent) if isinstance(model, DataModel) else model.model_dump_json(indent=indent)


def _raise_errors(file: Path, issues: list[LoadIssue]) -> None:
    errors = [str(issue) for issue in issues if issue.severity == "error"]
    if errors:
        whole = f"{file} cannot be used:\n  " + "\n  ".join(errors)
        raise DataSetError(whole if len(errors) > 1 else errors[0].removeprefix("error: "))
