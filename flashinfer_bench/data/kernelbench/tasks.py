"""Reads a folder of KernelBench tasks and solutions as a trace set in memory.

    level1/23_Softmax.py                        a task: the definition kernelbench_l1_023_softmax, with one workload
    NAME/level_1_problem_23_sample_0_kernel.py  a solution of it, by the author NAME

The shapes of a task come from a run of its code (`inspection.py`). Its arguments, parameters and buffers are inputs of
type `custom`. A solution is the author's file, the task, and an entry file that connects them (`block.py`).
"""

from __future__ import annotations

import functools
import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.data.adapted import SOURCE_TAG, find_by_file, find_symbol, make_solution
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.solution import SupportedLanguages
from flashinfer_bench.data.store.dialects import MOST_SOURCE_BYTES
from flashinfer_bench.data.store.layout import DEFINITIONS
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataSetError, Fault

PRECISIONS: Final = {
    "fp32": ("float32", 1e-4),
    "fp16": ("float16", 1e-2),
    "bf16": ("bfloat16", 1e-2),
}
"""KernelBench's precision → dtype of floating-point tensors, and the tolerance (both atol and rtol)."""
BLOCK: Final = Path(__file__).with_name("block.py")
TASK_FILE: Final = re.compile(r"(\d+)_(\w[^/]*)\.py")
LEVEL: Final = re.compile(r"level_?(\d+)")
MARK: Final = "def get_init_inputs"
"""A function that each task has."""
LIMIT_S: Final = 3600.0
"""Seconds for all tasks of a folder."""


def find_tasks(root: Path, refuse: Callable[[Path, object], None] = lambda *_: None) -> dict[Path, str]:
    """Return the file and code of each task of a folder. A trace set has none.

    Args:
        refuse: takes a file that may be a task but cannot be read, and the reason.
    """
    is_set = (root / DEFINITIONS).is_dir()
    files = [] if is_set else [path for path in list_files(root) if TASK_FILE.fullmatch(path.name)]
    return {file: text for file, text in read_sources(files, refuse) if MARK in text}


def read_tasks(root: Path, *, precision: str = "fp32") -> TraceSet:
    """Run the code of the tasks in a folder to find their shapes; return the set of tasks and solutions.

    Raises:
        DataSetError: the folder has no tasks.
        Fault: the process that runs the tasks ended.
    """
    found = TraceSet.from_path(root)
    found.issues = [issue for issue in found.issues if issue.missing_definition is None]
    refuse = functools.partial(refuse_file, found)
    files = find_tasks(root, refuse)
    if not files and not any(TASK_FILE.fullmatch(issue.file.name) for issue in found.issues):
        raise DataSetError(f"{root}: no task of KernelBench is here: level1/1_Name.py with {MARK}()")
    dtype, bound = PRECISIONS[precision]
    block = BLOCK.read_text(encoding="utf-8")
    request = {"block": block, "tasks": list(files.values())}
    try:
        answers = run_isolated(f"{__package__}.inspection", request, limit_s=LIMIT_S)
    except IsolatedFailure as error:
        raise Fault(f"the process that runs the tasks ended with exit code {error.code}:\n{error.log}") from error
    for (file, source), facts in zip(files.items(), answers, strict=True):
        try:
            _add_task(found, file, make_definition(file, source, block, facts, dtype), bound)
        except ValueError as error:
            refuse(file, error)
    names = {file: find_by_file([file.stem], found.definitions) for file in list_files(root)}
    for file, text in read_sources([file for file in names if names[file]], refuse):
        if find_symbol(file.name, text):
            add_solution(found, str(names[file]), f"{file.parent.name}_{file.stem}", file.parent.name, file, text)
    return found


def _add_task(found: TraceSet, file: Path, definition: Definition, bound: float) -> None:
    name = definition.name
    if name in found.definitions:
        raise ValueError(f"{found.definition_files[name]} is {name} already")
    found.definitions[name], found.definition_files[name] = definition, file
    workload = Workload.model_validate(
        {
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
            "axes": {},
            "inputs": {name: {"type": "custom"} for name in definition.inputs},
            "tolerance": {"max_atol": bound, "max_rtol": bound, "required_matched_ratio": 1.0},
        }
    )
    found.workloads[name] = [Trace(definition=name, workload=workload)]


def make_definition(file: Path, source: str, block: str, facts: Mapping[str, Any], dtype: str) -> Definition:
    """Return the definition of a task.

    Args:
        source: the task's code.
        block: the code of `block.py`.
        facts: what `inspection.py` found.

    Raises:
        ValueError: the task is refused, or no definition can hold it; the message has the reason.
    """
    if "refused" in facts:
        raise ValueError(facts["refused"])
    number, name = TASK_FILE.fullmatch(file.name).groups()  # type: ignore[union-attr] # find_tasks chose it
    match = LEVEL.fullmatch(file.parent.name)
    level = f"_l{match[1]}" if match else ""
    outputs = facts["outputs"]
    # KernelBench's identity of a task
    digest = hashlib.md5(re.sub(r"#[^\n]*|\s", "", source).encode(), usedforsecurity=False).hexdigest()
    created = f"KernelBenchTask(globals(), {dtype!r}, {facts['arguments']}, {tuple(facts['written'])!r})"
    footer = "run, make_inputs, bind_solution = _task.run, _task.make_inputs, _task.bind_solution"
    results = {"output" if len(outputs) == 1 else f"output_{at}": one for at, one in enumerate(outputs)}
    inputs, results = (
        {name: {"shape": shape, "dtype": dtype if kind == "float32" else kind} for name, (shape, kind) in specs.items()}
        for specs in (facts["inputs"], results)
    )
    return Definition.model_validate(
        {
            "name": f"kernelbench{level}_{int(number):03}_{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}",
            "op_type": f"kernelbench{level}",
            "axes": {},
            "inputs": inputs,
            "outputs": results,
            "reference": f"{source.rstrip()}\n\n\n{block}\n\n_task = {created}\n{footer}\n",
            "custom_inputs_entrypoint": "make_inputs",
            "tags": [f"{SOURCE_TAG}kernelbench", f"version:{digest}"],
        }
    )


def add_solution(found: TraceSet, definition: str, name: str, author: str, file: Path, text: str) -> None:
    """Add a solution in another engine's form, or an issue with the reason why it is refused."""
    from flashinfer_bench.data.store.drafts import find_language  # it imports yaml, which most sets do not need

    language = find_language({file.name: text}) or SupportedLanguages.PYTHON
    if name in found.solution_files:
        refuse_file(found, file, f"{found.solution_files[name]} is {name} already")
        return
    try:
        made = make_solution(name, author, {file.name: text}, found.definitions[definition], language)
    except (DataSetError, ValueError) as error:
        refuse_file(found, file, error)
        return
    found.solutions.setdefault(definition, []).append(made)
    found.solution_files[name] = file


def refuse_file(found: TraceSet, file: Path, reason: object) -> None:
    """Add an issue about a file that is no part of the set."""
    if isinstance(reason, ValidationError):
        reason = reason.errors()[0]["msg"]
    found.issues.append(LoadIssue("error", file, None, None, f"not carried over: {reason}"))


def list_files(root: Path, suffix: str = ".py") -> list[Path]:
    """Return the files of a folder with a suffix, without hidden folders such as .venv."""
    files = walk_files(root, lambda *_: None, passes_over=lambda name: name.startswith("."))
    return sorted(file for file in files if file.suffix == suffix)


def read_sources(files: Iterable[Path], refuse: Callable[[Path, object], None]) -> Iterator[tuple[Path, str]]:
    """Yield each file with its text, and refuse files that cannot be read."""
    for file in files:
        try:
            text = read_source(file)
        except DataSetError as error:
            refuse(file, error)
        else:
            yield file, text


def read_source(file: Path) -> str:
    try:
        return read_whole(file, MOST_SOURCE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataSetError(f"{file} cannot be read as a source: {error}") from None
