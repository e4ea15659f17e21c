"""The host's side: builds the solution, starts the inspector for it, and takes its answer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.bench.context import list_hidden_folders
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.bench.runner.orders import describe_solution
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.sandbox import Level, find_sandbox
from flashinfer_bench.compile import BuildFarm, BuildTarget, Built, find_toolchain, why_not_buildable
from flashinfer_bench.data import CompileOptions, Definition, Solution, TraceSet, Workload
from flashinfer_bench.data.digest import seed_of
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import DeviceFault, FlashInferBenchError
from flashinfer_bench.examine.inspect.order import Inspected, InspectOrder
from flashinfer_bench.examine.inspect.tools import ToolPlan

MODULE: Final = "flashinfer_bench.examine.inspect.inspector"
LINE_INFO: Final = "-lineinfo"
"""nvcc's flag for lines beside instructions; it changes no code."""
LOAD_LIMIT_S: Final = 300.0
"""Seconds in which the solution has to be imported: it may compile then."""
FURTHER_S: Final = 600.0
"""Seconds that the inspector may take beside the steps."""


@dataclass(frozen=True)
class InspectSubject:
    """What is looked at."""

    definition: Definition
    solution: Solution
    workload: Workload
    blob_root: Path
    """What the paths of the workload's blobs are relative to."""
    trace_set: TraceSet
    """Where it is from: no worker reads its folders."""


@dataclass(frozen=True)
class InspectSite:
    """Where and how it is looked at."""

    device: Device
    sandbox: Level = "auto"
    cache: Path | None = None
    """The folder of what is built; None for the user's."""
    seed: int | None = None
    """Of the inputs; None for one that follows from definition and workload."""
    temporary: Path | None = None
    """A folder for the files of the moment; None for the system's."""


def look(
    subject: InspectSubject, plan: ToolPlan, site: InspectSite, tell: Callable[[str], object] = lambda _: None
) -> Inspected:
    """Run the steps of a tool on one call of the solution.

    Args:
        subject: what is looked at.
        plan: the steps.
        site: where.
        tell: gets lines for people while this waits.

    Raises:
        ConfigError: the sandbox that is asked for cannot be had.
        FlashInferBenchError: the solution cannot be built or loaded, or its inputs cannot be made.
        DeviceFault: the inspector failed.
    """
    cache = (site.cache or cache_root(os.environ)).resolve()
    sandbox = find_sandbox(site.sandbox, cache)
    hello = Hello(
        device=site.device.kind,
        hardware=site.device.name,
        isolated=True,
        timeout_seconds=LOAD_LIMIT_S,
        profile_baseline=False,
        time_budget_s=0,
        baseline_budget_s=0,
        worker_memory_bytes=None,
        needs_triton=subject.solution.spec.language.value == "triton",
        cache_root=str(cache),
        has_walls=sandbox.has_walls,
        sandbox_user=sandbox.user,
        hidden=list_hidden_folders(subject.trace_set, cache),
    )
    with ExitStack() as stack:
        for line in lock_device(site.device, stack):
            tell(line)
        with BuildFarm(cache, target=_target(site.device)) as farm:  # it keeps the artifact
            built = describe_solution(_build(subject.solution, farm, site.device))
            # What it compiles while it runs is kept apart from that of runs: it has other flags.
            own = hashlib.sha256(f"inspect {built.digest}".encode()).hexdigest()
            order = InspectOrder(
                hello=hello,
                definition=subject.definition.to_dict(),
                solution=built.model_copy(update={"digest": own}),
                workload=subject.workload.to_dict(),
                blob_root=str(subject.blob_root.absolute()),
                seed=_seed(subject) if site.seed is None else site.seed,
                readable=tuple(plan.readable),
                steps=tuple(plan.steps),
            )
            done = _ask_inspector(order, site)
    if done.problem:
        raise FlashInferBenchError(f"{subject.solution.name}: {done.problem}")
    missing = tuple(f"{part}: {why}" for part, why in sandbox.missing.items())
    return done.model_copy(update={"notes": (*missing, *done.notes)})


def with_line_info(solution: Solution) -> Solution:
    """Return a CUDA solution whose kernels know their lines; any other as it is."""
    if solution.spec.language.value != "cuda":
        return solution
    options = solution.spec.compile_options or CompileOptions()
    flags = [*options.cuda_cflags, *([] if LINE_INFO in options.cuda_cflags else [LINE_INFO])]
    spec = solution.spec.model_copy(update={"compile_options": options.model_copy(update={"cuda_cflags": flags})})
    return solution.model_copy(update={"spec": spec})


def _target(device: Device) -> BuildTarget:
    return BuildTarget.of([device.capability] if device.capability is not None else [])


def _build(solution: Solution, farm: BuildFarm, device: Device) -> Built:
    capabilities = [device.capability] if device.capability is not None else []
    reason = why_not_buildable(solution, find_toolchain(), capabilities)
    if reason is not None:
        raise FlashInferBenchError(f"{solution.name} cannot be built here: {reason}")
    built = next(iter(farm.build_all([with_line_info(solution)])))
    if built.error is not None:
        raise FlashInferBenchError(f"{solution.name} cannot be built: {built.error}")
    return built


def _seed(subject: InspectSubject) -> int:
    return seed_of(f"{subject.definition.digest()}|{subject.workload.digest()}|inspect")


def _ask_inspector(order: InspectOrder, site: InspectSite) -> Inspected:
    environment = session_environment(os.environ, site.device, interpret_triton=site.device.kind == "cpu")
    if site.temporary is not None:
        environment["TMPDIR"] = str(site.temporary)
    limit_s = sum(step.limit_s for step in order.steps) + order.hello.timeout_seconds + FURTHER_S
    # What a solution compiles while it runs gets its lines from here.
    environment["NVCC_APPEND_FLAGS"] = " ".join(filter(None, [environment.get("NVCC_APPEND_FLAGS"), LINE_INFO]))
    try:
        done = run_isolated(MODULE, order.model_dump(mode="json"), limit_s=limit_s, environment=environment)
    except IsolatedFailure as failure:
        if failure.code is None:
            raise DeviceFault(f"the inspector did not end within {limit_s:g} s") from None
        said = failure.log.replace("\n", "\n  ")
        raise DeviceFault(f"the inspector failed (exit code {failure.code}):\n  {said}") from None
    return Inspected.model_validate(done)
