"""Builds the solution, locks the GPU, and has the inspector run the programs of a plan on one call.

host → inspector   InspectOrder        inspector → host   Inspected        JSON, by `base/isolated.py`
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.held_folders import sweep_folders
from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.bench.runner.orders import describe_solution
from flashinfer_bench.bench.runner.protocol import BlockSolution, Frame, Hello, LimitS
from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.bench.runner.workers.sandbox_policy import is_too_wide
from flashinfer_bench.bench.scheduler import Rules
from flashinfer_bench.compile import BuildFarm, BuildTarget
from flashinfer_bench.data import CompileOptions, Solution
from flashinfer_bench.data.digest import digest_of, seed_of
from flashinfer_bench.errors import DeviceFault, FlashInferBenchError
from flashinfer_bench.examine.inspect.target import InspectTarget

MODULE: Final = "flashinfer_bench.examine.inspect.inspector"
LINE_INFO: Final = "-lineinfo"
"""nvcc's flag for lines beside instructions; it changes no code."""
LOAD_LIMIT_S: Final = 300.0
"""Seconds in which the solution has to be imported: it may compile then."""
FURTHER_S: Final = 600.0
"""Seconds that the inspector may take besides the programs."""
WORK: Final = "{work}"
"""In an argument: the folder that programs write to and read from."""
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ToolStep(Frame):
    """One program to run in the sandbox."""

    name: str
    argv: list[str]
    """Its command; if it is to call the solution, the command that does so follows."""
    calls: bool
    warm_up_calls: int = 0
    """Calls before the one that is inspected."""
    limit_s: LimitS
    environment: dict[str, str]
    """Variables besides those of a worker."""


@dataclass(frozen=True)
class ToolPlan:
    """The programs of a tool, run in order until one that does not call the solution fails."""

    program: Path
    steps: Sequence[ToolStep]


class InspectOrder(Frame):
    """The work of the inspector."""

    hello: Hello
    definition: dict[str, Any]
    solution: BlockSolution
    workload: dict[str, Any]
    blob_root: str
    seed: int
    readable: list[str]
    """The folders of the tool."""
    steps: tuple[ToolStep, ...]


class StepDone(Frame):
    """The outcome of one program."""

    name: str
    text: str
    """Its output, of both streams."""
    code: int | None
    """Its exit code; None if a signal ended it."""
    ended: str
    """How it ended, in words; empty if it ended by itself with 0."""
    error: str = ""
    """The solution's exception; empty if there was none, or none is known."""


class Inspected(Frame):
    """The outcome of an order."""

    problem: str = ""
    """Why there are no steps."""
    steps: tuple[StepDone, ...] = ()
    notes: tuple[str, ...] = ()
    """Parts of the sandbox that are missing."""


def look(
    target: InspectTarget,
    plan: ToolPlan,
    device: Device,
    *,
    sandbox: Level = "auto",
    seed: int | None = None,
    cache: Path | None = None,
    temporary: Path | None = None,
    tell: Callable[[str], object] = lambda _line: None,
) -> Inspected:
    """Run the programs of a tool on one call of the solution.

    Args:
        target: what is inspected.
        plan: the programs.
        device: the GPU.
        sandbox: how far the solution is confined.
        seed: of the inputs; None for one that follows from definition and workload.
        cache: the folder of what is built; None for the user's.
        temporary: the folder of temporary files; None for the system's.
        tell: gets lines for people meanwhile.

    Raises:
        ConfigError: the sandbox that is asked for cannot be had.
        FlashInferBenchError: the solution cannot be built or loaded, or its inputs cannot be made.
        DeviceFault: the inspector failed.
    """
    named = "cpu" if device.kind == "cpu" else device.uuid
    config = BenchmarkConfig.default(devices=[named], sandbox=sandbox, profile_baseline=False)
    context = HarnessContext(target.trace_set, config, cache)
    is_triton = target.solution.spec.language.value == "triton"
    real = Path(os.path.realpath(plan.program)).parent
    folders = {str(folder) for folder in (plan.program.parent, real)}
    with ExitStack() as stack:
        stack.callback(sweep_folders)  # a killed process leaves its own
        for line in lock_device(device, stack):
            tell(line)
        built = _build(target.solution, context, stack)
        # What it compiles while it runs has other flags than in runs, and is kept apart.
        own = built.model_copy(update={"digest": digest_of({"inspect": built.digest})})
        order = InspectOrder(
            hello=context.greet(device, Rules(), needs_triton=is_triton),
            definition=target.definition.to_dict(),
            solution=own,
            workload=target.workload.to_dict(),
            blob_root=str(target.blob_root.absolute()),
            seed=seed_of(f"{target.definition.digest()}|{target.workload.digest()}|inspect") if seed is None else seed,
            readable=sorted(folder for folder in folders if not is_too_wide(folder)),
            steps=tuple(plan.steps),
        )
        done = _ask_inspector(order, device, temporary)
    if done.problem:
        raise FlashInferBenchError(f"{target.solution.name}: {done.problem}")
    missing = tuple(f"{part}: {why}" for part, why in context.sandbox.missing.items())
    return done.model_copy(update={"notes": missing})


def with_line_info(solution: Solution) -> Solution:
    """Return a CUDA solution whose kernels know their lines; any other as it is."""
    if solution.spec.language.value != "cuda":
        return solution
    options = solution.spec.compile_options or CompileOptions()
    flags = [*(flag for flag in options.cuda_cflags if flag != LINE_INFO), LINE_INFO]
    spec = solution.spec.model_copy(update={"compile_options": options.model_copy(update={"cuda_cflags": flags})})
    return solution.model_copy(update={"spec": spec})


def _build(solution: Solution, context: HarnessContext, stack: ExitStack) -> BlockSolution:
    """Build the solution; the artifact is kept until the stack is closed."""
    reason = context.machine.why_not_buildable(solution)
    if reason is not None:
        raise FlashInferBenchError(f"{solution.name} cannot be built here: {reason}")
    farm = stack.enter_context(BuildFarm(context.cache, target=BuildTarget.of(context.machine.capabilities)))
    built = next(iter(farm.build_all([with_line_info(solution)])))
    if built.error is not None:
        raise FlashInferBenchError(f"{solution.name} cannot be built: {built.error}")
    return describe_solution(built)


def _ask_inspector(order: InspectOrder, device: Device, temporary: Path | None) -> Inspected:
    environment = session_environment(os.environ, device, interpret_triton=device.kind == "cpu")
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    # What a solution compiles while it runs gets its lines from here.
    environment["NVCC_APPEND_FLAGS"] = f"{environment.get('NVCC_APPEND_FLAGS', '')} {LINE_INFO}".strip()
    limit_s = sum(step.limit_s for step in order.steps) + LOAD_LIMIT_S + FURTHER_S
    try:
        done = run_isolated(MODULE, order.model_dump(mode="json"), limit_s=limit_s, environment=environment)
    except IsolatedFailure as failure:
        ended = f"failed (exit code {failure.code})" if failure.code is not None else f"took more than {limit_s:g} s"
        said = failure.log.replace("\n", "\n  ")
        raise DeviceFault(f"the inspector {ended}:\n  {said}") from None
    return Inspected.model_validate(done)


def make_document(tool: str, target: InspectTarget, device: Device, done: Inspected, **found: Any) -> dict[str, Any]:
    """Return what a tool found as JSON-able values, with what was inspected."""
    return {
        "tool": tool,
        "definition": target.definition.name,
        "solution": target.solution.name,
        "workload": target.workload.uuid,
        "device": device.name,
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
