"""Runs a GPU MODE problem as a reference, and a `custom_kernel` as a solution of it.

This file is text: a definition's reference is the problem's files, then this block. Only the child of `inspection` and
the processes that run references and solutions execute it.

A problem has one argument, `data`: tensors, numbers and other values in nested tuples, lists and dicts. Its tensors and
numbers are the definition's inputs. The other values come from a draw of one case. An input has its elements in the
order of the memory, so a transposed tensor is rebuilt as a view. Without a GPU, the text `cuda` of a device in a source
is replaced by `cpu`.
"""

import builtins as _builtins
import copy as _copy
import inspect as _inspect
import linecache as _linecache
import random as _random
import re as _re
import sys as _sys
import types as _types
from math import inf, nan  # noqa: F401  # a case may have them
from pathlib import Path as _Path
from typing import Any as _Any

import torch as _torch
from torch.overrides import TorchFunctionMode as _TorchFunctionMode
from torch.utils import _pytree


class _Fill(_TorchFunctionMode):
    """Fills memory that new tensors leave unset: it may hold another call's results."""

    makers = _torch.empty, _torch.empty_like, _torch.empty_strided, _torch.Tensor.new_empty

    def __torch_function__(self, func: _Any, types: _Any, args: _Any = (), kwargs: _Any = None) -> _Any:
        result = func(*args, **(kwargs or {}))
        if func in self.makers:
            is_byte = result.element_size() == 1 and result.dtype is not _torch.bool
            (result.view(_torch.uint8) if is_byte else result).fill_(77)
        return result


class GpuModeProblem:
    """One problem.

    Args:
        files: module name → text of the problem's files.
        case: the arguments of `generate_input` for the draw of other values.
        choices: argument → its values, if its axis is an index into them.
        inputs, outputs: name → dtype.
        orders: input or output → its dimensions in the order of the memory. Contiguous tensors are not in it.
    """

    is_cpu = False
    """Whether the device is the CPU, even on a machine with a GPU."""

    def __init__(self, files: dict[str, str], case: dict[str, _Any] | None = None, **form: _Any) -> None:
        self.files, self.case, self.form = files, case or {}, form
        self.modules: dict[str, _Any] = {}
        self.others: _Any = None
        self.result: _Any = None

    def load(self, name: str, path: str | None = None) -> _Any:
        """Return a file as a module. Its imports find the other files of the problem first."""
        if name not in self.modules:
            path, text = path or f"gpumode/{len(_sys.modules)}/{name}.py", self.files[name]
            if self.is_cpu or not _torch.cuda.is_available():
                text = _re.sub(r"\.cuda\(([^()]|\([^()]*\))*\)", ".cpu()", text)
                text = _re.sub(
                    r"""(?<=["'])cuda(?=["':])|(?<=torch\.)cuda(?=\.(synchronize|current_device)\b)""", "cpu", text
                )
            module = self.modules[name] = _types.ModuleType(f"gpumode_{len(_sys.modules)}_{name}")
            module.__dict__.update(__file__=path, __builtins__={**vars(_builtins), "__import__": self.find})
            _sys.modules[module.__name__] = module
            _linecache.cache[path] = (1, None, text.splitlines(keepends=True), path)
            exec(compile(text, path, "exec", dont_inherit=True), vars(module))
        return self.modules[name]

    def find(self, name: str, *others: _Any, **named: _Any) -> _Any:
        """Import a module as `__import__` does."""
        return self.load(name) if name in self.files else _builtins.__import__(name, *others, **named)

    @staticmethod
    def flatten(value: _Any, name: str) -> tuple[dict[str, _Any], _Any]:
        """Return name → part of a nested value, and its structure."""
        parts, structure = _pytree.tree_flatten_with_path(value)
        return {name + _re.sub(r"\W+", "_", _pytree.keystr(path)).rstrip("_"): one for path, one in parts}, structure

    def order(self, name: str, value: _Any) -> _Any:
        """Return a tensor with its dimensions in the order of the memory."""
        order = self.form["orders"].get(name, ())
        return value.permute(order) if order and getattr(value, "ndim", 0) == len(order) else value

    def order_back(self, name: str, value: _Any) -> _Any:
        """Return an input or output with its dimensions in the problem's order."""
        order = self.form["orders"].get(name, ())
        return value.movedim([*range(len(order))], order) if order else value

    def generate(self, case: dict[str, _Any], seed: int = 0) -> _Any:
        """Call `generate_input`, with a seed if the function or the case has one."""
        function = self.load("reference").generate_input
        if "seed" in {*case, *_inspect.signature(function).parameters}:
            case = {**case, "seed": seed}
        with _Fill():
            return function(**case)

    def make_inputs(self, _sizes: dict[str, int]) -> dict[str, _Any]:
        """Draw the inputs of a workload. One in eight seeds is small, since some problems add the seed to their data:
        next to a large number, all differences are within the tolerance. A submission can know the results of all small
        seeds, so few calls get one."""
        chosen = {name: values[_sizes[name]] for name, values in self.form["choices"].items()}
        case = {name: (_sizes | chosen).get(name) for name in self.case}
        parts, _ = self.flatten(self.generate(case, _random.randrange(1 << _random.choice([12, *[31] * 7]))), "data")
        return {name: self.order(name, parts[name]) for name in self.form["inputs"]}

    make_inputs.inputs_agree = True  # type: ignore[attr-defined]

    def make_data(self, values: _Any) -> _Any:
        """Return `data` from the inputs."""
        given = dict(zip(self.form["inputs"], values, strict=True))
        if self.others is None:
            parts, structure = self.flatten(self.generate(self.case), "data")
            self.others = {name: None if name in given else one for name, one in parts.items()}, structure
        others, structure = self.others
        parts = others | {name: self.order_back(name, value) for name, value in given.items()}
        return _pytree.tree_unflatten([*parts.values()], structure)

    def run(self, *values: _Any) -> _Any:
        """Call the reference."""
        returned = self.load("reference").ref_kernel(self.make_data(values))
        outputs, self.result = self.flatten(returned, "output")
        return [self.order(name, value) for name, value in outputs.items()]

    run.inputs_may_change = True  # type: ignore[attr-defined]

    def check_outputs(self, values: list[_Any], outputs: list[_Any]) -> str:
        """Return what the problem's own check says against outputs; empty if they are right."""
        if self.result is None:
            self.run(*_copy.deepcopy(values))
        check, data = self.load("reference").check_implementation, self.make_data(_copy.deepcopy(values))
        parts = [self.order_back(name, value) for name, value in zip(self.form["outputs"], outputs, strict=True)]
        try:
            answer = check(data, _pytree.tree_unflatten(parts, self.result))
        except Exception as error:  # a check can have a mistake that only wrong outputs reach
            is_of_device = isinstance(error, RuntimeError) and str(error).startswith("CUDA")
            if is_of_device or isinstance(error, MemoryError):
                raise  # the outputs are not to blame
            return f"check_implementation raises {type(error).__name__}: {error}"
        is_right, message = answer if isinstance(answer, tuple) else (not answer, answer)
        if is_right and self.has_nan(outputs) and not self.has_nan(self.run(*_copy.deepcopy(values))):
            return "an output has nan, and the reference's has none"  # many a check compares with >, which nan passes
        return "" if is_right else str(message or "check_implementation says no")

    @staticmethod
    def has_nan(values: list[_Any]) -> bool:
        """Return whether a floating-point number of at least 16 bits is nan."""
        wide = [one for one in map(_torch.as_tensor, values) if one.is_floating_point() and one.itemsize > 1]
        return any(bool(one.isnan().any()) for one in wide)

    def bind_solution(self, path: str) -> _Any:
        """Import a file with `custom_kernel`, and return it as a function of the inputs."""
        self.files["submission"] = _Path(path).read_text(encoding="utf-8-sig")
        kernel, outputs = self.load("submission", path).custom_kernel, self.form["outputs"]

        def run(*values: _Any) -> _Any:
            made, _ = self.flatten(kernel(self.make_data(values)), "output")
            ordered = [made[name] for name in (outputs if made.keys() == outputs.keys() else made)]
            return [*map(self.fit, outputs, ordered)] if len(made) == len(outputs) else ordered

        return run

    def fit(self, name: str, value: _Any) -> _Any:
        """Return an output in the definition's form. A number of the same kind gets its dtype, since GPU MODE compares
        values only. A number beyond 8 or 16 bits must not become right by the conversion."""
        dtype = getattr(_torch, self.form["outputs"][name])
        if isinstance(value, _torch.Tensor) and _torch.can_cast(value.dtype, dtype):
            made = value.to(dtype)
            is_narrower = dtype in (_torch.uint8, _torch.int8, _torch.int16) and made.itemsize < value.itemsize
            value = made.where(made.to(value.dtype) == value, made ^ 64) if is_narrower else made
        return self.order(name, value)
