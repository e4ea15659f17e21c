"""Makes solutions from files for other engines. Each file defines a name that its engine calls.

Each solution has three sources: the author's file, the definition's reference, and an entry file. The reference has a
function `bind_solution`, which returns the author's code as a function of the inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.reference import read_module
from flashinfer_bench.data.solution import BuildSpec, Solution, SourceFile, SupportedLanguages
from flashinfer_bench.errors import DataSetError

SOLUTION_FILE: Final = re.compile(r"level_(\d+)_problem_(\d+)_sample_(?=\w)(\d*)\w*")
ENGINES: Final[Mapping[str, tuple[str, str]]] = {
    "kernelbench": ("ModelNew", "tasks of KernelBench"),
    "gpumode": ("custom_kernel", "problems of GPU MODE"),
}
"""Engine → the name that the engine calls in a file, and a description of the engine's definitions."""
SOURCE_TAG: Final = "source:"
"""Prefix of the tag that names a definition's engine."""
ENTRY: Final = """\
from pathlib import Path

from {engine}_task import bind_solution

run = bind_solution(str(Path(__file__).with_name({file!r})))
"""


def make_solution(
    name: str, author: str, sources: Mapping[str, str], definition: Definition, language: SupportedLanguages
) -> Solution:
    """Make a solution from sources. One of the files is written for another engine.

    Raises:
        DataSetError: the definition does not come from that engine.
    """
    file, engine = next((path, one) for path, text in sources.items() if (one := find_engine(path, text)))
    symbol, kind = ENGINES[engine]
    if not takes(definition, engine):
        raise DataSetError(f"{name}: {symbol} is for {kind}, and {definition.name} is none")
    entry = ENTRY.format(file=file, engine=engine)
    made = {f"{engine}_task.py": definition.reference, f"{engine}_entry.py": entry}
    return Solution(
        name=name,
        definition=definition.name,
        author=author,
        sources=[SourceFile(path=path, content=text) for path, text in {**sources, **made}.items()],
        spec=BuildSpec(
            language=language,
            target_hardware=["any"],
            entry_point=f"{engine}_entry.py::run",
            destination_passing_style=False,
        ),
    )


def find_engine(path: str, text: str) -> str | None:
    """Return the engine that calls a name which a Python source defines; None if there is none. The verdict on a source
    that cannot be parsed names the error."""
    text = text if path.endswith(".py") else ""
    try:
        module = read_module(text)
        own = module.names.keys() - module.imported
    except ValueError:
        own = set(re.findall(r"^(?:class|def) (\w+)", text, re.MULTILINE))
    return next((engine for engine, (symbol, _) in ENGINES.items() if symbol in own), None)


def takes(definition: Definition, engine: str) -> bool:
    """Return whether a definition was made from a problem of an engine."""
    return f"{SOURCE_TAG}{engine}" in definition.tags


def find_by_file(words: Sequence[str], definitions: Mapping[str, Definition]) -> str | None:
    """Return the task that a file solves, if the file's name has KernelBench's form; None if no task matches."""
    for match in filter(None, map(SOLUTION_FILE.fullmatch, words)):
        start = f"kernelbench_l{match[1]}_{int(match[2]):03}_"
        return next((name for name in definitions if name.startswith(start)), None)
    return None
