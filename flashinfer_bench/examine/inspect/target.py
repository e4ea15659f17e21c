"""What is inspected: objects, names in a trace set, or JSON files; which GPU, and where the tool is."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.data import Definition, Solution, TraceSet, Workload, load_json_file
from flashinfer_bench.errors import ConfigError, DataSetError, Misuse

PRODUCTS: Final = {"ncu": "Nsight Compute", "compute-sanitizer": "compute-sanitizer"}
USUAL_FOLDERS: Final = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/bin")
"""Folders of the tools, searched after $PATH and the CUDA toolkit."""


@dataclass(frozen=True)
class InspectTarget:
    """One solution on one workload."""

    definition: Definition
    solution: Solution
    workload: Workload
    trace_set: TraceSet
    """The set that they are from. No worker reads its folders."""

    @property
    def blob_root(self) -> Path:
        """The folder that paths of blobs are relative to."""
        found = self.trace_set.blob_root(self.definition.name, self.workload.uuid)
        return found or self.trace_set.root or Path.cwd()


def resolve_target(
    trace_set: TraceSet, solution: Solution | Path | str, workload: Workload | Path | str, definition: str | None = None
) -> InspectTarget:
    """Return the target.

    Args:
        trace_set: holds the definition, and what is named.
        solution: a solution, a name, or a JSON file.
        workload: a workload, a uuid or the unique start of one, or a JSON file.
        definition: its name; None for the solution's.

    Raises:
        DataSetError: a file cannot be used, or inputs would be made by code of another set than the first.
        ConfigError: the set has no such solution, workload or definition.
    """
    found = solution if isinstance(solution, Solution) or not _is_file(solution) else load_json_file(Solution, solution)
    if isinstance(found, Solution):
        if definition not in (None, found.definition):
            raise DataSetError(f"{found.name} is a solution of {found.definition}, not of {definition}")
        filters = {"definitions": [found.definition]}
    else:
        owners = [name for name, listed in trace_set.solutions.items() if any(one.name == found for one in listed)]
        if definition is None and len(owners) > 1:
            raise DataSetError(f"several definitions have a solution {found!r}; name one of them")
        name = definition or next(iter(owners), None)
        filters = {"solutions": [str(found)], **({"definitions": [name]} if name is not None else {})}
    if not isinstance(workload, Workload) and not _is_file(workload):
        filters["workloads"] = [str(workload)]
    chosen = select(trace_set, BenchmarkConfig.default(**filters))[0]
    name = chosen.definition.name
    if isinstance(workload, Workload):
        on = workload
    else:
        on = load_json_file(Workload, workload) if _is_file(workload) else chosen.workloads[0]
    if on.has_custom_inputs and not trace_set.is_of_first_root(name, on.uuid):
        raise DataSetError(
            f"the code that makes inputs of {name} is not the first set's own; name the set that has it first"
        )
    return InspectTarget(
        chosen.definition, found if isinstance(found, Solution) else chosen.solutions[0], on, trace_set
    )


def _is_file(named: Path | str) -> bool:
    return isinstance(named, Path) or named.endswith((".json", ".jsonl"))


def find_tool(name: str, given: str | None = None) -> Path:
    """Return the program of a tool.

    Args:
        name: "ncu" or "compute-sanitizer".
        given: the name or path that the user gave.

    Raises:
        Misuse: it is not here.
    """
    folders = [os.environ.get("PATH", os.defpath)]
    if given in (None, name):
        homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")))
        folders += [*(f"{home}/bin" for home in homes), *USUAL_FOLDERS]
    found = shutil.which(given or name, path=os.pathsep.join(folders))
    if found is None:
        raise Misuse(
            f"{given or name} is not here: inspect {name.removeprefix('compute-')} needs {PRODUCTS[name]}, which comes "
            "with the CUDA toolkit; install it, or put its folder on PATH"
        )
    return Path(found).absolute()


def find_gpu(name: str | None) -> Device:
    """Return the GPU of that name, or the first one.

    Raises:
        Misuse: there is none.
    """
    try:
        device = discover_devices(None if name is None else [name])[0]
    except ConfigError as error:
        raise Misuse(str(error)) from None
    if device.kind == "cpu":
        raise Misuse("inspect needs an NVIDIA GPU, and this machine has none that the installed torch can use")
    return device
