"""Runs a tool's programs on one call of a solution: an ordinary run of one job, in our own session (`session.py`)."""

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
from flashinfer_bench.errors import DataSetError, FlashInferBenchError, UsageError

SESSION: Final = "flashinfer_bench.examine.inspect.session"
STEPS, DONE = "steps.json", "done.json"
LINE_INFO: Final = "-lineinfo"
"""nvcc's flag for line numbers of instructions; it changes no code."""
FURTHER_S: Final = 900.0
"""Seconds that the session may take besides the programs. It makes inputs, and imports the solution. The import may
compile code."""
WORK: Final = "{work}"
"""In an argument, this stands for the folder that programs write to and read from."""
USUAL_FOLDERS: Final = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/bin")
"""Folders of the tools, searched after $PATH and the CUDA toolkit."""
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class ToolStep:
    """One program to run in the sandbox."""

    name: str
    argv: list[str]
    """Its command. If `calls` is true, the command that calls the solution is appended."""
    calls: bool
    """Whether it calls the solution."""
    limit_s: float
    warm_up_calls: int = 0
    """Calls before the inspected call. A negative number means that the solution is only imported."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables, in addition to those of a worker."""


@dataclass(frozen=True)
class StepDone:
    """The outcome of one program."""

    name: str
    text: str
    """Its output, of both streams."""
    ended: str = ""
    """How it ended, in words; empty if it exited with 0."""
    error: str = ""
    """The solution's exception; empty if no exception is known."""


@dataclass(frozen=True)
class Inspected:
    """The outputs of the programs on one call."""

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
    progress: Callable[[str], object] = lambda _line: None,
) -> Inspected:
    """Run the programs of a tool on one call of a solution.

    Args:
        trace_set: holds the definition, and the named solution and workload.
        solution: a solution, a name, or a JSON file.
        workload: a workload, a uuid or its unique beginning, or a JSON file.
        steps: the programs of a tool, in order. If a program fails, the later programs run only if the failed program
            calls the solution.
        device: the GPU.
        definition: name of the definition; None for the solution's definition.
        sandbox: the level of the sandbox.
        seed: the seed of the inputs; None for the seed 0.
        cache: the folder of builds; None for the user's cache.
        temporary: the folder of temporary files; None for the system's.
        progress: receives each line of progress.

    Raises:
        ConfigError: a name is unknown, or the requested sandbox is not available.
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
        clock="cuda_events",  # the tool must be the only profiler
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
                progress(event.message)
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
    """Return a CUDA solution that is built with line numbers; return any other solution unchanged."""
    if not solution.spec.language.record.requires_cuda:
        return solution
    options = solution.spec.compile_options or CompileOptions()
    flags = [*(flag for flag in options.cuda_cflags if flag != LINE_INFO), LINE_INFO]
    spec = solution.spec.model_copy(update={"compile_options": options.model_copy(update={"cuda_cflags": flags})})
    return solution.model_copy(update={"spec": spec})


def find_tool(name: str, given: str | None = None) -> Path:
    """Return the program of a tool.

    Args:
        name: "ncu" or "compute-sanitizer".
        given: the user's name or path of the program.

    Raises:
        UsageError: the program was not found.
    """
    homes = (f"{os.environ[home]}/bin" for home in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(home))
    folders = [os.environ.get("PATH", os.defpath), *homes, *USUAL_FOLDERS]
    found = shutil.which(given or name, path=os.pathsep.join(folders))
    if found is None:
        product = "Nsight Compute" if name == "ncu" else name
        raise UsageError(
            f"{given or name} is not here: inspect {name.removeprefix('compute-')} needs {product}, which comes with "
            "the CUDA toolkit; install it, or put its folder on PATH"
        )
    return Path(found).absolute()


def find_gpu(name: str | None) -> Device:
    """Return the GPU of that name, or the first GPU.

    Raises:
        ConfigError: no GPU has that name.
        UsageError: the machine has no usable GPU.
    """
    device = discover_devices(None if name is None else [name])[0]
    if device.kind == "cpu":
        raise UsageError("inspect needs an NVIDIA GPU, and this machine has none that the installed torch can use")
    return device


def make_document(tool: str, done: Inspected, **found: Any) -> dict[str, Any]:
    """Return a tool's results as JSON-able values, with the names of the inspected call."""
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
    """Return the title of a document and the lines below it, without control characters."""
    names = f"{document['solution']} on {document['definition']}, workload {document['workload']}"
    notes = [f"note: {note}" for note in document["notes"]]
    return plain("\n".join([f"{document['tool']}: {names}, {document['device']}", *lines, *notes, ""]))


def plain(text: str) -> str:
    """Return a text without control characters, because a solution can print them."""
    return CONTROL.sub("?", text)


def indent(text: str) -> str:
    """Return a program's output, indented for a message."""
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
