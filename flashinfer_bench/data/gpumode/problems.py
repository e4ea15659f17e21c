"""Reads GPU MODE's problems and submissions.

    SET/PROBLEM/task.yml                a problem: files, cases, ranking
    SET/PROBLEM/reference.py            generate_input, ref_kernel, check_implementation
    SET/PROBLEM/solutions/correct/*.py  submissions, by the author `correct`

Other files with `custom_kernel` are submissions, too. If the data of a problem has several forms, each form is a
definition. Each argument of `generate_input` is an axis, except `seed`. For a text, a list or a bool, the axis is an
index into the values of the definition's cases. A dimension that varies and equals no argument is also an axis. Tests
become workloads that are judged and not timed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field, JsonValue

from flashinfer_bench.data.issue import LoadIssue, Location
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.problems.folder import Raw, make_name, read_source
from flashinfer_bench.data.reference import parse_source
from flashinfer_bench.data.sets.results import RANKING
from flashinfer_bench.data.store.parse import parse_raw
from flashinfer_bench.data.store.yaml_file import parse_yaml
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import DataSetError

SUBMISSION: Final = "@SUBMISSION@"
SEED: Final = "seed"
TOLERANCE: Final = {"rtol": 1e-5, "atol": 1e-8}
"""The defaults of GPU MODE's rule for elements."""

Case = dict[str, JsonValue]


class TaskFile(DataModel):
    """One file of a problem."""

    name: str
    """Name of the file in the folder of a run."""
    source: str
    """Path relative to task.yml, or `SUBMISSION`."""


class Task(DataModel):
    """A task.yml. The limits and hardware names in it have no effect."""

    files: list[TaskFile]
    """The files of a run's folder."""
    lang: Literal["py"]
    """Other languages are refused."""
    config: dict[str, Any]
    """`main`: the script of KernelBot's judge, which is not used."""
    description: str
    """The problem, for people."""
    tests: list[Case] = Field(default_factory=list)
    """Arguments of cases that are judged and not timed."""
    benchmarks: list[Case] = Field(min_length=1)
    """Arguments of cases that are timed."""
    ranking_by: Literal["last", "mean", "geom"] = "last"
    """The rule that computes the score."""
    multi_gpu: bool = False
    """Problems for several GPUs are refused."""
    test_timeout: Any = None
    benchmark_timeout: Any = None
    ranked_timeout: Any = None
    gpus: Any = None
    templates: Any = None
    seed: Any = None
    libraries: Any = None


class GpuMode:
    """Reads problems, and remembers the files of each problem, which are no submissions."""

    name = "gpumode"
    file = re.compile(r"task\.yml")
    mark = ""
    form = "a folder with task.yml and reference.py"

    def __init__(self) -> None:
        self.tasks: dict[Path, Task] = {}

    def read(self, file: Path, text: str, issues: list[LoadIssue]) -> Raw | None:
        """Return module name → text of a problem's files, and the cases; None if a field is wrong."""
        try:
            _, raw = parse_yaml(text)
        except yaml.YAMLError as error:
            raise DataSetError(str(error)) from None
        task = parse_raw(Task, raw, Location(file), issues)
        if task is None:
            return None
        if task.multi_gpu:
            raise DataSetError("it is for several GPUs (multi_gpu)")
        self.tasks[file] = task
        files = {
            one.name.removesuffix(".py"): read_source(file.parent / one.source)
            for one in task.files
            if one.name.endswith(".py") and one.source != SUBMISSION and one.name != task.config.get("main")
        }
        if "reference" not in files:
            raise DataSetError("its files have no reference.py")
        return {"files": files, "cases": task.tests + task.benchmarks}

    def name_solutions(self, found: TraceSet, file: Path) -> Iterator[tuple[str, str, str]]:
        """Yield the solutions from a file in a problem's folder, one for each definition."""
        for name, where in found.definition_files.items():
            folder, task = where.parent, self.tasks.get(where)
            if task is not None and file.is_relative_to(folder):
                author = file.parent.name if file.parent != folder else "template"
                if file.resolve() not in [(folder / one.source).resolve() for one in task.files]:
                    yield name, f"{name}_{author}_{file.stem}", author

    def make(
        self, file: Path, problem: Raw, facts: Raw, block: str, _issues: list[LoadIssue]
    ) -> Iterator[tuple[Raw, list[Raw]]]:
        """Yield a definition and its workloads for each form of a problem's data."""
        task = self.tasks[file]
        owner, stem = (make_name(one.name) for one in (file.absolute().parents[1], file.absolute().parent))
        if [make_name(one.absolute().parent.name) for one in self.tasks].count(stem) > 1:
            stem = f"{owner}_{stem}"
        texts, seeds = problem["files"], ", ".join(str(case.get(SEED)) for case in task.tests + task.benchmarks)
        groups = dict[str, list[tuple[int, Case, Raw]]]()
        for at, (case, one) in enumerate(zip(problem["cases"], facts["cases"], strict=True)):
            ranks = {name: shape and len(shape) for name, shape in one["shapes"].items()}
            names = sorted(case.keys() - {SEED})
            groups.setdefault(json.dumps([names, ranks, one["form"], one["others"]]), []).append((at, case, one))
        for number, members in enumerate(groups.values(), 1):
            first, one = max((case for _, case, _ in members), key=len), members[0][2]  # a seed may be optional
            tolerance, kinds = read_tolerance(texts["reference"]), "".join(one["form"]["outputs"].values())
            if tolerance and tolerance["max_atol"] >= 1 and "int" in kinds:
                tolerance = None  # the tolerance of a workload is for floats only
            choices, sizes = dict[str, list[Any]](), dict[str, list[int]]()
            for key in [one for one in first if one != SEED]:
                values: list[Any] = [case[key] for _, case, _ in members]
                if not all(type(value) is int and value >= 0 for value in values):
                    choices[key] = [value for at, value in enumerate(values) if value not in values[:at]]
                    values = [choices[key].index(value) for value in values]
                sizes[key] = values
            shapes = {name: [one["shapes"][name] for _, _, one in members] for name in one["shapes"]}
            specs = {
                side: {
                    name: {"shape": _name_axes(name, shapes[name], sizes, choices), "dtype": kind}
                    for name, kind in one["form"][side].items()
                }
                for side in ("inputs", "outputs")
            }
            functions = ["run", "make_inputs", "bind_solution", *([] if tolerance else ["check_outputs"])]
            lines = [
                "_files = {}",
                *(f"_files[{module!r}] = {_literal(text)}" for module, text in texts.items()),
                f"\n\n{block}\n",
                f"_problem = GpuModeProblem(_files, {first!r}, choices={choices!r}, **{one['form']!r})",
                *(f"{function} = _problem.{function}" for function in functions),
            ]
            definition = {
                "name": f"{stem}_{number}" if len(groups) > 1 else stem,
                "op_type": self.name,
                "axes": {
                    key: {
                        "type": "var",
                        "description": ", ".join(f"{at}: {one}" for at, one in enumerate(choices.get(key, []))),
                    }
                    for key in sizes
                },
                **specs,
                "reference": "\n".join([*lines, ""]),
                "tags": [f"set:{owner}", f"problem:{stem}", f"{RANKING}{task.ranking_by}"],
                "description": f"{task.description.strip()}\n\nPublic seeds, without effect: {seeds}",
            }
            yield (
                definition,
                [
                    {
                        "axes": {key: values[row] for key, values in sizes.items()},
                        "tolerance": tolerance,
                        "timed": at >= len(task.tests),
                    }
                    for row, (at, _, _) in enumerate(members)
                ],
            )


def read_tolerance(reference: str) -> Raw | None:
    """Return the tolerance of a reference that uses GPU MODE's rule for elements; None if the reference has a different
    check."""
    for node in parse_source(reference).body:
        match node:
            case ast.Assign(
                targets=[ast.Name("check_implementation")],
                value=ast.Call(ast.Name("make_match_reference"), [ast.Name("ref_kernel")], keywords),
            ) if all(one.arg in TOLERANCE and isinstance(one.value, ast.Constant) for one in keywords):
                found = TOLERANCE | {str(one.arg): ast.literal_eval(one.value) for one in keywords}
                return {"max_atol": found["atol"], "max_rtol": found["rtol"], "required_matched_ratio": 1.0}
    return None


def _name_axes(name: str, shapes: list[Any], sizes: dict[str, list[int]], choices: Raw) -> list[str] | None:
    """Return the shape of an input or output. Add each dimension to `sizes` that varies and equals no argument."""
    if shapes[0] is None:
        return None
    axes = list[str]()
    for at, values in enumerate(map(list, zip(*shapes, strict=True))):
        alike = (axis for axis, known in sizes.items() if known == values and axis not in choices)
        varies = len(set(values)) > 1
        axes.append(next(alike, f"{name}_axis{at}") if varies else str(values[0]))
        if varies:
            sizes[axes[-1]] = values
    return axes


def _literal(text: str) -> str:
    """Return a Python literal of a text. The literal has the line breaks of the text if possible."""
    plain = f"r'''{text}'''"
    try:
        return plain if ast.literal_eval(plain) == text else repr(text)
    except SyntaxError:
        return repr(text)
