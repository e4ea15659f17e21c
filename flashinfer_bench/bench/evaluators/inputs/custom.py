"""Inputs that a workload calls "custom": a function of the definition, next to its reference, makes them.

The function's code is trusted like the reference, and runs in the judge's process, too. An error in the function is the
definition's fault. The function gets the sizes of all axes and the workload's numbers, as a dict or by their names, and
the device. The result is a dict by name, or the inputs in order. Random values come from the generators of torch,
Python and numpy, which are seeded before each call. So an equal seed gives equal inputs.
"""

from __future__ import annotations

import functools
import inspect
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.blame import blaming
from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.inputs.threads import usual_threads
from flashinfer_bench.bench.evaluators.reference import execute_reference, explain_error
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.data.workload import CustomInput, ScalarInput
from flashinfer_bench.errors import DefinitionFault

DEVICE: Final = "device"
"""The name of the parameter that gets the device."""
AGREE: Final = "inputs_agree"
"""If the function has this attribute, inputs may depend on each other. No call changes only some of these inputs."""
SLOW_S: Final = 0.05
"""Processor seconds that a call of the function may take. A slower function makes no new inputs for timed calls, since
a job has hundreds of calls."""
_NUMPY_SEEDS: Final = 1 << 32


class CustomInputs:
    """The custom inputs of one workload.

    Raises:
        DefinitionFault: there is no such function, or its source fails.
    """

    def __init__(
        self,
        definition: Definition,
        workload: Workload,
        axes: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...] | None],
        device: torch.device,
    ) -> None:
        self.names = list_custom(workload)
        self._definition = definition
        self._shapes = shapes
        self._device = device
        numbers = {name: item.value for name, item in workload.inputs.items() if isinstance(item, ScalarInput)}
        function = _find_function(definition)
        self.must_agree = bool(getattr(function, AGREE, False))
        self._call = _bind(function, {**axes, **numbers}, device)
        self._left: dict[tuple[int, str], Any] = {}

    def take(self, names: Sequence[str], name: str, seed: int) -> Any:
        """Return one of the inputs `names` of a seed. The others are kept until they are taken, too, or another seed
        comes, since jobs that wait would hold gigabytes."""
        if (seed, name) not in self._left:
            made = self.draw(seed)
            self._left = {(seed, one): made[one] for one in names}
        return self._left.pop((seed, name))

    def draw(self, seed: int) -> dict[str, Any]:
        """Make all custom inputs.

        Raises:
            DefinitionFault: the function fails, or its result does not fit the definition.
            WorkloadFault: there is not enough memory.
        """
        with blaming(functools.partial(explain_error, self._definition)), _seeded(seed, self._device), usual_threads():
            made = self._call()
        given = self._by_name(made)
        return {name: self._fit(name, given[name]) for name in self.names}

    def compare_draws(self) -> tuple[list[str], float]:
        """Make the custom inputs with two seeds; return the names of the differing inputs, and the seconds of one
        draw. These are seconds of this thread on a processor, which a solution's processes cannot lengthen."""
        first, start = self.draw(1), time.thread_time()
        second = self.draw(2)
        seconds = time.thread_time() - start
        return [name for name in self.names if not is_same(first[name], second[name])], seconds

    def _by_name(self, made: Any) -> Mapping[str, Any]:
        """Return the function's result by the names of the inputs. Values in order are all inputs, or the custom
        inputs."""
        if isinstance(made, Mapping):
            named, given = made, ", ".join(map(str, made))
        else:
            values = made if isinstance(made, (tuple, list)) else [made]
            every = len(values) == len(self._definition.inputs)
            names = [name for name in self._definition.inputs if every or name in self.names]
            named, given = dict(zip(names, values, strict=False)), f"{len(values)} values"
            named = named if len(names) == len(values) else {}
        if not named.keys() >= {*self.names}:
            raise self._fault(f"it gives {given}; {', '.join(self.names)} are wanted")
        return named

    def _fit(self, name: str, value: Any) -> Any:
        """Return one value in the definition's form: a tensor of its shape and dtype, or a number."""
        spec, shape = self._definition.inputs[name], self._shapes[name]
        if shape is None:
            return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if value is None and spec.optional:
            return None
        if not isinstance(value, torch.Tensor):
            raise self._fault(f"input {name!r} is a {type(value).__name__}, not a tensor")
        expected = storage_shape(shape, spec.dtype)
        if (value.dtype, tuple(value.shape)) != (torch_dtype(spec.dtype), expected):
            what = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            raise self._fault(f"input {name!r} is {what}; it should be {spec.dtype}{list(expected)}")
        return value.detach().to(self._device).contiguous()

    def _fault(self, reason: str) -> DefinitionFault:
        entry = self._definition.custom_inputs_entrypoint
        return DefinitionFault(f"{entry} of {self._definition.name}, which makes custom inputs: {reason}")


def list_custom(workload: Workload) -> list[str]:
    """Return the names of a workload's custom inputs."""
    return [name for name, source in workload.inputs.items() if isinstance(source, CustomInput)]


_execute: Final = functools.lru_cache(maxsize=4)(execute_reference)


def find_in_reference(definition: Definition, name: str) -> Any:
    """Return the object with this name in the source of a definition's reference; None if the source has no such
    name."""
    with blaming(functools.partial(explain_error, definition)):
        return _execute(definition.name, definition.reference).get(name)


def _find_function(definition: Definition) -> Callable[..., Any]:
    name, entry = definition.name, definition.custom_inputs_entrypoint
    if entry is None:
        raise DefinitionFault(f"{name} has no custom_inputs_entrypoint; its workloads want custom inputs")
    function: Callable[..., Any] | None = find_in_reference(definition, entry)
    if not callable(function):
        raise DefinitionFault(f"the reference of {name} has no function {entry!r}, which makes its inputs")
    return function


def _bind(function: Callable[..., Any], values: Mapping[str, Any], device: torch.device) -> Callable[[], Any]:
    """Return a function with its arguments bound: by name if any parameter is an axis or a number, else as one dict."""
    parameters = inspect.signature(function).parameters.values()
    names = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
    known = {**values, DEVICE: device}
    by_name = {name: known[name] for name in names if name in known}
    if by_name.keys() - {DEVICE} or names <= {DEVICE}:
        return functools.partial(function, **(by_name if len(names) == len(parameters) else known))
    in_order = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.KEYWORD_ONLY)]
    takes_two = len(in_order) > 1 or any(one.kind is one.VAR_POSITIONAL for one in in_order)
    return functools.partial(function, dict(values), *[device] * (takes_two and not by_name), **by_name)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators that a function may draw from, and restore their states afterwards."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else [], device_type="cuda"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack for each unused kind of device
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % _NUMPY_SEEDS)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def is_same(value: Any, other: Any) -> bool:
    """Return whether two tensors have the same bytes, or two numbers are equal."""
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (value, other)))
    return bool(value == other)
