"""Shows a failure that `flashinfer-bench repro` wrote down. It needs torch and safetensors, and nothing else.

    python repro.py             calls the solution in this process, on the inputs beside this file, and compares
    python repro.py --recorded  compares what it returned when it was judged

It runs the solution's code as it stands below `solution/`, with all that you may do: read it first.
Exit code: 1 the failure shows, 0 it does not.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
SHOWN_ROWS = 8
"""So many wrong rows are listed."""


def load(name: str, call: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, with the dtypes that they had."""
    file = HERE / f"{name}.safetensors"
    found = load_file(file, device=call["device"]) if file.exists() else {}
    for key, dtype in call["dtypes"].get(name, {}).items():
        found[key] = found[key].view(getattr(torch, dtype))
    return {key: found[key] for key in (*call["inputs"], *call["outputs"]) if key in found}


def call_solution(call: Any, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Call the solution once; return its outputs by name."""
    tensors, scalars = load("inputs", call), call["scalars"]
    inputs = [scalars[name] if name in scalars else tensors[name] for name in call["inputs"]]
    file, _, symbol = call["entry"].partition("::")
    sys.path.insert(0, str(HERE / "solution"))
    sys.path.insert(0, str((HERE / "solution" / file).parent))
    entry = getattr(importlib.import_module(Path(file).stem), symbol)
    if call["style"] == "dps":
        outputs = [torch.full_like(one, 0) for one in expected.values()]
        entry(*inputs, *outputs)
        return dict(zip(expected, outputs, strict=True))
    returned = entry(*inputs)
    if isinstance(returned, dict):
        return {name: as_tensor(returned[name], one) for name, one in expected.items()}
    values = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    return {name: as_tensor(value, one) for (name, one), value in zip(expected.items(), values, strict=True)}


def as_tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    """Return an output as a tensor; a number is one, too."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=like.dtype, device=like.device)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return values that can be subtracted; of formats that torch cannot compute with, the bytes."""
    try:
        return tensor.double()
    except (RuntimeError, NotImplementedError):
        return tensor.view(torch.uint8).double()


def compare_output(expected: torch.Tensor, got: torch.Tensor, tolerance: Any) -> tuple[torch.Tensor, float]:
    """Return which elements fail, and the norm of the error as a share of the expected norm."""
    left, right = plain(expected), plain(got)
    error = (right - left).abs()
    if not expected.dtype.is_floating_point:
        near = error == 0
    elif tolerance["is_sum"]:
        near = error <= tolerance["atol"] + tolerance["rtol"] * left.abs()
    else:
        near = (error <= tolerance["atol"]) | (error <= tolerance["rtol"] * left.abs())
    same = (left == right) | (left.isnan() & right.isnan())
    finite = left.isfinite() & right.isfinite()
    norm = left[finite].norm()
    return ~(same | (near & finite)), float(error[finite].norm() / norm) if norm else 0.0


def show(name: str, expected: torch.Tensor, got: torch.Tensor, call: Any) -> bool:
    """Print how an output differs; return whether the failure shows in it."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        print(f"{name}: {list(got.shape)} {got.dtype}, expected {list(expected.shape)} {expected.dtype}")
        return True
    failing, norm = compare_output(expected, got, call["tolerance"])
    count, elements = int(failing.sum()), max(failing.numel(), 1)
    ratio = 1 - count / elements
    print(f"{name}: {count} of {failing.numel()} elements differ; error norm {norm:.4g} of the expected norm")
    rows = failing.reshape(-1, failing.shape[-1] if failing.ndim else 1)
    for row in rows.any(dim=1).nonzero().flatten().tolist()[:SHOWN_ROWS]:
        column = int(rows[row].nonzero()[0])
        left, right = plain(expected).reshape(rows.shape), plain(got).reshape(rows.shape)
        first = f"at column {column}: expected {float(left[row, column]):.6g}, got {float(right[row, column]):.6g}"
        print(f"  row {row}: {int(rows[row].sum())} of {rows.shape[1]} differ, first {first}")
    return bool(ratio < call["tolerance"]["required_matched_ratio"] or (call["rule"] is not None and norm > 0))


def main() -> int:
    """Call, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", action="store_true", help="compare what the solution returned when it was judged")
    recorded = parser.parse_args().recorded
    call = json.loads((HERE / "call.json").read_text())
    print(f"{call['solution']} of {call['definition']}, workload {call['workload']}: {call['status']}")
    print(f"{call['message']}\n")
    expected, got = load("expected", call), load("got", call)
    if not call["compares"]:
        print(f"outputs of this kind are not compared one by one; the judge is asked by: {call['replay']}")
        return 1
    fresh = None
    if recorded or not call["is_python"]:
        print("what it returned when it was judged:")
    else:
        try:
            fresh = call_solution(call, expected)
        except Exception as error:
            print(f"the solution failed: {type(error).__name__}: {error}")
            return 1
        print("what it returns now:")
    told = fresh or got
    shows = max((show(name, one, told[name], call) for name, one in expected.items() if name in told), default=True)
    if fresh is not None and not shows and got:
        print("it is right now; what it returned when it was judged:")
        shows = max(show(name, one, got[name], call) for name, one in expected.items())
    print("the failure shows" if shows else "no failure shows")
    return 1 if shows else 0


if __name__ == "__main__":
    sys.exit(main())
