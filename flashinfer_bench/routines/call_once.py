"""Calls a solution once, in a separate process, so that the library compiles the kernel before timing.

FlashInfer builds and caches a kernel at the kernel's first call. The call is not judged. This package has generated the
case and the solution. Solutions of a trace set run only in workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.inputs.generate import InputMaker
from flashinfer_bench.bench.evaluators.utils import allocate_outputs
from flashinfer_bench.data import Definition, Solution, Workload


def answer(request: dict[str, Any]) -> None:
    """Make inputs and outputs, execute the source, and call the entry function.

    Args:
        request: a definition, a solution and a workload; "root" is the folder of the blobs.
    """
    definition = Definition.model_validate(request["definition"])
    solution = Solution.model_validate(request["solution"])
    workload = Workload.model_validate(request["workload"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    arguments = list(InputMaker(definition, workload, device, Path(request["root"])).make(seed=1))
    module: dict[str, Any] = {"__name__": "warmed"}
    exec(compile(solution.sources[0].content, f"{solution.name}.py", "exec", dont_inherit=True), module)
    if solution.spec.destination_passing_style:
        arguments += allocate_outputs(definition, workload.axes, device)
    prepared = module["setup"](*arguments) if "setup" in module else {}
    module["run"](*arguments, **prepared)
    if device.type == "cuda":
        torch.cuda.synchronize()
