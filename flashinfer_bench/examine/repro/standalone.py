"""Shows a failure that `flashinfer-bench repro` wrote down. It needs torch and nothing else.

    python repro.py             calls the solution in this process, on the inputs beside this file, and compares
    python repro.py --recorded  compares what it returned when it was judged

If a file below `solution/` was changed since, only what it returns now counts: mend it until this ends with 0.
Outputs of samplers and indexers cannot be compared one by one: then flashinfer-bench has to be installed, too, and its
check is asked. The solution's code runs as it stands below `solution/`, with all that you may do: read it first.
Exit code: 1 the failure shows, 0 it does not, 2 it could not be looked for.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.compare.rule import find_beyond, match_bits

HERE = Path(__file__).resolve().parent
SHOWN_ROWS = 8
"""Most wrong rows that are listed."""
HALF_BYTES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each code of 4 bits. A byte of such floats has two, the lower half first."""


def load(name: str, call: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file by name, with the dtypes that they had."""
    file = HERE / f"{name}.safetensors"
    found = {}
    if not file.exists():
        return {}
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    for key, dtype in call["dtypes"].get(name, {}).items():
        first, last = header[key]["data_offsets"]
        piece = data[start + first : start + last]
        shape = header[key]["shape"]
        flat = torch.frombuffer(piece, dtype=torch.uint8) if piece else torch.empty(0, dtype=torch.uint8)
        flat = flat.view(getattr(torch, dtype))
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


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return values that can be subtracted."""
    if "float4" in str(tensor.dtype):
        raw = tensor.view(torch.uint8).long()
        table = torch.tensor(HALF_BYTES, dtype=torch.float64, device=tensor.device)
        return table[torch.stack((raw & 15, raw >> 4), dim=-1)].flatten(-2)
    return tensor.double()


def find_reasons(name: str, left: torch.Tensor, right: torch.Tensor, failing: torch.Tensor, call: Any) -> list[str]:
    """Say why an output is wrong: by its elements, by its largest error, and by the rule that decided."""
    rule = call["tolerance"]
    count = int(failing.sum())
    reasons = []
    shared = int(((left == right) & ((left == 0) | left.isnan())).sum()) if rule["ignores_shared_zeros"] else 0
    counted = left.numel() - shared
    if count and 1 - count / max(counted, 1) < rule["required_matched_ratio"]:
        reasons.append(f"{count} of {counted} elements differ")
    finite = left.isfinite() & right.isfinite()
    if strange := int((failing & ~finite).sum()):
        reasons.append(f"{strange} elements are nan or infinite on one side")
    error = torch.where(finite, right - left, 0.0)
    wanted = torch.where(finite, left, 0.0)
    largest = float(error.abs().max()) if error.numel() else 0.0
    most = rule["max_absolute_error"]
    if rule["required_matched_ratio"] < 1 and wanted.numel():
        most = min(most, max(rule["max_error_cap"] * float(wanted.abs().max()), rule["atol"]))
    if largest > most:
        reasons.append(f"the largest error is {largest:.6g}, {most:.6g} is allowed")
    found = call["evidence"] or {}
    if found.get("output") == name and "limit" in found:
        share = float(error.norm() / wanted.norm()) if wanted.norm() else 0.0
        where = "the whole output"
        if "row" in found:
            error = error.reshape(found["of_rows"], -1)
            wanted = wanted.reshape(found["of_rows"], -1)
            floor = 0.1 * wanted.square().sum(1).mean().sqrt()
            share = float(error[found["row"]].norm() / torch.maximum(wanted[found["row"]].norm(), floor))
            where = f"row {found['row']}"
        if share > found["limit"]:
            told = f"the error of {where} has {share:.3g} times the norm of what was expected"
            reasons.append(f"{told}, {found['limit']:g} is allowed")
    return reasons


def show(name: str, expected: torch.Tensor, got: torch.Tensor, call: Any) -> bool:
    """Print how an output differs; return whether the failure shows in it."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        print(f"{name}: {list(got.shape)} {got.dtype}, expected {list(expected.shape)} {expected.dtype}")
        return True
    left = plain(expected)
    right = plain(got)
    is_exact = not (expected.dtype.is_floating_point or "float4" in str(expected.dtype))
    limits: Any = SimpleNamespace(**call["tolerance"])
    failing = ~match_bits(expected, got) if is_exact else find_beyond(left, right, limits)
    reasons = find_reasons(name, left, right, failing, call)
    print(f"{name}: {'; '.join(reasons) or f'right, {int(failing.sum())} of {failing.numel()} elements differ'}")
    columns = max(failing.shape[-1] if failing.ndim else 1, 1)
    values = (expected, got) if is_exact else (left, right)
    rows, wanted, given = (one.reshape(-1, columns) for one in (failing, *values))
    for row in rows.any(dim=1).nonzero().flatten().tolist()[:SHOWN_ROWS]:
        column = int(rows[row].nonzero()[0])
        pair = f"expected {wanted[row, column].item():.6g}, got {given[row, column].item():.6g}"
        print(f"  row {row}: {int(rows[row].sum())} of {columns} differ, first at column {column}: {pair}")
    return bool(reasons)


def show_all(title: str, expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor], call: Any) -> bool:
    """Print how each output differs; return whether the failure shows."""
    print(title)
    shown = [show(name, one, got[name], call) for name, one in expected.items() if name in got]
    return any(shown)


def is_changed() -> bool:
    """Tell whether a source of the solution is another than the one that was judged."""
    judged = json.loads((HERE / "solution.json").read_text(encoding="utf-8"))["sources"]
    files = [(HERE / "solution" / one["path"], one["content"].encode("utf-8")) for one in judged]
    return any(not file.is_file() or file.read_bytes() != content for file, content in files)


def ask_judge(call: Any, expected: dict[str, torch.Tensor]) -> int:
    """Have the package's own check judge the solution, in this process; return the exit code."""
    try:
        from flashinfer_bench.examine.repro.judging import judge_again
    except ModuleNotFoundError as error:
        print(f"outputs of this kind cannot be compared one by one, and the judge is not here ({error}).")
        print(f"Install flashinfer-bench here, or ask it for a whole verdict: {call['replay']}")
        return 2
    given = {**load("inputs", call), **call["scalars"]}
    problem = judge_again(HERE, call, [given[name] for name in call["inputs"]], list(expected.values()))
    print(problem or "the check finds nothing wrong", "the failure shows" if problem else "no failure shows", sep="\n")
    return 1 if problem else 0


def main() -> int:
    """Call, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", action="store_true", help="compare what the solution returned when it was judged")
    is_called = not parser.parse_args().recorded
    call = json.loads((HERE / "call.json").read_text(encoding="utf-8"))
    print(f"{call['solution']} of {call['definition']}, workload {call['workload']}: {call['status']}")
    print(f"{call['message']}\n")
    expected = load("expected", call)
    got = load("got", call)
    if not call["compares"]:
        return ask_judge(call, expected)
    shows = False
    is_called = is_called and call["is_python"]
    if is_called:
        try:
            fresh = call_solution(call, expected)
        except Exception as error:
            print(f"the solution failed: {type(error).__name__}: {error}")
            return 1
        shows = show_all("what it returns now:", expected, fresh, call)
    if not shows and got and not (is_called and is_changed()):
        shows = show_all("what it returned when it was judged:", expected, got, call)
    print("the failure shows" if shows else "no failure shows")
    return 1 if shows else 0


if __name__ == "__main__":
    sys.exit(main())
