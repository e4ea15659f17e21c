"""Finds the shapes of a KernelBench task by calling its `Model` once.

The answer: {"inputs": {name: [shape, dtype]}, "outputs": the same, "arguments": number, "written": [indexes]}. The
shape of a number is null. Floating-point tensors are float32, as in the task.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashinfer_bench.data.problems.inspection import Unsupported, describe, execute

FRACTIONS: Final = ("p", "dropout_p", "dropout")
"""Names for the probability argument of an operator. An operator with probability 0 draws no random numbers."""


class RandomOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that draw random numbers."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator that draws nothing."""
        taken = {one.name: one.default_value for one in func._schema.arguments}
        given = {**taken, **dict(zip(taken, args, strict=False)), **(kwargs or {})}
        is_off = any(given.get(name) == 0 for name in FRACTIONS)
        if torch.Tag.nondeterministic_seeded in func.tags and not is_off:
            raise Unsupported(f"its forward draws random numbers ({func}), so its outputs differ from call to call")
        return func(*args, **(kwargs or {}))


def inspect_problem(block: str, source: str) -> dict[str, Any]:
    """Build a task's `Model`, and call it once, in a fork that sees no GPU."""
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda one, *_, **__: one  # type: ignore[assignment, method-assign]
    module = execute("kernelbench_task", f"{source}\n\n\n{block}")
    if not {"run", "make_inputs"}.isdisjoint(vars(module)):
        raise Unsupported("it defines run or make_inputs, which are names of the reference's own functions; rename it")
    task = module.KernelBenchTask(vars(module), "float32")
    model, other = (task.build(module.Model, seed) for seed in (task.seed, task.seed + 1))
    if differing := sorted(path for path, _ in task.list_numbers(model) - task.list_numbers(other)):
        raise Unsupported(f"Model draws numbers that are no tensors: {', '.join(differing)}")
    state = task.list_state(model)
    home = next((one.device for one in state.values()), None)  # if the task names a GPU only in get_inputs, the CPU
    inputs = [one.to(device=home) if isinstance(one, torch.Tensor) else one for one in module.get_inputs()]
    task.inputs, parameters, names = len(inputs), [*inspect.signature(model.forward).parameters], ["output"]
    for name in [*(parameters[min(at, len(parameters) - 1)] for at in range(len(inputs))), *state]:
        name = name.replace(".", "__")
        while name in names:
            name += "_"
        names.append(name)
    values = [*map(task.cast, [*inputs, *state.values()])]
    call, before = task.connect(model, task.wire(model)), [getattr(one, "_version", 0) for one in values]
    model.to = lambda **_: model  # `to` cannot swap the parameters of a fake module, which is on the CPU already
    with RandomOperators():  # type: ignore[no-untyped-call]
        outputs = task.flatten(call(*values))
    results = ["output"] if len(outputs) == 1 else [f"output_{at}" for at in range(len(outputs))]
    return {
        "inputs": {name: describe(name, one) for name, one in zip(names[1:], values, strict=True)},
        "outputs": {name: describe("an output", one) for name, one in zip(results, outputs, strict=True)},
        "arguments": len(inputs),
        "written": [at for at, one in enumerate(values) if at >= len(inputs) and one._version != before[at]],
    }
