"""Finds the inputs and outputs of a GPU MODE problem by running its code on the CPU.

the problem: {"files": {module: text}, "cases": [{argument: value}]}
the answer: {"cases": [facts]}
facts: {"form": {"inputs": {name: dtype}, "outputs": {name: dtype}, "orders": as in `block.py`},
        "shapes": {name: shape, null for a number}, "others": text of the other values}
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType, ModuleType
from typing import Any, Final

import torch

from flashinfer_bench.data.problems.inspection import NUMBERS, Unsupported, describe, execute

FUNCTIONS: Final = ("generate_input", "ref_kernel", "check_implementation")


def inspect_problem(block: str, problem: dict[str, Any]) -> dict[str, Any]:
    """Draw the data of each case, and call the reference with it."""
    one = execute("gpumode_block", block).GpuModeProblem(problem["files"])
    one.is_cpu = True
    missing = [name for name in FUNCTIONS if not callable(getattr(one.load("reference"), name, None))]
    if missing:
        raise Unsupported(f"its reference has no {', '.join(missing)}")
    return {"cases": [_inspect_case(one, case) for case in problem["cases"]]}


def _inspect_case(one: Any, case: dict[str, Any]) -> dict[str, Any]:
    sizes = _list_sizes(one.flatten(one.generate(case, seed=1), "data")[0])
    parts, structure = one.flatten(data := one.generate(case), "data")
    if _list_sizes(parts) != sizes:
        raise Unsupported("sizes of its data depend on the seed")
    if len(parts) < structure.num_leaves:
        raise Unsupported("several keys of its data make one name, as a-b and a_b do")
    inputs = {name: value for name, value in parts.items() if type(value) in NUMBERS or _is_tensor(value)}
    others = [_describe_state(name, value, case) for name, value in parts.items() if name not in inputs]
    if not any(map(_is_tensor, inputs.values())):
        raise Unsupported("its data has no tensor")
    outputs, _ = one.flatten(one.load("reference").ref_kernel(data), "output")
    values, orders = {**inputs, **outputs}, dict[str, list[int]]()
    described = {name: describe(name, value) for name, value in values.items()}
    for name, value in values.items():
        if _is_tensor(value):
            order = sorted(range(value.ndim), key=lambda at: (-value.stride(at), at))
            if order != [*range(value.ndim)] and value.permute(order).is_contiguous():
                orders[name] = order
    shapes = {
        name: shape and [shape[at] for at in orders.get(name, range(len(shape)))]
        for name, (shape, _) in described.items()
    }
    inputs, outputs = ({name: described[name][1] for name in side} for side in (inputs, outputs))
    form = {"inputs": inputs, "outputs": outputs, "orders": orders}
    return {"form": form, "shapes": shapes, "others": f"{structure} {others}"}


class _StatePickler(pickle.Pickler):
    """Writes the state of a value with all objects in it. Functions, classes and modules count by their address."""

    owner = ""
    kept: Final = list[Any]()  # no later object gets the address of one of these

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            raise Unsupported(f"{self.owner} with tensors; tensors have to be in tuples, lists and dicts")
        if isinstance(value, (FunctionType, ModuleType, type)):
            self.kept.append(value)
            return id(value)
        return None


def _describe_state(name: str, value: Any, case: dict[str, Any]) -> str:
    """Return a text of a value's state. If Python cannot pickle the value, no other case has its text."""
    pickler = _StatePickler(state := io.BytesIO())
    pickler.owner = f"{name} is a {type(value).__name__}"
    try:
        pickler.dump(value)
    except (AttributeError, RuntimeError, TypeError, pickle.PicklingError):
        return repr(case)
    return str(state.getvalue())


def _list_sizes(parts: dict[str, Any]) -> list[Any]:
    return [getattr(value, "shape", None) for value in parts.values()]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
