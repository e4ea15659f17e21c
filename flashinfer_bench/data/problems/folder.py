"""Reads a folder of another engine's problems and solutions as a trace set in memory.

The shapes of a problem come from a run of its code (`inspection.py`). All inputs have the type `custom`: the reference
draws the values. A file that cannot be read or converted becomes one issue of the set.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from pydantic import ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.data.adapted import ENGINES, SOURCE_TAG, find_engine, make_solution
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.solution import SupportedLanguages
from flashinfer_bench.data.store.dialects import MOST_SOURCE_BYTES
from flashinfer_bench.data.store.drafts import find_language
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataSetError, Fault

LIMIT_S: Final = 120.0
"""Seconds that the code of one problem may take."""

Raw = dict[str, Any]


class Engine(Protocol):
    """An engine whose problems can be read. Its package has `block.py` and `inspection.py`."""

    name: str
    """A key of `ENGINES`."""
    file: re.Pattern[str]
    """Names of files that may be problems."""
    mark: str
    """Text that the file of every problem contains."""
    form: str
    """The files of a problem, described for people."""

    def read(self, file: Path, text: str, issues: list[LoadIssue]) -> Any:
        """Return the JSON value for `inspect_problem`. Return None for an invalid problem, and add the reasons to
        `issues`."""

    def make(
        self, file: Path, problem: Any, facts: Raw, block: str, issues: list[LoadIssue]
    ) -> Iterable[tuple[Raw, Sequence[Raw]]]:
        """Yield the definitions of a problem, with their workloads.

        Args:
            problem: the result of `read`.
            facts: the answer of `inspect_problem`.
            block: the text of `block.py`.
        """

    def name_solutions(self, found: TraceSet, file: Path) -> Iterable[tuple[str, str, str]]:
        """Yield definition, name and author of each solution from a Python file. A path without the engine's form
        yields none."""


def read_folder(root: Path, engine: Engine) -> TraceSet:
    """Run the code of the problems in a folder to find their shapes; return the set of problems and solutions.

    Raises:
        DataSetError: the folder holds no problem files.
        Fault: the process that runs the problems ended early.
    """
    found, problems = TraceSet.from_path(root), dict[Path, Any]()
    issues = found.issues = [issue for issue in found.issues if issue.missing_definition is None]
    for file, text in find_problems(root, engine, issues):
        with _refusing(file, issues):
            if (problem := engine.read(file, text, issues)) is not None:
                problems[file] = problem
    if not problems and not issues:
        raise DataSetError(f"{root} has no {ENGINES[engine.name][1]}, such as {engine.form}")
    block = (Path(__file__).parents[1] / engine.name / "block.py").read_text(encoding="utf-8")
    request = {
        "module": f"flashinfer_bench.data.{engine.name}.inspection",
        "block": block,
        "limit_s": LIMIT_S,
        "problems": [*problems.values()],
    }
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # forks cannot use a GPU; fake tensors need none
    limit_s = LIMIT_S * (len(problems) + 1)
    try:
        answers = run_isolated(f"{__package__}.inspection", request, limit_s=limit_s, environment=hidden)
    except IsolatedFailure as error:
        raise Fault(f"the process that runs the problems ended with exit code {error.code}:\n{error.log}") from error
    for (file, problem), facts in zip(problems.items(), answers, strict=True):
        with _refusing(file, issues):
            if "refused" in facts:
                raise DataSetError(facts["refused"])
            for raw, workloads in list(engine.make(file, problem, facts, block, issues)):
                _add_definition(found, engine, file, raw, workloads)
    loaded = found.counts["traces"]
    for name, traces in found.traces.items():  # a run before an edit, or at another precision, had other workloads
        known = {line.workload.uuid for line in found.workloads.get(name, ())}
        found.traces[name] = [trace for trace in traces if trace.workload.uuid in known]
    if left_out := loaded - found.counts["traces"]:
        reason = f"traces of workloads that the problems lack, or have at another precision, are left out: {left_out}"
        issues.append(LoadIssue("warning", root, None, None, reason))
    for file in list_files(root):
        with _refusing(file, issues):
            if file.suffix == ".py" and (named := [*engine.name_solutions(found, file)]):
                text = read_source(file)
                for definition, name, author in named if find_engine(file.name, text) else ():
                    _add_solution(found, file, text, definition, name, author)
    return found


def find_problems(root: Path, engine: Engine, issues: list[LoadIssue]) -> Iterator[tuple[Path, str]]:
    """Yield the file and text of each problem of a folder."""
    for file in list_files(root):
        if engine.file.fullmatch(file.name):
            with _refusing(file, issues):
                if engine.mark in (text := read_source(file)):
                    yield file, text


def list_files(root: Path) -> list[Path]:
    """Return the files of a folder, without hidden folders such as .venv. Outer files come first, so that no file in an
    inner folder takes their names."""
    found = walk_files(root, lambda *_: None, passes_over=lambda name: name.startswith("."))
    return sorted(found, key=lambda file: (len(file.parts), file))


def read_source(file: Path) -> str:
    """Return the text of a source file."""
    return read_whole(file, MOST_SOURCE_BYTES).decode("utf-8-sig")


def make_name(text: str) -> str:
    """Convert a text to a part of a definition's name."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _add_definition(found: TraceSet, engine: Engine, file: Path, raw: Raw, workloads: Sequence[Raw]) -> None:
    tags = [f"{SOURCE_TAG}{engine.name}", *raw["tags"]]
    definition = Definition.model_validate({**raw, "tags": tags, "custom_inputs_entrypoint": "make_inputs"})
    name, lines = definition.name, dict[str, Trace]()
    if name in found.definitions:
        raise DataSetError(f"{found.definition_files[name]} is {name} already")
    for one in workloads:
        key = str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([name, one])))
        inputs = {at: {"type": "custom"} for at in definition.inputs}
        lines[key] = Trace(definition=name, workload=Workload.model_validate({"uuid": key, "inputs": inputs, **one}))
    found.definitions[name], found.definition_files[name], found.workloads[name] = definition, file, [*lines.values()]


def _add_solution(found: TraceSet, file: Path, text: str, definition: str, name: str, author: str) -> None:
    if name in found.solution_files:
        raise DataSetError(f"{found.solution_files[name]} is {name} already")
    sources = {file.name: text}
    language = find_language(sources) or SupportedLanguages.PYTHON
    made = make_solution(name, author, sources, found.definitions[definition], language)
    found.solutions.setdefault(definition, []).append(made)
    found.solution_files[name] = file


@contextmanager
def _refusing(file: Path, issues: list[LoadIssue]) -> Iterator[None]:
    """Turn an error about a file into an issue, and omit the file from the set."""
    try:
        yield
    except (OSError, ValueError, DataSetError) as error:
        reason = "{msg}, at {loc}".format_map(error.errors()[0]) if isinstance(error, ValidationError) else error
        issues.append(LoadIssue("error", file, None, None, f"not carried over: {reason}"))
