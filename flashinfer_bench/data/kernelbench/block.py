"""Runs a KernelBench task as a reference, and a `ModelNew` as a solution of it.

This file is text: a definition's reference is the task's code, then this block. Only the child of `inspection` and the
processes that run references and solutions execute it. Its names begin with an underscore, except one class.

The state of a module is its tensors: parameters, buffers and plain attributes. A call puts the given tensors into a
module that exists already. Running statistics of a norm in training mode stay in the module, since no call reads them.
"""

import importlib.util as _import
import sys as _sys
from typing import Any as _Any

import torch as _torch


class KernelBenchTask:
    """One task.

    Args:
        namespace: the globals of the task's code.
        dtype: dtype of all floating-point tensors.
        inputs: number of arguments of `forward`.
        written: indexes, among all values, of the state's tensors that a call changes. Each call changes copies.
    """

    seed = 42
    """KernelBench's seed. `Model` and `ModelNew` draw equal weights with it, by which their tensors are paired."""

    def __init__(
        self,
        namespace: dict[str, _Any],
        dtype: str,
        inputs: int = 0,
        written: tuple[int, ...] = (),
    ) -> None:
        self.namespace, self.dtype = namespace, getattr(_torch, dtype)
        self.inputs, self.written = inputs, written
        self._reference: _Any = None

    def run(self, *values: _Any) -> _Any:
        """Call `Model` with the arguments and the state. TF32 is off, so that float32 is exact enough to compare."""
        if self._reference is None:
            model = self.build(self.namespace["Model"], self.seed)
            self._reference = self.connect(model, self.wire(model))
        cudnn = _torch.backends.cudnn
        before, cudnn.allow_tf32 = cudnn.allow_tf32, False
        try:
            return self._reference(*values)
        finally:
            cudnn.allow_tf32 = before

    def make_inputs(self, device: _torch.device) -> list[_Any]:
        """Draw the arguments and the state by the task's own code, on the device if the code allows it."""
        try:
            with _torch.device(device):
                values = self.draw()
        except (RuntimeError, TypeError):  # code that needs the CPU, such as numpy's
            values = self.draw()
        return [self.cast(value) for value in values]

    def draw(self) -> list[_Any]:
        """Return new arguments, and the state of a new `Model`."""
        model = self.namespace["Model"](*self.namespace.get("get_init_inputs", list)())
        return [*self.namespace["get_inputs"](), *self.list_state(model).values()]

    def cast(self, value: _Any) -> _Any:
        """Return a floating-point tensor in the task's dtype, and other values unchanged."""
        is_float = isinstance(value, _torch.Tensor) and value.is_floating_point()
        return value.to(self.dtype) if is_float else value

    def build(self, model: _Any, seed: int) -> _Any:
        """Return a new `Model` or `ModelNew` on the CPU, as KernelBench builds it. Scratch memory is equal in each."""
        before = _torch.get_deterministic_debug_mode()
        _torch.set_deterministic_debug_mode("warn")  # `torch.empty` then fills its result
        try:
            with _torch.random.fork_rng(devices=[]), _torch.no_grad():
                _torch.default_generator.manual_seed(seed)
                arguments = self.namespace.get("get_init_inputs", list)()
                _torch.default_generator.manual_seed(seed)
                made = model(*arguments).requires_grad_(False)
            for tensor in self.list_tensors(made).values():  # also parameters in a plain list
                tensor.requires_grad_(False)
            return made
        finally:
            _torch.set_deterministic_debug_mode(before)

    @staticmethod
    def list_locations(model: _Any) -> dict[str, tuple[_Any, _Any, _Any]]:
        """Return path → container, key and value of each tensor of a module, also in lists and dicts in attributes."""
        found = {}
        for path, module in model.named_modules():
            prefix, attributes = f"{path}." if path else "", vars(module)
            is_norm = isinstance(module, _torch.nn.modules.batchnorm._NormBase)
            skipped = "_buffers" if is_norm and module.training and module.track_running_stats else None
            for name, holder in [*attributes.items(), ("", attributes)]:
                if (isinstance(holder, list) or hasattr(type(holder), "items")) and name != skipped:
                    start = prefix if name in ("", "_parameters", "_buffers") else f"{prefix}{name}."
                    for key, value in enumerate(holder) if isinstance(holder, list) else holder.items():
                        if isinstance(value, _torch.Tensor):
                            found[f"{start}{key}"] = holder, key, value
        return found

    def list_tensors(self, model: _Any) -> dict[str, _Any]:
        """Return path → tensor of a module."""
        return {path: tensor for path, (*_, tensor) in self.list_locations(model).items()}

    def list_state(self, model: _Any) -> dict[str, _Any]:
        """Return path → tensor of a module. A tensor at several paths is listed under the first path."""
        first: dict[int, tuple[str, _Any]] = {}
        for path, tensor in self.list_tensors(model).items():
            first.setdefault(id(tensor), (path, tensor))
        return dict(first.values())

    def wire(self, model: _Any) -> dict[str, int]:
        """Return path → index of the value that belongs there, for a `Model`."""
        indexes = {id(tensor): at for at, tensor in enumerate(self.list_state(model).values(), self.inputs)}
        return {path: indexes[id(tensor)] for path, tensor in self.list_tensors(model).items()}

    def connect(self, model: _Any, wires: dict[str, int]) -> _Any:
        """Return a function of all values that puts the state into a module, and calls it."""
        targets: list[tuple[_Any, ...]] = []
        inputs, written, home = self.inputs, self.written, None

        def call(*values: _Any) -> _Any:
            nonlocal home
            device = next((value.device for value in values if isinstance(value, _torch.Tensor)), None)
            if device != home or home is None:
                model.to(device=device, dtype=self.dtype)
                locations, home = self.list_locations(model), device
                targets.clear()
                for path, index in wires.items():  # what each call needs, since all its time counts
                    holder, key, tensor = locations[path]
                    shape = None if values[index].shape == tensor.shape else tensor.shape
                    targets.append((holder, key, tensor, index, shape, isinstance(tensor, _torch.nn.Parameter)))
            for holder, key, tensor, index, shape, is_parameter in targets:
                value = values[index] if shape is None else values[index].view(shape)
                if index in written or not tensor.is_contiguous():
                    # in the module's layout, such as channels_last
                    value = _torch.empty_like(tensor, dtype=value.dtype, device=value.device).copy_(value)
                if is_parameter:
                    tensor.data = value  # a tuple or a closure may hold the parameter, too
                else:
                    holder[key] = value
            result = model(*values[:inputs])
            return result if type(result) is _torch.Tensor else self.flatten(result)

        return call

    def flatten(self, result: _Any) -> list[_Any]:
        """Return the parts of a nested result, without None. Values of a dict are in the order of its sorted keys."""
        if isinstance(result, dict):
            result = [result[key] for key in sorted(result)]
        if isinstance(result, (list, tuple)):
            return [part for one in result for part in self.flatten(one) if one is not None]
        return [result.data if isinstance(result, _torch.Tensor) else result]  # the next call changes a parameter

    def bind_solution(self, file: str) -> _Any:
        """Import a file with `ModelNew`, and return it as a function of the arguments and the state.

        Raises:
            TypeError: a tensor of `ModelNew` depends on weights, but equals no tensor of the state.
        """
        if self.dtype == _torch.float32:
            _torch.backends.cudnn.allow_tf32 = False  # as in the reference
        spec: _Any = _import.spec_from_file_location("kernelbench_solution", file)
        module = _import.module_from_spec(spec)
        vars(module).update({name: one for name, one in self.namespace.items() if not name.startswith("__")})
        _sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        model, other = (self.build(module.ModelNew, seed) for seed in (self.seed, self.seed + 1))
        given = self.list_state(self.build(self.namespace["Model"], self.seed))
        tensors, others = self.list_tensors(model), self.list_tensors(other)
        equal = {path: [name for name in given if self.is_same(one, given[name])] for path, one in tensors.items()}
        wires, wrong, pairs, parameter = dict[str, int](), list[str](), dict[int, str](), _torch.nn.Parameter
        for path in sorted(tensors, key=lambda path: path not in equal[path]):  # equal names choose first
            tensor = tensors[path]
            is_constant, paired = self.is_same(tensor, others.get(path)), pairs.get(id(tensor))
            names = equal[path]
            if is_constant and not isinstance(tensor, parameter):  # may be scratch memory, or statistics of a norm
                names = [name for name in names if name == path or not isinstance(given[name], parameter)]
            free = [paired] if paired else [name for name in names if name not in pairs.values()]
            fitting = free or ([] if is_constant else names)  # a constant without a partner is the solution's own
            if fitting:
                pairs[id(tensor)] = chosen = path if path in fitting else fitting[0]
                wires[path] = self.inputs + list(given).index(chosen)
            elif not is_constant:
                wrong.append(path)
        if drawn := self.list_numbers(model) - self.list_numbers(other):
            # an address or a time of day differs under the same seed, too
            wrong += [path for path, _ in drawn & self.list_numbers(self.build(module.ModelNew, self.seed))]
        if wrong:
            raise TypeError(
                f"ModelNew is refused: {', '.join(wrong)} depends on the seed, but equals no tensor of Model under "
                f"seed {self.seed}; draw weights as Model does, in its order, and derive others in forward, since "
                "weights are inputs of each call"
            )
        return self.connect(model, wires)

    @staticmethod
    def is_same(tensor: _Any, other: _Any) -> bool:
        """Return whether two tensors have the same bytes in the same order. Shapes of contiguous tensors may differ."""
        return (
            isinstance(other, _torch.Tensor)
            and tensor.dtype == other.dtype
            and (tensor.is_contiguous() or tensor.shape == other.shape)
            and _torch.equal(*(one.cpu().ravel().view(_torch.uint8) for one in (tensor, other)))
        )

    @staticmethod
    def list_numbers(model: _Any) -> set[tuple[str, str]]:
        """Return path and value of each number and text that a module has as a plain attribute."""
        return {
            (f"{path}.{key}".strip("."), repr(value))
            for path, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, (bool, int, float, complex, str))
        }
