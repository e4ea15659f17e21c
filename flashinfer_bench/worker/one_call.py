"""Calls a solution as a program of its own, for a tool: python -m flashinfer_bench.worker.one_call ORDER

The tool starts it, inside the walls that `inspect` has raised for both. ORDER is a JSON file: how the artifact is
loaded, the inputs as files of raw bytes, the outputs' shapes, how many calls go before the one that is looked at. What
became of it is written to the file that the order names as `outcome`: {"called": true}, or {"error": text}. Nothing
is judged here, and a solution can forge all of it: what a tool finds is a lead, never a verdict.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.worker.calls import CallLaunch, LaidCall, Shelf
from flashinfer_bench.worker.errors import describe_error
from flashinfer_bench.worker.load import load_entry


def call_solution(order: Mapping[str, Any]) -> None:
    """Load the solution, and call it as often as the order says; the last call is in the profiler's range."""
    device = torch.device(order["device"])
    arguments = {name: read_argument(one, device) for name, one in order["arguments"].items()}
    outputs = {str(at): make_tensor(one, device) for at, one in enumerate(order["outputs"])}
    loaded = load_entry(Path(order["directory"]), order["entry"], order["symbol"], kind=order["kind"])

    def lay_out(style: str) -> CallLaunch:
        return CallLaunch(LaidCall(loaded, arguments, outputs, style), Shelf(0), "both")

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    launch = lay_out(order["style"])
    if not order["style_is_settled"]:
        with suppress(Exception):
            launch()
            synchronize()
        if launch.call.result is None:
            launch = lay_out("dps")
    for _ in range(order["warm_up_calls"]):
        launch()
        synchronize()
    runtime: Any = torch.cuda.cudart() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    if runtime is not None:
        runtime.cudaProfilerStart()
    try:
        launch()
        synchronize()
    finally:
        if runtime is not None:
            runtime.cudaProfilerStop()


def make_tensor(described: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """Return a new tensor of a shape and type."""
    return torch.empty(described["shape"], dtype=getattr(torch, described["dtype"]), device=device)


def read_argument(described: Mapping[str, Any], device: torch.device) -> Any:
    """Return a number, or a tensor whose bytes lie in a file; each tensor gets an allocation of its own."""
    if "scalar" in described:
        return described["scalar"]
    tensor, size = make_tensor(described, device), Path(described["file"]).stat().st_size
    if size:
        raw = torch.from_file(described["file"], shared=False, size=size, dtype=torch.uint8)
        tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))
    return tensor


def main(argv: list[str]) -> int:
    """Call the solution, write the outcome, and return the exit code."""
    order = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    outcome: dict[str, Any] = {"called": True}
    try:
        call_solution(order)
    except BaseException as error:
        described = describe_error(error)
        outcome = {"error": described["traceback"] or described["message"]}
        print(outcome["error"], file=sys.stderr)  # noqa: T201 - it stands in the tool's output too
    with suppress(OSError):  # the walls may have been closed to it; then the tool's words have to do
        Path(order["outcome"]).write_text(json.dumps(outcome), encoding="utf-8")
    return 0 if "called" in outcome else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
