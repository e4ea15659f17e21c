"""The definition's reference as a callable. The reference is trusted, so it runs in the judge's process.

An error in the reference is a fault of the definition or of the workload, never of a solution.
"""

from __future__ import annotations

import linecache
import re
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

import torch

from flashinfer_bench.base.named_call import find_call
from flashinfer_bench.bench.evaluators.blame import blaming
from flashinfer_bench.bench.evaluators.compare.packed import logical_shape, storage_shape
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of, has_room
from flashinfer_bench.bench.evaluators.inputs.threads import usual_threads
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.data.reference import ENTRY_NAME
from flashinfer_bench.errors import DefinitionFault, WorkloadFault

MAX_ERROR_TEXT: Final = 2_000
"""Maximum characters of an error's own text in a message."""
INPUTS_MAY_CHANGE: Final = "inputs_may_change"
"""If `run` has this attribute, a solution may write to all inputs, and may return them."""
REPEAT_BUDGET_S: Final = 10.0
"""Limit in seconds on the time of all repeated calls together. At least one call is repeated."""


@dataclass
class Reference:
    """A compiled reference; make it with `compile`.

    The first call finds the inputs that the reference writes to. Later calls get clones of these inputs. So the inputs
    stay unchanged, and a solution gets the inputs from which the expected outputs were computed.
    """

    definition: Definition
    run: Callable[..., Any]
    returns_inputs: bool | None = None
    """Whether an output lay in the memory of an input; None before the first call."""
    mutates: frozenset[str] | None = None
    """Names of the inputs that the reference writes to; None before the first call."""
    broken: str | None = None
    """Reason why the reference is unusable: two calls disagreed before any two agreed. None if it is usable."""
    _repeated: set[tuple[Any, ...]] = field(default_factory=set)
    """Shapes of inputs on which two calls agreed."""
    _repeating_s: float = 0.0
    """Seconds of all repeated calls so far."""
    _fitting: list[tuple[Any, ...]] = field(default_factory=list)
    """Shape, dtype and device of each tensor in the latest call with outputs that fit the definition."""

    def __post_init__(self) -> None:
        """Find out how `run` is called, and whether inputs may change."""
        self._call = find_call(self.run, self.definition.inputs)
        if getattr(self.run, INPUTS_MAY_CHANGE, False):
            self.mutates, self.returns_inputs = frozenset(self.definition.inputs), True

    @classmethod
    def compile(cls, definition: Definition) -> Reference:
        """Execute the source of the reference and find `run`.

        Raises:
            DefinitionFault: the definition has no reference that can be called, or its source fails.
        """
        reason = definition.not_runnable_reason
        if reason is not None:
            raise DefinitionFault(f"{definition.name}: {reason}")
        with blaming(partial(explain_error, definition)):
            run = execute_reference(definition.name, definition.reference).get(ENTRY_NAME)
        if not callable(run):
            raise _fault(definition, f"its {ENTRY_NAME!r} is {'missing' if run is None else 'no function'}")
        return cls(definition, run)

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Call the reference with inputs in the order of the definition, without changing them.

        Raises:
            DefinitionFault: the reference fails, or its result does not fit the definition.
        """
        if self.broken is not None:
            raise DefinitionFault(self.broken)
        spared = self.clone_written(inputs)
        versions = list(map(_version, spared))
        with usual_threads():
            returned = self.launch(spared)
        if self.mutates is None or list(map(_version, spared)) != versions:
            self._note_writes(inputs, spared, versions)
        return self._fit(returned, spared, inputs)

    def launch(self, inputs: Sequence[Any]) -> Any:
        """Call the reference and return its unchecked result. Timing uses this call.

        Raises:
            DefinitionFault: the reference fails.
        """
        with blaming(partial(explain_error, self.definition)), torch.no_grad():
            return self._call.bind(self.run, dict(zip(self.definition.inputs, inputs, strict=True)))()

    def clone_written(self, inputs: Sequence[Any]) -> list[Any]:
        """Clone the inputs that the reference writes to. Before the reference's first call, clone all inputs if there
        is enough memory."""
        written = self.mutates
        if written is None:
            tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
            may_clone = not tensors or has_room(tensors[0].device, bytes_of(tensors), share=2)
            written = frozenset(self.definition.inputs if may_clone else ())
        if not written:
            return list(inputs)
        return [
            value.clone() if isinstance(value, torch.Tensor) and name in written else value
            for name, value in zip(self.definition.inputs, inputs, strict=True)
        ]

    def _note_writes(self, inputs: Sequence[Any], spared: Sequence[Any], versions: Sequence[int]) -> None:
        """Note the inputs that a call wrote to. After the first call, inputs are also compared with their clones,
        because torch's version counters miss the writes of custom kernels.

        Raises:
            DefinitionFault: the call wrote to an input that was no clone.
        """
        written = {
            name: given is used
            for name, given, used, version in zip(self.definition.inputs, inputs, spared, versions, strict=True)
            if _version(used) != version or (self.mutates is None and _differs(given, used))
        }
        self.mutates = (self.mutates or frozenset()) | frozenset(written)
        spoiled = [name for name, was_given in written.items() if was_given]
        if spoiled:
            why = "in some calls only, or without memory for a copy"
            raise _fault(self.definition, f"it writes to {', '.join(spoiled)}, {why}; it should clone what it changes")

    def check_repeats(
        self,
        inputs: Sequence[Any],
        outputs: list[torch.Tensor],
        find_difference: Callable[[list[torch.Tensor], list[torch.Tensor]], str | None],
    ) -> None:
        """Call the reference again on inputs whose outputs are known, and compare. This happens once for each set of
        input shapes, within `REPEAT_BUDGET_S`.

        Args:
            inputs: inputs of the first call.
            outputs: outputs of the first call.
            find_difference: describes the difference of two calls' outputs; returns None if there is none.

        Raises:
            DefinitionFault: the calls differ. If no two calls agreed before, every later call raises the same fault.
        """
        shapes = tuple(value.shape if isinstance(value, torch.Tensor) else None for value in inputs)
        if shapes in self._repeated or (self._repeated and self._repeating_s >= REPEAT_BUDGET_S):
            return
        start = time.monotonic()
        difference = find_difference(outputs, self(inputs))
        self._repeating_s += time.monotonic() - start
        if difference is not None:
            fault = _fault(self.definition, f"a second call with equal inputs gives something else; {difference}")
            self.broken = None if self._repeated else str(fault)
            raise fault
        self._repeated.add(shapes)

    def _fit(self, returned: Any, spared: Sequence[Any], inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Return the reference's result as the definition's outputs: in their order, count, shapes and dtypes."""
        device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), None)
        try:
            values = normalize_result(self.definition, returned, device)
        except (TypeError, ValueError) as error:
            raise _fault(self.definition, str(error)) from None
        tensors = [value for value in (*inputs, *values) if isinstance(value, torch.Tensor)]
        form = [(value.shape, value.dtype, value.device) for value in tensors]
        if form != self._fitting:
            self._check_form(inputs, values, device)
            self._fitting = form
        owned = {_memory(value) for value in spared if isinstance(value, torch.Tensor) and value.numel()}
        outputs = []
        for value in values:
            # An output that shares memory with an input would change when the input does.
            is_shared = _memory(value) in owned
            self.returns_inputs = self.returns_inputs or is_shared
            plain = value.detach()
            outputs.append(plain.clone(memory_format=torch.contiguous_format) if is_shared else plain.contiguous())
        return outputs

    def _check_form(self, inputs: Sequence[Any], outputs: Sequence[torch.Tensor], device: torch.device | None) -> None:
        """Compare dtypes and shapes with the definition's. The first tensor with a var axis sets the size of that axis.

        Raises:
            DefinitionFault: an output has the wrong dtype, shape or device.
        """
        definition, sizes = self.definition, dict[str, int]()
        specs = (*definition.inputs.values(), *definition.outputs.values())
        for spec, value in zip(specs, (*inputs, *outputs), strict=True):
            if isinstance(value, torch.Tensor) and spec.shape is not None and len(spec.shape) == value.ndim:
                sizes = {**dict(zip(spec.shape, logical_shape(value.shape, spec.dtype), strict=True)), **sizes}
        try:
            shapes = definition.get_output_shapes({**dict.fromkeys(definition.unshaped_axes, 0), **sizes})
        except ValueError as error:
            raise _fault(definition, str(error)) from None
        for (name, spec), shape, output in zip(definition.outputs.items(), shapes, outputs, strict=True):
            found = f"output {name!r}"
            if output.dtype != torch_dtype(spec.dtype):
                raise _fault(definition, f"{found} has dtype {output.dtype}, expected {spec.dtype}")
            if device is not None and output.device != device:
                raise _fault(definition, f"{found} lies on {output.device}, the inputs on {device}")
            if tuple(output.shape) != storage_shape(shape or (), spec.dtype):
                wanted = list(shape or ())
                raise _fault(definition, f"{found} has shape {list(output.shape)}, expected {wanted}")


def normalize_result(definition: Definition, result: Any, device: torch.device | str | None) -> list[torch.Tensor]:
    """Return a function's result as a list of tensors in the order of the outputs.

    The result may be one value, a tuple or a list of values, or a dict by output name; a number becomes a 0-d tensor.

    Raises:
        ValueError: there are too few or too many values, or names that are no outputs.
        TypeError: a value is neither a tensor nor a number.
    """
    names = list(definition.outputs)
    if isinstance(result, Mapping):
        if set(result) != set(names):
            raise ValueError(f"{definition.name} has the outputs {', '.join(names)}, got {', '.join(map(str, result))}")
        result = [result[name] for name in names]
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(values) != len(names):
        raise ValueError(f"{definition.name} has {len(names)} outputs ({', '.join(names)}), got {len(values)} values")
    for at, (name, value) in enumerate(zip(names, values, strict=True)):
        if isinstance(value, (bool, int, float)):
            values[at] = torch.tensor(value, dtype=torch_dtype(definition.outputs[name].dtype), device=device)
        elif not isinstance(value, torch.Tensor):
            what = f"a {type(value).__name__}, not a tensor or a number"
            raise TypeError(f"output {name!r} of {definition.name} is {what}")
    return values


def execute_reference(definition: str, source: str) -> dict[str, Any]:
    """Execute the source of a reference as its own module; return its namespace.

    The module is put into `sys.modules`, where pickle, dataclasses and `typing` look up classes. The source is put into
    `linecache`, where tracebacks, inspect and triton.jit look it up by file name.
    """
    file_name = _file_name(definition)
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    stem = re.sub(r"\W", "_", definition)
    module = types.ModuleType(f"reference_{next(_numbers)}_of_{stem}")
    module.__file__ = file_name
    sys.modules[module.__name__] = module
    exec(compile(source, file_name, "exec", dont_inherit=True), module.__dict__)  # without our own __future__ flags
    return module.__dict__


_numbers = count()


def explain_error(definition: Definition, error: BaseException) -> WorkloadFault:
    """Return an error that names the failing line of the reference: a WorkloadFault if memory is short, else a
    DefinitionFault."""
    file_name = _file_name(definition.name)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file_name]
    where = f" (line {frames[-1].lineno}: `{frames[-1].line}`)" if frames else ""
    text = str(error).strip()[:MAX_ERROR_TEXT]
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        room = f"reference of {definition.name}: this workload does not fit into the device's memory{where}"
        return WorkloadFault(f"{room}; use a device with more: {text}")
    return _fault(definition, f"{type(error).__name__}{': ' if text else ''}{text}{where}")


def _fault(definition: Definition, reason: str) -> DefinitionFault:
    return DefinitionFault(f"reference of {definition.name}: {reason}")


def _file_name(definition: str) -> str:
    return f"{definition}.reference.py"


def _version(value: Any) -> int:
    """Return torch's count of in-place writes to a tensor; 0 for other values."""
    return value._version if isinstance(value, torch.Tensor) else 0


def _differs(given: Any, used: Any) -> bool:
    """Return whether a tensor and its clone have different bytes."""
    if given is used or not isinstance(given, torch.Tensor) or given.numel() == 0:
        return False
    return not torch.equal(*(value.reshape(-1).view(torch.uint8) for value in (given, used)))


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
