"""Makes solutions of KernelBench's files, which define a module `ModelNew` with the arguments of the task's `Model`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.reference import read_module
from flashinfer_bench.data.solution import BuildSpec, Solution, SourceFile, SupportedLanguages
from flashinfer_bench.errors import DataSetError

SOLUTION_FILE: Final = re.compile(r"level_(\d+)_problem_(\d+)_sample_\w+")
MODEL_NEW: Final = "ModelNew"
SOURCE_TAG: Final = "source:kernelbench"
"""A tag of the definitions that are tasks."""
ENTRY: Final = """\
from pathlib import Path

from kernelbench_task import bind_solution

run = bind_solution(str(Path(__file__).with_name({file!r})))
"""


def make_solution(
    name: str, author: str, sources: Mapping[str, str], definition: Definition, language: SupportedLanguages
) -> Solution:
    """Make a solution from sources; one of them defines `ModelNew`.

    Raises:
        DataSetError: the definition is no task of KernelBench.
    """
    if SOURCE_TAG not in definition.tags:
        raise DataSetError(f"{name}: {MODEL_NEW} is for tasks of KernelBench, and {definition.name} is none")
    file = next(path for path, text in sources.items() if has_model_new(path, text))
    made = {"kernelbench_task.py": definition.reference, "kernelbench_entry.py": ENTRY.format(file=file)}
    return Solution(
        name=name,
        definition=definition.name,
        author=author,
        sources=[SourceFile(path=path, content=text) for path, text in {**sources, **made}.items()],
        spec=BuildSpec(
            language=language,
            target_hardware=["any"],
            entry_point="kernelbench_entry.py::run",
            destination_passing_style=False,
        ),
    )


def has_model_new(path: str, text: str) -> bool:
    """Return whether a source is Python and defines `ModelNew`."""
    try:
        return path.endswith(".py") and MODEL_NEW in read_module(text).names
    except ValueError:
        return False


def find_by_file(words: Sequence[str], definitions: Mapping[str, Definition]) -> str | None:
    """Return the task that a file belongs to, by its name in KernelBench's form; None if there is no such task."""
    for match in filter(None, map(SOLUTION_FILE.fullmatch, words)):
        start = f"kernelbench_l{match[1]}_{int(match[2]):03}_"
        return next((name for name in definitions if name.startswith(start)), None)
    return None
