"""Models to and from single files, for scripts: JSON with one object, JSONL with one object a line.

Reading accepts the same dialects as loading a set, and refuses with one DataSetError that lists everything wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.store.jsonl import append_lines, read_lines, write_whole
from flashinfer_bench.data.store.parse import Place, parse_line, parse_objects
from flashinfer_bench.errors import DataSetError

Model = TypeVar("Model", bound=DataModel)


def save_json_file(model: DataModel, path: Path | str) -> None:
    """Write a model to a file of its own, whole; folders are made."""
    write_whole(Path(path), model.to_json(indent=2) + "\n")


def load_json_file(model_class: type[Model], path: Path | str) -> Model:
    """Read the one model that a file holds.

    Raises:
        DataSetError: the file is not there, or something in it is wrong.
    """
    file = Path(path)
    if not file.exists():
        raise DataSetError(f"{file} cannot be read: there is no such file")
    issues: list[LoadIssue] = []
    found = [model for model, _ in parse_objects(model_class, file, issues)]
    _raise_errors(file, issues)
    if len(found) != 1:
        raise DataSetError(f"{file} holds {len(found)} objects; one is expected")
    return found[0]


def save_jsonl_file(models: Iterable[DataModel], path: Path | str) -> None:
    """Write models to a file, one a line, in place of what was there."""
    write_whole(Path(path), "".join(f"{model.to_json()}\n" for model in models))


def load_jsonl_file(model_class: type[Model], path: Path | str) -> list[Model]:
    """Read the models of a file, one a line.

    Raises:
        DataSetError: the file is not there, or something in it is wrong.
    """
    file = Path(path)
    issues: list[LoadIssue] = []
    try:
        parsed = [
            parse_line(model_class, line, Place(file, line=number), issues) for number, line, _ in read_lines(file)
        ]
    except OSError as error:
        raise DataSetError(f"{file} cannot be read: {error.strerror}") from error
    _raise_errors(file, issues)
    return [model for model in parsed if model is not None]


def append_jsonl_file(models: Iterable[DataModel], path: Path | str) -> None:
    """Append models to a file, one a line: all of them or none; other processes may append at the same time."""
    append_lines(Path(path), [model.to_json() for model in models])


def _raise_errors(file: Path, issues: list[LoadIssue]) -> None:
    errors = [str(issue) for issue in issues if issue.severity == "error"]
    if errors:
        raise DataSetError(f"{file} cannot be used:\n  " + "\n  ".join(errors))
