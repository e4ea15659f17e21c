"""Finds the inputs and outputs of GPU MODE problems by running their code, in a process of its own.

    request: {"block": text, "problems": [{"files": {module: text}, "cases": [{argument: value}]}]}
    response: a list, for each problem {"refused": reason}, or {"forms": [form]} with a form per case

    form: {"inputs": {name: [shape, dtype]}, "outputs": {name: [shape, dtype]}, "orders", "homes": as in `block.py`,
           "strided": [inputs that are parts of larger tensors], "others": text of the other values}

A shape is null for a number. A problem runs in a fork of the process, on the CPU, with fake tensors, which have shapes
and no values. A problem that needs values runs with real tensors. A fork is no sandbox, so the user has to trust the
problems.
"""

from __future__ import annotations

import types
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashinfer_bench.data.kernelbench.inspection import Unsupported, inspect_apart

FUNCTIONS: Final = ("generate_input", "ref_kernel", "check_implementation")
NUMBERS: Final[dict[type, str]] = {bool: "bool", int: "int64", float: "float64"}
CPU: Final = torch.device("cpu")


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Inspect each problem in a fork of this process."""
    with FakeTensorMode():  # loads modules once for all forks
        torch.zeros(1).sum()
    return [inspect_apart(inspect_problem, request["block"], problem) for problem in request["problems"]]


def inspect_problem(block: str, problem: dict[str, Any]) -> dict[str, Any]:
    """Draw the data of each case, and call the reference with it."""
    namespace: dict[str, Any] = vars(types.ModuleType("gpumode_block"))
    exec(compile(block, "gpumode_block", "exec", dont_inherit=True), namespace)
    one, mode = namespace["GpuModeProblem"](problem["files"]), namespace["_Mode"]
    reference = one.load("reference")
    missing = [name for name in FUNCTIONS if not callable(getattr(reference, name, None))]
    if missing:
        raise Unsupported(f"its reference has no {', '.join(missing)}")
    return {"forms": [_inspect_case(one, mode, case) for case in problem["cases"]]}


def _inspect_case(one: Any, mode: Any, case: dict[str, Any]) -> dict[str, Any]:
    filled = list[torch.Tensor]()
    data = one.generate({name: value for name, value in case.items() if name != "seed"}, mode(CPU, filled))
    parts, structure = one.flatten(data, "data")
    inputs = {name: value for name, value in parts.items() if type(value) in NUMBERS or _is_tensor(value)}
    others = {name: value for name, value in parts.items() if name not in inputs}
    for name, value in others.items():
        if isinstance(value, torch.nn.Module) or any(
            map(_is_tensor, vars(value).values() if hasattr(value, "__dict__") else ())
        ):
            raise Unsupported(
                f"{name} is a {type(value).__name__} with tensors; tensors have to be in tuples, lists and dicts"
            )
    if not any(map(_is_tensor, inputs.values())):
        raise Unsupported("its data has no tensor")
    # The filling is a tensor's first write. After a second write, the values are the problem's own.
    unset = {_memory(tensor) for tensor in filled if tensor.is_inference() or tensor._version == 1}
    with mode(CPU):
        outputs, _ = one.flatten(one.load("reference").ref_kernel(data), "output")
    orders, strided, homes = dict[str, list[int]](), list[str](), dict[str, str]()
    for name, value in {**inputs, **outputs}.items():
        if _is_tensor(value) and not value.is_contiguous():
            order = sorted(range(value.ndim), key=lambda at: (-value.stride(at), at))
            if value.permute(order).is_contiguous():
                orders[name] = order
            elif name in inputs:
                strided.append(name)
    for name, output in outputs.items():
        alike = [at for at, value in inputs.items() if _is_tensor(value) and _describe(value) == _describe(output)]
        own = [at for at in alike if _is_tensor(output) and _memory(output) == _memory(inputs[at])]
        free = [at for at in alike if _memory(inputs[at]) in unset and at not in homes.values()]
        if chosen := [*own, *free]:
            homes[name] = chosen[0]
            orders.pop(name, None)
            orders |= {name: orders[chosen[0]]} if chosen[0] in orders else {}
    return {
        "inputs": {name: _describe(value, orders.get(name)) for name, value in inputs.items()},
        "outputs": {name: _describe(value, orders.get(name), number=[]) for name, value in outputs.items()},
        "orders": orders,
        "homes": homes,
        "strided": strided,
        "others": f"{structure} {[vars(value) if hasattr(value, '__dict__') else value for value in others.values()]}",
    }


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _describe(value: Any, order: list[int] | None = None, number: list[int] | None = None) -> list[Any]:
    """Return shape and dtype of a value. A number has the shape `number`."""
    if isinstance(value, torch.Tensor):
        return [[value.shape[at] for at in order or range(value.ndim)], str(value.dtype).removeprefix("torch.")]
    return [number, NUMBERS[type(value)]]
