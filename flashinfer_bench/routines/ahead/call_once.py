"""Calls a solution once, in a process of its own, so that the library compiles its kernel before it is timed:
python -m flashinfer_bench.routines.ahead.call_once ROOT < CASE

FlashInfer builds a kernel at its first call and keeps it. Several such processes build several kernels at once. Nothing
is judged here, and a failure is ignored: the engine will find it. The case comes from the command that made it, with a
solution of this package's own; only workers execute solutions of a trace set. ROOT is the folder of the blobs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.data import Definition, Solution, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.sandbox.process_tree import die_with_parent, kill_session


def call_once(root: Path, definition: Definition, solution: Solution, workload: Workload) -> None:
    """Make inputs and outputs, execute the source, and call its entry function."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = InputMaker(definition, workload, device, root).make(seed=1)
    module: dict[str, Any] = {"__name__": "warmed"}
    exec(compile(solution.sources[0].content, f"{solution.name}.py", "exec", dont_inherit=True), module)
    arguments = list(inputs)
    if solution.spec.destination_passing_style:
        shapes = definition.get_output_shapes(workload.axes)
        for spec, shape in zip(definition.outputs.values(), shapes, strict=True):
            stored = storage_shape(tuple(shape or ()), spec.dtype)
            arguments.append(torch.empty(stored, dtype=torch_dtype(spec.dtype), device=device))
    prepared = module["setup"](*arguments) if "setup" in module else {}
    module["run"](*arguments, **prepared)
    if device.type == "cuda":
        torch.cuda.synchronize()


def end_with_parent() -> None:
    """End this process's session, with the library's compilers, when the parent is killed."""
    own = os.getpid()
    if os.getsid(0) != own:  # another process leads this session, so it must not be ended here
        return

    def end(*_: object) -> None:
        kill_session(own, spare=own)
        os.kill(own, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    die_with_parent(signal.SIGTERM)


def main(argv: list[str]) -> None:
    """Read a definition, a solution and a workload, in one JSON object, and call the solution."""
    end_with_parent()
    case = json.load(sys.stdin)
    definition = Definition.model_validate(case["definition"])
    solution = Solution.model_validate(case["solution"])
    call_once(Path(argv[0]), definition, solution, Workload.model_validate(case["workload"]))


if __name__ == "__main__":
    main(sys.argv[1:])
