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

from flashinfer_bench.worker.calls import LaidCall, SolutionFunctions
from flashinfer_bench.worker.load import load_entry
from flashinfer_bench.worker.main import describe_error


def call_solution(order: Mapping[str, Any]) -> None:
    """Load the solution, and call it as often as the order says; the last call is in the profiler's range."""
    device = torch.device(order["device"])
    arguments = {name: read_argument(one, device) for name, one in order["arguments"].items()}
    outputs = {
        str(number): torch.empty(one["shape"], dtype=getattr(torch, one["dtype"]), device=device)
        for number, one in enumerate(order["outputs"])
    }
    loaded = load_entry(Path(order["directory"]), order["entry"], order["symbol"], kind=order["kind"])
    takes = loaded.setup_signature
    functions = SolutionFunctions(loaded.function, loaded.setup, None if takes is None else takes.maximum)
    call = LaidCall(functions, arguments, outputs, order["style"])
    if not order["style_is_settled"] and not returns_value(call, device, has_setup=loaded.setup is not None):
        call = LaidCall(functions, arguments, outputs, "dps")
    for _ in range(order["warm_up_calls"]):
        call_once(call, device, has_setup=loaded.setup is not None)
    if device.type != "cuda":
        call_once(call, device, has_setup=loaded.setup is not None)
        return
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaProfilerStart()
    try:
        call_once(call, device, has_setup=loaded.setup is not None)
    finally:
        runtime.cudaProfilerStop()


def returns_value(call: LaidCall, device: torch.device, *, has_setup: bool) -> bool:
    """Tell whether a call with the inputs alone gives something."""
    with suppress(Exception):
        call_once(call, device, has_setup=has_setup)
    return call.result is not None


def call_once(call: LaidCall, device: torch.device, *, has_setup: bool) -> None:
    """Make one call, and wait until the device has done it."""
    if has_setup:
        call.prepare()
    call.result = call.run()
    if device.type == "cuda":
        torch.cuda.synchronize()


def read_argument(described: Mapping[str, Any], device: torch.device) -> Any:
    """Return a number, or a tensor whose bytes lie in a file; each tensor gets an allocation of its own."""
    if "scalar" in described:
        return described["scalar"]
    dtype, shape = getattr(torch, described["dtype"]), described["shape"]
    size = Path(described["file"]).stat().st_size
    if size == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    raw = torch.from_file(described["file"], shared=False, size=size, dtype=torch.uint8)
    return raw.view(dtype).view(shape).to(device, copy=True)


def main(argv: list[str]) -> int:
    """Call the solution, write what became of it, and return the exit code."""
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
