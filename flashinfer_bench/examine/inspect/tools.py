"""The vendor's tools on this machine: where they are, and what each of them is to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.runner.workers.sandbox_policy import is_too_wide
from flashinfer_bench.errors import ConfigError, Misuse
from flashinfer_bench.examine.inspect.order import ToolStep

NCU, SANITIZER = "ncu", "compute-sanitizer"
PRODUCTS: Final = {NCU: "Nsight Compute", SANITIZER: "compute-sanitizer"}
USUAL_FOLDERS: Final = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/bin")
"""Where a tool is looked for that is not on $PATH."""


@dataclass(frozen=True)
class ToolPlan:
    """The steps of a tool, and what it needs."""

    program: Path
    steps: Sequence[ToolStep]

    @property
    def readable(self) -> list[str]:
        """The folders of the tool, which a worker may not read otherwise."""
        real = Path(os.path.realpath(self.program)).parent
        folders = {str(self.program.parent), str(real)}
        return sorted(folder for folder in folders if not is_too_wide(folder))


def find_tool(name: str, given: str | None = None, *, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the program of a tool.

    Args:
        name: NCU or SANITIZER.
        given: the name or path that the user gave.
        environment: where $PATH and $CUDA_HOME are looked up.

    Raises:
        Misuse: it is not here.
    """
    folders = [environment.get("PATH", os.defpath)]
    if given is None or given == name:
        homes = [environment[variable] for variable in ("CUDA_HOME", "CUDA_PATH") if environment.get(variable)]
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
