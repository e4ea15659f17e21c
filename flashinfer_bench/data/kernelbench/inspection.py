"""Finds the shapes of KernelBench tasks by running their code, in a process of its own.

    request: {"block": text, "tasks": [source of a task]}
    response: a list, for each task {"refused": reason}, or
              {"inputs": {name: [shape, dtype]}, "outputs": [[shape, dtype]], "arguments": number, "written": [names]}

A shape is null for a number. Floating-point tensors are float32, as in the task. The code of a task runs in a fork of
the process, with fake tensors, which have shapes and no values. A task that needs values runs with real tensors. It is
no sandbox: the user has to trust the tasks.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import random
import resource
import sys
import types
from collections.abc import Callable, Iterator
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
"""Arguments of an operator that draws only if they are above 0."""
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
    with FakeTensorMode():  # imports now what every fork needs
        torch.zeros(1).sum()
    return [inspect_apart(f"{source}\n\n\n{request['block']}") for source in request["tasks"]]


def inspect_apart(source: str) -> dict[str, Any]:
    """Inspect one task in a fork."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, source))
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


def _send(sending: Connection, source: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, most))
    found = {}
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), nullcontext()):
        try:
            with mode, torch.no_grad():
                found = inspect_task(source)
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
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in vars(module)]
    if missing:
        raise Unsupported(f"it has no {', '.join(missing)}")
    task = vars(module)["KernelBenchTask"](vars(module), "float32")
    _check_arguments(task)
    model, inputs = task.build(vars(module)["Model"], task.seed), vars(module)["get_inputs"]()
    state = {path: task.cast(one) for path, one in task.list_state(model).items()}
    names = list(_name_all(_name_arguments(model.forward, inputs), state))
    values = [*map(task.cast, inputs), *state.values()]
    if not any(isinstance(one, torch.Tensor) for one in values):
        raise Unsupported("it has no tensor as input")
    task.inputs = len(inputs)
    call, before = task.connect(model, task.wire(model)), [one._version for one in state.values()]
    with RandomOperators():  # type: ignore[no-untyped-call]
        result = call(*values)
    changed = [one._version != version for one, version in zip(state.values(), before, strict=True)]
    return {
        "inputs": {name: _describe(f"input {name}", one) for name, one in zip(names, values, strict=True)},
        "outputs": [_describe("an output", one) for one in task.flatten(result)],
        "arguments": len(inputs),
        "written": [name for name, is_changed in zip(names[len(inputs) :], changed, strict=True) if is_changed],
    }


def _check_arguments(task: Any) -> None:
    """Refuse a `Model` whose plain numbers depend on the seed. Only tensors can be drawn again for each call."""
    found = []
    for seed in (task.seed, task.seed + 1):
        random.seed(seed)
        found.append(task.list_numbers(task.build(task.namespace["Model"], seed)))
    if differing := sorted(path for path, _ in found[0] - found[1]):
        raise Unsupported(f"Model draws numbers that are no tensors: {', '.join(differing)}")


def _name_arguments(forward: Callable[..., Any], inputs: list[Any]) -> Iterator[str]:
    """Yield a name for each argument."""
    for name, value in inspect.signature(forward).bind(*inputs).arguments.items():
        is_rest = inspect.signature(forward).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        yield from (f"{name}_{at}" for at in range(len(value))) if is_rest else [name]


def _name_all(arguments: Iterator[str], state: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the arguments and of the state, each once."""
    seen = {"output"}
    for name in [*arguments, *(path.replace(".", "__") for path in state)]:
        while name in seen:
            name += "_"
        seen.add(name)
        yield name


def _describe(what: str, value: Any) -> list[Any]:
    """Return shape and dtype of a value."""
    if isinstance(value, torch.Tensor):
        return [list(value.shape), str(value.dtype).removeprefix("torch.")]
    kinds = {bool: "bool", int: "int64", float: "float32"}
    if type(value) not in kinds:
        raise Unsupported(f"{what} is a {type(value).__name__}, not a tensor or a number")
    return [None, kinds[type(value)]]
