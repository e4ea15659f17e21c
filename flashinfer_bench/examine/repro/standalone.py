"""Reproduces a failure that `flashinfer-bench repro` wrote. It needs only torch.

    python repro.py             calls the solution in this process, on the inputs beside this file, and compares
    python repro.py --recorded  compares the outputs of the judged call

The solution's code runs here without a sandbox, with all of your rights: read it first.
If you change a file below `solution/`, the recorded outputs no longer count.
Repair the solution until this script exits with 0.
Some failures are judged by a run in the sandbox: of changed C++ and CUDA, and failures that no recorded output shows.
Outputs of samplers and indexers cannot be compared element by element, so a run judges these solutions, too.
The run needs flashinfer-bench, and the trace set at its old path.
Exit code: 1 the failure shows, 0 it does not, 2 it could not be checked.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import inspect
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.pattern import describe_problem
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance
from flashinfer_bench.bench.evaluators.integrity.norms import measure_norms

HERE = Path(__file__).resolve().parent


def load(name: str, call: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file by name, with their original dtypes."""
    found = {}
    data = bytearray((HERE / f"{name}.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for key, dtype in call["dtypes"][name].items():
        entry = json.loads(data[8:start])[key]
        first, last = entry["data_offsets"]
        piece = data[start + first : start + last]
        flat = torch.frombuffer(piece, dtype=torch.uint8) if piece else torch.empty(0, dtype=torch.uint8)
        flat = flat.view(getattr(torch, dtype))
        shape = entry["shape"]
        found[key] = flat.reshape(shape if flat.numel() == math.prod(shape) else [*shape[:-1], -1]).to(call["device"])
    return found


def call_solution(call: Any, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Call the solution once; return its outputs by name."""
    given = {**load("inputs", call), **call["scalars"]}
    inputs = [given[name] for name in call["inputs"]]
    file, _, symbol = call["entry"].partition("::")
    sys.path[:0] = [str((HERE / "solution" / file).parent), str(HERE / "solution")]
    module = importlib.import_module(Path(file).stem)
    setup = getattr(module, "setup", None)
    entry = getattr(module, symbol)
    known = setup(*inputs[: len(inspect.signature(setup).parameters)]) if callable(setup) else {}
    if call["style"] == "dps":
        outputs = [torch.zeros_like(one) for one in expected.values()]
        entry(*inputs, *outputs, **known)
        return dict(zip(expected, outputs, strict=True))
    returned = entry(*inputs, **known)
    if isinstance(returned, dict):
        returned = [returned[name] for name in expected]
    values = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    return {
        name: value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=one.dtype, device=one.device)
        for (name, one), value in zip(expected.items(), values, strict=True)
    }


def find_reasons(name: str, expected: torch.Tensor, got: torch.Tensor, call: Any) -> list[str]:
    """Return why an output is wrong: its shape or dtype, the tolerance, or the norm that decided."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return [f"{list(got.shape)} {got.dtype}, expected {list(expected.shape)} {expected.dtype}"]
    reasons = []
    norms = measure_norms(expected, got)
    evidence = call["evidence"]
    if "limit" not in evidence or "regime" not in evidence:  # the tolerance does not apply to stress cases
        found = compare(expected, got, Tolerance(**call["tolerance"]), output=name)
        reasons.append(describe_problem(found, expected, got))
    if norms is not None and evidence.get("output") == name and "limit" in evidence:
        row = evidence.get("row")
        share = norms.share() if row is None else float(norms.shares()[row])
        if share > evidence["limit"]:
            where = "the whole output" if row is None else f"row {row}"
            reason = f"{name}: the error of {where} has {share:.3g} times the norm of what was expected"
            reasons.append(f"{reason}, {evidence['limit']:g} is allowed")
    return [reason for reason in reasons if reason]


def show(title: str, expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor], call: Any) -> bool:
    """Print how each output differs; return whether the failure shows."""
    print(title)
    found = {name: find_reasons(name, one, got[name], call) for name, one in expected.items() if name in got}
    for name, reasons in found.items():
        print("\n".join(reasons) or f"{name}: right")
    return any(found.values())


def is_changed(sources: dict[str, str]) -> bool:
    """Return whether a source of the solution differs from the judged source."""
    files = [(HERE / "solution" / path, text.encode("utf-8")) for path, text in sources.items()]
    return any(not file.is_file() or file.read_bytes() != text for file, text in files)


def ask_judge(command: list[str]) -> int:
    """Have the package judge the solution again on the same inputs; return the exit code."""
    if importlib.util.find_spec("flashinfer_bench") is None:
        print("only a run can judge this: install flashinfer-bench here, too")
        return 2
    # The program starts in HERE, where relative paths would differ.
    paths = map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-m", "flashinfer_bench", *command]
    code = subprocess.run(words, cwd=HERE, env=environment, check=False).returncode
    print({0: "no failure shows", 1: "the failure shows"}.get(code, "it could not be judged"))
    return code


def main() -> int:
    """Call the solution, compare, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", action="store_true", help="compare the outputs of the judged call")
    is_recorded = parser.parse_args().recorded
    call = json.loads((HERE / "call.json").read_text(encoding="utf-8"))
    print(f"{call['title']}: {call['status']}\n{call['message']}\n", flush=True)
    if not call["compares"]:
        return ask_judge(call["command"])
    expected = load("expected", call)
    got = load("got", call)
    is_called, is_new = call["is_python"] and not is_recorded, not is_recorded and is_changed(call["sources"])
    shows = False
    if is_called:
        faulthandler.dump_traceback_later(call["limit_s"], exit=True, file=2)  # prints the stack, and ends with 1
        try:
            shows = show("what it returns now:", expected, call_solution(call, expected), call)
        except Exception as error:
            print(f"the solution failed: {type(error).__name__}: {error}")
            shows = True
        faulthandler.cancel_dump_traceback_later()
    if not shows and not (is_called and is_new):
        if is_new or not got:
            return ask_judge(call["command"])
        shows = show("what it returned when it was judged:", expected, got, call)
    print("the failure shows" if shows else "no failure shows")
    return 1 if shows else 0


if __name__ == "__main__":
    sys.exit(main())
