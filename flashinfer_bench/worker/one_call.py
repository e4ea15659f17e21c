"""Calls a solution as a separate program, for a tool: python -m flashinfer_bench.worker.one_call ORDER

The tool starts this program, in the sandbox that `inspect` has made for both processes. ORDER is a JSON file: how to
load the artifact, the file of inputs and outputs, and the number of calls before the inspected call. The result is
written to the order's `outcome` file: {"called": true}, or {"error": text}. No result is judged here, and a solution
can forge all of it. A finding of a tool is a hint, never a verdict.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.worker.calls import CallLaunch, LaidCall, OutputCache
from flashinfer_bench.worker.errors import describe_error
from flashinfer_bench.worker.load import load_entry


def call_solution(order: Mapping[str, Any]) -> None:
    """Load the solution, and make the calls of the order. The last call is in the profiler's range.

    If the number of warm-up calls is negative, only load it.
    """
    device = torch.device(order["device"])
    loaded = load_entry(Path(order["directory"]), order["entry"], order["symbol"], kind=order["kind"])
    if order["warm_up_calls"] < 0:
        return
    values = torch.load(order["values"], weights_only=True, mmap=True)
    # Each tensor gets its own allocation.
    arguments = {
        name: one.to(device, copy=True) if isinstance(one, torch.Tensor) else one
        for name, one in values["arguments"].items()
    }
    outputs = {str(at): torch.empty_like(one, device=device) for at, one in enumerate(values["outputs"])}

    def lay_out(style: str) -> CallLaunch:
        return CallLaunch(LaidCall(loaded, arguments, outputs, style), OutputCache(0), "both")

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def write_inputs() -> None:
        """Write the inputs again, since a call may have changed them."""
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                value.copy_(values["arguments"][name])
        synchronize()

    style, takes = order["style"], loaded.signature
    if style is None and takes is not None and takes.maximum is not None:
        style = "value" if takes.minimum <= len(arguments) <= takes.maximum else "dps"
    launch = lay_out(style or "value")
    if style is None:
        with suppress(Exception):
            launch()
            write_inputs()
        if launch.call.result is None:
            launch = lay_out("dps")
    for _ in range(order["warm_up_calls"]):
        launch()
        write_inputs()
    runtime: Any = torch.cuda.cudart() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    if runtime is not None:
        runtime.cudaProfilerStart()
    try:
        launch()
        synchronize()
    finally:
        if runtime is not None:
            runtime.cudaProfilerStop()


def main(argv: list[str]) -> int:
    """Call the solution, write the outcome, and return the exit code."""
    order = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    outcome: dict[str, Any] = {"called": True}
    try:
        call_solution(order)
    except BaseException as error:
        described = describe_error(error)
        outcome = {"error": described["traceback"] or described["message"]}
        print(outcome["error"], file=sys.stderr)  # noqa: T201 - the tool's output shows it, too
    with suppress(OSError):  # the sandbox may have no access to it; then the tool's output must be enough
        Path(order["outcome"]).write_text(json.dumps(outcome), encoding="utf-8")
    return 0 if "called" in outcome else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
