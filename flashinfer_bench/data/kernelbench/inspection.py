"""Finds the shapes of KernelBench tasks by running their code, in a process of its own.

    request: {"block": text, "tasks": [source of a task]}
    response: a list, for each task {"refused": reason}, or
              {"inputs": {name: [shape, dtype]}, "outputs": [[shape, dtype]], "arguments": number, "written": [indexes]}

A shape is null for a number. Floating-point tensors are float32, as in the task. The code of a task runs in a fork of
the process, with fake tensors, which have shapes and no values. A task that needs values runs with real tensors. It is
no sandbox: the user has to trust the tasks.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import resource
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

LIMIT_S: Final = 120.0
"""Seconds that one task may take."""
MOST_BYTES: Final = 16 << 30
"""Memory that one task may allocate."""
FRACTIONS: Final = ("p", "dropout_p", "dropout")
"""Names of an operator's probability. At 0, the operator draws no random numbers."""
NUMBERS: Final = {bool: "bool", int: "int64", float: "float32"}
NEED_VALUES: Final = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of code that needs the values of fake tensors."""


class Unsupported(Exception):
    """A task that cannot be carried over, with the reason."""


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


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Inspect each task in a fork of this process."""
    with FakeTensorMode():  # loads modules once for all forks
        torch.zeros(1).sum()
    return [inspect_apart(inspect_task, f"{source}\n\n\n{request['block']}") for source in request["tasks"]]


def inspect_apart(inspect: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call a function in a fork, and return its result. Its tensors are fake, or real if it needs their values."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, inspect, arguments))
    process.start()
    sending.close()
    found: dict[str, Any] = {"refused": f"its code takes longer than {LIMIT_S:g} s"}
    try:
        if receiving.poll(LIMIT_S):
            found = json.loads(receiving.recv_bytes())
    except EOFError:
        process.join()
        found = {"refused": f"its code ended the process with exit code {process.exitcode}"}
    process.kill()
    process.join()
    return found


def _send(sending: Connection, inspect: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, most))
    found = {}
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), nullcontext()):
        try:
            with mode, torch.no_grad():
                found = inspect(*arguments)
        except Exception as error:
            found = {"refused": str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"}
            if isinstance(error, NEED_VALUES):
                continue
        break
    sending.send_bytes(json.dumps(found).encode())


def inspect_task(source: str) -> dict[str, Any]:
    """Build a task's `Model`, and call it once."""
    module = types.ModuleType("kernelbench_task")
    sys.modules[module.__name__] = module
    exec(compile(source, module.__name__, "exec", dont_inherit=True), vars(module))
    task = module.KernelBenchTask(vars(module), "float32")
    model, other = (task.build(module.Model, seed) for seed in (task.seed, task.seed + 1))
    if differing := sorted(path for path, _ in task.list_numbers(model) - task.list_numbers(other)):
        raise Unsupported(f"Model draws numbers that are no tensors: {', '.join(differing)}")
    inputs, state = module.get_inputs(), task.list_state(model)
    task.inputs, parameters, names = len(inputs), [*inspect.signature(model.forward).parameters], ["output"]
    for name in [*(parameters[min(at, len(parameters) - 1)] for at in range(len(inputs))), *state]:
        name = name.replace(".", "__")
        while name in names:
            name += "_"
        names.append(name)
    values = [*map(task.cast, inputs), *map(task.cast, state.values())]
    call, before = task.connect(model, task.wire(model)), [getattr(one, "_version", 0) for one in values]
    model.to = lambda **_: model  # the parameters of a fake module cannot be swapped, and it is on the CPU already
    with RandomOperators():  # type: ignore[no-untyped-call]
        result = call(*values)
    written = [at for at, one in enumerate(values) if at >= len(inputs) and one._version != before[at]]
    return {
        "inputs": {name: _describe(name, one) for name, one in zip(names[1:], values, strict=True)},
        "outputs": [_describe("an output", one) for one in task.flatten(result)],
        "arguments": len(inputs),
        "written": written,
    }


def _describe(what: str, value: Any) -> list[Any]:
    """Return shape and dtype of a value."""
    if isinstance(value, torch.Tensor):
        return [list(value.shape), str(value.dtype).removeprefix("torch.")]
    kind = NUMBERS.get(type(value))
    if kind is None:
        raise Unsupported(f"{what} is a {type(value).__name__}, not a tensor or a number")
    return [None, kind]
