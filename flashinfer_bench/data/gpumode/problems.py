"""Reads a folder of GPU MODE problems and submissions as a trace set in memory.

    SET/PROBLEM/task.yml                a problem: files, cases, ranking
    SET/PROBLEM/reference.py            generate_input, ref_kernel, check_implementation
    SET/PROBLEM/solutions/correct/*.py  submissions, by the author `correct`

Any other file with `custom_kernel` is a submission, too. Inputs and outputs come from a run of the problem's code
(`inspection.py`). If the data of a problem has several forms, each form is a definition. The inputs have the type
`custom`. Each argument of `generate_input` is an axis, except `seed`. For a text, a list or a bool, the axis is an
index into the values of the problem's cases. Further axes are dimensions that vary and equal no argument. Tests become
workloads that are judged and not timed.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field, ValidationError

from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.data.adapted import SOURCE_TAG, find_symbol
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import Location
from flashinfer_bench.data.kernelbench.tasks import add_solution, list_files, read_source, read_sources, refuse_file
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.reference import parse_source
from flashinfer_bench.data.sets.results import RANKING
from flashinfer_bench.data.store.layout import DEFINITIONS
from flashinfer_bench.data.store.parse import parse_raw
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.data.yaml_text import parse_yaml
from flashinfer_bench.errors import DataSetError, Fault

BLOCK: Final = Path(__file__).with_name("block.py")
TASK: Final = "task.yml"
OP_TYPE: Final = "gpumode"
SUBMISSION: Final = "@SUBMISSION@"
SEED: Final = "seed"
SIDES: Final = ("inputs", "outputs")
TOLERANCE: Final = {"rtol": 1e-5, "atol": 1e-8}
"""The defaults of GPU MODE's rule for elements."""
LIMIT_S: Final = 3600.0
"""Seconds for all problems of a folder."""
_NAMESPACE: Final = uuid.UUID("3c1d6f3e-8d2b-5a0f-9f0c-6d9b1f1d7a44")
"""The namespace of the workloads' uuids."""

Raw = dict[str, Any]
Case = dict[str, int | str | bool | list[Any]]


class TaskFile(DataModel):
    """One file of a problem."""

    name: str
    """Its name in the folder of a run."""
    source: str
    """Path relative to task.yml, or `SUBMISSION`."""


class Task(DataModel):
    """A task.yml. Its limits and names of hardware have no effect."""

    files: list[TaskFile]
    """The files of a run's folder."""
    lang: Literal["py"]
    """Other languages are refused."""
    config: dict[str, str]
    """`main`: the script of KernelBot's judge, which is not used."""
    description: str
    """The problem, for people."""
    tests: list[Case] = Field(default_factory=list)
    """Arguments of cases that are judged and not timed."""
    benchmarks: list[Case] = Field(min_length=1)
    """Arguments of cases that are timed."""
    ranking_by: Literal["last", "mean", "geom"] = "last"
    """The rule of the score."""
    multi_gpu: Literal[False] = False
    """Problems for several GPUs are refused."""
    test_timeout: Any = None
    benchmark_timeout: Any = None
    ranked_timeout: Any = None
    gpus: Any = None
    templates: Any = None
    seed: Any = None
    libraries: Any = None

    @property
    def cases(self) -> list[Case]:
        """The tests, then the benchmarks."""
        return [*self.tests, *self.benchmarks]


def find_problems(root: Path) -> list[Path]:
    """Return the task.yml of each problem of a folder. A trace set has none."""
    return [] if (root / DEFINITIONS).is_dir() else [path for path in list_files(root, ".yml") if path.name == TASK]


def read_problems(root: Path) -> TraceSet:
    """Run the code of the problems in a folder to find their inputs; return the set of problems and submissions.

    Raises:
        DataSetError: the folder has no problems.
        Fault: the process that runs the problems ended.
    """
    found, given = TraceSet.from_path(root), list[tuple[Path, Task, dict[str, str]]]()
    found.issues = [issue for issue in found.issues if issue.missing_definition is None]
    block, refuse = BLOCK.read_text(encoding="utf-8"), functools.partial(refuse_file, found)
    for file in find_problems(root):
        try:
            _, raw = parse_yaml(read_source(file))
            task = parse_raw(Task, raw, Location(file), found.issues)
            if task is not None:
                given.append((file, task, dict(_read_files(file, task))))
        except (yaml.YAMLError, DataSetError) as error:
            refuse(file, error)
    if not given and not any(issue.file.name == TASK for issue in found.issues):
        raise DataSetError(f"{root}: no problem of GPU MODE is here: a folder with {TASK} and reference.py")
    problems = [{"files": texts, "cases": task.cases} for _, task, texts in given]
    try:
        answers = run_isolated(f"{__package__}.inspection", {"block": block, "problems": problems}, limit_s=LIMIT_S)
    except IsolatedFailure as error:
        raise Fault(f"the process that runs the problems ended with exit code {error.code}:\n{error.log}") from error
    for (file, task, texts), facts in zip(given, answers, strict=True):
        if "refused" in facts:
            refuse(file, facts["refused"])
            continue
        try:
            made = list(make_definitions(file, task, texts, facts["forms"], block))
        except ValidationError as error:
            refuse(file, error)
            continue
        for definition, workloads in made:
            if definition.name in found.definitions:
                refuse(file, f"{found.definition_files[definition.name]} is {definition.name}, too")
                continue
            found.definitions[definition.name], found.definition_files[definition.name] = definition, file
            found.workloads[definition.name] = [Trace(definition=definition.name, workload=one) for one in workloads]
        if strided := dict.fromkeys(name for form in facts["forms"] for name in form["strided"]):
            text = f"{', '.join(strided)}: parts of larger tensors are made contiguous"
            found.issues.append(Location(file).issue("warning", text))
    for file, task, _ in given:
        sources = [task.config.get("main", TASK), *(one.source for one in task.files)]
        own = {(file.parent / source).resolve() for source in sources}
        names = [name for name, where in found.definition_files.items() if where == file]
        submissions = [one for one in list_files(file.parent) if names and one.resolve() not in own]
        for path, text in read_sources(submissions, refuse):
            author = path.parent.name if path.parent != file.parent else "template"
            for name in names if find_symbol(path.name, text) else ():
                add_solution(found, name, f"{name}_{author}_{path.stem}", author, path, text)
    return found


def make_definitions(
    file: Path, task: Task, texts: Mapping[str, str], forms: Sequence[Raw], block: str
) -> Iterator[tuple[Definition, list[Workload]]]:
    """Yield a definition and its workloads for each form of a problem's data.

    Args:
        texts: module name → text of the problem's files.
        forms: the answer of `inspection.py`.
        block: the code of `block.py`.
    """
    folder, groups = file.parent.absolute(), dict[str, list[int]]()
    owner, stem = (re.sub(r"[^a-z0-9]+", "_", one.lower()).strip("_") for one in (folder.parent.name, folder.name))
    for at, (case, form) in enumerate(zip(task.cases, forms, strict=True)):
        ranks = [[name, shape and len(shape), kind] for side in SIDES for name, (shape, kind) in form[side].items()]
        same = [sorted(case.keys() - {SEED}), ranks, form["orders"], form["homes"], form["others"]]
        groups.setdefault(json.dumps(same), []).append(at)
    arguments = dict.fromkeys(name for case in task.cases for name in case if name != SEED)
    known = {name: _list_choices([case[name] for case in task.cases if name in case]) for name in arguments}
    tolerance, seeds = read_tolerance(texts["reference"]), ", ".join(str(case.get(SEED)) for case in task.cases)
    for number, members in enumerate(groups.values(), 1):
        name = f"{stem}_{number}" if len(groups) > 1 else stem
        cases, first = [task.cases[at] for at in members], forms[members[0]]
        case = {key: value for key, value in cases[0].items() if key != SEED}
        choices = {key: known[key] for key in case if known[key]}
        sizes = {key: [choices[key].index(one[key]) if key in choices else one[key] for one in cases] for key in case}
        specs = {side: _make_specs(side, [forms[at] for at in members], sizes, choices) for side in SIDES}
        described = {key: ", ".join(f"{at}: {value}" for at, value in enumerate(one)) for key, one in choices.items()}
        created = {
            "inputs": list(first["inputs"]),
            "outputs": {key: kind for key, (_, kind) in first["outputs"].items()},
        }
        created |= {"orders": first["orders"], "homes": first["homes"], "choices": choices}
        functions = ["run", "make_inputs", "bind_solution", *([] if tolerance else ["check_outputs"])]
        lines = [
            *(block, "\n_files = {}"),
            *(f"_files[{module!r}] = {_literal(text)}" for module, text in texts.items()),
            f"_problem = GpuModeProblem(_files, {case!r}, **{created!r})",
            *(f"{function} = _problem.{function}" for function in functions),
        ]
        definition = Definition.model_validate(
            {
                "name": name,
                "op_type": OP_TYPE,
                "axes": {key: {"type": "var", "description": described.get(key)} for key in sizes},
                **specs,
                "reference": "\n".join([*lines, ""]),
                "custom_inputs_entrypoint": "make_inputs",
                "tags": [f"{SOURCE_TAG}{OP_TYPE}", f"set:{owner}", f"problem:{stem}", f"{RANKING}{task.ranking_by}"],
                "description": f"{task.description.strip()}\n\nPublic seeds, without effect: {seeds}",
            }
        )
        workloads = dict[str, Workload]()
        for row, at in enumerate(members):
            axes, is_timed = {key: values[row] for key, values in sizes.items()}, at >= len(task.tests)
            key = str(uuid.uuid5(_NAMESPACE, json.dumps([name, is_timed, axes])))
            inputs = {one: {"type": "custom"} for one in definition.inputs}
            raw = {"uuid": key, "axes": axes, "inputs": inputs, "tolerance": tolerance, "timed": is_timed}
            workloads[key] = Workload.model_validate(raw)
        yield definition, list(workloads.values())


def read_tolerance(reference: str) -> Raw | None:
    """Return the tolerance of a reference that uses GPU MODE's rule for elements; None if it has its own check."""
    for node in parse_source(reference).body:
        match node:
            case ast.Assign(
                targets=[ast.Name("check_implementation")],
                value=ast.Call(ast.Name("make_match_reference"), [ast.Name("ref_kernel")], keywords),
            ) if all(one.arg in TOLERANCE and isinstance(one.value, ast.Constant) for one in keywords):
                found = TOLERANCE | {str(one.arg): ast.literal_eval(one.value) for one in keywords}
                return {"max_atol": found["atol"], "max_rtol": found["rtol"], "required_matched_ratio": 1.0}
    return None


def _list_choices(values: list[Any]) -> list[Any]:
    """Return the distinct values of an argument, into which its axis is an index; nothing if the values are sizes."""
    if all(type(value) is int and value >= 0 for value in values):
        return []
    return [value for at, value in enumerate(values) if value not in values[:at]]


def _make_specs(side: str, forms: Sequence[Raw], sizes: dict[str, list[Any]], choices: Raw) -> Raw:
    """Return the specs of inputs or outputs. Add to `sizes` each dimension that varies and is no argument."""
    specs: Raw = {}
    for name, (shape, kind) in forms[0][side].items():
        axes = list[str]()
        for at in range(len(shape or ())):
            values = [form[side][name][0][at] for form in forms]
            alike = [axis for axis, known in sizes.items() if known == values and axis not in choices]
            if len(set(values)) == 1 and len(alike) != 1:
                axes.append(str(values[0]))
                continue
            if not alike:
                sizes[f"{name}_axis{at}"] = values
            axes.append([*alike, f"{name}_axis{at}"][0])
        specs[name] = {"shape": None if shape is None else axes, "dtype": kind}
    return specs


def _read_files(file: Path, task: Task) -> Iterator[tuple[str, str]]:
    """Yield module name and text of a problem's files, without KernelBot's judge."""
    listed = {Path(one.name): one.source for one in task.files}
    if Path("reference.py") not in listed:
        raise DataSetError("its files have no reference.py")
    for path, source in listed.items():
        if source != SUBMISSION and path.suffix == ".py" and path.name != task.config.get("main"):
            yield path.stem, read_source(file.parent / source)


def _literal(text: str) -> str:
    """Return a Python literal of a text: with the text's own line breaks if possible, else on one line."""
    plain = f"r'''{text}'''"
    try:
        return plain if ast.literal_eval(plain) == text else repr(text)
    except SyntaxError:
        return repr(text)
