"""Runs a GPU MODE problem as a reference, and a `custom_kernel` as a solution of it.

This file is text: a definition's reference is the problem's files, then this block. Only the child of `inspection` and
the processes that run references and solutions execute it.

A problem has one argument, `data`: tensors, numbers and other values in nested tuples, lists and dicts. Its tensors and
numbers are the definition's inputs. The other values come from a draw of one case. An input has its elements in the
order of the memory, so a transposed tensor is rebuilt as a view.
"""

import builtins as _builtins
import copy as _copy
import inspect as _inspect
import linecache as _linecache
import random as _random
import re as _re
import sys as _sys
import types as _types
from contextlib import nullcontext as _nullcontext
from pathlib import Path as _Path
from typing import Any as _Any

import torch as _torch
from torch.overrides import TorchFunctionMode as _TorchFunctionMode
from torch.utils import _pytree


def _move(value: _Any) -> _Any:
    """Return the CPU for a CUDA device, and other values unchanged."""
    is_cuda = isinstance(value, (str, _torch.device)) and str(value).partition(":")[0] == "cuda"
    return "cpu" if is_cuda else value


class _Mode(_TorchFunctionMode):
    """Takes the device `cuda` as the CPU if the problem is on the CPU, and fills memory that its data leaves unset.

    Args:
        unset: gets the tensors with filled memory, and keeps them alive. None: no memory is filled.
    """

    makers = _torch.empty, _torch.empty_like, _torch.empty_strided, _torch.Tensor.new_empty
    generator = _torch.Generator

    def __init__(self, device: _torch.device, unset: list[_torch.Tensor] | None = None) -> None:
        super().__init__()
        self.is_cpu, self.unset = device.type == "cpu", unset

    def __enter__(self) -> _Any:
        if self.is_cpu:
            _torch.Generator = _CpuGenerator("Generator", (), {})  # type: ignore[misc, assignment]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc_info: object) -> None:
        _torch.Generator = self.generator  # type: ignore[misc]
        super().__exit__(*exc_info)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: _Any, types: _Any, args: _Any = (), kwargs: _Any = None) -> _Any:
        if self.is_cpu:
            if func is _torch.Tensor.cuda:
                return args[0]
            args = map(_move, args)
            kwargs = {name: _move(value) for name, value in (kwargs or {}).items()}
        result = func(*args, **(kwargs or {}))
        if self.unset is not None and func in self.makers:
            is_byte = result.element_size() == 1 and result.dtype is not _torch.bool
            (result.view(_torch.uint8) if is_byte else result).fill_(77)
            self.unset.append(result)
        return result


class _CpuGenerator(type):
    """Stands for `torch.Generator`, and takes the device `cuda` as the CPU."""

    def __call__(cls, device: _Any = "cpu") -> _torch.Generator:
        return _Mode.generator(_move(device))

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Mode.generator)


class GpuModeProblem:
    """One problem.

    Args:
        files: module name → text of the problem's files.
        case: the arguments of `generate_input` for the draw of other values, without a seed.
        choices: argument → its values, if its axis is an index into them.
        inputs, outputs: name → dtype.
        orders: input or output → its dimensions in the order of the memory. Contiguous tensors are not in it.
        homes: output → the input that it is written into.
    """

    device_errors = _torch.OutOfMemoryError, getattr(_torch, "AcceleratorError", _torch.OutOfMemoryError)

    def __init__(self, files: dict[str, str], case: dict[str, _Any] | None = None, **form: _Any) -> None:
        self.files, self.case, self.form = files, case or {}, form
        self.modules: dict[str, _Any] = {}
        self.others: _Any = None
        self.result: _Any = None

    def load(self, name: str, path: str | None = None) -> _Any:
        """Return a file as a module. Its imports find the other files of the problem first."""
        if name not in self.modules:
            path = path or f"gpumode/{len(_sys.modules)}/{name}.py"
            module = self.modules[name] = _types.ModuleType(f"gpumode_{len(_sys.modules)}_{name}")
            module.__dict__.update(__file__=path, __builtins__={**vars(_builtins), "__import__": self.find})
            _sys.modules[module.__name__] = module
            _linecache.cache[path] = (1, None, self.files[name].splitlines(keepends=True), path)
            exec(compile(self.files[name], path, "exec", dont_inherit=True), vars(module))
        return self.modules[name]

    def find(self, name: str, *others: _Any, **named: _Any) -> _Any:
        """Import a module as `__import__` does."""
        return self.load(name) if name in self.files else _builtins.__import__(name, *others, **named)

    @staticmethod
    def flatten(value: _Any, name: str) -> tuple[dict[str, _Any], _Any]:
        """Return name → part of a nested value, and its structure."""
        parts, structure = _pytree.tree_flatten_with_path(value)
        return {name + _re.sub(r"\W+", "_", _pytree.keystr(path)).rstrip("_"): one for path, one in parts}, structure

    def order(self, name: str, value: _Any, *, back: bool = False) -> _Any:
        """Return a tensor with its dimensions in the order of the memory, or back in the problem's order."""
        order = self.form["orders"].get(name, ())
        if not order or value.ndim != len(order):
            return value
        return value.permute([order.index(at) for at in range(len(order))] if back else order)

    def generate(self, case: dict[str, _Any], mode: _Any, seed: int = 0) -> _Any:
        """Call `generate_input`, with a seed if it takes one."""
        function = self.load("reference").generate_input
        if "seed" in _inspect.signature(function).parameters:
            case = {**case, "seed": seed}
        with mode:
            return function(**case)

    def make_inputs(self, axes: dict[str, int], device: _torch.device) -> dict[str, _Any]:
        """Draw the inputs of a workload."""
        case = {name: axes[name] for name in self.case}
        case |= {name: choices[case[name]] for name, choices in self.form["choices"].items()}
        parts, _ = self.flatten(self.generate(case, _Mode(device, []), _random.randrange(1 << 31)), "data")
        return {name: self.order(name, parts[name]) for name in self.form["inputs"]}

    make_inputs.inputs_agree = True  # type: ignore[attr-defined]

    @staticmethod
    def find_device(values: _Any) -> _torch.device:
        """Return the device of the first tensor."""
        return next(value.device for value in values if isinstance(value, _torch.Tensor))

    def make_data(self, values: _Any) -> _Any:
        """Return `data` from the inputs."""
        given = dict(zip(self.form["inputs"], values, strict=True))
        if self.others is None:
            parts, structure = self.flatten(self.generate(self.case, _Mode(self.find_device(values), [])), "data")
            self.others = {name: None if name in given else one for name, one in parts.items()}, structure
        others, structure = self.others
        parts = others | {name: self.order(name, value, back=True) for name, value in given.items()}
        return _pytree.tree_unflatten([*parts.values()], structure)

    def call(self, module: _Any, kernel: str, values: _Any) -> _Any:
        """Return name → output of a module's kernel, and their structure. On the CPU, its device `cuda` is the CPU."""
        data, device = self.make_data(values), self.find_device(values)
        with _Mode(device) if device.type == "cpu" else _nullcontext():
            return self.flatten(getattr(module, kernel)(data), "output")

    def run(self, *values: _Any) -> _Any:
        """Call the reference."""
        outputs, self.result = self.call(self.load("reference"), "ref_kernel", values)
        for name, home in self.form["homes"].items():
            target = self.order(home, values[[*self.form["inputs"]].index(home)], back=True)
            if target.data_ptr() != outputs[name].data_ptr():
                outputs[name] = target.copy_(outputs[name])
        return [self.order(name, value) for name, value in outputs.items()]

    def check_outputs(self, values: list[_Any], outputs: list[_Any]) -> str:
        """Return what the problem's own check says against outputs; empty if they are right."""
        if self.result is None:
            self.run(*_copy.deepcopy(values))
        device, data = outputs[0].device, self.make_data(_copy.deepcopy(values))
        parts = [self.order(name, value, back=True) for name, value in zip(self.form["outputs"], outputs, strict=True)]
        try:
            with _Mode(device):
                check = self.load("reference").check_implementation
                answer = check(data, _pytree.tree_unflatten(parts, self.result))
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            is_of_device = isinstance(error, RuntimeError) and str(error).startswith(
                ("CUDA error", "CUDA driver error")
            )
            if is_of_device or isinstance(error, self.device_errors):
                raise  # the outputs are not to blame
            return f"check_implementation raises {type(error).__name__}: {error}"
        is_right, message = answer if isinstance(answer, tuple) else (not answer, answer)
        if is_right and self.has_nan(outputs) and not self.has_nan(self.run(*_copy.deepcopy(values))):
            return "an output has nan, and the reference's has none"  # many a check compares with >, which nan passes
        return "" if is_right else str(message or "check_implementation says no")

    @staticmethod
    def has_nan(values: list[_Any]) -> bool:
        """Return whether a floating-point tensor of at least 16 bits has a nan."""
        wide = [
            one for one in values if isinstance(one, _torch.Tensor) and one.is_floating_point() and one.itemsize > 1
        ]
        return any(bool(one.isnan().any()) for one in wide)

    def bind_solution(self, path: str) -> _Any:
        """Import a file with `custom_kernel`, and return it as a function of the inputs."""
        self.files["submission"] = _Path(path).read_text(encoding="utf-8-sig")
        module = self.load("submission", path)
        outputs = self.form["outputs"]

        def run(*values: _Any) -> _Any:
            made, _ = self.call(module, "custom_kernel", values)
            if len(made) != len(outputs):
                raise TypeError(f"custom_kernel returns {len(made)} tensors; the reference returns {len(outputs)}")
            return [self.fit(name, value) for name, value in zip(outputs, made.values(), strict=True)]

        return run

    def fit(self, name: str, value: _Any) -> _Any:
        """Return an output in the definition's form. Floats get its dtype, since GPU MODE compares values only."""
        dtype = getattr(_torch, self.form["outputs"][name])
        is_float = isinstance(value, _torch.Tensor) and value.is_floating_point() and dtype.is_floating_point
        return self.order(name, value.to(dtype) if is_float else value)
