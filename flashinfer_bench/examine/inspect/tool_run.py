"""Has the programs of a plan run on one call: an ordinary run of one job, in a session of ours (`session.py`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, Notice
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.plan import Job, describe_nothing
from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.data import CompileOptions, Solution, Trace, TraceSet, Workload, load_json_file
from flashinfer_bench.errors import DataSetError, FlashInferBenchError, Misuse

SESSION: Final = "flashinfer_bench.examine.inspect.session"
STEPS, DONE = "steps.json", "done.json"
LINE_INFO: Final = "-lineinfo"
"""nvcc's flag for lines beside instructions; it changes no code."""
FURTHER_S: Final = 900.0
"""Seconds that the session may take besides the programs: it makes inputs, and imports the solution, which may compile.
"""
WORK: Final = "{work}"
"""In an argument: the folder that programs write to and read from."""
USUAL_FOLDERS: Final = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/bin")
"""Folders of the tools, searched after $PATH and the CUDA toolkit."""
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class ToolStep:
    """One program to run in the sandbox."""

    name: str
    argv: list[str]
    """Its command; if it is to call the solution, the command that does so follows."""
    calls: bool
    limit_s: float
    warm_up_calls: int = 0
    """Calls before the one that is inspected; below 0, the solution is imported only."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables besides those of a worker."""


@dataclass(frozen=True)
class StepDone:
    """The outcome of one program."""

    name: str
    text: str
    """Its output, of both streams."""
    ended: str = ""
    """How it ended, in words; empty if it ended by itself with 0."""
    error: str = ""
    """The solution's exception; empty if there was none, or none is known."""


@dataclass(frozen=True)
class Inspected:
    """What the programs said of a call."""

    job: Job
    device: str
    """Name of the GPU."""
    blob_root: Path
    steps: Sequence[StepDone]
    notes: Sequence[str] = ()
    """Parts of the sandbox that are missing."""


def run_tool(
    trace_set: TraceSet,
    solution: Solution | str,
    workload: Workload | str,
    steps: Sequence[ToolStep],
    device: Device,
    *,
    definition: str | None = None,
    sandbox: Level = "auto",
    seed: int | None = None,
    cache: Path | None = None,
    temporary: Path | str | None = None,
    tell: Callable[[str], object] = lambda _line: None,
) -> Inspected:
    """Run the programs of a tool on one call of a solution.

    Args:
        trace_set: holds the definition, and what is named.
        solution: a solution, a name, or a JSON file.
        workload: a workload, a uuid or the unique start of one, or a JSON file.
        steps: the programs of a tool, run in order until one that does not call the solution fails.
        device: the GPU.
        definition: its name; None for the solution's.
        sandbox: how far the solution is confined.
        seed: of the inputs; None for one that is always the same.
        cache: the folder of what is built; None for the user's.
        temporary: the folder of temporary files; None for the system's.
        tell: gets lines for people meanwhile.

    Raises:
        ConfigError: a name is unknown, or the sandbox that is asked for cannot be had.
        DataSetError: a file cannot be used, or the solution cannot run here.
        FlashInferBenchError: the solution cannot be built or loaded, or its inputs cannot be made.
    """
    if isinstance(solution, str) and solution.endswith(".json"):
        solution = load_json_file(Solution, solution)
    if isinstance(workload, str) and workload.endswith((".json", ".jsonl")):
        workload = load_json_file(Workload, workload)
    solutions = trace_set.solutions
    workloads = trace_set.workloads
    if isinstance(solution, Solution):
        definition = definition or solution.definition
        solutions = {solution.definition: [solution]}
        solution = solution.name
    if isinstance(workload, Workload):
        workloads = {name: [Trace(definition=name, workload=workload)] for name in trace_set.definitions}
        workload = workload.uuid
    solutions = {name: list(map(with_line_info, listed)) for name, listed in solutions.items()}
    config = BenchmarkConfig.default(
        definitions=None if definition is None else [definition],
        solutions=[solution],
        workloads=[workload],
        devices=["cpu" if device.kind == "cpu" else device.uuid],
        sandbox=sandbox,
        seed=seed or 0,
        clock="cuda_events",  # no profiler beside the tool
        timeout_seconds=sum(step.limit_s for step in steps) + FURTHER_S,
        profile_baseline=False,
        confirm=False,
    )
    engine = Benchmark(replace(trace_set, solutions=solutions, workloads=workloads), config, cache=cache)
    plan = engine.plan()
    if len(plan.jobs) != 1:
        several = f"several definitions have a solution {solution!r}; name one of them"
        raise DataSetError(several if plan.jobs else describe_nothing(plan))
    (job,) = plan.jobs
    folder = Path(tempfile.mkdtemp(prefix="inspect-", dir=temporary)).absolute()
    problem = ""
    try:
        (folder / STEPS).write_text(json.dumps([asdict(step) for step in steps]), encoding="utf-8")
        engine.context.tool = SESSION, str(folder)
        for event in engine.run(plan, save_results=False):
            if isinstance(event, Notice):
                tell(event.message)
            elif isinstance(event, JobFaulted):
                problem = event.message
        if not (folder / DONE).exists():
            raise FlashInferBenchError(f"{solution}: {problem}")
        done = [StepDone(**one) for one in json.loads((folder / DONE).read_text(encoding="utf-8"))]
    finally:
        remove_tree(folder)
    missing = [f"{part}: {why}" for part, why in engine.sandbox.missing.items()]
    return Inspected(job, device.name, engine.context.blob_root_for(job), done, missing)


def with_line_info(solution: Solution) -> Solution:
    """Return a CUDA solution whose kernels know their lines; any other as it is."""
    if solution.spec.language.value != "cuda":
        return solution
    options = solution.spec.compile_options or CompileOptions()
    flags = [*(flag for flag in options.cuda_cflags if flag != LINE_INFO), LINE_INFO]
    spec = solution.spec.model_copy(update={"compile_options": options.model_copy(update={"cuda_cflags": flags})})
    return solution.model_copy(update={"spec": spec})


def find_tool(name: str, given: str | None = None) -> Path:
    """Return the program of a tool.

    Args:
        name: "ncu" or "compute-sanitizer".
        given: the name or path that the user gave.

    Raises:
        Misuse: it is not here.
    """
    homes = (f"{os.environ[home]}/bin" for home in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(home))
    folders = [os.environ.get("PATH", os.defpath), *homes, *USUAL_FOLDERS]
    found = shutil.which(given or name, path=os.pathsep.join(folders))
    if found is None:
        product = "Nsight Compute" if name == "ncu" else name
        raise Misuse(
            f"{given or name} is not here: inspect {name.removeprefix('compute-')} needs {product}, which comes with "
            "the CUDA toolkit; install it, or put its folder on PATH"
        )
    return Path(found).absolute()


def find_gpu(name: str | None) -> Device:
    """Return the GPU of that name, or the first one.

    Raises:
        ConfigError: there is none of that name.
        Misuse: there is none at all.
    """
    device = discover_devices(None if name is None else [name])[0]
    if device.kind == "cpu":
        raise Misuse("inspect needs an NVIDIA GPU, and this machine has none that the installed torch can use")
    return device


def make_document(tool: str, done: Inspected, **found: Any) -> dict[str, Any]:
    """Return what a tool found as JSON-able values, with what was inspected."""
    job = done.job
    return {
        "tool": tool,
        "definition": job.definition.name,
        "solution": job.solution.name,
        "workload": job.workload.uuid,
        "device": done.device,
        "notes": list(done.notes),
        **found,
    }


def render_document(document: Mapping[str, Any], lines: Iterable[str]) -> str:
    """Return lines about a document below its title, without characters that steer a terminal."""
    names = f"{document['solution']} on {document['definition']}, workload {document['workload']}"
    notes = [f"note: {note}" for note in document["notes"]]
    return plain("\n".join([f"{document['tool']}: {names}, {document['device']}", *lines, *notes, ""]))


def plain(text: str) -> str:
    """Return a text without characters that steer a terminal: a solution can print them."""
    return CONTROL.sub("?", text)


def indent(text: str) -> str:
    """Return what a program said, as part of a message."""
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
