"""Calls a solution once, in a process of its own, so that the library compiles its kernel before it is timed.

FlashInfer builds a kernel at its first call and keeps it. Nothing is judged here. The case comes from the command that
made it, with a solution of this package's own; only workers execute solutions of a trace set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.evaluators.utils import allocate_outputs
from flashinfer_bench.data import Definition, Solution, Workload


def answer(request: dict[str, Any]) -> None:
    """Make inputs and outputs, execute the source, and call its entry function.

    Args:
        request: a definition, a solution and a workload, and the folder of the blobs as the root.
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
